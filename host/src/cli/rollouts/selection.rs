//! Selection of completions by the arguments.

use super::args::Args;
use crate::config::{did_you_mean, printable};
use crate::run::{PluginVersion, RolloutFilter, RolloutInventory, StepSelection, VALUES, ValueBound};
use anyhow::anyhow;
use std::collections::BTreeMap;

/// Maximum length of a printed name, and maximum number of names in a message.
const NAME: usize = 80;
const NAMES: usize = 12;

/// Returns the filter given by the arguments.
pub(super) fn selection(args: &Args, weights: BTreeMap<String, f64>) -> anyhow::Result<RolloutFilter> {
    if args.by.is_some() && args.top.is_none() && args.bottom.is_none() {
        return Err(anyhow!("--by says what --top and --bottom go by; give one of them, as in --top 5"));
    }
    let conditions = &args.conditions;
    let has_condition = conditions.row.is_some()
        || conditions.prompt.is_some()
        || conditions.search.is_some()
        || conditions.version.is_some()
        || conditions.cut_off
        || args.top.is_some()
        || args.bottom.is_some()
        || !conditions.reward.is_empty();
    let steps = match &conditions.step {
        Some(text) => steps(text)?,
        None if has_condition => StepSelection::default(),
        None => StepSelection::Last,
    };
    let lower = |text: &Option<String>| text.as_ref().map(|text| text.to_lowercase());
    let version = conditions.version.as_deref().map(version).transpose()?;
    let bounds = conditions.reward.iter().map(|text| bound(text)).collect::<anyhow::Result<_>>()?;
    let (prompt, text) = (lower(&conditions.prompt), lower(&conditions.search));
    Ok(RolloutFilter { steps, row: conditions.row, prompt, text, bounds, version, cut_off: conditions.cut_off, weights })
}

/// Parses steps: `120`, `100..120`, `100..`, `..120`, `..` or `last`. Both ends are inclusive.
fn steps(text: &str) -> anyhow::Result<StepSelection> {
    let wrong = || anyhow!("--step {text:?}: expected a step, as in 120, a range, as in 100..120, 100.. or .., or last");
    let number = |text: &str, none: u64| match text.trim() {
        "" => Ok(none),
        digits => digits.parse::<u64>().map_err(|_| wrong()),
    };
    match text.split_once("..") {
        _ if text == "last" => Ok(StepSelection::Last),
        None if text.trim().is_empty() => Err(wrong()),
        None => number(text, 0).map(|step| StepSelection::Between(step, step)),
        Some((from, to)) => {
            let (from, to) = (number(from, 0)?, number(to.trim_start_matches('='), u64::MAX)?);
            if from > to {
                return Err(anyhow!("--step {text}: the first step is after the last"));
            }
            Ok(StepSelection::Between(from, to))
        }
    }
}

/// Parses the prefix of a hash: alone, followed by `+` and the prefix of a digest of settings, or preceded by a plugin's name.
fn version(text: &str) -> anyhow::Result<(Option<String>, String)> {
    let (name, hash) = text.rsplit_once('=').map_or((None, text), |(name, hash)| (Some(name.to_owned()), hash));
    let hash = hash.trim().to_lowercase();
    let is_of_version = |byte: u8| byte.is_ascii_hexdigit() || byte == b'+';
    if hash.is_empty() || !hash.bytes().all(is_of_version) {
        return Err(anyhow!("--version {text:?}: expected the beginning of a plugin's hash, as in 3fa9, or NAME=HASH"));
    }
    Ok((name, hash))
}

/// Parses a condition on a value.
fn bound(text: &str) -> anyhow::Result<ValueBound> {
    let wrong = || {
        anyhow!(
            "--reward {text:?}: expected a condition on a reward, as in 'NAME>=0.5', 'NAME<0', NAME=1 or NAME=0.2..0.8; without a name, \
             it is on the weighted sum"
        )
    };
    let at = text.find(['<', '>', '=']);
    let (name, condition) = at.map_or(("", text), |at| text.split_at(at));
    let name = match name.trim() {
        "" => "reward",
        name => name,
    };
    let operator = ["==", ">=", "<=", ">", "<", "="].into_iter().find(|operator| condition.starts_with(operator));
    let value = condition[operator.map_or(0, str::len)..].trim();
    // A score of 0.7 that was recorded in half precision is a little less than 0.7.
    let ends = |text: &str| {
        let value: f64 = text.trim().parse().ok().filter(|value: &f64| !value.is_nan()).ok_or_else(wrong)?;
        let rounded = f64::from(value as f32);
        Ok::<_, anyhow::Error>((value.min(rounded), value.max(rounded)))
    };
    let (low, high) = match (operator, value.split_once("..")) {
        (Some(">="), None) => (ends(value)?.0, f64::INFINITY),
        (Some(">"), None) => (ends(value)?.1.next_up(), f64::INFINITY),
        (Some("<="), None) => (f64::NEG_INFINITY, ends(value)?.1),
        (Some("<"), None) => (f64::NEG_INFINITY, ends(value)?.0.next_down()),
        (None | Some("=" | "=="), Some((low, high))) => {
            let low = if low.trim().is_empty() { f64::NEG_INFINITY } else { ends(low)?.0 };
            let high = if high.trim().is_empty() { f64::INFINITY } else { ends(high.trim_start_matches('='))?.1 };
            (low, high)
        }
        (None | Some("=" | "=="), None) => ends(value)?,
        _ => return Err(wrong()),
    };
    if low > high {
        return Err(anyhow!("--reward {text:?}: no value is in this range"));
    }
    Ok(ValueBound { name: name.to_owned(), low, high })
}

/// Checks, if no completion matched, that the names in the conditions exist.
pub(super) fn check_names(args: &Args, selection: &RolloutFilter, seen: &RolloutInventory, newest: u64) -> anyhow::Result<()> {
    if seen.completions == 0 {
        return Ok(());
    }
    let listed = |names: Vec<String>| {
        let more = names.len().saturating_sub(NAMES);
        let shown = names.iter().take(NAMES).map(|name| printable(name, NAME)).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    let known = || seen.rewards.iter().map(String::as_str).chain(VALUES);
    for name in selection.bounds.iter().map(|bound| bound.name.as_str()).chain(args.by.as_deref()) {
        if !known().any(|known| known == name) {
            let meant = did_you_mean(name, known());
            let names = listed(known().map(str::to_owned).collect());
            return Err(anyhow!("these completions have no value {:?}; they have {names}{meant}", printable(name, NAME)));
        }
    }
    let Some((name, hash)) = &selection.version else { return Ok(()) };
    let is_it =
        |(plugin, own): &&(String, PluginVersion)| own.matches_prefix(hash) && name.as_ref().is_none_or(|name| name == plugin);
    if seen.versions.keys().any(|key| is_it(&key)) {
        return Ok(());
    }
    if seen.versions.is_empty() {
        return Err(anyhow!("these completions don't say which versions of plugins scored them"));
    }
    let version = |((name, version), (from, to)): (&(String, PluginVersion), &(u64, u64))| {
        let short = version.short();
        let to = if *to == newest { "the end".to_owned() } else { format!("step {to}") };
        format!("{name}={short} (step {from} to {to})")
    };
    let given = args.conditions.version.as_deref().unwrap_or_default();
    let versions = listed(seen.versions.iter().map(version).collect());
    Err(anyhow!("no completion was scored by version {:?}; there are {versions}", printable(given, NAME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_single_or_from_one_to_another() {
        let read = |text: &str| steps(text).ok();
        assert_eq!(read("last"), Some(StepSelection::Last));
        assert_eq!(read("12"), Some(StepSelection::Between(12, 12)));
        assert_eq!((read("3..5"), read("3..=5")), (Some(StepSelection::Between(3, 5)), Some(StepSelection::Between(3, 5))));
        assert_eq!(
            (read("3.."), read("..5"), read("..")),
            (Some(StepSelection::Between(3, u64::MAX)), Some(StepSelection::Between(0, 5)), Some(StepSelection::default()))
        );
        for wrong in ["", "x", "5..3", "-1", "1..x", "1.5", "last..", "99999999999999999999"] {
            let error = steps(wrong).unwrap_err().to_string();
            assert!(error.starts_with("--step "), "{error}");
        }
    }

    #[test]
    fn conditions_include_what_half_the_precision_makes_of_a_value() {
        let meets = |text: &str, value: f64| {
            let bound = bound(text).unwrap();
            (bound.low..=bound.high).contains(&value)
        };
        let recorded = f64::from(0.7f32);
        assert!(recorded < 0.7);
        for text in ["r>=0.7", "r=0.7", "r==0.7", "r<=0.7", "r=0.7..0.8", "r=..0.7", "r=0.7..", "r>0.69", "r<0.71"] {
            assert!(meets(text, recorded), "{text}");
        }
        for text in ["r>0.7", "r<0.7", "r=0.71..", "r=..-0.7", "r=-1e3", "r>inf"] {
            assert!(!meets(text, recorded), "{text}");
        }
        let named = |text: &str| bound(text).unwrap().name;
        assert_eq!(
            [named("a b >= 1"), named(">1"), named("0.5.."), named("-1"), named("=2")],
            ["a b", "reward", "reward", "reward", "reward"]
        );
        for wrong in ["", "r>", "r", "r>=x", "r>=1..2", "r=nan", "r<>3", "r=3..2"] {
            let error = bound(wrong).unwrap_err().to_string();
            assert!(error.starts_with("--reward "), "{wrong}: {error}");
        }
    }

    #[test]
    fn versions_are_hashes_with_or_without_a_name() {
        assert_eq!(version("3FA9").unwrap(), (None, "3fa9".into()));
        assert_eq!(version("a=b=3f").unwrap(), (Some("a=b".into()), "3f".into()));
        assert_eq!(version("a=3f+0C").unwrap(), (Some("a".into()), "3f+0c".into()));
        for wrong in ["", "a=", "xyz", "a=xyz"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }
}
