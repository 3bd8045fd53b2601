//! `rlhost replay`: scores a run's completions with another reward, or plays its episodes with another environment.

use super::granted::{Granted, grant_folders};
use super::replayed_episodes::{self, Spoken};
use super::{Failure, settings_given};
use crate::config::json_lines::{LONGEST_COMPLETION, Line, Reader};
use crate::config::{Config, OnError, Overrides, PluginEntry, read};
use crate::data::{self, Extras, Message, Prompt};
use crate::metrics::Comparison;
use crate::model::Place;
use crate::plugin::{Asker, Asking, Column, Engine, RewardBatch, RewardPlugin, Source};
use crate::train::{self, RewardModel, Said};
use anyhow::anyhow;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Completions shown at the end.
const SHOWN: usize = 5;

/// Memory that all completions may take, and that a value takes beside its text, roughly.
const MOST_MEMORY: usize = 4 << 30;
const VALUE: usize = 96;

/// Arguments of `replay`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Reward plugin: a path, or the file name of a built-in plugin
    #[arg(long, required_unless_present_any = ["reward_model", "environment"])]
    plugin: Option<String>,
    /// Reward model to score with instead: a folder, a run's folder, or a name on the hub
    #[arg(long, alias = "reward_model", conflicts_with_all = ["plugin", "set"])]
    reward_model: Option<String>,
    /// Environment to replay the recorded turns of episodes with instead: a path, or the file name of a built-in one
    #[arg(long, conflicts_with_all = ["plugin", "reward_model"])]
    environment: Option<String>,
    /// Setting of the plugin or environment, as in --set target=8, or a plugin's key, as in --set plugin.NAME.limits.memory_mb=64;
    /// may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Compare only with this reward of the run
    #[arg(long)]
    with: Option<String>,
    #[command(flatten)]
    granted: Granted,
    /// Answer the plugin's requests only from the run's record; contact no server
    #[arg(long)]
    replay_only: bool,
}

/// The parts of a line in completions.jsonl that rewards use.
#[derive(Deserialize)]
pub(super) struct Recorded {
    pub step: u64,
    pub row: usize,
    prompt: String,
    completion: String,
    completion_ids: Vec<u32>,
    finished: bool,
    rewards: BTreeMap<String, Option<f32>>,
    /// The rest of it, if it is an episode.
    #[serde(flatten)]
    pub spoken: Option<Spoken>,
}

impl Recorded {
    /// Returns the memory that it takes, roughly, read from so many bytes.
    fn memory(&self, bytes: usize) -> usize {
        let values = self.spoken.as_ref().map_or(0, Spoken::values) + self.rewards.len();
        2 * bytes + VALUE * (1 + values)
    }
}

/// Reads a file of completions; a last line that is still being written is left out.
fn recorded_in(file: &Path) -> anyhow::Result<Vec<Recorded>> {
    let unread = |e: io::Error| anyhow!("can't read {}: {e}", file.display());
    let mut lines = Reader::open(file, LONGEST_COMPLETION).map_err(unread)?.up_to(u64::MAX);
    let (mut recorded, mut room) = (Vec::new(), MOST_MEMORY);
    while let Some(line) = lines.line().map_err(unread)? {
        let read = match line {
            Line::Whole(text) => serde_json::from_slice(text).map(|line: Recorded| (line.memory(text.len()), line)),
            Line::TooLong => Err(serde_json::Error::custom(format_args!("is longer than {} MiB", LONGEST_COMPLETION >> 20))),
        };
        let (memory, line) = read.map_err(|e: serde_json::Error| anyhow!("{}:{}: {e}", file.display(), lines.number()))?;
        let too_many = || anyhow!("{}: has more completions than fit into {} GiB", file.display(), MOST_MEMORY >> 30);
        room = room.checked_sub(memory).ok_or_else(too_many)?;
        recorded.push(line);
    }
    Ok(recorded)
}

/// Reads a file of completions, and the conversations of its episodes; returns how many it has.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_recorded(file: &Path) -> anyhow::Result<usize> {
    let recorded = recorded_in(file)?;
    let spoken = recorded.iter().filter_map(|line| line.spoken.as_ref());
    spoken.for_each(|spoken| drop(spoken.conversation(None)));
    for generation in recorded.chunk_by(|a, b| a.step == b.step) {
        batch(generation, &[]);
    }
    Ok(recorded.len())
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    replay(args).map_err(Failure::of)
}

fn replay(args: &Args) -> anyhow::Result<()> {
    let file = args.run.join("completions.jsonl");
    let recorded = recorded_in(&file)?;
    if recorded.is_empty() {
        return Err(anyhow!("{}: no completions (was log_completions = none?)", file.display()));
    }
    let config = read([args.run.join("config.toml").as_path()], &Overrides::default())?;
    let rows = dataset(&config)?;
    let (scores, by) = match (&args.reward_model, &args.environment) {
        (Some(model), _) => by_model(model, &config, &recorded, &rows)?,
        (None, Some(environment)) => by_environment(environment, args, &config, &recorded, &rows)?,
        (None, None) => by_plugin(args, &config, &recorded, &rows)?,
    };

    let names: BTreeSet<&String> = recorded.iter().flat_map(|r| r.rewards.keys()).collect();
    let wanted: Vec<&String> = names.into_iter().filter(|name| args.with.as_ref().is_none_or(|with| with == *name)).collect();
    if wanted.is_empty() {
        return Err(anyhow!("the run has no reward with that name"));
    }
    let steps = recorded.last().map_or(0, |r| r.step).saturating_add(1);
    say!("{} completions of {steps} steps, scored by {by}", recorded.len());
    say!("{:<28} {:>10} {:>10} {:>10} {:>10} {:>8}", "compared with", "its mean", "new mean", "mean diff", "max diff", "ranks");
    for name in &wanted {
        let old: Vec<Option<f32>> = recorded.iter().map(|r| r.rewards.get(*name).copied().flatten()).collect();
        let c = Comparison::of(&old, &scores);
        let ranks = c.rank_correlation.map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
        say!(
            "{name:<28} {:>10.4} {:>10.4} {:>10.4} {:>10.4} {ranks:>8}",
            c.old_mean,
            c.new_mean,
            c.mean_difference,
            c.max_difference
        );
        if c.one_sided > 0 {
            say!("{:<28} {} completions are scored by only one of the two", "", c.one_sided);
        }
    }
    show_furthest(&recorded, wanted[0], &scores);
    Ok(())
}

/// Grants the plugin the requests of the run's reward of that name, or those given by flags. The run's answers are already there.
fn grant(engine: &mut Engine, args: &Args, config: &Config, name: &str) -> anyhow::Result<()> {
    let entry = config.plugin.iter().find(|entry| entry.name() == name);
    let asking = if args.replay_only { Asking::ReplayOnly } else { Asking::Freely };
    let grants = match args.replay_only {
        true => args.granted.over_unasked(entry)?,
        false => args.granted.over(entry)?,
    };
    grant_folders(engine, name, &grants)?;
    if grants.hosts.is_empty() && !args.replay_only {
        return Ok(());
    }
    let asker = Asker::new(grants, asking).map_err(|detail| anyhow!("{name}: {detail}"))?;
    asker.read(&train::answers_of(&args.run, name)).map_err(|detail| anyhow!("{detail}"))?;
    engine.grant(name, Arc::new(asker));
    Ok(())
}

/// The scores of recorded completions, and their source.
pub(super) type Scores = (Vec<Option<f32>>, String);

/// Returns the plugin to score with as an entry of a configuration: `--set` takes its settings and, as in `train`, its keys.
fn entry_of(args: &Args) -> anyhow::Result<PluginEntry> {
    let given = args.plugin.clone().unwrap_or_default();
    let is_key = |set: &&String| set.starts_with("plugin.") && !set.starts_with("plugin.config.");
    let (keys, settings): (Vec<&String>, Vec<&String>) = args.set.iter().partition(is_key);
    let sets = keys.into_iter().cloned().collect();
    let overrides = Overrides { plugins: vec![given.clone()], sets, ..Overrides::default() };
    let own = read(std::iter::empty(), &overrides)?.plugin.into_iter().next();
    let mut entry = own.unwrap_or_else(|| PluginEntry::new(given));
    entry.config.extend(settings_given(settings)?);
    if (entry.weight, entry.on_error, entry.eval_only) != (1.0, OnError::Fail, false) {
        tracing::warn!("weight, on_error and eval_only have no effect here: scores are compared without weights");
    }
    Ok(entry)
}

/// Scores completions with a plugin.
fn by_plugin(args: &Args, config: &Config, recorded: &[Recorded], rows: &[Row]) -> anyhow::Result<Scores> {
    let entry = entry_of(args)?;
    let source = Source::open(&entry.path)?;
    let mut engine = Engine::new()?;
    grant(&mut engine, args, config, source.name())?;
    let mut plugin = RewardPlugin::load(&engine, &source, &entry.config, &entry.limits, config.seed)?;
    let mut scores = Vec::with_capacity(recorded.len());
    for generation in recorded.chunk_by(|a, b| a.step == b.step) {
        let scored = plugin.score(&batch(generation, rows)).map_err(|e| anyhow!("the new reward failed: {e}"))?;
        scores.extend(scored.rewards);
    }
    Ok((scores, format!("{} ({})", source.name(), &source.hash()[..12])))
}

/// Scores episodes with an environment, which may read the folders that it is granted.
fn by_environment(given: &str, args: &Args, config: &Config, recorded: &[Recorded], rows: &[Row]) -> anyhow::Result<Scores> {
    let (source, mut engine) = (Source::open(given)?, Engine::new()?);
    let entry = config.environment.iter().find(|entry| entry.name() == source.name());
    grant_folders(&mut engine, source.name(), &args.granted.over_unasked(entry)?)?;
    replayed_episodes::by_environment((&engine, &source), settings_given(&args.set)?, config.seed, recorded, rows)
}

/// Scores completions with a reward model.
fn by_model(given: &str, config: &Config, recorded: &[Recorded], rows: &[Row]) -> anyhow::Result<Scores> {
    let (folder, name) = train::model_or_run(given)?;
    let model = RewardModel::open(name, &folder, &Place::choose(config.device, config.bf16, 0)?)?;
    let talk = |r: &Recorded| r.spoken.as_ref().map(|spoken| spoken.conversation(rows.get(r.row).map(|row| &row.columns)));
    let talks = recorded.iter().map(|r| talk(r).transpose()).collect::<anyhow::Result<Vec<_>>>()?;
    let said: Vec<Said<'_>> = recorded
        .iter()
        .zip(&talks)
        .map(|(r, talk)| Said {
            group: r.row,
            prompt: &r.prompt,
            asked: rows.get(r.row).filter(|row| row.is_chat && talk.is_none()).map(|row| &row.asked),
            whole: talk.as_ref(),
            completion: &r.completion,
            ended: r.finished,
        })
        .collect();
    let scores = model.score(&said).map_err(|e| anyhow!("the new reward failed: {e}"))?.into_iter().map(Some).collect();
    Ok((scores, model.name().to_owned()))
}

/// A row of the run's dataset; empty if it is unusable.
#[derive(Clone, Default)]
pub(super) struct Row {
    /// Its prompt as a conversation, with the template's variables; a text becomes a user message.
    pub asked: (Vec<Message>, Extras),
    /// Whether it is a conversation.
    is_chat: bool,
    pub columns: Map<String, Value>,
}

/// Returns the rows of the dataset.
fn dataset(config: &Config) -> anyhow::Result<Vec<Row>> {
    let Some((dataset, _)) = train::dataset_of(config)? else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for row in data::read_prompts(&dataset, &mut data::Refused::default())? {
        rows.resize(row.row, Row::default());
        let (is_chat, messages) = match row.prompt {
            Prompt::Chat(messages) => (true, messages),
            Prompt::Text(content) => {
                (false, vec![Message { role: "user".into(), content: content.into(), ..Message::default() }])
            }
        };
        rows.push(Row { asked: (messages, row.extras), is_chat, columns: row.columns });
    }
    Ok(rows)
}

fn batch(generation: &[Recorded], dataset: &[Row]) -> RewardBatch {
    let mut rows: Vec<usize> = Vec::new();
    let mut prompts = Vec::new();
    let mut prompt_of = Vec::new();
    for recorded in generation {
        // An episode has a prompt of its own.
        if rows.last() != Some(&recorded.row) || recorded.spoken.is_some() {
            rows.push(recorded.row);
            prompts.push(recorded.prompt.clone());
        }
        prompt_of.push(rows.len() as u32 - 1);
    }
    let names: BTreeSet<&String> = dataset.iter().flat_map(|row| row.columns.keys()).collect();
    let value =
        |row: &usize, name: &str| dataset.get(*row).and_then(|row| row.columns.get(name)).unwrap_or(&Value::Null).to_string();
    let column = |name: &&String| Column { name: (*name).clone(), values: rows.iter().map(|row| value(row, name)).collect() };
    let mut columns: Vec<Column> = names.iter().map(column).collect();
    if generation.iter().any(|recorded| recorded.spoken.is_some()) {
        let spoken = |of: fn(&Spoken) -> &Value| {
            let value = |recorded: &Recorded| recorded.spoken.as_ref().map_or(&Value::Null, of).to_string();
            generation.iter().map(value).collect()
        };
        for (name, values) in [("messages", spoken(|s| &s.messages)), ("turn_rewards", spoken(|s| &s.turn_rewards))] {
            columns.retain(|column| column.name != name);
            columns.push(Column { name: name.to_owned(), values });
        }
    }
    let mut offsets = vec![0];
    for recorded in generation {
        offsets.push(offsets.last().copied().unwrap_or(0) + recorded.completion_ids.len() as u32);
    }
    RewardBatch {
        step: generation.first().map_or(0, |r| r.step),
        seed: 0,
        columns,
        prompts,
        prompt_of,
        completions: generation.iter().map(|r| r.completion.clone()).collect(),
        finished: generation.iter().map(|r| r.finished).collect(),
        offsets,
        token_ids: generation.iter().flat_map(|r| r.completion_ids.iter().copied()).collect(),
    }
}

/// Prints the completions on which the two scores differ most.
fn show_furthest(recorded: &[Recorded], name: &str, scores: &[Option<f32>]) {
    let distance = |(r, new): &(&Recorded, &Option<f32>)| {
        let old = r.rewards.get(name).copied().flatten();
        old.zip(**new).map_or(0.0, |(old, new)| (old - new).abs())
    };
    let mut all: Vec<(&Recorded, &Option<f32>)> = recorded.iter().zip(scores).collect();
    all.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    all.retain(|pair| distance(pair) > 0.0);
    if all.is_empty() {
        return say!("no completion has a different score");
    }
    say!("largest differences from {name}:");
    for (r, new) in all.into_iter().take(SHOWN) {
        let short: String = r.completion.chars().take(60).collect();
        let figure = |score: Option<f32>| score.map_or_else(|| "none".to_owned(), |s| format!("{s:.4}"));
        say!("  step {:>5}  {} -> {}  {short:?}", r.step, figure(r.rewards.get(name).copied().flatten()), figure(*new));
    }
}
