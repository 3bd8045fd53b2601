//! Logs a few lines that describe a run, each as soon as its content is known.

use super::memory::{self, MemoryEstimate};
use super::opened_model::OpenedModel;
use super::plugins::LoadedPlugins;
use crate::config::words::counted;
use crate::config::{PluginEntry, RunConfig, printable, printable_path};
use crate::dist::World;
use crate::model::{ComputeBackend, WeightDtype, WeightStorage};
use crate::ops::quantized::QuantizationScheme;
use crate::plan::{Batching, GroupSizes};
use crate::run::short_hash;
use indicatif::HumanCount;
use std::path::Path;

/// Maximum length of the printed names of adapted matrices.
const LONGEST_TARGETS: usize = 200;

/// Logs the algorithm, and the rewards and environments with their versions.
pub(super) fn of_plugins(plugins: &LoadedPlugins, config: &RunConfig) {
    tracing::info!("algorithm: {} {}", plugins.algorithm_source.name(), short_hash(plugins.algorithm_source.hash()));
    let mut sources = plugins.reward_sources();
    let reward = |entry: &PluginEntry| {
        let version = if entry.model { None } else { sources.next().map(|source| format!(" {}", short_hash(source.hash()))) };
        let weight = if entry.weight == 1.0 { String::new() } else { format!(" x {}", entry.weight) };
        format!("{}{}{weight}", entry.name(), version.unwrap_or_default())
    };
    let rewards: Vec<String> = config.plugin.iter().map(reward).collect();
    let acting = config.environment.iter().zip(plugins.environment_sources());
    let environments: Vec<String> =
        acting.map(|(entry, source)| format!("{} {}", entry.name(), short_hash(source.hash()))).collect();
    let agents = config.agent.iter().map(|entry| entry.name.clone()).collect();
    let all = [("rewards", rewards), ("environments", environments), ("agents", agents)];
    for (what, names) in all.iter().filter(|(_, names)| !names.is_empty()) {
        tracing::info!("{what}: {}", names.join(", "));
    }
    if !config.agent.is_empty() {
        tracing::info!(
            "what agents do by chance, time or network can't be repeated; episodes that have ended are kept, and a resumed run reads them"
        );
    }
}

/// Logs the model with its size and precision, and the adapter.
pub(super) fn of_model(opened: &OpenedModel, config: &RunConfig) {
    let (source, architecture) = (&opened.source, opened.source.architecture());
    let name = config.model.as_deref().map_or_else(|| "built-in".to_owned(), |_| printable_path(source.path()));
    let family = architecture.family.description().name;
    let size = millions(architecture.values_of_matrices() as f64);
    let context = HumanCount(architecture.max_positions as u64);
    let bits = if opened.lora.is_none() { "f32" } else { precision(source.weight_storage()) };
    tracing::info!("model: {name} ({family}, {size} parameters in {bits}, context of {context} tokens)");
    if let Some(teacher) = &opened.teacher {
        let (family, architecture) = (teacher.architecture().family.description().name, teacher.architecture());
        let (size, bits) = (millions(architecture.values_of_matrices() as f64), precision(teacher.weight_storage()));
        tracing::info!("teacher: {} ({family}, {size} parameters in {bits})", printable_path(teacher.path()));
    }
    if let Some(lora) = opened.lora {
        let kind = if lora.use_dora { "DoRA" } else { "LoRA" };
        let targets = config.lora_target_modules.as_deref().unwrap_or_default().join(", ");
        tracing::info!(
            "adapter: {kind} with r = {} and alpha = {} on {}",
            lora.r,
            lora.alpha,
            printable(&targets, LONGEST_TARGETS)
        );
    }
}

/// Logs the size of the datasets.
pub(super) fn of_data(rows: usize, evaluated: Option<usize>, config: &RunConfig) {
    let name = config.dataset.as_deref().map_or_else(|| "built-in prompts".to_owned(), |name| printable_path(Path::new(name)));
    let evaluated = evaluated.map(|rows| format!("; {} for evaluations", HumanCount(rows as u64))).unwrap_or_default();
    tracing::info!("dataset: {name}, {} rows{evaluated}", HumanCount(rows as u64));
}

/// Logs how rows become steps.
pub(super) fn of_steps(batching: &Batching, world: &World, (max_steps, epoch): (u64, u64)) {
    let sizes = batching.sizes;
    let (parts, micro_batch) = (batching.accumulation, sizes.micro_batch);
    let step = parts * micro_batch;
    let processes = if world.size() > 1 { format!(" on {} processes", world.size()) } else { String::new() };
    let epochs = match epoch {
        0 => String::new(),
        epoch => format!(" ({} epochs)", rounded(max_steps as f64 / epoch as f64)),
    };
    let split = if parts > 1 { format!(" in {parts} micro-batches of {micro_batch}") } else { String::new() };
    let items = match batching.groups {
        Some(GroupSizes { train: group, .. }) if !batching.items_are_pairs => {
            let whole = sizes.completions_per_generation();
            let prompts = counted((whole / group) as u64, "prompt");
            let reused = if whole == step { String::new() } else { format!("; a generation has {whole}") };
            format!("{step} completions{split}{processes}{reused}: {prompts} x {group}")
        }
        Some(_) => format!("{step} pairs of completions{split}{processes}"),
        None => format!("{step} rows{split}{processes}"),
    };
    tracing::info!("steps: {}{epochs}; each trains on {items}", HumanCount(max_steps));
}

/// Logs the evaluation's size.
pub(super) fn of_evaluation(batching: &Batching, rows: usize) {
    let rows = HumanCount(rows as u64);
    let what = match batching.groups {
        Some(GroupSizes { eval, length, .. }) => {
            let completions = counted(eval as u64, "completion");
            format!("{rows} prompts, {completions} of each with at most {length} tokens")
        }
        None => format!("{rows} rows"),
    };
    tracing::info!("evaluation: {what}; nothing is trained, and no run is begun");
}

/// Logs the device.
pub(super) fn of_device(backend: &ComputeBackend) {
    tracing::info!("device: {}{}", backend.describe(), threads(backend));
}

/// Logs the run's folder.
pub(super) fn of_folder(folder: &Path) {
    tracing::info!("folder: {}", printable_path(folder));
}

fn threads(backend: &ComputeBackend) -> String {
    match backend.device().is_cpu() {
        true => format!(", {} threads", rayon::current_num_threads()),
        false => String::new(),
    }
}

/// Logs the device and, on the CPU, the memory that the run needs at least, with what is available.
pub(super) fn of_machine(config: &RunConfig, opened: &OpenedModel, how: memory::ModelUse, backend: &ComputeBackend) {
    of_device(backend);
    if !backend.device().is_cpu() {
        return;
    }
    let size = |bytes: f64| if bytes < 1e9 { format!("{:.0} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) };
    let available = crate::ops::available_memory().map(|bytes| format!("; {} available", size(bytes as f64)));
    let MemoryEstimate { model, critic, teacher, batch } = memory::estimate(config, &opened.source, how);
    let critic = Some(critic).filter(|bytes| *bytes > 0.0).map(|bytes| format!(", {} for the critic", size(bytes)));
    let teacher = Some(teacher).filter(|bytes| *bytes > 0.0).map(|bytes| format!(", {} for the teacher", size(bytes)));
    let batch =
        batch.map(|(tokens, bytes)| format!(", {} for a micro-batch of up to {} tokens", size(bytes), HumanCount(tokens as u64)));
    let parts = [critic, teacher, batch, available].map(Option::unwrap_or_default).concat();
    tracing::info!("memory: at least {} for the model{parts}", size(model));
}

/// Returns a number with two decimals, or with two digits if it is small.
fn rounded(v: f64) -> String {
    if v >= 0.1 || v <= 0.0 { format!("{v:.2}") } else { format!("{v:.*}", (1.0 - v.log10().floor()) as usize) }
}

/// Returns a number of parameters in words: `494M`, `1.54B`.
fn millions(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2}B", n / 1e9),
        n if n >= 1e8 => format!("{:.0}M", n / 1e6),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n => format!("{:.0}K", n / 1e3),
    }
}

/// Returns the precision of frozen weights in memory.
fn precision(held: WeightStorage) -> &'static str {
    match held {
        WeightStorage { scheme: Some(QuantizationScheme::Int8), .. } => "8 bits",
        WeightStorage { scheme: Some(QuantizationScheme::Nf4), .. } => "4 bits",
        WeightStorage { dtype: Some(WeightDtype::Bf16), .. } => "bf16",
        WeightStorage { dtype: Some(WeightDtype::F16), .. } => "f16",
        WeightStorage { dtype: Some(WeightDtype::F32), .. } => "f32",
        _ => "the precision of its files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_people_say_them() {
        assert_eq!([0.0, 0.001_61, 0.06, 0.25, 12.0].map(rounded), ["0.00", "0.0016", "0.060", "0.25", "12.00"]);
        assert_eq!(
            [260_032.0, 1.5e6, 105.7e6, 494_032_768.0, 1_543_714_304.0].map(millions),
            ["260K", "1.5M", "106M", "494M", "1.54B"]
        );
    }
}
