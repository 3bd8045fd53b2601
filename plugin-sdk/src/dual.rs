//! Values that carry their derivative with respect to one variable: forward-mode
//! differentiation, for losses whose token terms depend on one log-probability each (or on one
//! per-row sum).

use std::ops::{Add, Div, Mul, Neg, Sub};

/// A value and its derivative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dual {
    /// The value.
    pub value: f32,
    /// Its derivative with respect to the variable.
    pub slope: f32,
}

impl Dual {
    /// The variable itself.
    #[must_use]
    pub fn variable(value: f32) -> Self {
        Self { value, slope: 1.0 }
    }

    /// A constant.
    #[must_use]
    pub fn constant(value: f32) -> Self {
        Self { value, slope: 0.0 }
    }

    /// The same value, taken as a constant (stop-gradient).
    #[must_use]
    pub fn detach(self) -> Self {
        Self::constant(self.value)
    }

    /// `e` to this power.
    #[must_use]
    pub fn exp(self) -> Self {
        let e = self.value.exp();
        Self { value: e, slope: e * self.slope }
    }

    /// The lesser of two; the first where they are equal.
    #[must_use]
    pub fn min(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        if other.value < self.value { other } else { self }
    }

    /// The greater of two; the first where they are equal.
    #[must_use]
    pub fn max(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        if other.value > self.value { other } else { self }
    }

    /// Limited to `low..=high`; the derivative vanishes outside.
    #[must_use]
    pub fn clamp(self, low: f32, high: f32) -> Self {
        self.max(low).min(high)
    }
}

impl From<f32> for Dual {
    fn from(value: f32) -> Self {
        Self::constant(value)
    }
}

impl<T: Into<Dual>> Add<T> for Dual {
    type Output = Self;
    fn add(self, other: T) -> Self {
        let other = other.into();
        Self { value: self.value + other.value, slope: self.slope + other.slope }
    }
}

impl<T: Into<Dual>> Sub<T> for Dual {
    type Output = Self;
    fn sub(self, other: T) -> Self {
        self + -other.into()
    }
}

impl<T: Into<Dual>> Mul<T> for Dual {
    type Output = Self;
    fn mul(self, other: T) -> Self {
        let other = other.into();
        Self { value: self.value * other.value, slope: self.slope * other.value + self.value * other.slope }
    }
}

impl<T: Into<Dual>> Div<T> for Dual {
    type Output = Self;
    fn div(self, other: T) -> Self {
        let other = other.into();
        let value = self.value / other.value;
        Self { value, slope: (self.slope - value * other.slope) / other.value }
    }
}

impl Neg for Dual {
    type Output = Self;
    fn neg(self) -> Self {
        Self { value: -self.value, slope: -self.slope }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_follow_finite_differences() {
        let f = |x: Dual| (x - 0.3).exp() * x / (x + 2.0) - x.clamp(-0.5, 0.5) * 3.0 + x.min(0.1).max(-4.0);
        for x in [-1.2f32, -0.2, 0.05, 0.3, 0.9] {
            let h = 1e-3;
            let difference = (f(Dual::variable(x + h)).value - f(Dual::variable(x - h)).value) / (2.0 * h);
            let slope = f(Dual::variable(x)).slope;
            assert!((slope - difference).abs() < 2e-3, "at {x}: {slope} against {difference}");
        }
        assert_eq!((Dual::variable(2.0).detach() * Dual::variable(2.0)).slope, 2.0);
    }
}
