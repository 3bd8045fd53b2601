//! Python's `str.format`, as Jinja's sandbox runs it.

use super::arguments::{error, pairs, parts, whole};
use super::printf::{general, scientific};
use super::text::{ascii, float, repr, str};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// Maximum number of digits of a float.
const MOST_DIGITS: usize = 1000;

/// Maximum nesting of fields within the formats of others.
const DEEPEST: usize = 2;

/// Method `format`.
pub(super) fn format(text: &str, args: &[Value]) -> Result<String, Error> {
    let (positional, named) = parts(args);
    TemplateFormatter { positional, named, automatic: None }.format(text, DEEPEST)
}

/// Method `format_map`.
pub(super) fn format_map(text: &str, mapping: &Value) -> Result<String, Error> {
    TemplateFormatter { positional: &[], named: pairs(mapping).collect(), automatic: None }.format(text, DEEPEST)
}

struct TemplateFormatter<'a> {
    positional: &'a [Value],
    named: Vec<(String, Value)>,
    /// Number of fields without a name so far; a fixed maximum after a numbered one.
    automatic: Option<usize>,
}

/// Marks that fields are numbered by the format.
const NUMBERED: usize = usize::MAX;

impl TemplateFormatter<'_> {
    fn format(&mut self, format: &str, deepest: usize) -> Result<String, Error> {
        let deeper = deepest.checked_sub(1).ok_or_else(|| error("format: fields are nested too deeply"))?;
        let (mut text, mut rest) = (String::new(), format);
        while let Some(at) = rest.find(['{', '}']) {
            text += &rest[..at];
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                text += brace;
                rest = after;
            } else if brace == "}" {
                return Err(error("format: a single '}' stands alone"));
            } else {
                let end = field_end(after).ok_or_else(|| error("format: a '{' is not closed"))?;
                text += &self.field(&after[..end], deeper)?;
                rest = &after[end + 1..];
            }
        }
        Ok(text + rest)
    }

    /// Formats a field, given what is between its braces.
    fn field(&mut self, field: &str, deeper: usize) -> Result<String, Error> {
        let end = name_end(field);
        let (name, mut after) = field.split_at(end);
        let value = self.value(name)?;
        let mut converted = None;
        if let Some(conversion) = after.strip_prefix('!') {
            let kind = conversion.chars().next().unwrap_or(':');
            after = &conversion[kind.len_utf8().min(conversion.len())..];
            converted = Some(match kind {
                's' => str(&value)?,
                'r' => repr(&value)?,
                'a' => ascii(&repr(&value)?),
                _ => return Err(error("format: a conversion must be !s, !r or !a")),
            });
        }
        let spec = match after.strip_prefix(':') {
            Some(spec) => self.format(spec, deeper)?,
            None if after.is_empty() => String::new(),
            None => return Err(error("format: a field's conversion must be followed by ':'")),
        };
        let value = converted.map_or(value, Value::from);
        formatted(&value, &spec)
    }

    /// Returns the value that a field names.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = self.argument(first, rest.is_empty())?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = attribute(&value, &after[..end].into())?;
                rest = &after[end..];
            } else {
                let inside = rest.strip_prefix('[').ok_or_else(|| error("format: only '.' or '[' may follow ']'"))?;
                let (key, after) = inside.split_once(']').ok_or_else(|| error("format: a '[' is not closed"))?;
                let number = Some(key).filter(|key| key.chars().all(|c| c.is_ascii_digit()));
                let key = number.and_then(|key| key.parse::<i64>().ok()).map_or_else(|| key.into(), Value::from);
                value = attribute(&value, &key)?;
                rest = after;
            }
        }
        Ok(value)
    }

    fn argument(&mut self, name: &str, is_whole: bool) -> Result<Value, Error> {
        let place = if name.is_empty() && is_whole {
            let place = self.automatic.unwrap_or(0);
            if place == NUMBERED {
                return Err(error("format: some fields are numbered and others are not"));
            }
            self.automatic = Some(place + 1);
            Some(place)
        } else {
            let place = Some(name).filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_digit()));
            if place.is_some() && is_whole {
                if self.automatic.is_some_and(|count| count != NUMBERED) {
                    return Err(error("format: some fields are numbered and others are not"));
                }
                self.automatic = Some(NUMBERED);
            }
            place.map(|place| place.parse().unwrap_or(NUMBERED))
        };
        let value = match place {
            Some(place) => self.positional.get(place),
            None => self.named.iter().find(|(other, _)| other == name).map(|(_, value)| value),
        };
        value.cloned().ok_or_else(|| error(format!("format: there is no argument for the field {name:?}")))
    }
}

/// Returns an attribute or item as Jinja looks it up.
fn attribute(value: &Value, key: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        Err(error("format: a field of an undefined value"))
    } else {
        Ok(value.get_item(key).unwrap_or_default())
    }
}

/// Returns where the brace is that closes a field.
fn field_end(text: &str) -> Option<usize> {
    let (mut depth, mut in_brackets) = (0_usize, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if depth == 0 => in_brackets = true,
            ']' => in_brackets = false,
            _ if in_brackets => {}
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns where a field's name ends.
fn name_end(field: &str) -> usize {
    let mut in_brackets = false;
    for (at, c) in field.char_indices() {
        match c {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            '!' | ':' if !in_brackets => return at,
            _ => {}
        }
    }
    field.len()
}

/// Python's format specification: `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
#[derive(Default)]
struct FieldSpec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl FieldSpec {
    fn parse(text: &str) -> Result<Self, Error> {
        let chars: Vec<char> = text.chars().collect();
        let (mut spec, mut at) = (Self::default(), 0);
        let is_align = |at: usize| chars.get(at).is_some_and(|c| "<>=^".contains(*c));
        if is_align(1) {
            (spec.fill, spec.align, at) = (Some(chars[0]), Some(chars[1]), 2);
        } else if is_align(0) {
            (spec.align, at) = (Some(chars[0]), 1);
        }
        let mut next = |wanted: &str| chars.get(at).copied().filter(|c| wanted.contains(*c)).inspect(|_| at += 1);
        spec.sign = next("+- ");
        spec.alternate = next("#").is_some();
        if next("0").is_some() {
            spec.fill = spec.fill.or(Some('0'));
            spec.align = spec.align.or(Some('0'));
        }
        let number = |next: &mut dyn FnMut(&str) -> Option<char>| {
            let digits: String = std::iter::from_fn(|| next("0123456789")).collect();
            if digits.is_empty() {
                Ok(None)
            } else {
                digits.parse().map(Some).map_err(|_| error("format: a number is too large"))
            }
        };
        spec.width = number(&mut next)?.unwrap_or(0);
        spec.grouping = next(",_");
        if next(".").is_some() {
            let digits: Option<usize> = number(&mut next)?;
            spec.precision = Some(digits.ok_or_else(|| error("format: a precision lacks its number"))?);
        }
        spec.kind = chars.get(at).copied();
        if chars.len() > at + 1 {
            return Err(error(format!("format: {text:?} is not a format")));
        }
        Ok(spec)
    }

    /// Writes a text padded to the width. `prefix` is the sign and base of a number.
    fn padded(&self, prefix: &str, body: &str, align: char) -> String {
        let missing = self.width.saturating_sub(prefix.chars().count() + body.chars().count());
        let fill = |count: usize| self.fill.unwrap_or(' ').to_string().repeat(count);
        match align {
            '<' => [prefix, body, &fill(missing)].concat(),
            '^' => [&fill(missing / 2), prefix, body, &fill(missing - missing / 2)].concat(),
            '=' => [prefix, &fill(missing), body].concat(),
            _ => [&fill(missing), prefix, body].concat(),
        }
    }

    /// Writes a number from its parts: the digits before the point, and what follows them.
    fn number(&self, negative: bool, base: &str, digits: &str, rest: &str) -> String {
        let sign = match self.sign {
            _ if negative => "-",
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        };
        let prefix = sign.to_owned() + base;
        let align = match self.align {
            Some('0') => '=',
            Some(align) => align,
            None => '>',
        };
        let size = if matches!(self.kind, Some('b' | 'o' | 'x' | 'X')) { 4 } else { 3 };
        let mut own = digits.to_owned();
        if let Some(separator) = self.grouping.filter(|_| digits.chars().all(|c| c.is_ascii_hexdigit())) {
            let has_zeros = align == '=' && self.fill == Some('0');
            let width = self.width.saturating_sub(prefix.len() + rest.len());
            own = grouped(digits, separator, size, if has_zeros { width } else { 0 });
        }
        self.padded(&prefix, &(own + rest), align)
    }
}

/// Writes digits in groups, with zeros before them up to a width.
fn grouped(digits: &str, separator: char, size: usize, width: usize) -> String {
    let length = |count: usize| count + count.saturating_sub(1) / size;
    // The largest number of digits that does not need more than the width, and one more if a separator would come first.
    let mut count = width - width / (size + 1);
    if length(count) < width {
        count += 1;
    }
    let zeros = "0".repeat(count.saturating_sub(digits.len()));
    let all: Vec<char> = zeros.chars().chain(digits.chars()).collect();
    let mut text = String::new();
    for (i, digit) in all.iter().enumerate() {
        if i > 0 && (all.len() - i).is_multiple_of(size) {
            text.push(separator);
        }
        text.push(*digit);
    }
    text
}

/// Python's `format` of a value.
fn formatted(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return str(value);
    }
    let parsed = FieldSpec::parse(spec)?;
    if let Some(text) = value.as_str() {
        return formatted_text(text, &parsed);
    }
    match (whole(value), value.kind()) {
        (Some(number), _) => formatted_integer(number, &parsed),
        (None, ValueKind::Number) => formatted_float(f64::try_from(value.clone()).unwrap_or(f64::NAN), &parsed),
        (None, kind) => Err(error(format!("format: {spec:?} does not fit {kind}"))),
    }
}

fn formatted_text(text: &str, spec: &FieldSpec) -> Result<String, Error> {
    let fits = matches!(spec.kind, None | Some('s')) && spec.sign.is_none() && !spec.alternate && spec.grouping.is_none();
    if !fits || spec.align == Some('=') {
        return Err(error("format: a number's format does not fit a string"));
    }
    let shown: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    Ok(spec.padded("", &shown, spec.align.filter(|align| *align != '0').unwrap_or('<')))
}

fn formatted_integer(number: i128, spec: &FieldSpec) -> Result<String, Error> {
    let kind = spec.kind.unwrap_or('d');
    if "eEfFgG%".contains(kind) {
        return formatted_float(number as f64, spec);
    }
    if spec.precision.is_some() {
        return Err(error("format: an integer has no precision"));
    }
    let magnitude = number.unsigned_abs();
    let (base, digits) = match kind {
        'd' | 'n' => ("", magnitude.to_string()),
        'b' => ("0b", format!("{magnitude:b}")),
        'o' => ("0o", format!("{magnitude:o}")),
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        'c' => {
            let c = u32::try_from(number).ok().and_then(char::from_u32).ok_or_else(|| error("format: not a character"))?;
            return Ok(spec.padded("", &c.to_string(), spec.align.unwrap_or('<')));
        }
        _ => return Err(error(format!("format: {kind:?} does not fit an integer"))),
    };
    if spec.grouping == Some(',') && !matches!(kind, 'd') {
        return Err(error(format!("format: ',' does not fit {kind:?}")));
    }
    Ok(spec.number(number < 0, if spec.alternate { base } else { "" }, &digits, ""))
}

fn formatted_float(number: f64, spec: &FieldSpec) -> Result<String, Error> {
    let digits = spec.precision.unwrap_or(6);
    if digits > MOST_DIGITS {
        return Err(error(format!("format: a float can't have more than {MOST_DIGITS} digits")));
    }
    let kind = spec.kind.unwrap_or('r');
    let magnitude = number.abs() * if kind == '%' { 100.0 } else { 1.0 };
    let mut text = match (kind.to_ascii_lowercase(), spec.precision) {
        _ if !magnitude.is_finite() => float(magnitude),
        ('e', _) => scientific(magnitude, digits),
        ('f' | '%', _) => format!("{magnitude:.digits$}"),
        ('g' | 'n', _) => general(magnitude, digits.max(1), spec.alternate),
        ('r', None) => float(magnitude),
        ('r', Some(digits)) => shortest(magnitude, digits.max(1)),
        _ => return Err(error(format!("format: {kind:?} does not fit a float"))),
    };
    if kind.is_ascii_uppercase() {
        text = text.to_uppercase();
    }
    if kind == '%' {
        text.push('%');
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).filter(|_| magnitude.is_finite()).unwrap_or(text.len());
    Ok(spec.number(number.is_sign_negative() && !number.is_nan(), "", &text[..end], &text[end..]))
}

/// Writes a float with this precision and no type: as `g` does, but with a digit after the point.
fn shortest(number: f64, digits: usize) -> String {
    let exponent: i64 = scientific(number, digits - 1).split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    if exponent >= digits as i64 - 1 && digits > 1 || exponent >= 1 && digits == 1 || exponent < -4 {
        let text = scientific(number, digits - 1);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        let mantissa = if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
        return format!("{mantissa}e{exponent}");
    }
    let text = general(number, digits, false);
    if text.contains('.') { text } else { text + ".0" }
}
