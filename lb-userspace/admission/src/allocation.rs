//! Divides a number of seats in proportion to what each class wants, within bounds: the "fair
//! fraction" of KEP-1040.

use thiserror::Error;

/// Smaller targets count as this, so that every class gets some of the spare seats.
const MIN_TARGET: f64 = 0.001;
/// Sums that differ by no more than this count as equal.
const EPSILON: f64 = 1e-7;

/// One of those who share the seats. All in seats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// The least that it must get, zero or more.
    pub lower: f64,
    /// What it would like to get, at least `lower`.
    pub target: f64,
    /// The most that it may get, at least `lower`.
    pub upper: f64,
}

/// The result of [`allocate`].
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// Seats of each class, in the order of the classes.
    pub seats: Vec<f64>,
    /// Each class gets its target times this, unless a bound stands in the way.
    pub fair_fraction: f64,
}

/// Why there is no allocation. Classes are counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AllocationError {
    #[error("required sum negative")]
    RequiredNegative,
    #[error("lower bound {0} negative")]
    LowerNegative(usize),
    #[error("target {0} below lower bound")]
    TargetBelowLower(usize),
    #[error("upper bound {0} below lower bound")]
    UpperBelowLower(usize),
    #[error("lower bounds sum above required sum")]
    LowersExceedRequired,
    #[error("upper bounds sum below required sum")]
    UppersBelowRequired,
}

/// Divides exactly `required` seats: each class gets the same fraction of its target, clamped to
/// its bounds.
///
/// # Errors
/// If a class is malformed or the bounds leave no solution.
pub fn allocate(required: i64, classes: &[Class]) -> Result<Allocation, AllocationError> {
    if required < 0 {
        return Err(AllocationError::RequiredNegative);
    }
    let required = required as f64;
    check(required, classes)?;
    if required == 0.0 {
        return Ok(Allocation {
            seats: vec![0.0; classes.len()],
            fair_fraction: 0.0,
        });
    }
    let sum = |of: fn(&Class) -> f64| classes.iter().map(of).sum::<f64>();
    if (sum(|class| class.lower) - required).abs() < EPSILON {
        let fractions = classes.iter().map(Class::lower_fraction);
        return Ok(Allocation {
            seats: classes.iter().map(|class| class.lower).collect(),
            fair_fraction: fractions.fold(f64::INFINITY, f64::min),
        });
    }
    if (sum(|class| class.upper) - required).abs() < EPSILON {
        let fractions = classes.iter().map(Class::upper_fraction);
        return Ok(Allocation {
            seats: classes.iter().map(|class| class.upper).collect(),
            fair_fraction: fractions.fold(0.0, f64::max),
        });
    }
    let fraction = match required / sum(Class::weight) {
        fraction if classes.iter().all(|class| class.is_free_at(fraction)) => fraction,
        _ => sweep(required, classes),
    };
    let given = |class: &Class| {
        (fraction * class.weight())
            .max(class.lower)
            .min(class.upper)
    };
    Ok(Allocation {
        seats: classes.iter().map(given).collect(),
        fair_fraction: fraction,
    })
}

impl Class {
    /// The target, at least [`MIN_TARGET`].
    fn weight(&self) -> f64 {
        self.target.max(MIN_TARGET)
    }

    fn lower_fraction(&self) -> f64 {
        self.lower / self.weight()
    }

    fn upper_fraction(&self) -> f64 {
        self.upper / self.weight()
    }

    /// Whether neither bound changes what the class gets at this fraction.
    fn is_free_at(&self, fraction: f64) -> bool {
        (self.lower_fraction()..=self.upper_fraction()).contains(&fraction)
    }
}

fn check(required: f64, classes: &[Class]) -> Result<(), AllocationError> {
    for (index, class) in classes.iter().enumerate() {
        if class.lower < 0.0 {
            return Err(AllocationError::LowerNegative(index));
        }
        if class.target < class.lower {
            return Err(AllocationError::TargetBelowLower(index));
        }
        if class.upper < class.lower {
            return Err(AllocationError::UpperBelowLower(index));
        }
    }
    let lowers: f64 = classes.iter().map(|class| class.lower).sum();
    let uppers: f64 = classes.iter().map(|class| class.upper).sum();
    if lowers - required > EPSILON {
        return Err(AllocationError::LowersExceedRequired);
    }
    if required - uppers > EPSILON {
        return Err(AllocationError::UppersBelowRequired);
    }
    Ok(())
}

/// Raises the fraction from bound to bound until the sum, which only grows, reaches `required`.
fn sweep(required: f64, classes: &[Class]) -> f64 {
    // The fractions at which a class starts and stops to grow.
    let mut bounds: Vec<(f64, f64)> = classes
        .iter()
        .flat_map(|class| {
            [
                (class.lower_fraction(), class.weight()),
                (class.upper_fraction(), -class.weight()),
            ]
        })
        .collect();
    bounds.sort_by(|one, other| one.0.total_cmp(&other.0));

    let mut sum: f64 = classes.iter().map(|class| class.lower).sum();
    let (mut fraction, mut growing, mut slope) = (0.0, 0, 0.0);
    for (bound, change) in bounds {
        if growing > 0 && sum + (bound - fraction) * slope >= required {
            break;
        }
        if growing > 0 {
            sum += (bound - fraction) * slope;
        }
        fraction = bound;
        slope += change;
        growing += if change > 0.0 { 1 } else { -1 };
    }
    // If rounding let it pass all bounds, the fraction is the last bound.
    match growing {
        0 => fraction,
        _ => fraction + (required - sum) / slope,
    }
}
