//! Finds the only number of a formula that can't be parsed, if everything around it is layout: `= 13~`, `13 \checkmark`.

/// Commands that do not change an adjacent number.
const HARMLESS: [&str; 38] = [
    "approx",
    "because",
    "bf",
    "checkmark",
    "degree",
    "displaystyle",
    "footnotesize",
    "hfill",
    "huge",
    "Huge",
    "implies",
    "it",
    "large",
    "Large",
    "LARGE",
    "ldots",
    "left",
    "mathstrut",
    "newline",
    "normalsize",
    "qquad",
    "quad",
    "right",
    "rightarrow",
    "Rightarrow",
    "rm",
    "scriptsize",
    "scriptstyle",
    "sf",
    "small",
    "strut",
    "textbf",
    "text",
    "textstyle",
    "therefore",
    "tiny",
    "tt",
    "to",
];
/// Commands whose argument is layout.
const SPACES: [&str; 5] = ["hspace", "vspace", "color", "tag", "label"];
/// Commands whose argument may be a unit.
const STYLES: [&str; 11] =
    ["texttt", "textsf", "textsc", "textsl", "textup", "textmd", "emph", "underline", "operatorname", "mathrm", "text"];

/// Returns the number of a formula that otherwise has only layout and words in `\texttt{...}` and the like.
#[must_use]
pub fn number(formula: &str) -> Option<String> {
    let (mut rest, mut number) = (formula, None);
    while let Some(first) = rest.chars().next() {
        let sign = usize::from(rest.starts_with('-'));
        let length = digits(&rest[sign..]);
        if length > 0 {
            if number.is_some() {
                return None;
            }
            number = Some(rest[..sign + length].to_owned());
            rest = &rest[sign + length..];
            continue;
        }
        rest = match first {
            '\\' => after_command(&rest[1..])?,
            '.' | '~' | '=' | '{' | '}' | '≈' | '°' | '$' => &rest[first.len_utf8()..],
            space if space.is_whitespace() => &rest[space.len_utf8()..],
            _ => return None,
        };
    }
    number
}

/// Returns the length of a number without a sign.
fn digits(text: &str) -> usize {
    let count = |from: usize| text.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let whole = count(0);
    let places = if whole > 0 && text[whole..].starts_with('.') { count(whole + 1) } else { 0 };
    if places > 0 { whole + 1 + places } else { whole }
}

fn after_command(text: &str) -> Option<&str> {
    let length = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    if length == 0 {
        // A space or a line break.
        let first = text.chars().next()?;
        return (first.is_whitespace() || ",;:!$\\".contains(first)).then(|| &text[first.len_utf8()..]);
    }
    let (name, after) = text.split_at(length);
    let argument = || after.trim_start().strip_prefix('{')?.split_once('}');
    if SPACES.contains(&name) {
        return argument().map(|(_, rest)| rest);
    }
    if STYLES.contains(&name)
        && let Some((inside, rest)) = argument()
    {
        return inside.chars().all(|c| c.is_alphabetic() || c.is_whitespace() || c == '.').then_some(rest);
    }
    HARMLESS.contains(&name).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_around_a_number_is_passed_over() {
        for formula in [
            "13",
            "13.",
            "13~",
            "= 13",
            "\\approx 13",
            "\\textstyle 13",
            "13\\hspace{1em}",
            "{\\bf 13}",
            "13 \\checkmark",
            "13°",
            "13{}",
            "13\\\\",
            "12.5\\texttt{ cm}",
            "\\therefore -13",
            "\\textbf 13",
        ] {
            let wanted = formula.matches(|c: char| c.is_ascii_digit() || c == '-').count();
            assert!(number(formula).is_some_and(|n| n.len() >= 2 && n.len() <= wanted + 1), "{formula}: {:?}", number(formula));
        }
    }

    #[test]
    fn what_may_change_the_number_is_not() {
        for formula in
            ["2\\foo{3}", "13+", "\\sqrt 13", "13_8", "13^2", "x 13", "1 3", "\\texttt{13}", "13\\texttt{2}", "", "\\frac 1"]
        {
            assert_eq!(number(formula), None, "{formula}");
        }
    }
}
