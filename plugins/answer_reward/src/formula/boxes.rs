//! Finds the contents of `\boxed{...}`.

/// Selection of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxSelection {
    /// The last one, and those before it that belong to the same list.
    Last,
    /// All of them.
    All,
}

/// Returns the contents of the boxes with commas between them, or the text itself if it has none.
#[must_use]
pub fn unboxed(text: &str, boxes: BoxSelection) -> String {
    let mut starts: Vec<(usize, usize)> = ["\\boxed", "\\fbox"]
        .iter()
        .flat_map(|command| text.match_indices(command).map(|(at, found)| (at, at + found.len())))
        .collect();
    starts.sort_unstable();
    let mut found: Vec<&str> = Vec::new();
    let (mut limit, mut after) = (text.len(), None);
    for (start, end) in starts.into_iter().rev() {
        let Some(region) = text.get(end..limit) else { break };
        let spaces = region.len() - region.trim_start().len();
        if spaces == region.len() {
            break;
        }
        let open = end + spaces;
        let close = if text[open..].starts_with('{') { closing(text, open, limit) } else { None };
        let Some(close) = close else {
            if found.is_empty() {
                found.push(&text[open..]);
            }
            break;
        };
        let content = text[open + 1..close].trim();
        if boxes == BoxSelection::Last
            && let (Some(next), Some(last)) = (after, found.last())
            && !belongs(content, last, text.get(close + 1..next).unwrap_or_default())
        {
            break;
        }
        if found.last() != Some(&content) {
            found.push(content);
        }
        (limit, after) = (start, Some(start));
    }
    if found.is_empty() {
        return text.to_owned();
    }
    found.reverse();
    found.join(",")
}

/// Returns the position of the brace that closes the one at `open`, before a limit.
fn closing(text: &str, open: usize, limit: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.as_bytes().get(..limit)?.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns whether a box continues a list with the next box: the text between them is short or has a separator.
fn belongs(content: &str, next: &str, between: &str) -> bool {
    let length = between.chars().take(70).count();
    length < 10 || content != next && length < 70 && (between.contains([',', ';']) || has_word(between, &["and", "or"]))
}

fn has_word(text: &str, words: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| words.contains(&word))
}
