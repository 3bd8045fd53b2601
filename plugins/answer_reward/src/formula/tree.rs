//! The values of formulas: numbers and expressions, relations, sets, tuples, intervals.

/// A number as written, without thousands separators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// Whether the number is negative.
    pub negative: bool,
    /// Digits before and after the decimal point, without leading zeros.
    pub digits: String,
    /// Number of digits after the decimal point; negative for a power of ten.
    pub places: i32,
    /// Whether the number was written as a decimal, which matches any number that rounds to it.
    pub decimal: bool,
}

impl Literal {
    /// Parses digits with at most one decimal point and an optional exponent such as `E-5`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (text, negative) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
        let (mantissa, exponent) = text.split_once('E').unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: String = whole.chars().chain(fraction.chars()).collect();
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let places = i32::try_from(fraction.len()).ok()?.checked_sub(exponent.parse().ok()?)?;
        let digits = digits.trim_start_matches('0');
        let digits = if digits.is_empty() { "0" } else { digits }.to_owned();
        Some(Self { negative, digits, places, decimal: text.contains(['.', 'E']) })
    }

    /// Returns a whole number.
    #[must_use]
    pub fn whole(value: i32) -> Self {
        Self { negative: value < 0, digits: value.unsigned_abs().to_string(), places: 0, decimal: false }
    }

    /// Returns the nearest float.
    #[must_use]
    pub fn float(&self) -> f64 {
        let magnitude = format!("{}e{}", self.digits, -i64::from(self.places)).parse().unwrap_or(f64::NAN);
        if self.negative { -magnitude } else { magnitude }
    }

    /// Returns the value of an integer of at most 38 digits.
    #[must_use]
    pub fn integer(&self) -> Option<i128> {
        let magnitude: i128 = self.digits.parse().ok()?;
        (self.places == 0).then_some(if self.negative { -magnitude } else { magnitude })
    }
}

/// A function of one or more numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the functions of these names")]
pub enum FormulaFunction {
    Sin,
    Cos,
    Tan,
    Csc,
    Sec,
    Cot,
    Asin,
    Acos,
    Atan,
    Acsc,
    Asec,
    Acot,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Exp,
    /// The logarithm of a number to a base.
    Log,
    Floor,
    Ceil,
    Abs,
    Factorial,
    Binomial,
    Mod,
    Gcd,
    Lcm,
    Max,
    Min,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Term {
    Number(Literal),
    /// A variable.
    Symbol(String),
    Pi,
    E,
    /// Euler's constant.
    Gamma,
    ImaginaryUnit,
    Infinity,
    Sum(Vec<Term>),
    Product(Vec<Term>),
    Power(Box<Term>, Box<Term>),
    Call(FormulaFunction, Vec<Term>),
    /// An unknown function of some arguments, such as `f(x)`.
    Applied(String, Vec<Term>),
    Percent(Box<Term>),
    Matrix(Vec<Vec<Term>>),
}

impl Term {
    /// Returns a whole number.
    #[must_use]
    pub fn whole(value: i32) -> Self {
        Self::Number(Literal::whole(value))
    }

    /// Returns the negated term.
    #[must_use]
    pub fn negated(self) -> Self {
        match self {
            Self::Number(literal) => Self::Number(Literal { negative: !literal.negative && literal.digits != "0", ..literal }),
            other => Self::whole(-1).times(other),
        }
    }

    /// Returns the product, flattened.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let mut factors = Vec::new();
        for factor in [self, other] {
            match factor {
                Self::Product(inner) => factors.extend(inner),
                single => factors.push(single),
            }
        }
        Self::Product(factors)
    }

    /// Returns the quotient.
    #[must_use]
    pub fn over(self, other: Self) -> Self {
        self.times(Self::Power(Box::new(other), Box::new(Self::whole(-1))))
    }

    /// Returns the sum, flattened.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut terms = Vec::new();
        for term in [self, other] {
            match term {
                Self::Sum(inner) => terms.extend(inner),
                single => terms.push(single),
            }
        }
        Self::Sum(terms)
    }

    /// Returns the term raised to a power.
    #[must_use]
    pub fn to_the(self, exponent: Self) -> Self {
        Self::Power(Box::new(self), Box::new(exponent))
    }

    /// Returns whether the term is a nonnegative number written without operators.
    #[must_use]
    pub fn is_natural(&self) -> bool {
        matches!(self, Self::Number(literal) if !literal.negative && !literal.decimal)
    }

    /// Returns whether the term consists of variables only: `x`, `x+y`, `f(x)`, `A/S`, but not `2x`.
    #[must_use]
    pub fn is_of_symbols(&self) -> bool {
        match self {
            Self::Symbol(_) => true,
            Self::Sum(terms) | Self::Product(terms) | Self::Call(_, terms) | Self::Applied(_, terms) => {
                !terms.is_empty() && terms.iter().all(Self::is_of_symbols)
            }
            Self::Power(base, exponent) => base.is_of_symbols() && (exponent.is_of_symbols() || **exponent == Self::whole(-1)),
            _ => false,
        }
    }

    /// Returns the direct subterms.
    pub fn children(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        match self {
            Self::Sum(terms) | Self::Product(terms) | Self::Call(_, terms) | Self::Applied(_, terms) => Box::new(terms.iter()),
            Self::Power(base, exponent) => Box::new([&**base, &**exponent].into_iter()),
            Self::Percent(term) => Box::new(std::iter::once(&**term)),
            Self::Matrix(rows) => Box::new(rows.iter().flatten()),
            _ => Box::new(std::iter::empty()),
        }
    }
}

/// The relation of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Relation {
    /// Returns the relation after swapping the sides.
    #[must_use]
    pub fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::AtMost => Self::AtLeast,
            Self::Greater => Self::Less,
            Self::AtLeast => Self::AtMost,
            same => same,
        }
    }
}

/// A set that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum NamedSet {
    Empty,
    Naturals,
    Integers,
    Rationals,
    Reals,
    Complexes,
}

/// The value of a formula.
#[derive(Clone, Debug, PartialEq)]
pub enum FormulaNode {
    /// An expression.
    Term(Term),
    /// Sides, and the relations between adjacent ones: `1 < x < 2`.
    Chain(Vec<FormulaNode>, Vec<Relation>),
    /// A set of elements, in the order they were written.
    Finite(Vec<FormulaNode>),
    /// A tuple.
    Tuple(Vec<FormulaNode>),
    /// An interval.
    Interval {
        /// Lower end of the interval.
        start: Box<Term>,
        /// Upper end of the interval.
        end: Box<Term>,
        /// Whether the interval excludes its lower end.
        left_open: bool,
        /// Whether the interval excludes its upper end.
        right_open: bool,
    },
    /// A set with a name.
    Named(NamedSet),
    /// The union of two sets.
    Union(Box<FormulaNode>, Box<FormulaNode>),
    /// The intersection of two sets.
    Intersection(Box<FormulaNode>, Box<FormulaNode>),
    /// The elements of the first set that are not in the second.
    Difference(Box<FormulaNode>, Box<FormulaNode>),
}

impl FormulaNode {
    /// Returns whether the value is a set. A tuple is not.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !matches!(self, Self::Term(_) | Self::Chain(..) | Self::Tuple(_))
    }

    /// Returns whether the value consists of variables only.
    #[must_use]
    pub fn is_of_symbols(&self) -> bool {
        match self {
            Self::Term(term) => term.is_of_symbols(),
            Self::Tuple(parts) => parts.iter().all(Self::is_of_symbols),
            _ => false,
        }
    }

    /// Creates a set of the elements, without duplicates.
    #[must_use]
    pub fn finite(elements: Vec<Self>) -> Self {
        let mut different: Vec<Self> = Vec::with_capacity(elements.len());
        for element in elements {
            if !different.contains(&element) {
                different.push(element);
            }
        }
        if different.is_empty() { Self::Named(NamedSet::Empty) } else { Self::Finite(different) }
    }
}
