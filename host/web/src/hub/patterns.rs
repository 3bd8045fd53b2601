//! File patterns with the semantics of `datasets`: `*` and `?` match within a path component, `[a-z]` and `[!a-z]` match one character, and
//! `**` matches any number of folders.

/// Files that a pattern matches only if it spells out their names.
const UNNAMED: [&str; 6] =
    ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"];

/// Maximum length of a pattern in bytes.
pub(super) const LONGEST: usize = 1024;

/// Returns whether a text is a pattern rather than the name of one file.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Returns the files that a pattern matches, sorted by path. Special files and folders match only if they are spelled out.
pub(super) fn matching<'a>(pattern: &str, files: &[&'a str]) -> Vec<&'a str> {
    let own = last(pattern);
    let special = |path: &str| folders(path).filter(|part| part.starts_with("__")).count();
    let hidden = |path: &str| path.split('/').filter(|part| part.starts_with('.')).count();
    let is_meant = |file: &str| {
        let name = last(file);
        (name == own || !UNNAMED.contains(&name)) && special(file) == special(pattern) && hidden(file) == hidden(pattern)
    };
    let parts: Vec<Vec<char>> = pattern.split('/').map(|part| part.chars().collect()).collect();
    let mut found: Vec<&str> =
        files.iter().copied().filter(|file| is_meant(file) && matches(&parts, &file.split('/').collect::<Vec<_>>())).collect();
    found.sort_unstable();
    found
}

/// Returns the name of a file without its folders.
pub(super) fn last(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Returns the folders in a path.
pub(super) fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.rsplit_once('/').map(|(folders, _)| folders.split('/')).into_iter().flatten()
}

/// Returns whether a pattern's components match a path's, in time proportional to the product of their lengths.
fn matches(pattern: &[Vec<char>], path: &[&str]) -> bool {
    // Whether the components of the pattern processed so far match the path's first `i` components.
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for (n, part) in pattern.iter().enumerate() {
        let mut next = vec![false; path.len() + 1];
        if part[..] == ['*', '*'] {
            // A final `**` matches at least one component.
            let least = usize::from(n + 1 == pattern.len());
            let mut any = false;
            for (i, matched) in next.iter_mut().enumerate() {
                any |= i.checked_sub(least).is_some_and(|before| reached[before]);
                *matched = any;
            }
        } else {
            for (i, name) in path.iter().enumerate() {
                next[i + 1] = reached[i] && part_matches(part, name);
            }
        }
        reached = next;
    }
    reached[path.len()]
}

fn part_matches(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // The position of the last `*`, and how much of the name it has consumed.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let (fits, length) = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => (true, 1),
            Some('[') => class(&pattern[p..], name[n]).unwrap_or((name[n] == '[', 1)),
            Some(c) => (*c == name[n], 1),
            None => (false, 0),
        };
        if fits {
            (p, n) = (p + length, n + 1);
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            (p, n) = (at + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Returns whether the class at the beginning of a pattern, such as `[a-z]`, contains a character, and the length of the class; `None` if
/// it is not closed.
fn class(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let begin = if negated { 2 } else { 1 };
    // A leading bracket is a member.
    let end = begin + 1 + pattern.get(begin + 1..)?.iter().position(|c| *c == ']')?;
    let members = &pattern[begin..end];
    let (mut i, mut found) = (0, false);
    while i < members.len() {
        if members.get(i + 1) == Some(&'-') && i + 2 < members.len() {
            found |= (members[i]..=members[i + 2]).contains(&c);
            i += 3;
        } else {
            found |= members[i] == c;
            i += 1;
        }
    }
    Some((found != negated, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_datasets() {
        let files = [
            "a.jsonl",
            "data/part-00.json",
            "data/part-10.json",
            "data/deep/x.json",
            "README.md",
            "data/.h.json",
            "__c__/y.json",
            "data/[x].json",
        ];
        for (pattern, expected) in [
            ("a.jsonl", &["a.jsonl"][..]),
            ("*.jsonl", &["a.jsonl"]),
            ("*", &["a.jsonl"]),
            ("data/part-0*", &["data/part-00.json"]),
            ("data/part-?0.json", &["data/part-00.json", "data/part-10.json"]),
            ("data/part-[!0]0.json", &["data/part-10.json"]),
            ("data/part-[0-9]0.*", &["data/part-00.json", "data/part-10.json"]),
            ("data/[[]x].json", &["data/[x].json"]),
            ("data/[x", &[]),
            ("data", &[]),
            ("data/**", &["data/[x].json", "data/deep/x.json", "data/part-00.json", "data/part-10.json"]),
            ("**/x.json", &["data/deep/x.json"]),
            ("**/a.jsonl", &["a.jsonl"]),
            ("**/deep/**", &["data/deep/x.json"]),
            ("**", &["a.jsonl", "data/[x].json", "data/deep/x.json", "data/part-00.json", "data/part-10.json"]),
            ("README.md", &["README.md"]),
            ("data/.h.json", &["data/.h.json"]),
            ("__c__/*", &["__c__/y.json"]),
        ] {
            assert_eq!(matching(pattern, &files), expected, "{pattern}");
        }
    }

    #[test]
    fn patterns_take_little_time() {
        let (stars, name) = ("*a".repeat(LONGEST / 2), "a".repeat(512) + "b");
        assert!(matching(&stars, &[&name]).is_empty());
        let (folders, path) = ("**/".repeat(LONGEST / 3) + "x", "a/".repeat(256) + "y");
        assert!(matching(&folders, &[&path]).is_empty());
    }
}
