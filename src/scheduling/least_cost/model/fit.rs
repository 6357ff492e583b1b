//! Robust recursive least squares with two unknowns.

/// y ~ x . beta, where errors are relative to `scale`.
pub struct Sample {
    pub x: [f64; 2],
    pub y: f64,
    /// Size of the observation: a second too many on ten weighs as much as a tenth on one.
    pub scale: f64,
}

/// Where an unknown may lie.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub low: f64,
    pub high: f64,
}

/// Relative errors beyond this many typical ones lose influence (Huber 1964).
const HUBER: f64 = 1.5;

/// Share of its error that one observation teaches the typical error.
const NOISE_STEP: f64 = 0.05;

/// Bounds of the typical relative error: never so sure that everything is an outlier.
const NOISE: Bounds = Bounds { low: 0.05, high: 2.0 };

/// Observations that "as believed" weighs as much as when an endpoint is compared with the fleet.
const FACTOR_STRENGTH: f64 = 4.0;

/// How far an endpoint may be from the fleet.
const FACTOR: Bounds = Bounds {
    low: 0.05,
    high: 20.0,
};

/// Weighted normal equations of two unknowns with exponential forgetting.
#[derive(Clone, Debug)]
pub struct Fit {
    memory: f64,
    /// x x^T: [x0 x0, x0 x1, x1 x1].
    xx: [f64; 3],
    /// x y.
    xy: [f64; 2],
    /// Weight of all observations, where one without doubt counts 1.
    count: f64,
    /// Typical relative error.
    noise: f64,
    /// Standard error of what the observations say together. Kept, as it is asked for far more often than it changes.
    standard_error: f64,
}

impl Fit {
    /// `memory`: what an observation keeps of its weight with each newer one.
    pub fn new(memory: f64) -> Self {
        Self {
            memory,
            xx: [0.0; 3],
            xy: [0.0; 2],
            count: 0.0,
            noise: 1.0,
            standard_error: 1.0,
        }
    }

    /// Takes an observation in; `believed` is the current solution, which decides what is an outlier.
    pub fn add(&mut self, sample: &Sample, believed: [f64; 2]) {
        let predicted = sample.x[0] * believed[0] + sample.x[1] * believed[1];
        // The larger of both as the yardstick: neither a stalled request nor a lucky one counts for much.
        let yardstick = sample.scale.max(predicted);
        let error = ((sample.y - predicted) / yardstick).abs();
        self.noise += NOISE_STEP * (error - self.noise);
        self.noise = self.noise.clamp(NOISE.low, NOISE.high);
        let influence = (HUBER * self.noise / error.max(f64::MIN_POSITIVE)).min(1.0);
        let weight = influence / (yardstick * yardstick);
        self.count = self.count * self.memory + influence;
        self.standard_error = self.noise / self.count.max(1.0).sqrt();
        let [x0, x1] = sample.x;
        for (sum, term) in self.xx.iter_mut().zip([x0 * x0, x0 * x1, x1 * x1]) {
            *sum = *sum * self.memory + weight * term;
        }
        for (sum, term) in self.xy.iter_mut().zip([x0 * sample.y, x1 * sample.y]) {
            *sum = *sum * self.memory + weight * term;
        }
    }

    /// [`Fit::add`] for fits that [`Fit::factor`] is asked of: what fits the own factor is no outlier.
    pub fn add_scaled(&mut self, sample: &Sample, believed: [f64; 2]) {
        let factor = self.factor(believed);
        self.add(sample, believed.map(|unknown| unknown * factor));
    }

    /// The one factor on `believed` that explains the observations best, drawn towards 1,
    /// and no further from 1 than they prove: a difference within the standard error is none.
    pub fn factor(&self, believed: [f64; 2]) -> f64 {
        if self.count == 0.0 {
            return 1.0;
        }
        let [b0, b1] = believed;
        let predicted2 = self.xx[0] * b0 * b0 + 2.0 * self.xx[1] * b0 * b1 + self.xx[2] * b1 * b1;
        let observed = self.xy[0] * b0 + self.xy[1] * b1;
        let factor = (observed + FACTOR_STRENGTH) / (predicted2 + FACTOR_STRENGTH);
        if !(factor.is_finite() && factor > 0.0) {
            return 1.0;
        }
        let proven = if factor > 1.0 {
            (factor - self.standard_error).max(1.0)
        } else {
            (factor + self.standard_error).min(1.0)
        };
        proven.clamp(FACTOR.low, FACTOR.high)
    }

    /// The unknowns within their bounds, drawn towards `prior` by `strength` observations of it.
    pub fn solve(&self, prior: [f64; 2], strength: f64, bounds: [Bounds; 2]) -> [f64; 2] {
        // In units of the prior both unknowns are near 1, and so is what the prior says of them.
        let unit = [prior[0].max(f64::MIN_POSITIVE), prior[1].max(1e-6)];
        let m00 = self.xx[0] * unit[0] * unit[0] + strength;
        let m01 = self.xx[1] * unit[0] * unit[1];
        let m11 = self.xx[2] * unit[1] * unit[1] + strength;
        let r0 = self.xy[0] * unit[0] + strength;
        let r1 = self.xy[1] * unit[1] + strength;
        let determinant = m00 * m11 - m01 * m01;
        let free = [
            (r0 * m11 - r1 * m01) / determinant,
            (r1 * m00 - r0 * m01) / determinant,
        ];
        let clamp = |i: usize, value: f64| value.clamp(bounds[i].low / unit[i], bounds[i].high / unit[i]);
        // One unknown at its bound: the other is solved anew with it held there.
        let second = clamp(1, free[1]);
        let first = clamp(
            0,
            if second == free[1] {
                free[0]
            } else {
                (r0 - m01 * second) / m00
            },
        );
        let second = if first == free[0] {
            second
        } else {
            clamp(1, (r1 - m01 * first) / m11)
        };
        let solved = [first * unit[0], second * unit[1]];
        if solved.iter().all(|x| x.is_finite()) {
            solved
        } else {
            prior
        }
    }
}
