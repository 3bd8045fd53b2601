//! Formats completions for a terminal of a given width, or for a file.

use crate::config::words::{counted, number};
use crate::config::{is_hidden, is_variation_selector, printable};
use crate::run::{LoggedRollout, PluginVersion};
use console::{Term, measure_text_width, style};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a printed name, in bytes.
const NAME: usize = 80;

/// Number of lines shown of a long prompt and of a long completion: its first and its last ones.
const PROMPT: (usize, usize) = (3, 5);
const COMPLETION: (usize, usize) = (14, 6);

/// Minimum plausible width of a terminal; a smaller one is not used.
const NARROWEST: usize = 20;

/// Indentation of a completion's text.
const INDENT: &str = "     ";

/// Format of completions.
pub(super) struct RolloutLayout {
    /// Columns of the terminal; `None` for unlimited lines.
    width: Option<usize>,
    /// Whether texts are shown in full.
    is_full: bool,
    weights: BTreeMap<String, f64>,
    /// Plugin versions that were shown last.
    versions: Option<String>,
}

impl RolloutLayout {
    /// Creates the layout for standard output. Outputs other than terminals get full texts and unbroken lines.
    pub(super) fn new(is_full: bool, weights: BTreeMap<String, f64>) -> Self {
        let width = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns).max(NARROWEST));
        Self { width, is_full: is_full || width.is_none(), weights, versions: None }
    }

    /// Returns the lines of completions of one prompt and step.
    pub(super) fn group(&mut self, group: &[LoggedRollout]) -> Vec<String> {
        let Some(first) = group.first() else { return Vec::new() };
        let mut lines = self.heading(first, group.len());
        let versions = versions(first);
        if self.versions.as_ref() != Some(&versions) {
            lines.extend(self.wrapped(&versions, "").into_iter().map(|line| style(line).dim().to_string()));
            self.versions = Some(versions);
        }
        let prompt = self.text(first.prompt.trim_end(), INDENT, PROMPT);
        lines.extend(prompt.into_iter().map(|line| style(line).cyan().to_string()));
        let scores = ScoreTable::new(group, &self.weights);
        let table = self.width.is_none_or(|width| scores.width() <= width);
        if table {
            lines.push(style(scores.heading()).dim().to_string());
        }
        for (i, rollout) in group.iter().enumerate() {
            if table {
                lines.push(style(scores.row(i)).bold().to_string());
            } else {
                let scores = self.wrapped(&scores.words(i), INDENT);
                lines.extend(scores.into_iter().map(|line| style(line).bold().to_string()));
            }
            lines.extend(self.said(rollout));
        }
        lines.push(String::new());
        lines
    }

    fn heading(&self, first: &LoggedRollout, completions: usize) -> Vec<String> {
        let row = first.row.as_u64().map_or_else(String::new, |row| format!(", row {row}"));
        let text = format!("step {}{row}, {}", first.step, counted(completions as u64, "completion"));
        let rule = self.width.map(|width| width.checked_sub(text.len() + 4));
        if rule == Some(None) {
            return self.wrapped(&text, "").into_iter().map(|line| style(line).bold().to_string()).collect();
        }
        let rule = "-".repeat(rule.flatten().unwrap_or(0));
        vec![format!("{} {} {}", style("--").dim(), style(text).bold(), style(rule).dim()).trim_end().to_owned()]
    }

    /// Returns a completion's text, or an episode's messages after its prompt.
    fn said(&self, rollout: &LoggedRollout) -> Vec<String> {
        let role = |message: &Value| message["role"].as_str().map(str::to_owned).unwrap_or_default();
        let own: Vec<usize> = (0..rollout.messages.len()).filter(|&i| role(&rollout.messages[i]) == "assistant").collect();
        // The prompt may have assistant messages too.
        let own = &own[own.len().saturating_sub(rollout.turn_rewards.len())..];
        let mut lines = Vec::new();
        match own.first() {
            None => lines.extend(self.text(&rollout.completion, INDENT, COMPLETION)),
            Some(&first) => {
                for (i, message) in rollout.messages.iter().enumerate().skip(first) {
                    let reward = own.iter().position(|at| *at == i).and_then(|turn| rollout.turn_rewards.get(turn)?.as_f64());
                    let reward = reward.map_or_else(String::new, |reward| format!(", reward {}", number(reward)));
                    let speaker = self.wrapped(&format!("{}{reward}:", printable(&role(message), NAME)), INDENT);
                    lines.extend(speaker.into_iter().map(|line| style(line).dim().to_string()));
                    lines.extend(self.text(&content(message), "       ", COMPLETION));
                }
            }
        }
        for (name, value) in &rollout.extra {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let logged = self.text(&format!("{}: {value}", printable(name, NAME)), INDENT, PROMPT);
            lines.extend(logged.into_iter().map(|line| style(line).dim().to_string()));
        }
        if let Some(failed) = &rollout.failed {
            let failed = self.text(&format!("failed: {failed}"), INDENT, PROMPT);
            lines.extend(failed.into_iter().map(|line| style(line).red().to_string()));
        }
        lines
    }

    /// Returns the lines of a text. A long one is cut in the middle, unless texts are shown in full.
    fn text(&self, text: &str, indent: &str, (head, tail): (usize, usize)) -> Vec<String> {
        if text.is_empty() {
            return vec![format!("{indent}{}", style("(empty)").dim())];
        }
        let mut lines: Vec<String> = Vec::new();
        text.trim_end_matches('\n').split('\n').for_each(|line| lines.extend(self.wrapped(&visible(line), indent)));
        // A line about the cut would take as much room as the line that it replaces.
        if self.is_full || lines.len() <= head + tail + 1 {
            return lines;
        }
        let omitted = lines.len() - head - tail;
        let note = format!("{indent}[{omitted} more lines; --full shows them]");
        lines.splice(head..head + omitted, [style(note).dim().to_string()]);
        lines
    }

    /// Breaks a line to the terminal's width, after spaces where possible.
    fn wrapped(&self, line: &str, indent: &str) -> Vec<String> {
        let Some(room) = self.width.map(|width| width.saturating_sub(indent.len()).max(NARROWEST / 2)) else {
            return vec![format!("{indent}{line}").trim_end().to_owned()];
        };
        broken(line, room).into_iter().map(|part| format!("{indent}{part}").trim_end().to_owned()).collect()
    }
}

/// Breaks a line into parts of at most `room` columns.
fn broken(line: &str, room: usize) -> Vec<&str> {
    let (mut parts, mut begin, mut width, mut space) = (Vec::new(), 0, 0, None::<(usize, usize)>);
    for (at, c) in line.char_indices() {
        let own = measure_text_width(c.encode_utf8(&mut [0; 4]));
        if width + own > room && at > begin {
            // Breaks after the last space of the part, or at the width.
            let (end, left) = space.map_or((at, 0), |(end, before)| (end, width - before));
            parts.push(&line[begin..end]);
            (begin, width, space) = (end, left, None);
        }
        width += own;
        if c == ' ' {
            space = Some((at + 1, width));
        }
    }
    parts.push(&line[begin..]);
    parts
}

/// Makes characters visible that would move, reorder or hide others. Joiners and selectors stay, because emoji and some scripts need them.
fn visible(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.trim_end_matches('\r').chars() {
        match c {
            '\t' => shown.push_str("    "),
            '\u{200c}' | '\u{200d}' => shown.push(c),
            c if is_variation_selector(c) || !is_hidden(c) => shown.push(c),
            c => shown.extend(c.escape_unicode()),
        }
    }
    shown
}

/// Returns a message's text, or everything that it has besides its role.
fn content(message: &Value) -> String {
    let Some(fields) = message.as_object() else { return message.to_string() };
    let text = fields.get("content").and_then(Value::as_str).unwrap_or_default();
    let others =
        fields.iter().filter(|(key, value)| *key != "role" && !value.is_null() && !(*key == "content" && value.is_string()));
    let others = others.map(|(key, value)| format!("{key}: {value}"));
    let parts = std::iter::once(text.to_owned()).filter(|text| !text.is_empty()).chain(others);
    parts.collect::<Vec<_>>().join("\n")
}

/// Returns the versions of the plugins that were used for a completion.
fn versions(rollout: &LoggedRollout) -> String {
    let version = |(name, version): (&String, &Value)| {
        let version = PluginVersion::parse(version.as_str().unwrap_or_default()).short();
        format!("{} {}", printable(name, NAME), printable(&version, NAME))
    };
    rollout.plugins.iter().map(version).collect::<Vec<_>>().join(", ")
}

/// The scores of a group as a table.
struct ScoreTable {
    names: Vec<String>,
    /// One row per completion.
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl ScoreTable {
    fn new(group: &[LoggedRollout], weights: &BTreeMap<String, f64>) -> Self {
        // In the configuration's order, which the logged lines have too.
        let (mut names, mut known): (Vec<&str>, BTreeSet<&str>) = (Vec::new(), BTreeSet::new());
        for name in group.iter().flat_map(|rollout| rollout.rewards.keys()) {
            if known.insert(name) {
                names.push(name);
            }
        }
        if names.len() > 1 && !known.contains("reward") {
            names.push("reward");
        }
        let has = |name: &str| group.iter().any(|rollout| rollout.value(name, weights).is_some());
        names.extend(["advantage", "tokens"].into_iter().filter(|name| !known.contains(name) && has(name)));
        let cell = |rollout: &LoggedRollout, name: &str| match rollout.value(name, weights) {
            Some(value) => number(value),
            None => "none".to_owned(),
        };
        let row = |rollout: &LoggedRollout| {
            let end = if rollout.finished == Some(false) { "cut off" } else { "" };
            names.iter().map(|name| cell(rollout, name)).chain([end.to_owned()]).collect()
        };
        let rows: Vec<Vec<String>> = group.iter().map(row).collect();
        let names: Vec<String> = names.iter().map(|name| printable(name, NAME)).chain([String::new()]).collect();
        let width = |(i, name): (usize, &String)| {
            rows.iter().map(|row: &Vec<String>| row[i].len()).fold(measure_text_width(name), usize::max)
        };
        let widths = names.iter().enumerate().map(width).collect();
        Self { names, rows, widths }
    }

    fn width(&self) -> usize {
        4 + self.widths.iter().map(|width| width + 2).sum::<usize>()
    }

    fn line(&self, number: &str, cells: &[String]) -> String {
        let mut line = format!("{number:>4}");
        for (cell, width) in cells.iter().zip(&self.widths) {
            let gap = width.saturating_sub(measure_text_width(cell));
            line.push_str(&format!("  {}{cell}", " ".repeat(gap)));
        }
        line.trim_end().to_owned()
    }

    fn heading(&self) -> String {
        self.line("", &self.names)
    }

    fn row(&self, i: usize) -> String {
        self.line(&(i + 1).to_string(), &self.rows[i])
    }

    /// Returns a row with its column names, for terminals narrower than the table.
    fn words(&self, i: usize) -> String {
        let word = |(name, cell): (&String, &String)| match (name.is_empty(), cell.is_empty()) {
            (_, true) => None,
            (true, false) => Some(cell.clone()),
            (false, false) => Some(format!("{name} {cell}")),
        };
        let words: Vec<String> = self.names.iter().zip(&self.rows[i]).filter_map(word).collect();
        format!("{}. {}", i + 1, words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(width: usize) -> RolloutLayout {
        RolloutLayout { width: Some(width), is_full: false, weights: BTreeMap::from([("b".to_owned(), 0.5)]), versions: None }
    }

    fn group() -> Vec<LoggedRollout> {
        let line = |completion: &str, b: Value| {
            serde_json::from_value(serde_json::json!({
                "step": 3, "row": 7, "prompt": "Q\u{1b}[2J", "completion": completion, "completion_ids": [1, 2, 3],
                "finished": false, "rewards": {"a": 1.0, "b": b}, "advantage": -0.5, "plugins": {"a": "0123456789abcdef"},
            }))
        };
        vec![line("one two three", 2.0.into()).unwrap(), line("", Value::Null).unwrap()]
    }

    #[test]
    fn a_group_has_its_scores_in_columns_or_words_by_the_width() {
        let wide = layout(70).group(&group());
        let text = wide.join("\n");
        assert!(wide.iter().all(|line| measure_text_width(line) <= 70), "{text}");
        assert!(text.starts_with("-- step 3, row 7, 2 completions ---"), "{text}");
        assert!(text.contains("a 0123456789ab\n     Q\\u{1b}[2J\n"), "{text}");
        assert!(
            text.contains("      a     b  reward  advantage  tokens\n   1  1     2       2       -0.5       3  cut off\n"),
            "{text}"
        );
        assert!(text.contains("   2  1  none       1       -0.5       3  cut off\n     (empty)"), "{text}");
        let narrow = layout(24).group(&group());
        assert!(narrow.iter().all(|line| measure_text_width(line) <= 24), "{narrow:?}");
        assert!(narrow.join(" ").contains("1. a 1, b 2,"), "{narrow:?}");
    }

    #[test]
    fn texts_are_broken_at_spaces_by_columns_and_cut_in_the_middle() {
        assert_eq!(broken("one two three", 8), ["one two ", "three"]);
        assert_eq!(broken("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(broken("\u{4e16}\u{754c}\u{4e16}", 4), ["\u{4e16}\u{754c}", "\u{4e16}"]);
        assert_eq!(broken("", 4), [""]);
        let long = (0..40).map(|i| i.to_string()).collect::<Vec<_>>().join("\n");
        let lines = layout(80).text(&long, "", (2, 3));
        assert_eq!(lines, ["0", "1", "[35 more lines; --full shows them]", "37", "38", "39"]);
        assert_eq!(RolloutLayout { is_full: true, ..layout(80) }.text(&long, "", (2, 3)).len(), 40);
    }

    #[test]
    fn an_episode_is_shown_as_it_was_spoken() {
        let episode: LoggedRollout = serde_json::from_value(serde_json::json!({
            "step": 0, "completion": "all of it", "turn_rewards": [0.25], "failed": "it broke",
            "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "shot"}, {"role": "user", "content": "Q2"},
                {"role": "assistant", "content": null, "tool_calls": [{"name": "add"}]}, {"role": "tool", "content": "4"}],
        }))
        .unwrap();
        let said = layout(80).said(&episode).join("\n");
        let expected =
            "     assistant, reward 0.25:\n       tool_calls: [{\"name\":\"add\"}]\n     tool:\n       4\n     failed: it broke";
        assert_eq!(said, expected);
    }
}
