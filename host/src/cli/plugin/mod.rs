//! `rlhost plugin`: tools for plugin authors.

mod batches;
mod bench;
mod check;
mod episodes;
mod gradient;
mod new;
mod samples;

use super::granted::Granted;
use super::{Failure, output, settings_given};
use crate::config::{self, Limits, Overrides, Set};
use crate::data::{self, Dataset, PromptForm, PromptRow, Refused};
use crate::plugin::algorithm::{Data, DataSource, Shape};
use crate::plugin::{self, AnyPlugin, Engine, Outline, Role, Source};
use crate::train;
use anyhow::anyhow;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Arguments of `plugin`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Create a plugin project that builds with its language's own tools
    New(new::Args),
    /// Show a plugin's role, settings, requirements, imports and size
    Inspect(PluginArgs),
    /// Check a plugin the way a run uses it: contract, limits, determinism, gradients, speed
    Check {
        #[command(flatten)]
        given: PluginArgs,
        /// Don't fail on gradients that differ from the loss's, for a loss with a stop-gradient
        #[arg(long)]
        stop_gradient: bool,
    },
    /// Time a plugin's calls
    Bench(PluginArgs),
    /// Turn a core module into a component and check that it is a plugin
    Build {
        /// Core module to convert
        file: PathBuf,
        /// File to write [default: NAME.component.wasm in the module's folder]
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
}

/// A plugin and its settings.
#[derive(clap::Args)]
struct PluginArgs {
    /// Plugin: a path, or the file name of a built-in plugin
    plugin: String,
    /// Setting of the plugin, as in --set target=8; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Dataset with prompts and columns to test a reward or an environment on
    #[arg(long)]
    dataset: Option<PathBuf>,
    /// Rename its columns, as in prompt=question; separate several with commas or repeat the flag
    #[arg(long, value_name = "NAME=COLUMN", requires = "dataset")]
    columns: Vec<String>,
    /// Build its prompts from columns, as in '{question}'
    #[arg(long, alias = "prompt_template", value_name = "TEXT", requires = "dataset")]
    prompt_template: Option<String>,
    #[command(flatten)]
    granted: Granted,
}

impl PluginArgs {
    /// Opens the plugin, and starts an engine that lets it send the granted requests.
    fn open(&self) -> anyhow::Result<(Engine, Source)> {
        let (mut engine, source) = (Engine::new()?, Source::open(&self.plugin)?);
        self.granted.apply(&mut engine, source.name())?;
        Ok((engine, source))
    }

    /// Reads the dataset to test on, if one is given.
    fn prompts(&self) -> anyhow::Result<Option<Vec<PromptRow>>> {
        let Some(path) = self.dataset.as_deref() else { return Ok(None) };
        let named = [("dataset", path.display().to_string())].into_iter();
        let columns = self.columns.iter().map(|columns| ("columns", columns.clone()));
        let template = self.prompt_template.iter().map(|template| ("prompt_template", template.clone()));
        let flags = named.chain(columns).chain(template).map(|(key, text)| (key.to_owned(), text)).collect();
        let config = config::read(std::iter::empty::<&Path>(), &Overrides { flags, ..Overrides::default() })?;
        let dataset = Dataset { columns: config.columns(), ..train::local_dataset(path)? };
        let (form, mut refused) = (PromptForm::of(&config, false), Refused::default());
        let rows = data::read_prompts_as(&dataset, form.as_ref(), &mut refused)?;
        if let Some(text) = refused.warning(rows.len())? {
            tracing::warn!("{text}");
        }
        Ok(Some(rows))
    }

    fn load(&self, engine: &Engine, source: &Source, role: Role) -> anyhow::Result<AnyPlugin> {
        let settings = settings_given(&Set::read_all(&self.set)?)?;
        AnyPlugin::load(engine, source, role, &settings, &Limits::default(), 0).map_err(|error| match error {
            plugin::Error::Config { name, detail } => {
                let detail = format!("{detail}; --set KEY=VALUE gives a setting, and `rlhost plugin inspect` lists them");
                plugin::Error::Config { name, detail }.into()
            }
            other => other.into(),
        })
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        Action::New(args) => new::run(args).map_err(Failure::of),
        Action::Inspect(given) => inspect(given).map_err(Failure::of),
        Action::Check { given, stop_gradient } => check::run(given, *stop_gradient),
        Action::Bench(given) => bench::run(given).map_err(Failure::of),
        Action::Build { file, output } => build(file, output.as_deref()).map_err(Failure::of),
    }
}

fn inspect(given: &PluginArgs) -> anyhow::Result<()> {
    let (engine, source) = given.open()?;
    let outline = Outline::of(&engine, &source, &Limits::default())?;
    let role = outline.role(&source)?;
    let any = given.load(&engine, &source, role)?;
    let (plugin, info) = (any.plugin(), any.plugin().info());
    output::row(&format!("{} {}: {}", info.name, info.version, info.description), 10);
    say!("role:     {}", role.name());
    let made = if outline.wrapped { ", wrapped from a core module" } else { "" };
    say!("size:     {}{made}", indicatif::HumanBytes(outline.bytes as u64));
    output::row(&format!("hash:     {}", source.hash()), 10);
    output::row(&format!("keeps:    {}", keeps(plugin)), 10);
    output::row(&format!("needs:    {}", list(&info.needs.names().map(str::to_owned).collect::<Vec<_>>())), 10);
    if let AnyPlugin::Algorithm(algorithm) = &any {
        output::row(&format!("learns:   {}", learns(algorithm.data())), 10);
        output::row(&format!("rate:     {:e}, the default learning rate of full-size models", info.hints.learning_rate), 10);
        let own = info.hints.defaults.keys();
        if !own.is_empty() {
            let own: Vec<String> = own.iter().map(|(key, value)| format!("{key} {value}")).collect();
            output::row(&format!("defaults: {}", own.join(", ")), 10);
        }
    }
    output::row(&format!("imports:  {}", list(&outline.imports)), 10);
    output::row(&format!("exports:  {}", list(&outline.exports)), 10);
    say!("settings:");
    for line in settings(&info.config_schema, &any.plugin().config()) {
        output::row(&format!("    {line}"), 8);
    }
    Ok(())
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Says what an algorithm learns from.
fn learns(data: &Data) -> String {
    let what = match data.shape {
        Shape::Completions => "completions",
        Shape::Pairs => "pairs of completions",
    };
    let source = match data.source {
        DataSource::Policy => "that the policy generates",
        DataSource::Dataset => "of a dataset",
        DataSource::Either => "that the policy generates, or of a dataset",
    };
    match &data.estimates[..] {
        [] => format!("from {what} {source}"),
        names => format!("from {what} {source}; estimates {}", names.join(", ")),
    }
}

fn keeps(plugin: &plugin::Plugin) -> &'static str {
    match (plugin.info().stateless, plugin.forgets()) {
        (true, _) => "nothing: calls may be split by rows and run in parallel",
        (false, false) => "state, which survives checkpoints and swaps",
        (false, true) => "state that it can't export: a resumed run will differ (export `state`)",
    }
}

/// Returns one line per setting: name, value and description.
fn settings(schema: &str, config: &Map<String, Value>) -> Vec<String> {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    if properties.is_empty() {
        return vec!["none".to_owned()];
    }
    let flags = plugin::settings_in(&schema);
    let line = |(name, property): (&String, &Value)| {
        let value = config.get(name).map_or_else(|| "not set".to_owned(), ToString::to_string);
        // With its values, if they are few, and its default.
        let help = flags.iter().find(|flag| flag.name == *name).map(|flag| flag.help.clone());
        let plain = || property["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{name} = {value}  {}", help.unwrap_or_else(plain))
    };
    properties.iter().map(line).collect()
}

fn build(file: &std::path::Path, output: Option<&std::path::Path>) -> anyhow::Result<()> {
    let source = Source::open(&file.display().to_string())?;
    let component = plugin::as_component(&source)?;
    let made = Source::new(source.name().to_owned(), component.into());
    let outline = Outline::of(&Engine::new()?, &made, &Limits::default())?;
    let role = outline.role(&made)?;
    let output = output.map_or_else(|| file.with_extension("component.wasm"), PathBuf::from);
    std::fs::write(&output, made.bytes()).map_err(|e| anyhow!("can't write {}: {e}", output.display()))?;
    say!("{}: {}, {}", output.display(), role.name(), indicatif::HumanBytes(outline.bytes as u64));
    Ok(())
}
