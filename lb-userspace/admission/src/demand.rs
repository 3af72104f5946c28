//! How many seats a level wanted over a period: the input of borrowing.

/// Keeps the time-weighted mean, deviation and extremes of a number that changes in steps.
#[derive(Clone, Copy, Debug)]
pub struct DemandIntegrator {
    value: f64,
    /// The moment up to which the sums are complete, in nanoseconds.
    integrated_at: u64,
    seconds: f64,
    integral: f64,
    integral_of_squares: f64,
    min: f64,
    max: f64,
}

/// What a [`DemandIntegrator`] saw in a period.
#[derive(Clone, Copy, Debug)]
pub struct DemandStatistics {
    /// In seconds.
    pub duration: f64,
    /// NaN if the duration is zero.
    pub average: f64,
    /// Standard deviation over every moment of the period (of the population, not of a sample). NaN
    /// if the duration is zero.
    pub deviation: f64,
    pub min: f64,
    pub max: f64,
}

impl DemandIntegrator {
    /// Starts a period, with the value zero.
    pub fn new(now: u64) -> Self {
        Self {
            value: 0.0,
            integrated_at: now,
            seconds: 0.0,
            integral: 0.0,
            integral_of_squares: 0.0,
            min: 0.0,
            max: 0.0,
        }
    }

    /// Changes the value.
    pub fn set(&mut self, value: f64, now: u64) {
        self.integrate(now);
        self.value = value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// The period so far.
    pub fn statistics(&mut self, now: u64) -> DemandStatistics {
        self.integrate(now);
        let average = self.integral / self.seconds;
        let variance = self.integral_of_squares / self.seconds - average * average;
        DemandStatistics {
            duration: self.seconds,
            average,
            deviation: variance.sqrt(),
            min: self.min,
            max: self.max,
        }
    }

    /// Ends the period and starts the next. The extremes of the next one start with the present
    /// value.
    pub fn reset(&mut self, now: u64) -> DemandStatistics {
        let statistics = self.statistics(now);
        *self = Self {
            value: self.value,
            min: self.value,
            max: self.value,
            ..Self::new(now)
        };
        statistics
    }

    fn integrate(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.integrated_at) as f64 / 1e9;
        self.integrated_at = self.integrated_at.max(now);
        self.seconds += seconds;
        self.integral += seconds * self.value;
        self.integral_of_squares += seconds * self.value * self.value;
    }
}
