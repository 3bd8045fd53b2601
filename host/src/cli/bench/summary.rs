//! Prints a measurement as a table or as JSON.

use crate::cli::output;
use crate::config::words::counted;
use crate::train::{self, Measurement, StepWork};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const GIGA: f64 = 1e9;

/// All results. Times are in seconds, for a mean step unless noted.
#[derive(Serialize)]
pub(super) struct BenchSummary {
    model: BenchModel,
    threads: usize,
    processes: usize,
    settings: Map<String, Value>,
    warm_up_steps: usize,
    steps: usize,
    step_time: StepTimeSpread,
    time: BTreeMap<String, f64>,
    share: BTreeMap<String, f64>,
    tokens: TokenTotals,
    /// Trained tokens per second of a step, with prompts counted once per completion, and generated tokens per second of generation; both
    /// per process, as in a run's `perf/`.
    throughput: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout_throughput: Option<f64>,
    peak_memory_mb: f64,
    memory_mb: MemoryMb,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_device_memory_mb: Option<f64>,
    /// Time that training waits for a checkpoint.
    snapshot_s: f64,
    bounds: RooflineBounds,
}

#[derive(Serialize)]
struct BenchModel {
    family: String,
    parameters: usize,
    dtype: String,
    device: String,
}

/// The known parts of peak memory, in MB.
#[derive(Serialize)]
struct MemoryMb {
    weights: f64,
    copies: f64,
    gradients: f64,
    moments: f64,
    activations: f64,
    caches: f64,
    /// Buffers, the program, and freed memory that the process keeps.
    rest: f64,
}

impl MemoryMb {
    fn from_measurement(m: &Measurement) -> Self {
        let train::MemoryUse { peak, weights, copies, gradients, moments, activations, caches, .. } = m.memory;
        let [weights, copies, gradients, moments, activations, caches] =
            [weights, copies, gradients, moments, activations, caches].map(|bytes| bytes as f64 / 1e6);
        // On a device, most of these are in device memory.
        let on_host = if m.device == "cpu" { weights + copies + gradients + moments + activations + caches } else { 0.0 };
        Self { weights, copies, gradients, moments, activations, caches, rest: peak as f64 / 1e6 - on_host }
    }

    /// Returns the parts of memory with their descriptions.
    fn parts(&self) -> [(&'static str, f64, &'static str); 7] {
        [
            ("weights", self.weights, "(of all models, as they are held)"),
            ("copies", self.copies, "(laid out for generation)"),
            ("gradients", self.gradients, ""),
            ("moments", self.moments, ""),
            ("activations", self.activations, "(kept for a backward pass)"),
            ("caches", self.caches, "(keys and values in generation)"),
            ("rest", self.rest, "(peak less these, not all of which are held at once)"),
        ]
    }
}

#[derive(Serialize)]
struct StepTimeSpread {
    mean: f64,
    median: f64,
    least: f64,
    greatest: f64,
}

/// Sums over all steps.
#[derive(Serialize)]
struct TokenTotals {
    generated: u64,
    trained: u64,
    /// Tokens that one process ran forward and backward, each prompt once.
    packed: u64,
}

/// The machine's limits, and the work of the steps.
#[derive(Serialize)]
struct RooflineBounds {
    read_gb_per_s: f64,
    product_gflop_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<RolloutBound>,
    training: TrainingBound,
}

#[derive(Serialize)]
struct RolloutBound {
    rounds: f64,
    read_gb: f64,
    prefill_gflop: f64,
    decode_gflop: f64,
    /// Arithmetic of the prompts, plus the longer of reading and arithmetic for the tokens.
    least_s: f64,
    took_s: f64,
    ratio: f64,
}

#[derive(Serialize)]
struct TrainingBound {
    gflop: f64,
    least_s: f64,
    /// Time of forward and backward pass.
    took_s: f64,
    ratio: f64,
}

impl RolloutBound {
    /// Returns the bounds of a step's rollout, which took `seconds` on average.
    fn from_measurement(m: &Measurement, work: &StepWork, seconds: f64) -> Self {
        let (count, cost) = (m.steps.len() as f64, work.generation);
        let least = cost.prefill / m.product_rate + (cost.bytes / m.read_rate).max(cost.decode / m.product_rate);
        Self {
            rounds: cost.rounds / count,
            read_gb: cost.bytes / count / GIGA,
            prefill_gflop: cost.prefill / count / GIGA,
            decode_gflop: cost.decode / count / GIGA,
            least_s: least / count,
            took_s: seconds,
            ratio: seconds * count / least,
        }
    }
}

impl BenchSummary {
    pub(super) fn from_measurement(m: &Measurement, processes: usize) -> Self {
        let count = m.steps.len() as f64;
        let mut work = StepWork::default();
        m.steps.iter().for_each(|step| work += step.work);
        let mut seconds: Vec<f64> = m.steps.iter().filter_map(|step| step.figures.get("step_time").copied()).collect();
        seconds.sort_by(f64::total_cmp);
        let whole: f64 = seconds.iter().sum();
        let mut time: BTreeMap<String, f64> = BTreeMap::new();
        for (name, value) in m.steps.iter().flat_map(|step| &step.figures) {
            if let Some(part) = name.strip_prefix("time/") {
                *time.entry(part.to_owned()).or_default() += value / count;
            }
        }
        let spent = |part: &str| time.get(part).copied().unwrap_or(0.0);
        let each = processes as f64;
        let rollout = (work.generated > 0).then(|| RolloutBound::from_measurement(m, &work, spent("rollout")));
        let products = work.passes.forward + work.passes.backward;
        let (least, took) = (products / m.product_rate / count, spent("forward") + spent("backward"));
        Self {
            model: BenchModel {
                family: m.family.clone(),
                parameters: m.parameters,
                dtype: m.dtype.clone(),
                device: m.device.clone(),
            },
            threads: rayon::current_num_threads(),
            processes,
            settings: settings(m),
            warm_up_steps: m.warm_up,
            steps: m.steps.len(),
            step_time: StepTimeSpread {
                mean: whole / count,
                median: median(&seconds),
                least: seconds.first().copied().unwrap_or(0.0),
                greatest: seconds.last().copied().unwrap_or(0.0),
            },
            share: time.iter().map(|(part, seconds)| (part.clone(), seconds * count / whole)).collect(),
            throughput: work.trained as f64 / whole / each,
            rollout_throughput: (work.generated > 0).then(|| work.generated as f64 / (spent("rollout") * count) / each),
            time,
            tokens: TokenTotals { generated: work.generated, trained: work.trained, packed: work.packed },
            peak_memory_mb: m.memory.peak as f64 / 1e6,
            memory_mb: MemoryMb::from_measurement(m),
            peak_device_memory_mb: m.memory.device_peak.map(|bytes| bytes as f64 / 1e6),
            snapshot_s: m.snapshot,
            bounds: RooflineBounds {
                read_gb_per_s: m.read_rate / GIGA,
                product_gflop_per_s: m.product_rate / GIGA,
                rollout,
                training: TrainingBound { gflop: products / count / GIGA, least_s: least, took_s: took, ratio: took / least },
            },
        }
    }

    pub(super) fn print(&self) {
        let BenchModel { family, parameters, dtype, device } = &self.model;
        let processes = if self.processes > 1 { format!(", {} processes of", self.processes) } else { ",".to_owned() };
        let threads = counted(self.threads as u64, "thread");
        let size = *parameters as f64 / 1e6;
        output::row(&format!("{family} of {size:.1} million parameters, {dtype} on {device}{processes} {threads}"), 4);
        let said = |(key, value): (&String, &Value)| {
            format!("{key} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        output::row(&self.settings.iter().map(said).collect::<Vec<_>>().join(", "), 4);

        let s = &self.step_time;
        let row = |name: &str, value: String, note: String| output::row(&format!("{name:<24}{value:>10} {note}"), 35);
        let seconds = |seconds: f64| format!("{seconds:.4}");
        let spread = format!("s          ({:.4} to {:.4}; warm-up steps: {})", s.least, s.greatest, self.warm_up_steps);
        say!("");
        row(&format!("a step, mean of {}", self.steps), seconds(s.mean), spread);
        let mut parts: Vec<(&String, &f64)> = self.time.iter().collect();
        parts.sort_by(|a, b| b.1.total_cmp(a.1));
        for (part, time) in parts {
            row(&format!("  {part}"), seconds(*time), format!("s  {:5.1} %", 100.0 * self.share[part]));
        }
        row("copy for a checkpoint", seconds(self.snapshot_s), "s          (on top of a step that saves one)".into());

        say!("");
        if let Some(rate) = self.rollout_throughput {
            row("generated", format!("{rate:.0}"), "tokens/s   (during generation)".into());
        }
        let step = self.steps as f64;
        let (trained, packed) = (self.tokens.trained as f64 / step, self.tokens.packed as f64 / step);
        let note = format!("tokens/s   (over the whole step: {trained:.0} tokens, {packed:.0} with each prompt once)");
        row("trained", format!("{:.0}", self.throughput), note);
        row("peak memory", format!("{:.0}", self.peak_memory_mb), "MB".into());
        for (part, megabytes, note) in self.memory_mb.parts() {
            row(&format!("  {part}"), format!("{megabytes:.1}"), format!("MB         {note}"));
        }
        if let Some(peak) = self.peak_device_memory_mb {
            row("  of the device", format!("{peak:.0}"), "MB".into());
        }

        let b = &self.bounds;
        let (read, products) = (b.read_gb_per_s, b.product_gflop_per_s);
        say!("");
        output::row(
            &format!("limits, measured here: {read:.1} GB/s of memory reads, {products:.0} GFLOP/s in large matrix products"),
            4,
        );
        let limit = |part: &str, least: f64, took: f64, times: f64, needs: String| {
            output::row(&format!("  {part:<10}  at least {least:>9.4} s, took {took:.4} s: {times:.2} times   ({needs})"), 14);
        };
        if let Some(r) = &b.rollout {
            let needs = format!(
                "prompts {:.2} GFLOP; {:.0} rounds of tokens, {:.3} GB and {:.2} GFLOP",
                r.prefill_gflop, r.rounds, r.read_gb, r.decode_gflop
            );
            limit("generation", r.least_s, r.took_s, r.ratio, needs);
        }
        let t = &b.training;
        limit("training", t.least_s, t.took_s, t.ratio, format!("forward and backward {:.2} GFLOP", t.gflop));
    }
}

/// Returns the settings that determine a step's time.
fn settings(m: &Measurement) -> Map<String, Value> {
    let c = &m.config;
    let generates = m.steps.iter().any(|step| step.work.generated > 0);
    let mut all = Map::new();
    all.insert("algorithm".into(), c.algorithm.clone().into());
    all.insert("per_device_train_batch_size".into(), c.per_device_train_batch_size.into());
    all.insert("gradient_accumulation_steps".into(), c.gradient_accumulation_steps.into());
    if generates {
        all.insert("num_generations".into(), c.group_size().into());
        all.insert("max_completion_length".into(), c.max_completion_length.into());
    }
    all
}

/// Returns the median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n == 0 { 0.0 } else { (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0 }
}
