//! Query of a request: decoded names and values.

use super::refusal::{ApiRefusal, Result};

/// Maximum number of pairs.
const MOST: usize = 600;

/// Decoded query.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `name=value&...` with percent-encoding.
    pub fn parse(text: &str) -> Result<Self> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decoded(name)?, decoded(value)?));
            if pairs.len() > MOST {
                return Err(ApiRefusal::invalid(format!("a query has at most {MOST} values")));
            }
        }
        Ok(Self(pairs))
    }

    /// Returns the value of a name, unless it is missing or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(own, _)| own == name)?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns all values of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.iter().filter(move |(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a name, which is required.
    pub fn required(&self, name: &str) -> Result<&str> {
        self.get(name).ok_or_else(|| ApiRefusal::invalid(format!("the query lacks {name}")))
    }

    /// Returns a number, if there is one.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let parsed = |text: &str| text.parse::<f64>().ok().filter(|number| !number.is_nan());
        let number =
            |text: &str| parsed(text).ok_or_else(|| ApiRefusal::invalid(format!("{name} must be a number, not {text:?}")));
        self.get(name).map(number).transpose()
    }

    /// Returns an integer, or the default; at most `most`.
    pub fn count(&self, name: &str, default: usize, most: usize) -> Result<usize> {
        let Some(text) = self.get(name) else { return Ok(default.min(most)) };
        let count: usize =
            text.parse().map_err(|_| ApiRefusal::invalid(format!("{name} must be a whole number, not {text:?}")))?;
        Ok(count.min(most))
    }
}

fn decoded(text: &str) -> Result<String> {
    let invalid = || ApiRefusal::invalid("the query is not well-formed");
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                let digits = bytes.get(at..at + 2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(invalid)?;
                let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                decoded.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hexadecimal).ok_or_else(invalid)?);
                at += 2;
            }
            other => decoded.push(other),
        }
    }
    String::from_utf8(decoded).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_checked() {
        let query = Query::parse("run=a%2Fb+c&m=x&m=%c3%a9&n=1e3&empty=&k=12").unwrap();
        assert_eq!((query.get("run"), query.get("empty"), query.get("none")), (Some("a/b c"), None, None));
        assert_eq!(query.all("m").collect::<Vec<_>>(), ["x", "\u{e9}"]);
        assert_eq!((query.number("n").unwrap(), query.number("none").unwrap()), (Some(1000.0), None));
        assert_eq!(
            (query.count("k", 5, 100).unwrap(), query.count("k", 5, 10).unwrap(), query.count("z", 5, 10).unwrap()),
            (12, 10, 5)
        );
        assert_eq!(query.number("m").unwrap_err().message, "m must be a number, not \"x\"");
        assert_eq!(query.required("z").unwrap_err().message, "the query lacks z");
        for bad in ["a=%", "a=%2", "a=%zz", "a=%ff", "a=%+1", &"a&".repeat(MOST + 1)] {
            assert_eq!(Query::parse(bad).unwrap_err().status, 400, "{bad}");
        }
    }
}
