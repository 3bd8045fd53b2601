//! Evaluates expressions as complex floats, with a bound on the rounding error.

use std::f64::consts::PI;

use super::modular::{hashed, mixed};
use super::tree::{FormulaFunction, Term};

/// A complex number with an error bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComplexValue {
    /// The real part.
    pub re: f64,
    /// The imaginary part.
    pub im: f64,
    /// Bound on the absolute error.
    pub error: f64,
}

const EPSILON: f64 = f64::EPSILON;

impl ComplexValue {
    fn new(re: f64, im: f64, error: f64) -> Option<Self> {
        let error = error + EPSILON * (re.abs() + im.abs());
        (re.is_finite() && im.is_finite() && error.is_finite()).then_some(Self { re, im, error })
    }

    /// Creates a value of a correctly rounded real number.
    fn real(re: f64) -> Option<Self> {
        Self::new(re, 0.0, 0.0)
    }

    /// Returns the absolute value.
    #[must_use]
    pub fn size(self) -> f64 {
        self.re.hypot(self.im)
    }

    fn plus(self, other: Self) -> Option<Self> {
        let larger = self.size() + other.size();
        Self::new(self.re + other.re, self.im + other.im, self.error + other.error + EPSILON * larger)
    }

    /// Returns the product.
    #[must_use]
    pub fn times(self, other: Self) -> Option<Self> {
        let (re, im) = (self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re);
        let error = self.size() * other.error + other.size() * self.error + self.error * other.error;
        Self::new(re, im, error + 2.0 * EPSILON * self.size() * other.size())
    }

    fn inverse(self) -> Option<Self> {
        let size = self.size();
        if size <= 2.0 * self.error {
            return None;
        }
        // Divides twice, because the square of the size may underflow.
        let (re, im) = (self.re / size / size, -self.im / size / size);
        Self::new(re, im, 2.0 * self.error / size / size + 4.0 * EPSILON / size)
    }

    fn exp(self) -> Option<Self> {
        let size = self.re.exp();
        let error = size * (self.error + 2.0 * EPSILON * (1.0 + self.size()));
        Self::new(size * self.im.cos(), size * self.im.sin(), error)
    }

    fn ln(self) -> Option<Self> {
        let size = self.size();
        if size <= 2.0 * self.error {
            return None;
        }
        // A number that can't be distinguished from a real one is treated as real: on which side of the branch cut it is would be chance.
        let angle = if self.im.abs() <= self.error { if self.re < 0.0 { PI } else { 0.0 } } else { self.im.atan2(self.re) };
        Self::new(size.ln(), angle, 2.0 * self.error / size + EPSILON)
    }

    fn power(self, exponent: Self) -> Option<Self> {
        if let Some(whole) = exponent.whole()
            && whole.abs() <= 4096.0
        {
            let raised = self.raised(whole.abs() as u32)?;
            return if whole < 0.0 { raised.inverse() } else { Some(raised) };
        }
        if self.size() <= self.error {
            return (exponent.re > 0.0 && self.size() == 0.0).then_some(Self { re: 0.0, im: 0.0, error: 0.0 });
        }
        self.ln()?.times(exponent)?.exp()
    }

    fn raised(self, mut exponent: u32) -> Option<Self> {
        let (mut raised, mut base) = (Self::real(1.0)?, self);
        while exponent > 0 {
            if exponent & 1 == 1 {
                raised = raised.times(base)?;
            }
            exponent >>= 1;
            if exponent > 0 {
                base = base.times(base)?;
            }
        }
        Some(raised)
    }

    /// Returns the real part of a real number.
    #[must_use]
    pub fn as_real(self) -> Option<f64> {
        (self.im.abs() <= self.error.max(1e-14 * self.re.abs())).then_some(self.re)
    }

    /// Returns the integer from which the value can't be distinguished.
    #[must_use]
    pub fn whole(self) -> Option<f64> {
        let re = self.as_real()?;
        ((re - re.round()).abs() <= self.error && self.error < 0.1).then(|| re.round())
    }

    /// Returns whether two values can't be distinguished, although they are known to at least six digits.
    #[must_use]
    pub fn agrees_with(self, other: Self) -> Option<bool> {
        let error = 8.0 * (self.error + other.error) + f64::MIN_POSITIVE;
        let distance = (self.re - other.re).hypot(self.im - other.im);
        if distance > error {
            return Some(false);
        }
        let size = self.size().max(other.size());
        // Near zero, a difference after cancellation is compared with the size of its terms.
        (error <= 1e-6 * size.max(1.0)).then_some(true)
    }

    /// Applies a real function with a bound on its derivative.
    fn mapped(self, map: impl Fn(f64) -> f64, slope: f64) -> Option<Self> {
        let re = map(self.as_real()?);
        Self::new(re, 0.0, self.error * slope.abs() + 4.0 * EPSILON * re.abs())
    }

    fn sin(self) -> Option<Self> {
        if self.re.abs() > 1e9 {
            return None;
        }
        let (re, im) = (self.re.sin() * self.im.cosh(), self.re.cos() * self.im.sinh());
        Self::new(re, im, (self.error + EPSILON * self.size()) * self.im.cosh() + EPSILON)
    }

    fn cos(self) -> Option<Self> {
        if self.re.abs() > 1e9 {
            return None;
        }
        let (re, im) = (self.re.cos() * self.im.cosh(), -self.re.sin() * self.im.sinh());
        Self::new(re, im, (self.error + EPSILON * self.size()) * self.im.cosh() + EPSILON)
    }

    fn over(self, other: Self) -> Option<Self> {
        self.times(other.inverse()?)
    }
}

/// Values of the variables at one point.
#[derive(Clone, Copy, Debug)]
pub struct VariablePoint(pub u64);

impl VariablePoint {
    /// Returns the value of a variable: at half of the points between 0 and 1, at the others between -4 and 4 or -40 and 40.
    fn variable(self, name: &str) -> Option<ComplexValue> {
        let unit = hashed(name, self.0 ^ 0x9e37_79b9) as f64 / u64::MAX as f64;
        let within = |bound: f64| bound * (2.0 * unit - 1.0);
        ComplexValue::real(match self.0 % 4 {
            1 => within(4.0),
            3 => within(40.0),
            _ => 0.05 + 0.9 * unit,
        })
    }

    /// Returns the value of an expression, or `None` if it is undefined at this point or can't be computed.
    #[must_use]
    pub fn value(self, term: &Term) -> Option<ComplexValue> {
        match term {
            Term::Number(literal) => ComplexValue::real(literal.float()),
            Term::Symbol(name) => self.variable(name),
            Term::Pi => ComplexValue::real(PI),
            Term::E => ComplexValue::real(std::f64::consts::E),
            Term::Gamma => ComplexValue::real(0.577_215_664_901_532_9),
            Term::ImaginaryUnit => ComplexValue::new(0.0, 1.0, 0.0),
            Term::Infinity | Term::Matrix(_) => None,
            Term::Sum(terms) => {
                terms.iter().try_fold(ComplexValue { re: 0.0, im: 0.0, error: 0.0 }, |sum, term| sum.plus(self.value(term)?))
            }
            Term::Product(terms) => {
                terms.iter().try_fold(ComplexValue::real(1.0)?, |product, term| product.times(self.value(term)?))
            }
            Term::Power(base, exponent) => {
                let base = if **base == Term::E { None } else { Some(self.value(base)?) };
                let exponent = self.value(exponent)?;
                base.map_or_else(|| exponent.exp(), |base| base.power(exponent))
            }
            Term::Percent(term) => self.value(term)?.times(ComplexValue::real(0.01)?),
            Term::Call(function, arguments) => {
                let arguments: Option<Vec<_>> = arguments.iter().map(|term| self.value(term)).collect();
                called(*function, &arguments?)
            }
            Term::Applied(name, arguments) => {
                // Any function that depends on all of its arguments is suitable.
                let mut angle = ComplexValue::real(self.0 as f64 % 7.0 + hashed(name, 1) as f64 / u64::MAX as f64)?;
                for (place, argument) in arguments.iter().enumerate() {
                    let weight = 1.0 + mixed(place as u64 + 3) as f64 / u64::MAX as f64;
                    angle = angle.plus(self.value(argument)?.times(ComplexValue::real(weight)?)?)?;
                }
                angle.sin()
            }
        }
    }
}

fn called(function: FormulaFunction, arguments: &[ComplexValue]) -> Option<ComplexValue> {
    let x = *arguments.first()?;
    match function {
        FormulaFunction::Sin => x.sin(),
        FormulaFunction::Cos => x.cos(),
        FormulaFunction::Tan => x.sin()?.over(x.cos()?),
        FormulaFunction::Csc => x.sin()?.inverse(),
        FormulaFunction::Sec => x.cos()?.inverse(),
        FormulaFunction::Cot => x.cos()?.over(x.sin()?),
        FormulaFunction::Exp => x.exp(),
        FormulaFunction::Log => {
            let base = *arguments.get(1)?;
            x.ln()?.over(base.ln()?)
        }
        FormulaFunction::Abs => ComplexValue::new(x.size(), 0.0, x.error),
        FormulaFunction::Floor => ComplexValue::real(x.whole().or_else(|| x.as_real().map(f64::floor))?),
        FormulaFunction::Ceil => ComplexValue::real(x.whole().or_else(|| x.as_real().map(f64::ceil))?),
        FormulaFunction::Acsc => called(FormulaFunction::Asin, &[x.inverse()?]),
        FormulaFunction::Asec => called(FormulaFunction::Acos, &[x.inverse()?]),
        FormulaFunction::Acot => called(FormulaFunction::Atan, &[x.inverse()?]),
        FormulaFunction::Sinh | FormulaFunction::Cosh | FormulaFunction::Tanh => hyperbolic(function, x),
        FormulaFunction::Asin
        | FormulaFunction::Acos
        | FormulaFunction::Atan
        | FormulaFunction::Asinh
        | FormulaFunction::Acosh
        | FormulaFunction::Atanh => inverse(function, x),
        FormulaFunction::Factorial => factorial(x),
        FormulaFunction::Binomial => {
            let k = *arguments.get(1)?;
            let rest = x.plus(k.times(ComplexValue::real(-1.0)?)?)?;
            factorial(x)?.over(factorial(k)?.times(factorial(rest)?)?)
        }
        FormulaFunction::Mod => {
            let (a, b) = (x.whole()?, arguments.get(1)?.whole()?);
            (b != 0.0).then(|| ComplexValue::real(a - b * (a / b).floor()))?
        }
        FormulaFunction::Gcd | FormulaFunction::Lcm => gcd_or_lcm(function, arguments),
        FormulaFunction::Max | FormulaFunction::Min => {
            let reals: Option<Vec<f64>> = arguments.iter().map(|value| value.as_real()).collect();
            let extreme = reals?.into_iter().reduce(if function == FormulaFunction::Max { f64::max } else { f64::min })?;
            let error = arguments.iter().map(|value| value.error).fold(0.0, f64::max);
            ComplexValue::new(extreme, 0.0, error)
        }
    }
}

fn hyperbolic(function: FormulaFunction, x: ComplexValue) -> Option<ComplexValue> {
    let (up, down) = (x.exp()?, x.times(ComplexValue::real(-1.0)?)?.exp()?);
    let half = ComplexValue::real(0.5)?;
    let sinh = up.plus(down.times(ComplexValue::real(-1.0)?)?)?.times(half)?;
    let cosh = up.plus(down)?.times(half)?;
    match function {
        FormulaFunction::Sinh => Some(sinh),
        FormulaFunction::Cosh => Some(cosh),
        _ => sinh.over(cosh),
    }
}

/// Evaluates inverse functions where they are real.
fn inverse(function: FormulaFunction, x: ComplexValue) -> Option<ComplexValue> {
    let at = x.as_real()?;
    // Near the ends of their domains, slopes are large.
    let steep = |square: f64| 1.0 / square.abs().max(x.error).max(EPSILON).sqrt();
    match function {
        FormulaFunction::Asin => x.mapped(f64::asin, steep(1.0 - at * at)),
        FormulaFunction::Acos => x.mapped(f64::acos, steep(1.0 - at * at)),
        FormulaFunction::Atan => x.mapped(f64::atan, 1.0),
        FormulaFunction::Asinh => x.mapped(f64::asinh, 1.0),
        FormulaFunction::Acosh => x.mapped(f64::acosh, steep(at * at - 1.0)),
        _ => x.mapped(f64::atanh, 1.0 / (1.0 - at * at).abs().max(EPSILON)),
    }
}

/// Returns the factorial of an integer below 171, and the gamma function of `x + 1` for other numbers.
fn factorial(x: ComplexValue) -> Option<ComplexValue> {
    if let Some(whole) = x.whole() {
        if !(0.0..=170.0).contains(&whole) {
            return None;
        }
        return (1..=whole as u32)
            .try_fold(ComplexValue::real(1.0)?, |product, n| product.times(ComplexValue::real(f64::from(n))?));
    }
    let at = x.as_real().filter(|at| at.abs() < 100.0)?;
    let value = gamma(at + 1.0);
    ComplexValue::new(value, 0.0, 1e-12 * value.abs() + x.error * value.abs() * (1.0 + at.abs()))
}

/// Computes the gamma function by Lanczos' approximation.
fn gamma(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return PI / ((PI * x).sin() * gamma(1.0 - x));
    }
    let x = x - 1.0;
    let [first, rest @ ..] = &COEFFICIENTS;
    let sum = rest.iter().zip(1_u32..).fold(*first, |sum, (c, i)| sum + c / (x + f64::from(i)));
    let t = x + 7.5;
    (2.0 * PI).sqrt() * t.powf(x + 0.5) * (-t).exp() * sum
}

fn gcd_or_lcm(function: FormulaFunction, arguments: &[ComplexValue]) -> Option<ComplexValue> {
    let mut result: Option<f64> = None;
    for value in arguments {
        let next = value.whole().filter(|n| n.abs() < 9e15)?.abs();
        let Some(so_far) = result else {
            result = Some(next);
            continue;
        };
        let (mut a, mut b) = (so_far, next);
        while b > 0.0 {
            (a, b) = (b, a % b);
        }
        result = Some(if function == FormulaFunction::Gcd { a } else { so_far / a.max(1.0) * next });
    }
    ComplexValue::real(result?)
}
