//! `rlhost plugin`: tools for plugin authors.

mod batches;
mod bench;
mod check;
mod check_report;
mod episodes;
mod gradient;
mod new;
mod plugin_args;
mod samples;

use super::failure::CommandFailure;
use super::output;
use crate::config::PluginLimits;
use crate::plugin::algorithm::{Data, DataSource, Shape};
use crate::plugin::{self, AnyPlugin, PluginEngine, PluginOutline, PluginSource};
use anyhow::anyhow;
use plugin_args::PluginArgs;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Arguments of `plugin`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: PluginCommand,
}

#[derive(clap::Subcommand)]
enum PluginCommand {
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
    /// Turn a script, with its interpreter, or a core module into a component, and check that it is a plugin
    Build {
        /// Script, which may be FILE:FUNCTION, or core module
        file: String,
        /// File to write [default: NAME.component.wasm in its folder]
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.action {
        PluginCommand::New(args) => new::run(args).map_err(CommandFailure::from_error),
        PluginCommand::Inspect(given) => inspect(given).map_err(CommandFailure::from_error),
        PluginCommand::Check { given, stop_gradient } => check::run(given, *stop_gradient),
        PluginCommand::Bench(given) => bench::run(given).map_err(CommandFailure::from_error),
        PluginCommand::Build { file, output } => build(file, output.as_deref()).map_err(CommandFailure::from_error),
    }
}

fn inspect(given: &PluginArgs) -> anyhow::Result<()> {
    let (engine, source) = given.open()?;
    let outline = PluginOutline::read(&engine, &source, &PluginLimits::default())?;
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
    if let Some(script) = source.script() {
        let carried = if source.own_interpreter().is_some() { "its own" } else { "the carried" };
        let modules = script.modules.keys().map(|path| format!(", {path}")).collect::<String>();
        output::row(
            &format!("script:   {}{modules}; run by {carried} {} interpreter", script.name, script.language().name()),
            10,
        );
    } else {
        output::row(&format!("imports:  {}", list(&outline.imports)), 10);
        output::row(&format!("exports:  {}", list(&outline.exports)), 10);
    }
    say!("settings:");
    for line in settings(&info.config_schema, &any.plugin().config()) {
        output::row(&format!("    {line}"), 8);
    }
    Ok(())
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Describes an algorithm's data source.
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
    match (plugin.info().stateless, plugin.loses_state()) {
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
        // The help includes the values, if they are few, and the default.
        let help = flags.iter().find(|flag| flag.name == *name).map(|flag| flag.help.clone());
        let plain = || property["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{name} = {value}  {}", help.unwrap_or_else(plain))
    };
    properties.iter().map(line).collect()
}

fn build(file: &str, output: Option<&Path>) -> anyhow::Result<()> {
    let source = PluginSource::open(file)?;
    let component = match plugin::self_contained(&source)? {
        Some(component) => component,
        None => plugin::as_component(&source)?,
    };
    let made = PluginSource::new(source.name().to_owned(), component.into());
    let engine = PluginEngine::new()?;
    let role = PluginOutline::read(&engine, &made, &PluginLimits::default())?.role(&made)?;
    if made.script().is_some() {
        // If the script has several functions, one must be named.
        AnyPlugin::load(&engine, &made, role, &Map::new(), &PluginLimits::default(), 0)?;
    }
    let beside = || Path::new(file).with_file_name(format!("{}.component.wasm", source.name()));
    let output = output.map_or_else(beside, Path::to_owned);
    std::fs::write(&output, made.bytes()).map_err(|e| anyhow!("can't write {}: {e}", output.display()))?;
    say!("{}: {}, {}", output.display(), role.name(), indicatif::HumanBytes(made.bytes().len() as u64));
    Ok(())
}
