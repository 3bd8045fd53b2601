//! Removes units from the end of a formula.

/// The recognised units, as listed by `latex2sympy2_extended`; a point stands for any character.
const UNITS: [&str; 128] = [
    "integerpoint",
    "feet",
    "sue",
    "digit",
    "pound",
    "meal",
    "edge",
    "student",
    "children ticket",
    "multiple",
    "east",
    "degree",
    "mph",
    "kmph",
    "ft",
    "m square",
    " m east",
    "sq m",
    "deg",
    "mile",
    "q .",
    "monkey",
    "prime",
    "ratio",
    "profit of rs",
    "rd",
    "o",
    "gm",
    "p . m",
    "lb",
    "tile",
    "per",
    "dm",
    "lt",
    "gain",
    "ab",
    "way",
    "west",
    "a .",
    "b .",
    "c .",
    "d .",
    "e .",
    "f .",
    "g .",
    "h .",
    "t",
    "h",
    "no change",
    "men",
    "soldier",
    "pie",
    "bc",
    "excess",
    "st",
    "inches",
    "noon",
    "cent",
    "by",
    "gal",
    "kmh",
    "c",
    "acre",
    "rise",
    "a . m",
    "th",
    "π r 2",
    "sq",
    "mark",
    "l",
    "toy",
    "coin",
    "sq . m",
    "gallon",
    "° f",
    "profit",
    "minw",
    "yr",
    "women",
    "am",
    "pm",
    "hr",
    "cu cm",
    "square",
    "are",
    "rupee",
    "rounds",
    "cubic",
    "cc",
    "mtr",
    "s",
    "ohm",
    "number",
    "day",
    "hour",
    "minute",
    "min",
    "second",
    "man",
    "woman",
    "sec",
    "cube",
    "mt",
    "sq inch",
    "mp",
    "hectare",
    "more",
    "unit",
    "cu . m",
    "cm 2",
    "rs .",
    "rs",
    "kg",
    "g",
    "month",
    "km",
    "m",
    "cm",
    "mm",
    "apple",
    "liter",
    "loss",
    "yard",
    "pure",
    "year",
    "increase",
    "decrease",
    "d",
];
/// The remaining units.
const MORE_UNITS: [&str; 8] = ["less", "Surface", "litre", "pi sq m", "s .", "metre", "meter", "inch"];
/// Maximum length of a unit with the space around it, in bytes; longer than any.
const LONGEST_UNIT: usize = 60;

/// Removes a unit in `\text{...}`, with its exponent, and then up to two plain units from the end, unless nothing would be left.
#[must_use]
pub fn without_units(text: &str) -> String {
    let mut text = match without_text(text) {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => text.to_owned(),
    };
    for _ in 0..2 {
        if let Some(end) = unit_start(&text).filter(|end| *end > 0) {
            text.truncate(end);
        }
    }
    text
}

/// Returns the text before the first `\text{...}`, if the formula ends with a brace, or with one and an exponent.
fn without_text(text: &str) -> Option<&str> {
    let body = match text.strip_suffix('}').and_then(|rest| rest.strip_suffix(|c: char| c.is_ascii_digit())) {
        Some(rest) if rest.ends_with("}{^") => &rest[..rest.len() - 2],
        _ => match text.strip_suffix(|c: char| c.is_ascii_digit()).and_then(|rest| rest.strip_suffix('^')) {
            Some(rest) if rest.ends_with('}') => rest,
            _ => text,
        },
    };
    if !body.ends_with('}') {
        return None;
    }
    let start = ["\\text{", "\\mbox{"].iter().filter_map(|command| text.find(command)).min()?;
    (start + 6 < body.len()).then(|| text[..start].trim())
}

/// Returns the start of a unit at the end, after a digit, a brace or space.
fn unit_start(text: &str) -> Option<usize> {
    let trimmed = text.trim_end();
    let mut from = trimmed.len().saturating_sub(LONGEST_UNIT);
    while !trimmed.is_char_boundary(from) {
        from += 1;
    }
    for (offset, before) in trimmed[from..].char_indices() {
        if before.is_ascii_digit() || before == '}' || before.is_whitespace() {
            let end = from + offset + before.len_utf8();
            if is_unit(&trimmed[end..]) {
                return Some(end);
            }
        }
    }
    None
}

fn is_unit(text: &str) -> bool {
    let matches = |text: &str| UNITS.iter().chain(&MORE_UNITS).any(|unit| alike(unit, text));
    let whole = |text: &str| matches(text) || ["s", "es"].iter().filter_map(|plural| text.strip_suffix(plural)).any(matches);
    whole(text) || text.trim_start() != text && whole(text.trim_start())
}

fn alike(unit: &str, text: &str) -> bool {
    let (mut a, mut b) = (unit.chars(), text.chars());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || wanted == '.' => {}
            _ => return false,
        }
    }
}
