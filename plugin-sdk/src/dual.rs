//! Forward-mode differentiation: values that carry their derivatives with respect to a few variables. Use it for losses whose token terms
//! depend on one log-probability each, or whose pair terms depend on one sum per completion.

use std::array::from_fn;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A value and its derivatives with respect to `N` variables, in f64: the difference of two sums of log-probabilities over long completions
/// would have too few digits in f32.
///
/// ```
/// use rlhost_plugin_sdk::dual::Dual;
///
/// let [chosen, rejected] = Dual::variables([-12.5, -14.0]);
/// let loss = -((chosen - rejected) * 0.1).log_sigmoid();
/// assert_eq!(loss.slopes[0], -loss.slopes[1]);
/// assert!(loss.slopes[0] < 0.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dual<const N: usize = 1> {
    /// The value.
    pub value: f64,
    /// Derivative of the value with respect to each variable.
    pub slopes: [f64; N],
}

impl Dual<1> {
    /// Creates the only variable.
    #[must_use]
    pub fn variable(value: impl Into<f64>) -> Self {
        Self { value: value.into(), slopes: [1.0] }
    }

    /// Returns the derivative with respect to the only variable.
    #[must_use]
    pub fn slope(self) -> f64 {
        self.slopes[0]
    }
}

impl<const N: usize> Dual<N> {
    /// Creates all variables, in the order of their derivatives.
    #[must_use]
    pub fn variables(values: [f64; N]) -> [Self; N] {
        from_fn(|i| Self { value: values[i], slopes: from_fn(|j| f64::from(u8::from(i == j))) })
    }

    /// Creates a constant.
    #[must_use]
    pub fn constant(value: impl Into<f64>) -> Self {
        Self { value: value.into(), slopes: [0.0; N] }
    }

    /// Returns the value as a constant (stop-gradient).
    #[must_use]
    pub fn detach(self) -> Self {
        Self::constant(self.value)
    }

    /// Applies a function with this value and derivative.
    fn chain(self, value: f64, slope: f64) -> Self {
        Self { value, slopes: self.slopes.map(|s| s * slope) }
    }

    /// Applies a function of two variables with this value and derivatives.
    fn join(self, other: Self, value: f64, slope: f64, other_slope: f64) -> Self {
        Self { value, slopes: from_fn(|i| slope * self.slopes[i] + other_slope * other.slopes[i]) }
    }

    /// Returns `e` to this power.
    #[must_use]
    pub fn exp(self) -> Self {
        let e = self.value.exp();
        self.chain(e, e)
    }

    /// Returns `e` to this power minus 1, accurate near zero.
    #[must_use]
    pub fn exp_m1(self) -> Self {
        self.chain(self.value.exp_m1(), self.value.exp())
    }

    /// Returns the natural logarithm.
    #[must_use]
    pub fn ln(self) -> Self {
        self.chain(self.value.ln(), 1.0 / self.value)
    }

    /// Returns `1 / (1 + e^-x)`, without overflow.
    #[must_use]
    pub fn sigmoid(self) -> Self {
        self.chain(sigmoid(self.value), sigmoid(self.value) * sigmoid(-self.value))
    }

    /// Returns the logarithm of [`Dual::sigmoid`], accurate even if the sigmoid is nearly 0 or 1.
    #[must_use]
    pub fn log_sigmoid(self) -> Self {
        self.chain(self.value.min(0.0) - (-self.value.abs()).exp().ln_1p(), sigmoid(-self.value))
    }

    /// Returns the absolute value; the derivative at zero is 0.
    #[must_use]
    pub fn abs(self) -> Self {
        self.chain(self.value.abs(), if self.value == 0.0 { 0.0 } else { self.value.signum() })
    }

    /// Returns an integer power.
    #[must_use]
    pub fn powi(self, n: i32) -> Self {
        self.chain(self.value.powi(n), f64::from(n) * self.value.powi(n - 1))
    }

    /// Returns the square.
    #[must_use]
    pub fn square(self) -> Self {
        self * self
    }

    /// Returns the smaller of two values; the first if they are equal.
    #[must_use]
    pub fn min(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        if other.value < self.value { other } else { self }
    }

    /// Returns the larger of two values; the first if they are equal.
    #[must_use]
    pub fn max(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        if other.value > self.value { other } else { self }
    }

    /// Limits the value to `low..=high`; the derivative outside is 0.
    #[must_use]
    pub fn clamp(self, low: impl Into<Self>, high: impl Into<Self>) -> Self {
        self.max(low).min(high)
    }
}

fn sigmoid(x: f64) -> f64 {
    // The exponent is never positive, so nothing overflows.
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

impl<const N: usize> From<f32> for Dual<N> {
    fn from(value: f32) -> Self {
        Self::constant(value)
    }
}

impl<const N: usize> From<f64> for Dual<N> {
    fn from(value: f64) -> Self {
        Self::constant(value)
    }
}

impl<const N: usize, T: Into<Self>> Add<T> for Dual<N> {
    type Output = Self;
    fn add(self, other: T) -> Self {
        let other = other.into();
        self.join(other, self.value + other.value, 1.0, 1.0)
    }
}

impl<const N: usize, T: Into<Self>> Sub<T> for Dual<N> {
    type Output = Self;
    fn sub(self, other: T) -> Self {
        self + -other.into()
    }
}

impl<const N: usize, T: Into<Self>> Mul<T> for Dual<N> {
    type Output = Self;
    fn mul(self, other: T) -> Self {
        let other = other.into();
        self.join(other, self.value * other.value, other.value, self.value)
    }
}

impl<const N: usize, T: Into<Self>> Div<T> for Dual<N> {
    type Output = Self;
    fn div(self, other: T) -> Self {
        let other = other.into();
        let value = self.value / other.value;
        self.join(other, value, 1.0 / other.value, -value / other.value)
    }
}

impl<const N: usize> Neg for Dual<N> {
    type Output = Self;
    fn neg(self) -> Self {
        Self { value: -self.value, slopes: self.slopes.map(|s| -s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type UnaryFunction = fn(Dual) -> Dual;
    type BinaryFunction = fn(Dual<2>, Dual<2>) -> Dual<2>;

    fn close(got: f64, want: f64, what: &str) {
        assert!((got - want).abs() <= 1e-7 * want.abs().max(1.0), "{what}: {got} against {want}");
    }

    #[test]
    fn slopes_follow_finite_differences() {
        let functions: [(&str, UnaryFunction); 12] = [
            ("all", |x| (x - 0.3).exp() * x / (x + 2.0) - x.clamp(-0.5, 0.5) * 3.0 + x.min(0.1).max(-4.0)),
            ("exp", Dual::exp),
            ("ln", |x| (x + 2.0).ln()),
            ("sigmoid", Dual::sigmoid),
            ("log_sigmoid", Dual::log_sigmoid),
            ("abs", Dual::abs),
            ("powi", |x| x.powi(3) - x.powi(-2)),
            ("square", Dual::square),
            ("min", |x| x.square().min(x + 0.5)),
            ("max", |x| x.square().max(x + 0.5)),
            ("clamp", |x| x.clamp(-0.5, 0.5)),
            ("detach", |x| (x - x.detach()) * 2.0 + x),
        ];
        for (name, f) in functions {
            for x in [-1.2, -0.2, 0.05, 0.3, 0.9] {
                let h = 1e-5;
                let difference = (f(Dual::variable(x + h)).value - f(Dual::variable(x - h)).value) / (2.0 * h);
                // A finite difference can't see that a value is detached.
                let difference = if name == "detach" { difference + 2.0 } else { difference };
                close(f(Dual::variable(x)).slope(), difference, &format!("{name} at {x}"));
            }
        }
        assert_eq!((Dual::variable(2.0).detach() * Dual::variable(2.0)).slope(), 2.0);
    }

    #[test]
    fn each_variable_has_its_own_slope() {
        let functions: [(&str, BinaryFunction); 6] = [
            ("add and multiply", |x, y| (x + y * 2.0) * (y - 1.0f32)),
            ("divide", |x, y| x / (y + 3.0)),
            ("pair loss", |x, y| -((x - y) * 0.7).log_sigmoid()),
            ("sigmoid", |x, y| (x * y).sigmoid() + (x - y).abs()),
            ("min and max", |x, y| x.min(y) * 2.0 + x.max(y).square()),
            ("clamp", |x, y| (x * 2.0).clamp(y - 1.0, y + 1.0)),
        ];
        for (name, f) in functions {
            let value = |x: f64, y: f64| {
                let [x, y] = Dual::variables([x, y]);
                f(x, y).value
            };
            for (x, y) in [(-1.2, 0.4), (0.3, -0.8), (1.7, 1.1)] {
                let h = 1e-5;
                let [dx, dy] = Dual::variables([x, y]);
                let slopes = f(dx, dy).slopes;
                close(slopes[0], (value(x + h, y) - value(x - h, y)) / (2.0 * h), &format!("{name} at {x}, {y}, by x"));
                close(slopes[1], (value(x, y + h) - value(x, y - h)) / (2.0 * h), &format!("{name} at {x}, {y}, by y"));
            }
        }
    }

    #[test]
    fn sigmoids_are_exact_far_out() {
        for x in [-1e6, -800.0, -40.0, 40.0, 800.0, 1e6] {
            let (s, l) = (Dual::variable(x).sigmoid(), Dual::variable(x).log_sigmoid());
            assert!([s.value, s.slope(), l.value, l.slope()].iter().all(|v| v.is_finite()), "{s:?} {l:?}");
        }
        assert_eq!(Dual::variable(-800.0).log_sigmoid(), Dual { value: -800.0, slopes: [1.0] });
        let far = Dual::variable(40.0).log_sigmoid();
        close(far.value / -(-40.0f64).exp(), 1.0, "log-sigmoid of 40");
        close(far.slope() / (-40.0f64).exp(), 1.0, "its slope");
    }
}
