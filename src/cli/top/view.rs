//! What the terminal shows, drawn from plain values.

use super::Decision;
use super::rates::{Rates, Window, ratio};
use crate::admin::stats::{EndpointStats, PoolStats, Stats};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

/// Rows kept for the decisions, their heading included.
const DECISION_ROWS: u16 = 9;
/// Cells of a bar.
const BAR: usize = 8;

/// One moment of what is shown.
pub struct Scene<'a> {
    pub window: &'a Window,
    pub decisions: &'a [Decision],
    pub fault: Option<&'a str>,
}

/// What the operator chose to see.
#[derive(Debug, Default)]
pub struct View {
    pool: usize,
    order: Order,
    table: TableState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    /// As in the configuration.
    #[default]
    Configured,
    InFlight,
    PromptTokens,
    HitRate,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Configured => Self::InFlight,
            Self::InFlight => Self::PromptTokens,
            Self::PromptTokens => Self::HitRate,
            Self::HitRate => Self::Configured,
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::InFlight => "in flight",
            Self::PromptTokens => "prompt tokens",
            Self::HitRate => "hit rate",
        }
    }
}

impl View {
    /// Takes a key.
    pub fn key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(10),
            KeyCode::PageUp => self.table.scroll_up_by(10),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('p') | KeyCode::Tab => self.pool = self.pool.wrapping_add(1),
            _ => {}
        }
    }

    /// Draws one frame.
    pub fn draw(&mut self, frame: &mut Frame, scene: &Scene) {
        let [head, figures, fleet, decisions, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Min(4),
            Constraint::Length(DECISION_ROWS),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let stats = scene.window.newest();
        self.pool %= stats.map_or(1, |stats| stats.pools.len()).max(1);
        let Some((stats, pool)) = stats.and_then(|stats| Some((stats, stats.pools.get(self.pool)?))) else {
            let text = scene.fault.unwrap_or("waiting for the gateway");
            return frame.render_widget(Paragraph::new(text).red(), frame.area());
        };
        let rates = scene.window.rates(self.pool);
        frame.render_widget(heading(stats, self.pool, scene), head);
        frame.render_widget(
            key_figures(stats, pool, &rates, scene.window.earlier_pool(self.pool)),
            figures,
        );
        self.fleet(frame, fleet, pool, &rates);
        draw_decisions(frame, decisions, pool, scene.decisions);
        let keys = format!("q quit  ↑↓ scroll  s sort: {}  p next pool", self.order.label());
        frame.render_widget(Paragraph::new(keys).dim(), foot);
    }

    fn fleet(&mut self, frame: &mut Frame, area: Rect, pool: &PoolStats, rates: &[Rates]) {
        let mut rows: Vec<_> = pool.endpoints.iter().zip(rates).collect();
        let descending = |a: f64, b: f64| b.total_cmp(&a);
        match self.order {
            Order::Configured => {}
            Order::InFlight => rows.sort_by_key(|(e, _)| std::cmp::Reverse(e.inflight_requests)),
            Order::PromptTokens => {
                rows.sort_by(|a, b| descending(a.1.prompt_tokens_per_s, b.1.prompt_tokens_per_s));
            }
            Order::HitRate => rows.sort_by(|a, b| {
                descending(
                    a.1.predicted_hits.unwrap_or(-1.0),
                    b.1.predicted_hits.unwrap_or(-1.0),
                )
            }),
        }
        let all: f64 = rates.iter().map(|rates| rates.prompt_tokens_per_s).sum();
        let rows = rows
            .into_iter()
            .map(|(endpoint, rates)| row(endpoint, rates, all));
        let widths = COLUMNS.map(|(_, width)| width);
        let header = Row::new(COLUMNS.map(|(title, _)| title))
            .style(Style::new().dim().add_modifier(Modifier::UNDERLINED));
        let table = Table::new(rows, widths)
            .header(header)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

const COLUMNS: [(&str, Constraint); 12] = [
    ("ENDPOINT", Constraint::Fill(2)),
    ("STATE", Constraint::Length(8)),
    ("INFLT", Constraint::Length(5)),
    ("PENDING", Constraint::Length(7)),
    ("QUEUE", Constraint::Length(5)),
    ("KV IN USE", Constraint::Length(13)),
    ("SHARE OF TOKENS", Constraint::Length(15)),
    ("HITS", Constraint::Length(5)),
    ("ENGINE", Constraint::Length(6)),
    ("TTFT", Constraint::Length(7)),
    ("REQ/S", Constraint::Length(6)),
    ("OUT/S", Constraint::Length(6)),
];

fn row(endpoint: &EndpointStats, rates: &Rates, all_tokens_per_s: f64) -> Row<'static> {
    let state = match endpoint.state.as_str() {
        "ready" => Color::Green,
        "draining" => Color::Yellow,
        _ => Color::Red,
    };
    let whole = |value: f64| count(value.round());
    Row::new([
        Cell::from(endpoint.name.clone()).bold(),
        Cell::from(endpoint.state.clone()).fg(state),
        Cell::from(endpoint.inflight_requests.to_string()),
        Cell::from(count(endpoint.pending_prefill_tokens as f64)),
        Cell::from(endpoint.waiting.map_or_else(none, whole)),
        Cell::from(bar(endpoint.kv_usage, Color::Blue)),
        Cell::from(bar(
            ratio(rates.prompt_tokens_per_s, all_tokens_per_s),
            Color::Magenta,
        )),
        Cell::from(percent(rates.predicted_hits)),
        Cell::from(percent(rates.engine_hits)),
        Cell::from(rates.first_byte_s.map_or_else(none, seconds)),
        Cell::from(count(rates.requests_per_s)),
        Cell::from(whole(rates.output_tokens_per_s)),
    ])
}

fn heading(stats: &Stats, at: usize, scene: &Scene) -> Paragraph<'static> {
    let state = match (scene.fault, stats.pending.first()) {
        (Some(fault), _) => Span::from(fault.to_owned()).red().bold(),
        (None, Some(pending)) => Span::from(format!("not ready: {pending}")).red().bold(),
        (None, None) => Span::from("ready").green().bold(),
    };
    let uptime_s = stats.uptime_ms / 1000;
    let (pools, pool) = (stats.pools.len(), &stats.pools[at]);
    let of = if pools > 1 {
        format!(" ({} of {pools})", at + 1)
    } else {
        String::new()
    };
    Paragraph::new(Line::from(vec![
        Span::from(format!("Homing {}  ", stats.version)).bold(),
        state,
        Span::from(format!(
            "  pool {}{of}  {}  up {}:{:02}:{:02}",
            pool.name,
            pool.policy,
            uptime_s / 3600,
            uptime_s / 60 % 60,
            uptime_s % 60
        )),
    ]))
}

fn key_figures(
    stats: &Stats,
    pool: &PoolStats,
    rates: &[Rates],
    earlier: Option<&PoolStats>,
) -> Paragraph<'static> {
    let sum = |of: fn(&Rates) -> f64| rates.iter().map(of).sum::<f64>();
    let first_byte = earlier.map(|earlier| pool.first_byte.since(&earlier.first_byte));
    let quantile = |q| {
        first_byte
            .as_ref()
            .and_then(|b| b.quantile_s(q))
            .map_or_else(none, seconds)
    };
    let grown = |of: fn(&EndpointStats) -> u64| {
        let total = |pool: &PoolStats| pool.endpoints.iter().map(of).sum::<u64>();
        earlier.map_or(0, |earlier| total(pool).saturating_sub(total(earlier))) as f64
    };
    let hits = ratio(grown(|e| e.matched_blocks), grown(|e| e.prompt_blocks));
    let ready = pool.endpoints.iter().filter(|e| e.state == "ready").count();
    let errors: u64 = stats.errors.values().sum();
    Paragraph::new(vec![Line::from(vec![
        figure("endpoints ready", format!("{ready}/{}", pool.endpoints.len())),
        figure("requests/s", count(sum(|r| r.requests_per_s))),
        figure("prompt tok/s", count(sum(|r| r.prompt_tokens_per_s).round())),
        figure("output tok/s", count(sum(|r| r.output_tokens_per_s).round())),
        figure("hit rate", percent(hits)),
        figure("TTFT p50", quantile(0.5)),
        figure("p99", quantile(0.99)),
        figure("errors", count(errors as f64)),
    ])])
}

fn figure(label: &str, value: String) -> Span<'static> {
    Span::from(format!("{label} {value}   "))
}

fn draw_decisions(frame: &mut Frame, area: Rect, pool: &PoolStats, decisions: &[Decision]) {
    let title = Line::from("DECISIONS").style(Style::new().dim().add_modifier(Modifier::UNDERLINED));
    let of_pool = decisions.iter().filter(|d| d.pool == pool.name);
    let lines = of_pool
        .take(usize::from(area.height.saturating_sub(1)))
        .map(decision_line);
    frame.render_widget(
        Paragraph::new(std::iter::once(title).chain(lines).collect::<Vec<_>>()),
        area,
    );
}

fn decision_line(decision: &Decision) -> Line<'static> {
    let kind = match decision.kind.as_str() {
        "warm" => Color::Yellow,
        "cold" => Color::Blue,
        _ => Color::DarkGray,
    };
    let endpoint = decision.endpoint.as_deref().unwrap_or("none");
    let status = if decision.status < 400 {
        Span::from(format!("{:<16} ", endpoint))
    } else {
        Span::from(format!("{endpoint} {:<5} ", decision.status)).red()
    };
    let first_byte = decision.ttfb_ms.map_or_else(none, |ms| seconds(ms / 1000.0));
    Line::from(vec![
        Span::from(format!("{:<8}", decision.kind)).fg(kind),
        status,
        Span::from(format!("{first_byte:>7}  {}  ", decision.model)),
        Span::from(decision.why.clone()).dim(),
    ])
}

/// A bar of a share with its percentage.
fn bar(share: Option<f64>, colour: Color) -> Line<'static> {
    let filled = ((share.unwrap_or(0.0).clamp(0.0, 1.0) * BAR as f64).round() as usize).min(BAR);
    Line::from(vec![
        Span::from("█".repeat(filled)).fg(colour),
        Span::from("·".repeat(BAR - filled)).dim(),
        Span::from(format!(" {}", percent(share))),
    ])
}

fn none() -> String {
    "-".to_owned()
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(none, |share| format!("{:.0}%", share * 100.0))
}

fn seconds(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}s"),
        v if v >= 1.0 => format!("{v:.2}s"),
        v if v >= 1e-3 => format!("{:.0}ms", v * 1e3),
        v => format!("{:.0}us", v * 1e6),
    }
}

fn count(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.1}G", v / 1e9),
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v if v.fract() == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// A drawn screen as lines of text, without colours and trailing blanks.
pub fn as_text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width).map(|row| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect::<String>().trim_end().to_owned() + "\n"
}
