//! Loads the run's plugins, and tries them on the kind of input that they will get.

use super::defaults;
use super::initial_plugin::{InitialPlugin, PluginLoader};
use super::scripts;
use crate::activity::{Activity, ProgressTask};
use crate::collector::PromptLoader;
use crate::config::{self, ComparisonTarget, Grants, PluginEntry, RunConfig, TeacherModelKind};
use crate::data::{TemplateVariables, Tokenizer};
use crate::dataset::{Prompt, PromptSet};
use crate::dist::World;
use crate::flow::{Flow, MetricsPlan};
use crate::model::ComputeBackend;
use crate::name_resolution::model_of;
use crate::origin::StartMode;
use crate::plan::Batching;
use crate::plugin::columns::{OLD_VALUE, REF_LOGP, TEACHER_LOGP, VALUE};
use crate::plugin::{self, PluginSource};
use crate::plugin::{
    AlgorithmPlugin, EMBEDDED, EnvironmentPlugin, Folders, NeededInputs, PluginEngine, PluginHttpClient, PluginInfo,
    RequestPolicy, RewardPlugin, Role,
};
use crate::plugins::{
    ChosenSettings, PluginSlot, PluginTrial, REFERENCE, RewardScorer, RunFeatures, RunPlugins, RunReward, ScoringModel,
    TeacherExtent, dry_run, is_separable, start,
};
use crate::ranks::after_the_first;
use crate::run::{RunEvent, RunFiles, short_hash};
use crate::{Error, Result, RunFolder};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// The plugins that a configuration names.
pub(super) struct LoadedPlugins {
    engine: PluginEngine,
    pub flow: Flow,
    pub metrics: MetricsPlan,
    algorithm: AlgorithmPlugin,
    pub algorithm_source: PluginSource,
    rewards: Vec<RunReward>,
    reward_sources: Vec<PluginSource>,
    environments: Vec<(EnvironmentPlugin, PluginSource)>,
    chosen: ChosenSettings,
}

/// Loads the plugins. Sets in the configuration what they define: the algorithm's own settings, those of the rewards, and the group size.
pub(super) fn load(
    config: &mut RunConfig,
    beginning: &StartMode,
    world: &World,
    backend: &ComputeBackend,
) -> Result<LoadedPlugins> {
    let mut engine = PluginEngine::new()?;
    plugin::set_python_path(&config.python_path);
    scripts::expand(config, &engine, beginning, world)?;
    let (entry, key) = (PluginEntry::new(config.algorithm.clone()), "algorithm".to_owned());
    let opening = PluginLoader { key, entry: &entry, role: Role::Algorithm, beginning, world };
    let load =
        |source: &PluginSource| Ok(AlgorithmPlugin::load(&engine, source, &config.loss, &config.loss_limits, config.seed)?);
    let (algorithm, algorithm_source) = opening.load(load)?;
    let flow = Flow::new(&algorithm, config);
    flow.check_needs(&algorithm.info().needs)
        .map_err(|detail| plugin::Error::Config { name: algorithm.name().to_owned(), detail })?;
    let chosen = chosen(config, algorithm_source.name());
    config.loss = algorithm.config();
    config.eval_steps = defaults::eval_steps(config, beginning)?;
    let Flow { generates, has_pairs, .. } = flow;
    if generates {
        let PluginInfo { hints, needs, .. } = algorithm.info();
        defaults::of_algorithm(config, has_pairs, &hints.defaults);
        if needs.has_teacher() {
            defaults::of_teacher(config, &hints.defaults);
        }
        config.check_generation(has_pairs, flow.has_scores, world.size())?;
    } else {
        config.check_no_generation()?;
        let given = if has_pairs { "pairs" } else { "completions" };
        leave_out_rewards(config, given, algorithm_source.name(), beginning)?;
    }
    let acting = config.environment.iter().map(|entry| ("environment", entry));
    for (table, entry) in config.plugin.iter().map(|entry| ("plugin", entry)).chain(acting) {
        grant(&mut engine, table, entry, config, beginning, world)
            .map_err(|detail| config::Error::Invalid { place: format!("{table}.{}", entry.name()), detail })?;
    }
    let acting = config.environment.iter_mut().map(|entry| ("environment", entry));
    for (table, entry) in config.plugin.iter_mut().map(|entry| ("plugin", entry)).chain(acting) {
        grant_folders(&mut engine, table, entry, beginning, world)?;
    }
    let (mut rewards, mut reward_sources) = (Vec::with_capacity(config.plugin.len()), Vec::new());
    for entry in &mut config.plugin {
        let by = if entry.model {
            RewardScorer::Model(Box::new(open_reward_model(entry, beginning, world, backend)?))
        } else {
            let (plugin, source) = load_reward(&engine, entry, config.seed, (beginning, world))?;
            reward_sources.push(source);
            RewardScorer::Plugin(Box::new(plugin))
        };
        rewards.push(RunReward::new(by, entry));
    }
    let environments = environments(config, &engine, beginning, world)?;
    check_names(config, algorithm_source.name())?;
    scripts::locate(config, beginning);
    let metrics = flow.metrics();
    Ok(LoadedPlugins { engine, flow, metrics, algorithm, algorithm_source, rewards, reward_sources, environments, chosen })
}

/// Refuses rewards and environments with the algorithm's name: checkpoints store plugins under their names, and some file systems ignore
/// case.
fn check_names(config: &RunConfig, algorithm: &str) -> Result<()> {
    let rewards = config.plugin.iter().filter(|entry| !entry.model).map(|entry| ("plugin", entry));
    let mut all = rewards.chain(config.environment.iter().map(|entry| ("environment", entry)));
    match all.find(|(_, entry)| entry.name().eq_ignore_ascii_case(algorithm)) {
        None => Ok(()),
        Some((key, entry)) => {
            let detail = "is the algorithm's name, too; give the other plugin one of its own, as in name = \"another\"";
            Err(Error::setting(key, format!("{} {detail}", entry.name())))
        }
    }
}

/// Returns the names of the settings in a configuration before plugins add their defaults.
fn chosen(config: &RunConfig, algorithm: &str) -> ChosenSettings {
    let entries = config.plugin.iter().chain(&config.environment).map(|entry| (entry.name(), &entry.config));
    let all = entries.chain([(algorithm, &config.loss)]);
    all.map(|(name, settings)| (name.to_owned(), settings.keys().cloned().collect())).collect()
}

/// Loads the configured environments, and adds the settings that they define to their entries.
fn environments(
    config: &mut RunConfig,
    engine: &PluginEngine,
    beginning: &StartMode,
    world: &World,
) -> Result<Vec<(EnvironmentPlugin, PluginSource)>> {
    let seed = config.seed;
    let load = |entry: &mut PluginEntry| {
        let opening = PluginLoader { key: path_of("environment", entry), entry, role: Role::Environment, beginning, world };
        let (plugin, source) =
            opening.load(|source| Ok(EnvironmentPlugin::load(engine, source, &entry.config, &entry.limits, seed)?))?;
        if matches!(beginning, StartMode::New) && plugin.http_client().is_none() && !entry.hosts.is_empty() {
            return Err(idle_hosts("environment", entry));
        }
        entry.config = plugin.config();
        Ok((plugin, source))
    };
    config.environment.iter_mut().map(load).collect()
}

/// Loads a reward plugin, and adds the settings that it defines to its entry.
fn load_reward(
    engine: &PluginEngine,
    entry: &mut PluginEntry,
    seed: u64,
    (beginning, world): (&StartMode, &World),
) -> Result<(RewardPlugin, PluginSource)> {
    let opening = PluginLoader { key: path_of("plugin", entry), entry, role: Role::Reward, beginning, world };
    let (plugin, source) = opening.load(|source| Ok(RewardPlugin::load(engine, source, &entry.config, &entry.limits, seed)?))?;
    if matches!(beginning, StartMode::New) && plugin.http_client().is_none() && !entry.hosts.is_empty() {
        return Err(idle_hosts("plugin", entry));
    }
    entry.config = plugin.config();
    Ok((plugin, source))
}

/// Returns the configuration key of an entry's file.
fn path_of(table: &str, entry: &PluginEntry) -> String {
    format!("{table}.{}.path", entry.name())
}

/// Returns the error for hosts that are granted to a plugin which can't send requests.
fn idle_hosts(table: &str, entry: &PluginEntry) -> Error {
    let detail = "this plugin sends no requests; leave its hosts out".to_owned();
    config::Error::Invalid { place: format!("{table}.{}.hosts", entry.name()), detail }.into()
}

/// Opens a reward model, and sets in its entry a name that stays valid wherever the run resumes, and the hash of its files.
fn open_reward_model(
    entry: &mut PluginEntry,
    beginning: &StartMode,
    world: &World,
    backend: &ComputeBackend,
) -> Result<ScoringModel> {
    let open = |entry: &PluginEntry| {
        let (folder, path) = after_the_first(world, || model_of(&entry.path))?;
        Ok((ScoringModel::open(entry, &folder, backend)?, folder, path))
    };
    let (asked, folder, path) = open(entry).map_err(|error: Error| moved(entry, error, beginning))?;
    entry.path = path;
    let model = &asked.model;
    let what = format!("reward model {}: the files in {}", entry.name(), folder.display());
    same_as_before(entry.hash.as_deref(), model.hash(), &what, beginning)?;
    entry.hash = Some(model.hash().to_owned());
    Ok(asked)
}

/// Adds advice to an error if a resumed run does not find a reward model that it had.
fn moved(entry: &PluginEntry, error: Error, beginning: &StartMode) -> Error {
    let Some(origin) = beginning.origin().filter(|_| !Path::new(&entry.path).exists()) else { return error };
    let (name, file) = (entry.name(), RunFiles(&origin.run).config());
    let detail = format!("{error}; if it has moved, give that plugin its new path, and name = {name:?}, in {}", file.display());
    Error::RewardModel { name: name.to_owned(), detail }
}

/// Refuses to resume with files of a different hash, unless the user allowed it.
fn same_as_before(was: Option<&str>, now: &str, what: &str, beginning: &StartMode) -> Result<()> {
    let resumed = matches!(beginning, StartMode::Resume { .. }) && !beginning.may_change();
    match was.filter(|was| resumed && *was != now) {
        None => Ok(()),
        Some(was) => {
            let changed = format!("{what} have changed since the run began ({} to {})", short_hash(was), short_hash(now));
            Err(Error::Changed(format!("{changed}; --allow-changed goes on with what is there now")))
        }
    }
}

/// Reads the folders that a plugin is granted. Sets in its entry their hash, and paths that stay valid wherever the run resumes. All ranks
/// must read the same.
fn grant_folders(
    engine: &mut PluginEngine,
    table: &'static str,
    entry: &mut PluginEntry,
    beginning: &StartMode,
    world: &World,
) -> Result<()> {
    const NOTHING: &str = "nothing";
    if entry.folders.is_empty() && entry.folders_hash.is_none() {
        return Ok(());
    }
    for path in entry.folders.values_mut() {
        if let Ok(whole) = std::path::absolute(&*path) {
            *path = whole.display().to_string();
        }
    }
    let folders = (!entry.folders.is_empty()).then(|| Folders::read(&entry.folders)).transpose();
    let hash = |folders: &Option<Arc<Folders>>| folders.as_ref().map_or(NOTHING, |folders| folders.hash()).to_owned();
    let all = world.gather("the hash of granted folders", folders.as_ref().map(hash).map_err(String::clone))?;
    let invalid = |detail| config::Error::Invalid { place: format!("{table}.{}", entry.name()), detail };
    let hashes = all.into_iter().collect::<std::result::Result<Vec<String>, String>>().map_err(invalid)?;
    if let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) {
        return Err(invalid(format!("its folders hold other files on rank {rank} than on the first")).into());
    }
    // Every run with folders has their hash.
    let before = entry.folders_hash.as_deref().unwrap_or(NOTHING);
    same_as_before(Some(before), &hashes[0], &format!("plugin {}: the files in its folders", entry.name()), beginning)?;
    entry.folders_hash = None;
    if let Ok(Some(folders)) = folders {
        entry.folders_hash = Some(folders.hash().to_owned());
        engine.grant_folders(entry.name(), folders);
    }
    Ok(())
}

/// Allows a reward to send requests as configured by its entry. The first rank sends all requests; a resumed run has the answers that it
/// had before.
fn grant(
    engine: &mut PluginEngine,
    table: &'static str,
    entry: &PluginEntry,
    config: &RunConfig,
    beginning: &StartMode,
    world: &World,
) -> std::result::Result<(), String> {
    if entry.hosts.is_empty() {
        return Ok(());
    }
    if table == "environment" && world.size() > 1 {
        return Err("an environment that sends requests needs a run of one process, which records the answers".to_owned());
    }
    let asking = match (world.is_first(), config.replay_only) {
        (false, _) => RequestPolicy::Disabled("the first process sends the requests of all"),
        (true, true) => RequestPolicy::ReplayOnly,
        (true, false) => RequestPolicy::Allowed,
    };
    let acts = table == "environment";
    let mut grants = entry.grants();
    if acts {
        // A request that was sent may have taken effect: calling a tool again would do it twice.
        grants.http.retries = 0;
    }
    let asker = PluginHttpClient::new(grants, asking)?;
    if acts && beginning.may_change() {
        // Episodes that take another course from now on need new sessions, not the recorded ones.
        if let (StartMode::Resume { origin, .. }, true) = (beginning, world.is_first()) {
            set_aside(&RunFiles(&origin.run).answers_of(entry.name()))?;
        }
    } else if world.is_first() {
        let run = match beginning {
            StartMode::Resume { origin, .. } => Some(origin.run.clone()),
            StartMode::Restart => config.output_dir.as_ref().map(PathBuf::from),
            StartMode::New | StartMode::Fork { .. } => None,
        };
        if let StartMode::Fork { origin, .. } = beginning {
            asker.adopt(&RunFiles(&origin.run).answers_of(entry.name()))?;
        }
        run.map_or(Ok(()), |run| asker.read(&RunFiles(&run).answers_of(entry.name())))?;
    }
    engine.grant(entry.name(), Arc::new(asker));
    Ok(())
}

/// Sets aside a copy of a record that the run will restart.
fn set_aside(file: &Path) -> std::result::Result<(), String> {
    match std::fs::copy(file, file.with_extension("before.jsonl")) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("can't copy {}: {e}", file.display())),
        _ => Ok(()),
    }
}

/// Refuses rewards for an algorithm that learns from what is `given` in a dataset and needs no scores. A fork drops those of its parent
/// run.
fn leave_out_rewards(config: &mut RunConfig, given: &str, algorithm: &str, beginning: &StartMode) -> Result<()> {
    if let StartMode::Fork { fresh, .. } = beginning {
        let before = config.plugin.len() + config.environment.len();
        for entries in [&mut config.plugin, &mut config.environment] {
            entries.retain(|entry| fresh.contains(&entry.path));
        }
        if config.plugin.len() + config.environment.len() < before {
            tracing::info!("rewards of the run that this one forks from stay behind: {algorithm} has nothing scored");
        }
    }
    // A resumed run must keep the rewards that it was started with.
    let Some(first) =
        config.plugin.first().or(config.environment.first()).filter(|_| !matches!(beginning, StartMode::Resume { .. }))
    else {
        return Ok(());
    };
    let detail = format!("{algorithm} learns from the dataset's {given} and has nothing scored; leave out {}", first.path);
    let place = if config.plugin.is_empty() { "environment" } else { "plugin" };
    Err(config::Error::Invalid { place: place.into(), detail }.into())
}

/// Returns the prompts that plugins are tried on. With several environments, the first rows of each are used.
fn tried_prompts(config: &RunConfig, prompts: &PromptSet) -> Result<Vec<Arc<Prompt>>> {
    if config.environment.len() > 1 { Ok(prompts.all()?.to_vec()) } else { prompts.first(PluginTrial::PROMPTS) }
}

impl LoadedPlugins {
    /// Returns the algorithm's description of itself.
    pub(super) fn info(&self) -> &PluginInfo {
        self.algorithm.info()
    }

    /// Returns whether the algorithm writes what a teacher reads.
    pub(super) fn writes_teacher_prompts(&self) -> bool {
        self.algorithm.writes_teacher_prompts()
    }

    /// Returns whether rewards read prompts as messages: reward models and scripts do.
    pub(super) fn read_messages(&self) -> bool {
        let reads = |reward: &RunReward| reward.model().is_some() || reward.plugin().is_some_and(|plugin| plugin.is_script());
        self.rewards.iter().any(reads)
    }

    /// Sets the policy's tokenizer in all reward models.
    ///
    /// # Errors
    /// If one would have to read conversations of episodes without a chat template.
    pub(super) fn set_policy_tokenizer(&mut self, policys: &Tokenizer) -> Result<()> {
        let conversing = !self.environments.is_empty() && policys.has_chat();
        for asked in self.rewards.iter_mut().filter_map(RunReward::model_mut) {
            asked.set_policy_tokenizer(policys);
            if conversing && !asked.model.tokenizer().has_chat() {
                let detail =
                    "it has no chat template to read the conversations of episodes with; train it with one, or leave it out";
                return Err(Error::RewardModel { name: asked.model.name().to_owned(), detail: detail.into() });
            }
        }
        Ok(())
    }

    /// Tries all plugins on synthetic completions of the dataset's first prompts. Returns the trial.
    pub(super) fn run_trial(
        &mut self,
        (data, batching): (&PromptLoader, &Batching),
        config: &RunConfig,
        beginning: &StartMode,
        world: &World,
    ) -> Result<PluginTrial> {
        let lacks = |entry: &&PluginEntry| {
            entry.compare == Some(ComparisonTarget::Reference) && !data.columns().iter().any(|c| c == REFERENCE)
        };
        let invalid = |entry: &PluginEntry, detail: String| {
            Err(config::Error::Invalid { place: format!("plugin.{}.compare", entry.name()), detail }.into())
        };
        if let Some(entry) = config.plugin.iter().find(lacks) {
            let detail =
                format!("compares with the dataset's column {REFERENCE:?}, and it has none; --columns {REFERENCE}=COLUMN");
            return invalid(entry, detail);
        }
        let of_references = |entry: &&PluginEntry| entry.compare == Some(ComparisonTarget::Reference);
        if let Some(entry) = config.plugin.iter().filter(|_| !config.environment.is_empty()).find(of_references) {
            return invalid(
                entry,
                "an episode can't be compared with a reference, which is no conversation; use others".to_owned(),
            );
        }
        let prompts = tried_prompts(config, data.prompts())?;
        let needs = &self.info().needs;
        let extras = RunFeatures {
            reference: needs.has(REF_LOGP),
            critic: needs.has(VALUE) || needs.has(OLD_VALUE),
            teacher_logp: needs.has(TEACHER_LOGP),
            divergence: teacher_extent(config, needs),
            margins: false,
        };
        let group = batching.groups.map(|groups| groups.train);
        let trial = PluginTrial::synthetic(&prompts, data.columns(), group, (&self.algorithm, self.flow), extras);
        let mut trial = trial.with_comparisons(&self.rewards);
        let agent = config.agent.first().map(|agent| agent.name.as_str());
        trial.begin(&prompts, &config.environment, config.environment.first().map(PluginEntry::name).or(agent));
        let _task = ProgressTask::new(Activity::TryingPlugin).with_subject("the plugins");
        let kept = self.initial_plugins(config);
        let mut bear = |name: &str, error| match kept.iter().find(|kept| kept.name == name) {
            Some(kept) => kept.tolerate_failure(error, config, beginning, world),
            None => Err(Error::DryRun(error)),
        };
        dry_run(&trial, &mut self.algorithm, &mut self.rewards, &mut bear)?;
        for (environment, _) in &self.environments {
            trial.play(environment).or_else(|error| bear(environment.name(), error))?;
        }
        if config.max_tokens_per_microbatch.is_some() && !is_separable(&mut self.algorithm)? {
            let name = self.algorithm_source.name();
            let detail = format!("the loss of {name}, with these settings, compares the rows of a micro-batch with each other");
            return Err(Error::setting("max_tokens_per_microbatch", format!("{detail}; micro-batches can't be split by tokens")));
        }
        Ok(trial)
    }

    /// Returns the name of the first environment in whose episodes, of its first prompts, the model may call tools.
    pub(super) fn environment_with_tools(&self, config: &RunConfig, prompts: &PromptSet) -> Result<Option<&str>> {
        let prompts = tried_prompts(config, prompts)?;
        let has_tools = |place: usize, environment: &EnvironmentPlugin| {
            let own = prompts.iter().filter(|prompt| prompt.acts_in(&config.environment) == Some(place));
            let own: Vec<&Arc<Prompt>> = own.take(PluginTrial::PROMPTS).collect();
            let starts: Vec<plugin::Start> = own.iter().enumerate().map(|(i, prompt)| start(prompt, i as u64, 0)).collect();
            // An environment that fails here failed its trial, too.
            let opened = environment.rehearse(&starts, |_, _, _| None).unwrap_or_default();
            let in_row =
                |prompt: &&Arc<Prompt>| TemplateVariables::from_columns(&prompt.columns).is_ok_and(|row| row.has_tools());
            own.iter().any(in_row) || opened.iter().any(|episode| !episode.opening.tools.is_empty())
        };
        let found = self.environments.iter().enumerate().find(|(place, (environment, _))| has_tools(*place, environment));
        Ok(found.map(|(_, (environment, _))| environment.name()))
    }

    /// Returns the plugins with their files.
    fn initial_plugins(&self, config: &RunConfig) -> Vec<InitialPlugin> {
        let rewards = config.plugin.iter().filter(|entry| !entry.model).zip(&self.reward_sources);
        let rewards = rewards.map(|(entry, source)| InitialPlugin::from_entry("plugin", entry, source));
        let environments = config.environment.iter().zip(&self.environments);
        let environments = environments.map(|(entry, (_, source))| InitialPlugin::from_entry("environment", entry, source));
        std::iter::once(InitialPlugin::from_algorithm(config, &self.algorithm_source))
            .chain(rewards)
            .chain(environments)
            .collect()
    }

    /// Returns the names of the metrics that the plugins reported in their trial, if that is all that they report: plugins that ship with
    /// the host do, unless they send requests or play episodes.
    pub(super) fn reported(&self) -> Option<Vec<String>> {
        let ours = |source: &PluginSource| EMBEDDED.iter().any(|(_, bytes)| *bytes == source.bytes());
        let asks = self.rewards.iter().filter_map(RunReward::plugin).any(|plugin| plugin.http_client().is_some());
        let known = ours(&self.algorithm_source) && self.reward_sources.iter().all(ours);
        (known && !asks && self.environments.is_empty()).then(|| self.engine.reported_metrics())
    }

    /// Returns the components of rewards, without reward models, in the order of the configuration.
    pub(super) fn reward_sources(&self) -> impl Iterator<Item = &PluginSource> {
        self.reward_sources.iter()
    }

    /// Returns the components of environments, in the order of the configuration.
    pub(super) fn environment_sources(&self) -> impl Iterator<Item = &PluginSource> {
        self.environments.iter().map(|(_, source)| source)
    }

    /// Stores the plugins in the run's folder and records that they were loaded.
    pub(super) fn store(&self, config: &RunConfig, folder: &mut RunFolder) -> Result<()> {
        folder.keep_plugin(&self.algorithm_source, "algorithm", &self.algorithm, &Grants::default())?;
        let entries = config.plugin.iter().filter(|entry| !entry.model);
        let rewards = self.rewards.iter().filter_map(RunReward::plugin).zip(&self.reward_sources);
        for ((plugin, source), entry) in rewards.zip(entries) {
            folder.keep_plugin(source, "reward", plugin, &entry.grants())?;
        }
        for entry in config.plugin.iter().filter(|entry| entry.model) {
            let (role, plugin, version) = ("reward model", entry.name(), "");
            let (hash, config) = (entry.hash.as_deref().unwrap_or_default(), &json!({ "path": entry.path }));
            folder.event(&RunEvent::PluginLoaded { role, plugin, version, hash, settings: None, config, granted: None })?;
        }
        for ((plugin, source), entry) in self.environments.iter().zip(&config.environment) {
            folder.keep_plugin(source, "environment", plugin, &entry.grants())?;
        }
        Ok(())
    }

    /// Returns the plugins in their slots, and the engine that loaded them.
    pub(super) fn into_slots(
        self,
        config: &RunConfig,
        world: Rc<World>,
        trial: PluginTrial,
    ) -> Result<(RunPlugins, PluginEngine)> {
        let Self { engine, algorithm, algorithm_source, rewards, reward_sources, environments, chosen, .. } = self;
        let mut slots = vec![PluginSlot::from_algorithm(config, algorithm_source, &algorithm, &chosen)];
        let plugins = config.plugin.iter().filter(|entry| !entry.model).zip(rewards.iter().filter_map(RunReward::plugin));
        let scoring = plugins.zip(reward_sources);
        slots.extend(
            scoring.map(|((entry, plugin), source)| PluginSlot::from_entry(Role::Reward, entry, source, plugin, &chosen)),
        );
        let acting = environments.iter().zip(&config.environment);
        slots.extend(
            acting.map(|((plugin, source), entry)| {
                PluginSlot::from_entry(Role::Environment, entry, source.clone(), plugin, &chosen)
            }),
        );
        let environments = environments.into_iter().map(|(plugin, _)| plugin).collect();
        Ok((RunPlugins::new(world, config.clone(), algorithm, (rewards, environments), slots, trial)?, engine))
    }
}

/// Returns what a run has of its teacher's distributions, given what its algorithm needs of them.
fn teacher_extent(config: &RunConfig, needs: &NeededInputs) -> TeacherExtent {
    let count = needs.divergence().map(|(_, column)| column.top.map_or(0, |top| top.count));
    match count {
        None => TeacherExtent::Nothing,
        Some(_) if config.teacher_model_kind == TeacherModelKind::Dataset => TeacherExtent::Likeliest(usize::MAX),
        Some(count) if !config.teacher_server.is_empty() => TeacherExtent::Likeliest(count),
        Some(_) => TeacherExtent::Everything,
    }
}
