//! `rlhost replay`: scores a run's completions with another reward, or plays its episodes with another environment.

use super::columns::print_columns;
use super::failure::CommandFailure;
use super::grant_args::{self, GrantArgs, grant_folders};
use super::replayed_episodes;
use super::replayed_versions::{self as versions, HEADING, VersionedReward, compared, furthest};
use super::rescoring::{RescoringRow, RescoringScores};
use super::settings::settings_given;
use crate::checkpoint;
use crate::config::json_lines::{BoundedLine, JsonLinesReader, LONGEST_COMPLETION};
use crate::config::words::counted;
use crate::config::{KeyAssignment, Overrides, PluginEntry, RewardErrorAction, RunConfig, printable_path, read};
use crate::data::{self, ChatMessage, PromptForm, TextOrChat, Tokenizer};
use crate::model::{BackendChoice, ComputeBackend, ModelFolder};
use crate::plugin::{
    PluginEngine, PluginHttpClient, PluginSource, RequestPolicy, RewardBatch, RewardPlugin, TextColumn, conversations,
};
use crate::run::{EffectiveConfig, RecordedCompletion, RecordedEpisode, RunFiles};
use crate::train::{self, RecordedConversation, RecordedGeneration, RecordedPrompt, Rescorer};
use anyhow::anyhow;
use rlhost_ui::{RescoredCompletion, RescoringRequest};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of the run's rewards that the new one is compared with.
const MOST_NAMES: usize = 64;

/// Number of completions shown at the end.
const SHOWN: usize = 5;

/// Maximum memory of all completions, in bytes.
const MOST_MEMORY: usize = 4 << 30;

/// Arguments of `replay` for training.
#[derive(clap::Args, Default)]
pub(super) struct ReplayTrainingArgs {
    /// Train again, as a new run, on the completions that the run logged (rollout_log = "all"): nothing is generated, and neither agents
    /// nor servers are asked. --set changes keys of the run, as in --set learning_rate=1e-5
    #[arg(long, conflicts_with_all = ["plugin", "reward_model", "environment", "with", "failed", "replay_only"])]
    pub train: bool,
    /// With --train: folder of the new run [default: the run's with -replay after its name]
    #[arg(long, alias = "output_dir", requires = "train")]
    pub output_dir: Option<PathBuf>,
    /// With --train: allow what the run's folder sets beyond the defaults
    #[arg(long, alias = "accept_grants", requires = "train")]
    pub accept_grants: bool,
}

/// Arguments of `replay`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    pub run: PathBuf,
    /// Reward plugin: a path, or the file name of a built-in plugin
    #[arg(long, required_unless_present_any = ["reward_model", "environment", "train"])]
    plugin: Option<String>,
    /// Reward model to score with instead: the name of one of the run, a folder, a run's folder, or a name on the hub
    #[arg(long, alias = "reward_model", conflicts_with = "plugin")]
    reward_model: Option<String>,
    /// Environment to replay the recorded turns of episodes with instead: a path, or the file name of a built-in one
    #[arg(long, conflicts_with_all = ["plugin", "reward_model"])]
    environment: Option<String>,
    #[command(flatten)]
    pub training: ReplayTrainingArgs,
    /// Setting of the plugin or environment, as in --set target=8, or a key of the plugin or model, as in
    /// --set plugin.NAME.compare=others; may be repeated. compare, step_separator, load_in_8bit and load_in_4bit are those of the
    /// run's reward of that name unless they are set
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Compare only with this reward of the run, or with one version of it, by the first digits of its hash: NAME, NAME@HASH or, with
    /// those of its settings, NAME@HASH+DIGEST
    #[arg(long, value_name = "NAME")]
    with: Option<String>,
    #[command(flatten)]
    granted: GrantArgs,
    /// Score the completions that a reward failed on (failed.jsonl) instead of all
    #[arg(long, conflicts_with = "with")]
    failed: bool,
    /// Answer the plugin's requests only from the run's record; contact no server
    #[arg(long)]
    replay_only: bool,
}

/// Reads a file of completions from a byte offset at which a line begins; an incomplete last line is skipped.
fn recorded_in(file: &Path, from: u64) -> anyhow::Result<Vec<RecordedCompletion>> {
    let unread = |e: io::Error| anyhow!("can't read {}: {e}", file.display());
    let mut lines = JsonLinesReader::open(file, LONGEST_COMPLETION).map_err(unread)?.with_limit(u64::MAX);
    lines.seek(from).map_err(unread)?;
    let (mut recorded, mut room) = (Vec::new(), MOST_MEMORY);
    while let Some(line) = lines.next_line().map_err(unread)? {
        let read = match line {
            BoundedLine::Whole(text) => RecordedCompletion::read(text).map(|line| (line.memory(text.len()), line)),
            BoundedLine::TooLong => Err(format!("is longer than {} MiB", LONGEST_COMPLETION >> 20)),
        };
        let (memory, line) = read.map_err(|detail| anyhow!("{}:{}: {detail}", file.display(), lines.number()))?;
        let too_many = || anyhow!("{}: has more completions than fit into {} GiB", file.display(), MOST_MEMORY >> 30);
        room = room.checked_sub(memory).ok_or_else(too_many)?;
        recorded.push(line);
    }
    Ok(recorded)
}

/// Reads a file of completions, and the conversations of its episodes; returns the number of completions.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_recorded(file: &Path) -> anyhow::Result<usize> {
    let recorded = recorded_in(file, 0)?;
    let spoken = recorded.iter().filter_map(|line| line.episode.as_ref());
    spoken.for_each(|spoken| drop(replayed_episodes::conversation(spoken, None)));
    for generation in recorded.chunk_by(|a, b| a.step == b.step) {
        drop(recording(generation, &[]));
    }
    Ok(recorded.len())
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    replay(args).map_err(CommandFailure::from_error)
}

fn replay(args: &Args) -> anyhow::Result<()> {
    let files = RunFiles(&args.run);
    let file = if args.failed { files.failed() } else { files.completions() };
    if args.failed && !file.exists() {
        return Err(anyhow!("{}: no reward of this run failed on a completion", args.run.display()));
    }
    let recorded = recorded_in(&file, 0)?;
    if recorded.is_empty() {
        return Err(anyhow!("{}: no completions (was log_completions = none?)", file.display()));
    }
    let config = read([EffectiveConfig::path(&args.run).as_path()], &Overrides::default())?;
    let rows = rows_of(&args.run, &config)?;
    let (scores, by) = match &args.environment {
        Some(environment) => by_environment(environment, args, &config, &recorded, &rows)?,
        None => by_reward(args, &config, &recorded, &rows)?,
    };

    if args.failed {
        show_scores(&recorded, &by, &scores);
        return Ok(());
    }
    let wanted = compared(args.with.as_deref(), &recorded)?;
    let steps = recorded.last().map_or(0, |r| r.step).saturating_add(1);
    let (completions, steps) = (counted(recorded.len() as u64, "completion"), counted(steps, "step"));
    say!("{completions} of {steps}, scored by {by}");
    let mut table = vec![HEADING.map(str::to_owned).to_vec()];
    let mut one_sided = Vec::new();
    for version in wanted.iter().take(MOST_NAMES) {
        let (row, by_one) = version.row(&recorded, &scores);
        table.push(row);
        one_sided
            .extend((by_one > 0).then(|| format!("{}: {by_one} completions are scored by only one of the two", version.title())));
    }
    print_columns(&table);
    one_sided.iter().for_each(|line| say!("{line}"));
    if wanted.len() > MOST_NAMES {
        say!("and {} more; --with NAME shows one of them", wanted.len() - MOST_NAMES);
    }
    show_furthest(&recorded, &wanted, &scores);
    Ok(())
}

/// Scores recorded completions with the plugin that a page asks about. The plugin can't contact servers, and gets the settings of the run's
/// reward.
pub(super) fn what_if(question: &RescoringRequest<'_>) -> anyhow::Result<Vec<RescoredCompletion>> {
    let (run, reward) = (question.run, question.reward);
    let recorded = recorded_in(&RunFiles(run).completions(), question.from)?;
    let config = read([EffectiveConfig::path(run).as_path()], &Overrides::default())?;
    let own = config.plugin.iter().find(|entry| entry.name() == reward);
    let own = own.ok_or_else(|| anyhow!("the run has no reward {reward:?}"))?;
    let mut args = Args {
        run: run.to_owned(),
        plugin: Some(question.plugin.display().to_string()),
        reward_model: None,
        environment: None,
        set: Vec::new(),
        with: None,
        granted: GrantArgs::default(),
        failed: false,
        replay_only: true,
        training: ReplayTrainingArgs::default(),
    };
    let mut settings = carried_over(&args, &config, own, question.current)?;
    settings.extend(question.settings.clone());
    args.set = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let (scores, _) = by_reward(&args, &config, &recorded, &rows_of(run, &config)?)?;
    let rescored = recorded.into_iter().zip(scores).map(|(recorded, new)| RescoredCompletion {
        step: recorded.step,
        row: recorded.row,
        version: recorded.plugins.get(reward).cloned().unwrap_or_default(),
        old: recorded.rewards.get(reward).copied().flatten(),
        new,
        prompt: recorded.prompt,
        completion: recorded.completion,
    });
    Ok(rescored.collect())
}

/// Returns the settings of a run's reward that a swap carries over to the next version: those that differ from the defaults of the version
/// in `current`, or all of them if that version can't be loaded.
fn carried_over(
    args: &Args,
    config: &RunConfig,
    own: &PluginEntry,
    current: Option<&Path>,
) -> anyhow::Result<Map<String, Value>> {
    let Some(current) = current else { return Ok(own.config.clone()) };
    let source = PluginSource::open(&current.display().to_string())?.with_name(own.name());
    let mut engine = PluginEngine::new()?;
    grant(&mut engine, args, config, source.name())?;
    let loaded = RewardPlugin::load(&engine, &source, &own.config, &own.limits, config.seed);
    Ok(loaded.map_or_else(|_| own.config.clone(), |plugin| plugin.non_default_settings()))
}

/// Returns the rows of a run's dataset, as its rewards received them.
fn rows_of(run: &Path, config: &RunConfig) -> anyhow::Result<Vec<RescoringRow>> {
    // Whether plain prompts become conversations matters only if settings build or extend them.
    let is_formed = PromptForm::from_config(config, true).is_some();
    let has_chat = is_formed && policys_tokenizer(run, config).is_none_or(|tokenizer| tokenizer.has_chat());
    dataset(config, has_chat)
}

/// Grants the plugin the grants of the run's reward or environment with this name, or those of the flags. The run's recorded answers are
/// loaded.
fn grant(engine: &mut PluginEngine, args: &Args, config: &RunConfig, name: &str) -> anyhow::Result<()> {
    let plugins = config.plugin.iter().map(|entry| ("plugin", entry));
    let mut entries = plugins.chain(config.environment.iter().map(|entry| ("environment", entry)));
    let recorded = entries.find(|(_, entry)| entry.name() == name);
    let recorded = recorded.map(|(table, entry)| grant_args::RecordedPluginEntry { run: &args.run, table, entry });
    let asking = if args.replay_only { RequestPolicy::ReplayOnly } else { RequestPolicy::Allowed };
    let grants = args.granted.merged_with(recorded.as_ref(), !args.replay_only)?;
    grant_folders(engine, name, &grants)?;
    if grants.hosts.is_empty() && !args.replay_only {
        return Ok(());
    }
    let asker = PluginHttpClient::new(grants, asking).map_err(|detail| anyhow!("{name}: {detail}"))?;
    asker.read(&RunFiles(&args.run).answers_of(name)).map_err(|detail| anyhow!("{detail}"))?;
    engine.grant(name, Arc::new(asker));
    Ok(())
}

/// Returns the reward to score with as an entry of a configuration: `--set` accepts its settings and, as in `train`, its keys. Keys that
/// affect its scores are as in the run, unless they are set.
fn entry_of(args: &Args, config: &RunConfig) -> anyhow::Result<PluginEntry> {
    let is_key = |set: &KeyAssignment| matches!(set.path(), [first, second, below @ ..] if first == "plugin" && (second != "config" || below.is_empty()));
    let (sets, settings): (Vec<KeyAssignment>, Vec<KeyAssignment>) =
        KeyAssignment::parse_all(&args.set)?.into_iter().partition(is_key);
    let (plugins, reward_models) = (args.plugin.iter().cloned().collect(), args.reward_model.iter().cloned().collect());
    let overrides = Overrides { plugins, reward_models, sets, ..Overrides::default() };
    let own = read(std::iter::empty(), &overrides)?.plugin.into_iter().next();
    let mut entry = own.ok_or_else(|| anyhow!("there is no reward to score with; give --plugin or --reward-model"))?;
    entry.config.extend(settings_given(&settings)?);
    if entry.model && !entry.config.is_empty() {
        return Err(anyhow!(
            "a reward model has no settings; --set takes its keys, as in plugin.{}.load_in_8bit=true",
            entry.name()
        ));
    }
    if (entry.weight, entry.on_error, entry.eval_only) != (1.0, RewardErrorAction::Fail, false) {
        tracing::warn!("weight, on_error and eval_only have no effect here: scores are compared without weights");
    }
    if let Some(of_run) = config.plugin.iter().find(|own| own.model == entry.model && own.name() == entry.name()) {
        // A bare name is first looked up among the run's rewards, then as a folder.
        if args.reward_model.as_deref().is_some_and(|given| !given.contains(['/', '\\', '='])) {
            entry.move_to(of_run.path.clone());
            entry.hash.clone_from(&of_run.hash);
        }
        entry.compare = entry.compare.or(of_run.compare);
        entry.step_separator = entry.step_separator.or_else(|| of_run.step_separator.clone());
        if !entry.load_in_8bit && !entry.load_in_4bit {
            (entry.load_in_8bit, entry.load_in_4bit) = (of_run.load_in_8bit, of_run.load_in_4bit);
        }
    }
    (entry.weight, entry.on_error, entry.eval_only) = (1.0, RewardErrorAction::Fail, false);
    Ok(entry)
}

/// Scores completions with a plugin or a model, as the run would.
fn by_reward(
    args: &Args,
    config: &RunConfig,
    recorded: &[RecordedCompletion],
    rows: &[RescoringRow],
) -> anyhow::Result<RescoringScores> {
    let entry = entry_of(args, config)?;
    let policys = || policys_tokenizer(&args.run, config);
    let backend = || ComputeBackend::choose(config.device, config.bf16, 0).map(BackendChoice::with_warnings_logged);
    let (mut rescorer, by) = if entry.model {
        let rescorer = Rescorer::from_model(&entry, &backend()?, policys().as_ref())?;
        if entry.hash.as_deref().is_some_and(|was| rescorer.hash() != Some(was)) {
            tracing::warn!("the files in {} have changed since the run scored with them", printable_path(Path::new(&entry.path)));
        }
        (rescorer, entry.name().to_owned())
    } else {
        let source = PluginSource::open(&entry.path)?;
        let mut engine = PluginEngine::new()?;
        grant(&mut engine, args, config, source.name())?;
        let plugin = RewardPlugin::load(&engine, &source, &entry.config, &entry.limits, config.seed)?;
        let mut rescorer = Rescorer::from_plugin(plugin, &entry);
        for model in config.plugin.iter().filter(|own| values_steps(own)) {
            rescorer = rescorer.with_step_model(model, &backend()?, policys().as_ref())?;
        }
        (rescorer, format!("{} ({})", source.name(), &source.hash()[..12]))
    };
    let mut scores = Vec::with_capacity(recorded.len());
    for generation in recorded.chunk_by(|a, b| a.step == b.step) {
        let scored = rescorer.score(recording(generation, rows)?);
        scores.extend(scored.map_err(|e| anyhow!("the new reward failed: {e}"))?);
    }
    Ok((scores, by))
}

/// Returns whether a reward of the run is a model whose step values plugins receive.
fn values_steps(entry: &PluginEntry) -> bool {
    let opened = || Ok::<_, anyhow::Error>(ModelFolder::open(train::model_of(&entry.path)?.0)?.judges_steps()?);
    let unread = |e| tracing::warn!("the run's reward model {} can't be opened; a plugin sees nothing of it: {e}", entry.name());
    entry.model && opened().map_err(unread).unwrap_or(false)
}

/// Returns the tokenizer of the model that wrote the run's completions, if it still exists.
fn policys_tokenizer(run: &Path, config: &RunConfig) -> Option<Tokenizer> {
    let folder = match checkpoint::newest(run) {
        Ok((_, newest, _)) => newest,
        Err(_) => train::model_of(config.model.as_deref()?).ok()?.0,
    };
    let opened = ModelFolder::open(folder).map_err(anyhow::Error::from).and_then(|f| Ok(Tokenizer::open(f.tokenizer())?));
    opened.map_err(|e| tracing::warn!("the policy's tokenizer can't be read, so texts are tokenized again: {e}")).ok()
}

/// Scores episodes with an environment, within its grants.
fn by_environment(
    given: &str,
    args: &Args,
    config: &RunConfig,
    recorded: &[RecordedCompletion],
    rows: &[RescoringRow],
) -> anyhow::Result<RescoringScores> {
    let (source, mut engine) = (PluginSource::open(given)?, PluginEngine::new()?);
    grant(&mut engine, args, config, source.name())?;
    replayed_episodes::by_environment(
        (&engine, &source),
        settings_given(&KeyAssignment::parse_all(&args.set)?)?,
        config.seed,
        recorded,
        rows,
    )
}

/// Returns the rows of the dataset, for a model with or without a chat template (`has_chat`).
fn dataset(config: &RunConfig, has_chat: bool) -> anyhow::Result<Vec<RescoringRow>> {
    let Some((dataset, _)) = train::dataset_of(config)? else { return Ok(Vec::new()) };
    let (mut rows, form) = (Vec::new(), PromptForm::from_config(config, has_chat));
    for row in data::read_prompts_as(&dataset, form.as_ref(), &mut data::UnusableRows::default())? {
        rows.resize(row.row, RescoringRow::default());
        let (is_chat, messages) = match row.prompt {
            TextOrChat::Chat(messages) => (true, messages),
            TextOrChat::Text(content) => {
                (false, vec![ChatMessage { role: "user".into(), content: content.into(), ..ChatMessage::default() }])
            }
        };
        rows.push(RescoringRow { prompt: (messages, row.extras), is_chat, columns: row.columns });
    }
    Ok(rows)
}

/// Returns a generation as its rewards received it.
fn recording(generation: &[RecordedCompletion], dataset: &[RescoringRow]) -> anyhow::Result<RecordedGeneration> {
    let batch = batch(generation, dataset);
    let mut firsts: Vec<&RecordedCompletion> = Vec::with_capacity(batch.prompts.len());
    for (recorded, prompt) in generation.iter().zip(&batch.prompt_of) {
        if firsts.len() == *prompt as usize {
            firsts.push(recorded);
        }
    }
    let asked = |first: &&RecordedCompletion| {
        let row = dataset.get(first.row).filter(|row| row.is_chat && first.episode.is_none());
        RecordedPrompt { row: first.row, tokens: first.prompt_ids.clone(), messages: row.map(|row| row.prompt.clone()) }
    };
    let prompts = firsts.iter().map(asked).collect();
    let played = |recorded: &RecordedCompletion| {
        let spoken = recorded.episode.as_ref()?;
        let conversation = replayed_episodes::conversation(spoken, dataset.get(recorded.row).map(|row| &row.columns));
        Some(conversation.map(|conversation| RecordedConversation { conversation, failed: spoken.failed.clone() }))
    };
    let episodes = generation.iter().filter_map(played).collect::<anyhow::Result<Vec<_>>>()?;
    if !episodes.is_empty() && episodes.len() < generation.len() {
        return Err(anyhow!("step {}: some completions are episodes and others are not", batch.step));
    }
    Ok(RecordedGeneration { batch, prompts, episodes })
}

fn batch(generation: &[RecordedCompletion], dataset: &[RescoringRow]) -> RewardBatch {
    let mut rows: Vec<usize> = Vec::new();
    let mut prompts = Vec::new();
    let mut prompt_of = Vec::new();
    for recorded in generation {
        // Each episode has its own prompt.
        if rows.last() != Some(&recorded.row) || recorded.episode.is_some() {
            rows.push(recorded.row);
            prompts.push(recorded.prompt.clone());
        }
        prompt_of.push(rows.len() as u32 - 1);
    }
    let names: BTreeSet<&String> = dataset.iter().flat_map(|row| row.columns.keys()).collect();
    let value =
        |row: &usize, name: &str| dataset.get(*row).and_then(|row| row.columns.get(name)).unwrap_or(&Value::Null).to_string();
    let column = |name: &&String| TextColumn { name: (*name).clone(), values: rows.iter().map(|row| value(row, name)).collect() };
    let mut columns: Vec<TextColumn> = names.iter().map(column).collect();
    let asked = |row: &usize| dataset.get(*row).filter(|row| row.is_chat).map(|row| &row.prompt.0);
    columns.extend(conversations(rows.iter().map(asked).zip(prompts.iter().map(String::as_str))));
    if generation.iter().any(|recorded| recorded.episode.is_some()) {
        let spoken = |of: fn(&RecordedEpisode) -> &Value| {
            let value = |recorded: &RecordedCompletion| recorded.episode.as_ref().map_or(&Value::Null, of).to_string();
            generation.iter().map(value).collect()
        };
        for (name, values) in [("messages", spoken(|s| &s.messages)), ("turn_rewards", spoken(|s| &s.turn_rewards))] {
            columns.retain(|column| column.name != name);
            columns.push(TextColumn { name: name.to_owned(), values });
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

/// Prints each completion with its score.
fn show_scores(recorded: &[RecordedCompletion], by: &str, scores: &[Option<f32>]) {
    say!("{}, scored by {by}", counted(recorded.len() as u64, "completion"));
    for (r, score) in recorded.iter().zip(scores) {
        let short: String = r.completion.chars().take(60).collect();
        let score = score.map_or_else(|| "none".to_owned(), |s| format!("{s:.4}"));
        say!("  step {:>5}  {score:>10}  {short:?}", r.step);
    }
}

/// Prints the completions on which the two scores differ most, for the version that differs most.
fn show_furthest(recorded: &[RecordedCompletion], versions: &[VersionedReward<'_>], scores: &[Option<f32>]) {
    let Some((version, all)) = furthest(recorded, versions, scores) else {
        return say!("no completion has a different score");
    };
    say!("largest differences from {}:", version.title());
    for versions::ScoreChange { recorded, old, new } in all.into_iter().take(SHOWN) {
        let short: String = recorded.completion.chars().take(60).collect();
        say!("  step {:>5}  {old:.4} -> {new:.4}  {short:?}", recorded.step);
    }
}
