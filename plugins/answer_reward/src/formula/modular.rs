//! Evaluates expressions exactly, modulo large primes.
//!
//! At random values of their variables, two different rational expressions have different values modulo a prime of 61 bits, except with a
//! probability of about 2^-55. So numbers of any length, expanded products and the like are compared without rounding.

use super::tree::{FormulaFunction, Literal, Term};

/// A prime, and the seed of the variables' values.
#[derive(Clone, Copy, Debug)]
pub struct ModularPoint {
    prime: u64,
    seed: u64,
}

/// Points at which expressions are evaluated.
pub const POINTS: [ModularPoint; 3] = [
    ModularPoint { prime: (1 << 61) - 1, seed: 0x51_7c_c1_b7_27_22_0a_95 },
    ModularPoint { prime: 0x1f_ff_ff_ff_ff_ff_ff_e1, seed: 0x2f_0b_44_7a_8d_9e_11_03 },
    ModularPoint { prime: (1 << 61) - 1, seed: 0x6e_ed_0e_9d_a4_d9_4a_4f },
];

/// Largest number whose factorial is computed.
const LARGEST_FACTORIAL: i128 = 2000;

/// Returns a hash of a number.
#[must_use]
pub fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns a hash of a text.
#[must_use]
pub fn hashed(text: &str, seed: u64) -> u64 {
    text.bytes().fold(mixed(seed), |hash, byte| mixed(hash ^ u64::from(byte)))
}

/// Returns the value of an integer, written or computed, of at most 38 digits.
#[must_use]
pub fn integer(term: &Term) -> Option<i128> {
    match term {
        Term::Number(literal) => literal.integer(),
        Term::Sum(terms) => terms.iter().try_fold(0_i128, |sum, term| sum.checked_add(integer(term)?)),
        Term::Product(terms) => terms.iter().try_fold(1_i128, |product, term| product.checked_mul(integer(term)?)),
        Term::Power(base, exponent) => integer(base)?.checked_pow(u32::try_from(integer(exponent)?).ok()?),
        Term::Call(FormulaFunction::Factorial, arguments) => {
            let below = integer(arguments.first()?)?;
            (0..=33).contains(&below).then(|| (1..=below).product())
        }
        _ => None,
    }
}

impl ModularPoint {
    /// Returns an expression's value, or `None` if it isn't a rational expression or divides by zero.
    #[must_use]
    pub fn value(self, term: &Term) -> Option<u64> {
        match term {
            Term::Number(literal) => self.literal(literal),
            Term::Symbol(name) => Some(self.reduced(u128::from(hashed(name, self.seed)))),
            // A rational expression of these is zero only if it is zero for any value, so they are treated as variables.
            Term::Pi => self.value(&Term::Symbol("\\pi".into())),
            Term::E => self.value(&Term::Symbol("\\e".into())),
            Term::Sum(terms) => {
                terms.iter().try_fold(0, |sum, term| Some(self.reduced(u128::from(sum) + u128::from(self.value(term)?))))
            }
            Term::Product(terms) => terms.iter().try_fold(1, |product, term| Some(self.multiplied(product, self.value(term)?))),
            Term::Power(base, exponent) => {
                let power = integer(exponent)?;
                let raised = self.raised(self.value(base)?, power.unsigned_abs());
                if power < 0 { self.inverse(raised) } else { Some(raised) }
            }
            Term::Percent(term) => Some(self.multiplied(self.value(term)?, self.inverse(100)?)),
            Term::Call(FormulaFunction::Factorial, arguments) => {
                let below = integer(arguments.first()?).filter(|n| (0..=LARGEST_FACTORIAL).contains(n))?;
                (1..=below).try_fold(1, |product, n| Some(self.multiplied(product, u64::try_from(n).ok()?)))
            }
            Term::Call(FormulaFunction::Binomial, arguments) => {
                let (above, below) = (integer(arguments.first()?)?, integer(arguments.get(1)?)?);
                if !(0..=above).contains(&below) || above > LARGEST_FACTORIAL {
                    return None;
                }
                (1..=below).try_fold(1, |product, n| {
                    let factor = self.multiplied(u64::try_from(above - below + n).ok()?, self.inverse(u64::try_from(n).ok()?)?);
                    Some(self.multiplied(product, factor))
                })
            }
            _ => None,
        }
    }

    fn reduced(self, value: u128) -> u64 {
        (value % u128::from(self.prime)) as u64
    }

    fn multiplied(self, a: u64, b: u64) -> u64 {
        self.reduced(u128::from(a) * u128::from(b))
    }

    fn raised(self, mut base: u64, mut exponent: u128) -> u64 {
        let mut raised = 1;
        while exponent > 0 {
            if exponent & 1 == 1 {
                raised = self.multiplied(raised, base);
            }
            base = self.multiplied(base, base);
            exponent >>= 1;
        }
        raised
    }

    fn inverse(self, value: u64) -> Option<u64> {
        (value != 0).then(|| self.raised(value, u128::from(self.prime) - 2))
    }

    fn literal(self, literal: &Literal) -> Option<u64> {
        let digits = literal.digits.bytes().map(|digit| u64::from(digit - b'0'));
        let whole = digits.fold(0, |value, digit| self.reduced(u128::from(value) * 10 + u128::from(digit)));
        let power = self.raised(10, u128::from(literal.places.unsigned_abs()));
        let value = self.multiplied(whole, if literal.places > 0 { self.inverse(power)? } else { power });
        Some(if literal.negative && value > 0 { self.prime - value } else { value })
    }
}
