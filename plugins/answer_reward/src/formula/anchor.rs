//! Finds formulas after words such as "the answer is", by the patterns of math_verify.

/// Returns the start and end of each occurrence of a word, ignoring case.
#[must_use]
pub fn occurrences(text: &str, word: &str) -> Vec<(usize, usize)> {
    let (bytes, word) = (text.as_bytes(), word.as_bytes());
    let found = bytes.windows(word.len()).enumerate().filter(|(_, window)| window.eq_ignore_ascii_case(word));
    found.map(|(at, _)| (at, at + word.len())).collect()
}

/// Returns the positions after none, one and so on up to this many characters.
pub fn within(text: &str, from: usize, characters: usize) -> impl Iterator<Item = usize> {
    let rest = text.get(from..).unwrap_or_default();
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.take(characters + 1).map(move |at| from + at)
}

/// A match of a pattern in a text.
pub trait TextMatch {
    /// Returns the start of the match.
    fn start(&self) -> usize;
    /// Returns the end of the match.
    fn end(&self) -> usize;
    /// Sets the start of the match.
    fn with_start(self, start: usize) -> Self;
}

/// Finds non-overlapping matches after a word. `find` gets the position after the word.
pub fn after_word<T: TextMatch>(text: &str, word: &str, find: impl Fn(usize) -> Option<T>) -> Vec<T> {
    let (mut found, mut from) = (Vec::new(), 0);
    for (start, end) in occurrences(text, word) {
        if start >= from
            && let Some(one) = find(end)
        {
            from = one.end();
            found.push(one.with_start(start));
        }
    }
    found
}

/// Finds matches between "final answer is" and "I hope".
pub fn final_answers_before_hope<T: TextMatch>(text: &str, find: impl Fn(usize) -> Option<T>) -> Vec<T> {
    after_word(text, "final answer is", |end| {
        let found = find(after_colon(text, end))?;
        let rest = text.get(found.end()..)?;
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        let spaced = rest.strip_prefix(char::is_whitespace).unwrap_or(rest);
        (spaced.starts_with("I hope")).then_some(found)
    })
}

/// Finds matches after "final answer ... is".
pub fn final_answers<T: TextMatch>(text: &str, find: impl Fn(usize) -> Option<T>) -> Vec<T> {
    after_word(text, "final answer", |end| {
        within(text, end, 100).find_map(|at| {
            let rest = text.get(at..)?;
            let spaced = rest.trim_start();
            let after = spaced.strip_prefix("is").filter(|_| spaced.len() < rest.len())?;
            find(after_colon(text, text.len() - after.len()))
        })
    })
}

fn after_colon(text: &str, at: usize) -> usize {
    at + usize::from(text.get(at..).is_some_and(|rest| rest.starts_with(':')))
}
