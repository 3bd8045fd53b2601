//! Describes events in sentences.

use super::words;
use crate::run::{EventKind, EventLine};
use serde_json::Value;

/// Maximum length of a reason in a chart's mark, in characters; the table of events has it in full.
const LONGEST_REASON: usize = 240;

/// Describes an event without its name and step. For an unknown event, lists all its fields.
pub(super) fn about(event: &EventLine) -> String {
    let (name, text) = (event.text("plugin"), |key: &str| event.text(key));
    let Some(kind) = event.kind else {
        let rest = event.fields.iter().filter(|(key, _)| *key != "step");
        return rest.map(|(key, value)| format!("{key}: {}", words::value(value))).collect::<Vec<_>>().join("; ");
    };
    match kind {
        EventKind::Started | EventKind::Resumed | EventKind::Forked => beginning(event),
        EventKind::PluginLoaded => {
            let granted = text("granted");
            let granted = if granted.is_empty() { String::new() } else { format!(", granted {granted}") };
            format!("{} {name}{}, {}{granted}", text("role"), stated(event), event.version("hash").short())
        }
        EventKind::PluginSwapped => {
            let (from, to) = (event.version("from"), event.version("to"));
            let change = match is_loaded_again(event) {
                true => format!("{} loaded again", to.short()),
                false => format!("{} \u{2192} {}", from.short(), to.short()),
            };
            format!("{name}{}: {change}{}{}", stated(event), shadow(event), by(event))
        }
        EventKind::PluginRolledBack => {
            let (from, to) = (event.version("from"), event.version("to"));
            format!("{name}: {} rolled back to {}; {}", from.short(), to.short(), text("reason"))
        }
        EventKind::PluginRefused => match text("by") {
            "" => format!("{name}: {}", text("reason")),
            by => format!("{name}, from {by}: {}", text("reason")),
        },
        EventKind::SettingsRefused if name.is_empty() => text("reason").to_owned(),
        EventKind::SettingsRefused => format!("{name}: {}", text("reason")),
        EventKind::PluginError => repeated(event, unscored(event)),
        EventKind::SettingsChanged => {
            let side = |key: &str| event.fields.get(key).cloned().unwrap_or_default();
            format!("{name}: {}{}", differences(&side("from"), &side("to")), by(event))
        }
        EventKind::Requested => {
            let refused = text("refused");
            let refused = if refused.is_empty() { String::new() } else { format!("; refused: {refused}") };
            format!("{} by {}{refused}", text("action"), text("by"))
        }
        EventKind::CheckpointSaved => took(event, "written in "),
        EventKind::CheckpointFailed | EventKind::Failed => text("reason").to_owned(),
        EventKind::CheckpointKept => text("reason").to_owned(),
        EventKind::CheckpointSuperseded => format!("now {}", text("path")),
        EventKind::CheckpointsRemoved => {
            let steps = event.fields.get("steps").and_then(Value::as_array).into_iter().flatten();
            let steps: Vec<String> = steps.map(words::value).collect();
            format!("step{} {}", if steps.len() == 1 { "" } else { "s" }, steps.join(", "))
        }
        EventKind::StoppedEarly => {
            let evaluations = event.fields.get("evaluations").and_then(Value::as_u64).unwrap_or_default();
            format!("{} in a row did not improve {}", words::counted(evaluations, "evaluation"), text("metric"))
        }
        EventKind::Warning | EventKind::Finding => text("text").to_owned(),
        EventKind::Finished | EventKind::Stopped => took(event, "after "),
    }
}

/// Returns whether a swap loaded the version that was in use again.
pub(super) fn is_loaded_again(event: &EventLine) -> bool {
    let (from, to) = (event.version("from"), event.version("to"));
    event.kind == Some(EventKind::PluginSwapped) && from.hash() == to.hash() && from.is_same(&to)
}

/// Names the person who made a change, if known.
pub(super) fn by(event: &EventLine) -> String {
    Some(event.text("by")).filter(|by| !by.is_empty()).map(|by| format!("; by {by}")).unwrap_or_default()
}

/// Returns the version that a plugin gives itself, after a space.
fn stated(event: &EventLine) -> String {
    Some(event.text("version")).filter(|version| !version.is_empty()).map(|version| format!(" {version}")).unwrap_or_default()
}

/// Shortens a reason to one line. Of several lines, such as a traceback's, keeps the first and the last, which name what failed and the
/// error.
fn one_line(reason: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = reason.lines().map(words).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [first, _, .., last] => format!("{first} \u{2026} {last}"),
        _ => lines.join(" "),
    }
}

/// Describes a plugin or settings that were refused, for a chart's mark.
pub(super) fn refused(event: &EventLine) -> String {
    let (name, hash) = (event.text("plugin"), words::hash(event.text("hash")));
    let what = [name, &hash].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let joint = if what.is_empty() { "" } else { ": " };
    let reason = one_line(event.text("reason"));
    let (shown, more) = words::shortened(&reason, LONGEST_REASON);
    format!("{what}{joint}{shown}{}", if more > 0 { "\u{2026}" } else { "" })
}

fn took(event: &EventLine, before: &str) -> String {
    event.number("seconds").map_or_else(String::new, |s| format!("{before}{}", words::duration(s)))
}

fn beginning(event: &EventLine) -> String {
    let mut parts = Vec::new();
    if !event.text("checkpoint").is_empty() {
        parts.push(format!("from {}", event.text("checkpoint")));
    }
    if let Some(steps) = event.fields.get("max_steps").and_then(Value::as_u64) {
        parts.push(format!("to step {}", words::count(steps)));
    }
    parts.extend(changed(event));
    if !event.text("version").is_empty() {
        parts.push(format!("rlhost {}", event.text("version")));
    }
    parts.join("; ")
}

/// Describes the settings that changed when the run was resumed.
fn changed(event: &EventLine) -> Option<String> {
    let changes = event.fields.get("changed").and_then(Value::as_object).filter(|c| !c.is_empty())?;
    let change = |(key, sides): (&String, &Value)| match sides.as_array().map(Vec::as_slice) {
        Some([from, to]) => format!("{key} {} \u{2192} {}", words::value(from), words::value(to)),
        _ => format!("{key} {}", words::value(sides)),
    };
    Some(changes.iter().map(change).collect::<Vec<_>>().join(", "))
}

/// Describes a resumed run, for a chart's mark.
pub(super) fn resumed(event: &EventLine) -> String {
    let checkpoint = event.text("checkpoint").rsplit(['/', '\\']).next().unwrap_or_default();
    let changed = changed(event).map(|c| format!("; {c}")).unwrap_or_default();
    format!("from {checkpoint}{changed}")
}

/// Compares how a plugin and its predecessor scored the same completions.
pub(super) fn shadow(event: &EventLine) -> String {
    let figure = |key: &str| event.fields.get("shadow").and_then(|s| s.get(key)).and_then(Value::as_f64);
    match (figure("rows"), figure("old_mean"), figure("new_mean")) {
        (Some(rows), Some(old), Some(new)) => {
            let (old, new) = (words::number(old), words::number(new));
            format!("; mean over the newest {}: {old} \u{2192} {new}", words::counted(rows as u64, "completion"))
        }
        _ => String::new(),
    }
}

/// Returns the number of completions without a score that an event lists.
pub(super) fn unscored(event: &EventLine) -> usize {
    event.fields.get("rows").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Describes a repeated event; `rows` is the total number of completions without a score.
pub(super) fn repeated(event: &EventLine, rows: usize) -> String {
    if event.kind != Some(EventKind::PluginError) {
        return about(event);
    }
    let lost = match rows {
        0 => "succeeded when retried".to_owned(),
        rows => format!("{} without a score", words::counted(rows as u64, "row")),
    };
    format!("{}: {}; {lost}", event.text("plugin"), event.text("reason"))
}

/// Lists a plugin's settings that have a value.
pub(super) fn settings(of: &Value) -> String {
    let given = of.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let text = given.map(|(key, value)| format!("{key} {}", words::value(value))).collect::<Vec<_>>().join(", ");
    let (shown, more) = words::shortened(&text, LONGEST_REASON);
    format!("{shown}{}", if more > 0 { "\u{2026}" } else { "" })
}

/// Describes the keys in which two settings differ.
pub(super) fn differences(from: &Value, to: &Value) -> String {
    let empty = serde_json::Map::new();
    let (from, to) = (from.as_object().unwrap_or(&empty), to.as_object().unwrap_or(&empty));
    let keys = from.keys().chain(to.keys().filter(|key| !from.contains_key(*key)));
    let side = |side: Option<&Value>| side.map_or_else(|| "nothing".to_owned(), words::value);
    let changes = keys.filter(|key| from.get(*key) != to.get(*key));
    changes.map(|key| format!("{key} {} \u{2192} {}", side(from.get(key)), side(to.get(key)))).collect::<Vec<_>>().join(", ")
}
