//! Splits of a dataset and their slices, in the notation of `datasets`: `train[:10%]`, `train[100:200]`, `train[-5%:]+validation`.

use std::ops::Range;

/// Maximum number of splits in an expression.
const MOST: usize = 64;

/// Split, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPart {
    /// Name of the split.
    pub split: String,
    /// Slice of the split; `None` for all of it.
    pub slice: Option<Slice>,
}

/// Range of a split's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// First row, and end (exclusive); negative numbers count from the end.
    from: Option<i64>,
    to: Option<i64>,
    unit: SliceUnit,
}

/// Unit of a slice's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceUnit {
    Rows,
    /// Percent of the split, rounded to the closest row.
    Percent,
    /// Percent of the split, where each percent has the same number of rows; the remaining rows belong to none.
    EqualPercent,
}

impl SplitPart {
    /// Parses names of splits, each with an optional slice, joined by `+`.
    ///
    /// # Errors
    /// Says what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        let parts: Vec<Self> = text.split('+').map(|part| Self::parse_one(part.trim())).collect::<Result<_, _>>()?;
        if parts.len() > MOST {
            return Err(format!("names {} splits; the maximum is {MOST}", parts.len()));
        }
        let mut percents =
            parts.iter().filter_map(|part| part.slice).map(|slice| slice.unit).filter(|unit| *unit != SliceUnit::Rows);
        if let Some(first) = percents.next()
            && percents.any(|other| other != first)
        {
            return Err(format!("{text:?} rounds its parts in different ways; use one rounding for all"));
        }
        Ok(parts)
    }

    fn parse_one(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a split; write it as train, train[:10%], train[100:200] or train[-5%:]+test");
        let (text, rounding) = match text.split_once('(') {
            Some((text, rest)) => (text, Some(rest.strip_suffix(')').ok_or_else(wrong)?)),
            None => (text, None),
        };
        let (split, bounds) = match text.split_once('[') {
            Some((split, rest)) => (split, Some(rest.strip_suffix(']').ok_or_else(wrong)?)),
            None => (text, None),
        };
        if split.is_empty() || split.contains(['[', ']', ':', '%']) {
            return Err(wrong());
        }
        let Some((from, to)) = bounds.map(|bounds| bounds.split_once(':').ok_or_else(wrong)).transpose()? else {
            return match rounding {
                None => Ok(Self { split: split.to_owned(), slice: None }),
                Some(_) => Err(format!("{text:?} has a rounding but no percentages")),
            };
        };
        let bound = |text: &str| -> Result<(Option<i64>, bool), String> {
            let number = text.strip_suffix('%').unwrap_or(text);
            let digits = number.replace('_', "");
            match digits.is_empty() {
                true if text.is_empty() => Ok((None, false)),
                true => Err(wrong()),
                false if digits.starts_with('+') => Err(wrong()),
                false => Ok((Some(digits.parse().map_err(|_| wrong())?), number.len() < text.len())),
            }
        };
        let ((from, from_percent), (to, to_percent)) = (bound(from)?, bound(to)?);
        let unit = match (from_percent || to_percent, rounding) {
            (false, None) => SliceUnit::Rows,
            (false, Some(_)) => return Err(format!("{text:?} has a rounding but no percentages")),
            (true, None | Some("closest")) => SliceUnit::Percent,
            (true, Some("pct1_dropremainder")) => SliceUnit::EqualPercent,
            (true, Some(other)) => return Err(format!("the rounding {other:?} is neither closest nor pct1_dropremainder")),
        };
        if unit != SliceUnit::Rows && [from, to].into_iter().flatten().any(|bound| !(-100..=100).contains(&bound)) {
            return Err(format!("{text:?} has a percentage that is not between -100 and 100"));
        }
        Ok(Self { split: split.to_owned(), slice: Some(Slice { from, to, unit }) })
    }
}

impl Slice {
    /// Returns the range of rows in a split of `all` rows.
    ///
    /// # Errors
    /// If the range is empty.
    pub fn rows(&self, all: usize) -> Result<Range<usize>, String> {
        let count = i64::try_from(all).map_err(|_| "has too many rows".to_owned())?;
        if self.unit == SliceUnit::EqualPercent && count < 100 {
            return Err(format!("has {all} rows; pct1_dropremainder needs at least 100"));
        }
        let rows = |bound: i64| match self.unit {
            SliceUnit::Rows => bound,
            // Rounds halves to even, as Python does.
            SliceUnit::Percent => (bound as f64 * count as f64 / 100.0).round_ties_even() as i64,
            SliceUnit::EqualPercent => bound * (count / 100),
        };
        let place = |bound: Option<i64>, otherwise: i64| {
            let bound = bound.map_or(otherwise, rows);
            (if bound < 0 { (count + bound).max(0) } else { bound }).min(count) as usize
        };
        let range = place(self.from, 0)..place(self.to, count);
        if range.is_empty() { Err(format!("has {all} rows, of which this part has none")) } else { Ok(range) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, all: usize) -> Result<Range<usize>, String> {
        let parts = SplitPart::parse(text)?;
        parts[0].slice.map_or(Ok(0..all), |slice| slice.rows(all))
    }

    #[test]
    fn rows_are_those_that_datasets_takes() {
        // Results of datasets 5.2 for a split with this many rows.
        for (text, all, expected) in [
            ("train", 7, 0..7),
            ("train[:10%]", 1000, 0..100),
            ("train[:10%]", 5, 0..0),
            ("train[:50%]", 5, 0..2),
            ("train[:50%]", 7, 0..4),
            ("train[50%:]", 5, 2..5),
            ("train[33%:66%]", 10, 3..7),
            ("train[-5%:]", 50, 48..50),
            ("train[-5%:]", 70, 66..70),
            ("train[10:20]", 15, 10..15),
            ("train[-5:]", 3, 0..3),
            ("train[:-1]", 3, 0..2),
            ("train[1_0:2_0]", 100, 10..20),
            ("train[10:20%]", 50, 5..10),
            ("train[:10%](closest)", 1000, 0..100),
            ("train[:10%](pct1_dropremainder)", 199, 0..10),
            ("train[-1%:](pct1_dropremainder)", 250, 248..250),
        ] {
            match rows(text, all) {
                Ok(rows) => assert_eq!(rows, expected, "{text} of {all}"),
                Err(said) => assert!(expected.is_empty() && said.contains("this part has none"), "{text} of {all}: {said}"),
            }
        }
        assert!(rows("train[:1%](pct1_dropremainder)", 99).unwrap_err().contains("at least 100"));
        let parts = SplitPart::parse("train[:10%] + test[:5]+dev").unwrap();
        assert_eq!(parts.iter().map(|part| part.split.as_str()).collect::<Vec<_>>(), ["train", "test", "dev"]);
        assert_eq!(parts[2].slice, None);
    }

    #[test]
    fn what_is_no_split_is_refused_by_name() {
        for text in [
            "",
            "train[",
            "train[5]",
            "train[:x]",
            "train[::2]",
            "[:5]",
            "train[:5]x",
            "train+",
            "train[:%]",
            "a[:1](b",
            "train[:+5]",
            "train[:99999999999999999999]",
            "train]",
        ] {
            assert!(SplitPart::parse(text).unwrap_err().contains("is not a split; write it as train"), "{text}");
        }
        assert!(SplitPart::parse("train[:101%]").unwrap_err().contains("between -100 and 100"));
        assert!(SplitPart::parse("train[:5](closest)").unwrap_err().contains("no percentages"));
        assert!(SplitPart::parse("train(closest)").unwrap_err().contains("no percentages"));
        assert!(SplitPart::parse("train[:5%](up)").unwrap_err().contains("neither closest nor"));
        assert!(SplitPart::parse("a[:5%]+b[:5%](pct1_dropremainder)").unwrap_err().contains("different ways"));
    }
}
