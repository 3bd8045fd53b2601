//! Completions: pages of a sorted and filtered list, one completion in full, and the completions of a group.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use super::text::shown;
use super::tokens::tokens;
use crate::config::printable;
use crate::run::PluginVersion;
use crate::store::{PATIENCE, locked};
use rlhost_live::{CompletionEntry, LiveRun, line_at, rounded};
use serde_json::{Map, Value, json};
use std::io;
use std::sync::MutexGuard;
use std::time::Instant;

/// Maximum number of completions in a page and in a group, and the default for a page.
const MOST_ON_PAGE: usize = 200;
const USUAL_ON_PAGE: usize = 40;
const MOST_OF_GROUP: usize = 64;

/// Maximum lengths in bytes: of an excerpt in a list, of a full text, and of a name.
const LONGEST_EXCERPT: usize = 600;
const LONGEST_TEXT: usize = 200_000;
const LONGEST_NAME: usize = 200;

/// Maximum number of messages of an episode, and of names of rewards.
const MOST_MESSAGES: usize = 400;
const MOST_NAMES: usize = 200;

/// Filter and sort order of a page.
struct PageSelection<'a> {
    steps: (f64, f64),
    row: Option<f64>,
    reward: (f64, f64),
    tokens: (f64, f64),
    cut_off: bool,
    /// Text that the prompt or the completion must contain, in lower case.
    text: Option<String>,
    sort: &'a str,
}

impl<'a> PageSelection<'a> {
    fn new(query: &'a Query) -> Result<Self> {
        let ends = |low: &str, high: &str| {
            Ok::<_, ApiRefusal>((query.number(low)?.unwrap_or(f64::NEG_INFINITY), query.number(high)?.unwrap_or(f64::INFINITY)))
        };
        let sort = query.get("sort").unwrap_or("newest");
        if !["newest", "oldest", "best", "worst", "longest", "shortest", "advantage"].contains(&sort) {
            return Err(ApiRefusal::invalid(format!("sort can't be {sort:?}")));
        }
        Ok(Self {
            steps: ends("step_from", "step_to")?,
            row: query.number("row")?,
            reward: ends("reward_from", "reward_to")?,
            tokens: ends("tokens_from", "tokens_to")?,
            cut_off: query.get("cut_off").is_some(),
            text: query.get("text").map(str::to_lowercase),
            sort,
        })
    }

    fn takes(&self, entry: &CompletionEntry) -> bool {
        let within = |value: f64, (low, high): (f64, f64)| value >= low && value <= high;
        let any = (f64::NEG_INFINITY, f64::INFINITY);
        within(entry.step as f64, self.steps)
            && self.row.is_none_or(|row| entry.row as f64 == row)
            && (self.reward == any || within(f64::from(entry.reward), self.reward))
            && within(f64::from(entry.tokens), self.tokens)
            && (!self.cut_off || entry.cut_off)
    }

    /// Returns the numbers of the completions that pass the filter, except for its text, in sort order.
    fn order(&self, entries: &[CompletionEntry]) -> Vec<u32> {
        let mut chosen: Vec<u32> = (0..entries.len() as u32).filter(|i| self.takes(&entries[*i as usize])).collect();
        let entry = |i: u32| &entries[i as usize];
        // Missing values come last.
        let key = |value: f32, sign: f32| if value.is_nan() { f32::INFINITY } else { sign * value };
        match self.sort {
            "newest" => chosen.reverse(),
            "best" => chosen.sort_by(|a, b| key(entry(*a).reward, -1.0).total_cmp(&key(entry(*b).reward, -1.0))),
            "worst" => chosen.sort_by(|a, b| key(entry(*a).reward, 1.0).total_cmp(&key(entry(*b).reward, 1.0))),
            "longest" => chosen.sort_by_key(|i| std::cmp::Reverse(entry(*i).tokens)),
            "shortest" => chosen.sort_by_key(|i| entry(*i).tokens),
            "advantage" => {
                chosen.sort_by(|a, b| key(entry(*a).advantage.abs(), -1.0).total_cmp(&key(entry(*b).advantage.abs(), -1.0)));
            }
            _ => {}
        }
        chosen
    }
}

impl PageApi {
    /// Answers with a page: `offset` and `limit` count the selected completions in sort order.
    pub(super) fn completions(&self, query: &Query) -> Result<Value> {
        let selection = PageSelection::new(query)?;
        let (offset, limit) = (query.count("offset", 0, usize::MAX)?, query.count("limit", USUAL_ON_PAGE, MOST_ON_PAGE)?);
        let run = self.followed(query)?;
        let mut run = locked(&run);
        let until = Instant::now() + PATIENCE;
        let complete = run.advance_completions(until)?;
        let order = selection.order(&run.completions.entries);
        let (mut items, mut next) = (Vec::new(), offset);
        // A run that has just begun has no file yet.
        let mut reader = if order.is_empty() { None } else { Some(run.completions.open()?) };
        while let (Some(reader), true, Some(&number)) = (&mut reader, items.len() < limit, order.get(next)) {
            next += 1;
            let entry = run.completions.entries[number as usize];
            let line = line_at(reader, entry.place)?.and_then(|line| serde_json::from_slice::<Map<String, Value>>(line).ok());
            let Some(line) = line.filter(|line| selection.text.as_ref().is_none_or(|text| has_text(line, text))) else {
                if Instant::now() >= until {
                    break;
                }
                continue;
            };
            items.push(excerpt(number, &entry, &line, selection.text.as_deref()));
        }
        Ok(json!({
            "items": items,
            "selected": order.len(),
            "all": run.completions.entries.len(),
            "newest": run.completions.entries.last().map(|entry| entry.step),
            // The offset of the next page; null at the end.
            "next": (next < order.len()).then_some(next),
            "complete": complete,
            "share": run.completions.share(),
            "generation": run.completions.generation,
        }))
    }

    /// Answers with everything recorded about the completion `id`.
    pub(super) fn completion(&self, query: &Query) -> Result<Value> {
        let run = self.followed(query)?;
        let mut run = locked(&run);
        let number = Self::number(&mut run, query)?;
        Ok(full_completion(&run, number)?.unwrap_or_default())
    }

    /// Answers with the completions of the same prompt and step as those of `id`.
    pub(super) fn group(&self, query: &Query) -> Result<Value> {
        let run = self.followed(query)?;
        let mut run = locked(&run);
        let number = Self::number(&mut run, query)?;
        let of = run.completions.entries[number];
        let first = run.completions.entries.partition_point(|entry| entry.step < of.step);
        let is_same = |entry: &CompletionEntry| entry.step == of.step && entry.row == of.row;
        let all = run.completions.entries.iter().enumerate().skip(first).take_while(|(_, entry)| entry.step <= of.step);
        let group: Vec<usize> = all.filter(|(_, entry)| is_same(entry)).map(|(i, _)| i).collect();
        let size = group.len();
        let items = group.into_iter().take(MOST_OF_GROUP).filter_map(|i| full_completion(&run, i).transpose());
        let items = items.collect::<Result<Vec<Value>>>()?;
        // Results for this prompt in other steps.
        let others = run.completions.entries.iter().filter(|entry| entry.row == of.row);
        let mut steps: Vec<(u64, f64, u32)> = Vec::new();
        for entry in others.filter(|entry| entry.reward.is_finite()) {
            match steps.last_mut().filter(|(step, ..)| *step == entry.step) {
                Some((_, sum, count)) => (*sum, *count) = (*sum + f64::from(entry.reward), *count + 1),
                None => steps.push((entry.step, f64::from(entry.reward), 1)),
            }
        }
        let history: Vec<Value> =
            steps.into_iter().map(|(step, sum, count)| json!([step, rounded((sum / f64::from(count)) as f32)])).collect();
        Ok(json!({ "step": of.step, "row": of.row, "size": size, "items": items, "history": history }))
    }

    /// Returns the number of the completion that a query names.
    fn number(run: &mut MutexGuard<'_, LiveRun>, query: &Query) -> Result<usize> {
        let number = query.count("id", usize::MAX, usize::MAX)?;
        run.advance_completions(Instant::now() + PATIENCE)?;
        if number < run.completions.entries.len() {
            return Ok(number);
        }
        Err(ApiRefusal::new(404, "there is no such completion; a resume may have removed it"))
    }
}

/// Returns whether the prompt, text or messages of a completion contain a text, which is in lower case.
fn has_text(line: &Map<String, Value>, wanted: &str) -> bool {
    let has = |value: Option<&Value>| value.and_then(Value::as_str).is_some_and(|text| text.to_lowercase().contains(wanted));
    let messages = line.get("messages").and_then(Value::as_array).into_iter().flatten();
    has(line.get("completion")) || has(line.get("prompt")) || messages.into_iter().any(|message| has(message.get("content")))
}

/// Returns a number, or `None` if it is not finite; a missing one is NaN.
fn number(value: f32) -> Option<f64> {
    value.is_finite().then(|| rounded(value))
}

/// Returns a completion as an item of a list.
fn excerpt(id: u32, entry: &CompletionEntry, line: &Map<String, Value>, wanted: Option<&str>) -> Value {
    json!({
        "id": id,
        "step": entry.step,
        "row": entry.row,
        "reward": number(entry.reward),
        "advantage": number(entry.advantage),
        "tokens": entry.tokens,
        "cut_off": entry.cut_off,
        "rewards": scores(line),
        "prompt": around(line, "prompt", wanted),
        "completion": around(line, "completion", wanted),
        "turns": line.get("messages").and_then(Value::as_array).map(Vec::len),
        "failed": line.contains_key("failed") || line.contains_key("error"),
    })
}

/// Returns an excerpt of a text: its beginning, or the surroundings of the search text.
fn around(line: &Map<String, Value>, key: &str, wanted: Option<&str>) -> String {
    let text = line.get(key).and_then(Value::as_str).unwrap_or_default();
    let at = wanted.and_then(|wanted| text.to_lowercase().find(wanted)).filter(|at| *at > LONGEST_EXCERPT / 2);
    let mut from = at.map_or(0, |at| (at - LONGEST_EXCERPT / 4).min(text.len()));
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    let start = if from > 0 { "\u{2026}" } else { "" };
    format!("{start}{}", shown(&text[from..], LONGEST_EXCERPT))
}

/// Returns the score of each reward.
fn scores(line: &Map<String, Value>) -> Map<String, Value> {
    let scores = line.get("rewards").and_then(Value::as_object).into_iter().flatten().take(MOST_NAMES);
    let short = |score: &Value| score.as_f64().map_or(Value::Null, |score| rounded(score as f32).into());
    scores.map(|(name, score)| (printable(name, LONGEST_NAME), short(score))).collect()
}

/// Returns a completion with everything recorded about it; `None` if its line no longer exists.
fn full_completion(run: &LiveRun, id: usize) -> Result<Option<Value>> {
    let entry = run.completions.entries[id];
    let mut reader = run.completions.open()?;
    let changed = |error: io::Error| ApiRefusal::new(410, format!("the completions have changed: {error}"));
    let Some(line) = line_at(&mut reader, entry.place).map_err(changed)? else { return Ok(None) };
    let Ok(line) = serde_json::from_slice::<Map<String, Value>>(line) else { return Ok(None) };
    let text = |key: &str| shown(line.get(key).and_then(Value::as_str).unwrap_or_default(), LONGEST_TEXT);
    let plugins = line.get("plugins").and_then(Value::as_object).into_iter().flatten().take(MOST_NAMES);
    let version = |version: &Value| PluginVersion::parse(&printable(version.as_str().unwrap_or_default(), LONGEST_NAME)).short();
    let plugins: Map<String, Value> = plugins.map(|(name, own)| (printable(name, LONGEST_NAME), version(own).into())).collect();
    let extra = line.get("extra").and_then(Value::as_object).into_iter().flatten().take(MOST_NAMES);
    let extra: Map<String, Value> = extra.map(|(name, value)| (printable(name, LONGEST_NAME), plain(value).into())).collect();
    Ok(Some(json!({
        "id": id,
        "step": entry.step,
        "policy_version": line.get("policy_version").and_then(Value::as_u64),
        "row": entry.row,
        "reward": number(entry.reward),
        "advantage": number(entry.advantage),
        "tokens": entry.tokens,
        "cut_off": entry.cut_off,
        "rewards": scores(&line),
        "extra": extra,
        "plugins": plugins,
        "prompt": text("prompt"),
        "completion": text("completion"),
        "error": text("error"),
        "failed": text("failed"),
        "output": text("agent_output"),
        "messages": messages(&line),
        "turn_rewards": numbers(&line, "turn_rewards"),
        "turn_advantages": numbers(&line, "turn_advantages"),
        "per_token": tokens(&line),
    })))
}

fn numbers(line: &Map<String, Value>, key: &str) -> Vec<Option<f64>> {
    let all = line.get(key).and_then(Value::as_array).into_iter().flatten().take(MOST_MESSAGES);
    all.map(|value| value.as_f64().map(|value| rounded(value as f32))).collect()
}

/// Returns the messages of an episode; those of the model carry the number of their turn.
fn messages(line: &Map<String, Value>) -> Vec<Value> {
    let all = line.get("messages").and_then(Value::as_array).into_iter().flatten().take(MOST_MESSAGES);
    let is_answer = |message: &&Value| message["role"] == "assistant";
    let answers = line.get("messages").and_then(Value::as_array).map_or(0, |all| all.iter().filter(is_answer).count());
    // The prompt may contain answers of the model, too.
    let turns = line.get("turns").and_then(Value::as_array).map_or(answers, Vec::len);
    let mut next = 0;
    let message = |message: &Value| {
        let role = printable(message["role"].as_str().unwrap_or_default(), LONGEST_NAME);
        let calls = message.get("tool_calls").filter(|calls| !calls.is_null()).map(plain);
        next += usize::from(is_answer(&message));
        let turn = next.checked_sub(answers.saturating_sub(turns) + 1).filter(|_| is_answer(&message));
        json!({ "role": role, "content": plain(&message["content"]), "calls": calls, "turn": turn })
    };
    all.map(message).collect()
}

/// Returns a value as text; a string is returned without quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => shown(text, LONGEST_TEXT),
        other => shown(&serde_json::to_string_pretty(other).unwrap_or_default(), LONGEST_TEXT),
    }
}
