//! A picture of a replay: how TTFT is distributed, and how evenly the endpoints were loaded over time.

use super::run::Outcome;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// Width and height of the picture in pixels.
const SIZE: (u32, u32) = (1200, 480);

/// Steps into which the time line is cut for the load.
const LOAD_STEPS: usize = 120;

/// Why no picture was drawn: the drawing library's words.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct PlotError(String);

fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError(error.to_string())
}

/// Draws an SVG: left the cumulative distribution of TTFT per policy, right the most loaded endpoint's
/// share of the requests in flight against an even share.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(path: &Path, outcomes: &[(String, &Outcome)], endpoints: usize) -> Result<(), PlotError> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);
    draw_ttft(&left, outcomes)?;
    draw_load(&right, outcomes, endpoints)?;
    root.present().map_err(failed)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_ttft(area: &Area, outcomes: &[(String, &Outcome)]) -> Result<(), PlotError> {
    let sorted = |outcome: &Outcome| {
        let mut ttft: Vec<f64> = outcome
            .records
            .iter()
            .map(|record| record.ttft_s.max(1e-3))
            .collect();
        ttft.sort_by(f64::total_cmp);
        ttft
    };
    let lines: Vec<_> = outcomes
        .iter()
        .map(|(name, outcome)| (name, sorted(outcome)))
        .collect();
    let low = lines
        .iter()
        .filter_map(|(_, ttft)| ttft.first())
        .copied()
        .fold(1.0, f64::min);
    let high = lines
        .iter()
        .filter_map(|(_, ttft)| ttft.last())
        .copied()
        .fold(low * 10.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("time to the first token", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d((low..high).log_scale(), 0.0..1.0)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("share of requests")
        .draw()
        .map_err(failed)?;
    for (index, (name, ttft)) in lines.iter().enumerate() {
        let count = ttft.len().max(1);
        let step = count.div_ceil(500);
        let points = (0..ttft.len())
            .step_by(step)
            .map(|i| (ttft[i], (i + 1) as f64 / count as f64));
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(failed)?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    let labels = chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .draw();
    labels.map_err(failed)
}

fn draw_load(area: &Area, outcomes: &[(String, &Outcome)], endpoints: usize) -> Result<(), PlotError> {
    let ends = outcomes
        .iter()
        .flat_map(|(_, outcome)| &outcome.records)
        .map(|record| record.ended_s);
    let end_s = ends.fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(
            "most loaded endpoint: requests in flight over an even share",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..end_s, 1.0..endpoints.max(2) as f64)
        .map_err(failed)?;
    chart.configure_mesh().x_desc("seconds").draw().map_err(failed)?;
    for (index, (_, outcome)) in outcomes.iter().enumerate() {
        let points = imbalance(outcome, endpoints, end_s);
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(failed)?;
    }
    Ok(())
}

/// (time, busiest endpoint's requests in flight over the mean), where anything is in flight.
fn imbalance(outcome: &Outcome, endpoints: usize, end_s: f64) -> Vec<(f64, f64)> {
    let step_s = end_s / LOAD_STEPS as f64;
    let mut inflight = vec![vec![0.0f64; endpoints]; LOAD_STEPS];
    for record in &outcome.records {
        let first = (record.arrived_s / step_s) as usize;
        let last = (record.ended_s / step_s) as usize;
        for counts in inflight.iter_mut().take(last + 1).skip(first) {
            counts[record.endpoint] += 1.0;
        }
    }
    let ratio = |counts: &Vec<f64>| {
        let sum: f64 = counts.iter().sum();
        (sum > 0.0).then(|| counts.iter().copied().fold(0.0, f64::max) * endpoints as f64 / sum)
    };
    let points = inflight.iter().enumerate();
    points
        .filter_map(|(step, counts)| Some((step as f64 * step_s, ratio(counts)?)))
        .collect()
}
