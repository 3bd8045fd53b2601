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

    /// `e` to this power, less 1: exact where the power is small.
    #[must_use]
    pub fn exp_m1(self) -> Self {
        Self { value: self.value.exp_m1(), slope: self.value.exp() * self.slope }
    }

    /// Natural logarithm.
    #[must_use]
    pub fn ln(self) -> Self {
        Self { value: self.value.ln(), slope: self.slope / self.value }
    }

    /// `1 / (1 + e^-x)`.
    #[must_use]
    pub fn sigmoid(self) -> Self {
        // Of two equal forms, the one whose power of e cannot overflow.
        let e = (-self.value.abs()).exp();
        let value = if self.value < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) };
        Self { value, slope: e / ((1.0 + e) * (1.0 + e)) * self.slope }
    }

    /// The logarithm of the sigmoid, finite for every finite value.
    #[must_use]
    pub fn log_sigmoid(self) -> Self {
        let value = self.value.min(0.0) - (-self.value.abs()).exp().ln_1p();
        Self { value, slope: (-self).sigmoid().value * self.slope }
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
        for (name, g, at) in [
            ("exp_m1", Dual::exp_m1 as fn(Dual) -> Dual, [-1.2f32, 0.0, 0.9]),
            ("ln", Dual::ln, [0.8, 1.0, 2.5]),
            ("sigmoid", Dual::sigmoid, [-2.0, 0.0, 3.0]),
            ("log_sigmoid", Dual::log_sigmoid, [-2.0, 0.0, 3.0]),
        ] {
            for x in at {
                let h = 1e-2;
                let difference = (g(Dual::variable(x + h)).value - g(Dual::variable(x - h)).value) / (2.0 * h);
                let slope = g(Dual::variable(x)).slope;
                assert!((slope - difference).abs() < 1e-3, "{name} at {x}: {slope} against {difference}");
            }
        }
        for far in [-200.0f32, 200.0] {
            for y in [Dual::variable(far).sigmoid(), Dual::variable(far).log_sigmoid()] {
                assert!(y.value.is_finite() && y.slope.is_finite());
            }
        }
        assert_eq!((Dual::variable(2.0).detach() * Dual::variable(2.0)).slope, 2.0);
    }
}
