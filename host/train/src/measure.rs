//! Measures a run's steps: their time and work, and the machine's limits.

use super::Result;
use super::ranks::known_to_all;
use super::step_metrics::StepWork;
use super::trainer::Trainer;
use crate::config::RunConfig;
use crate::model::Weights;
use crate::ops::{self, machine};
use candle_core::{DType, DeviceLocation, Tensor, TensorId};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Bounds of the size of the memory-read measurement, in bytes.
const LEAST_READ: f64 = 4e6;
const MOST_READ: f64 = 1e9;

/// A measured step.
#[derive(Clone, Debug)]
pub struct MeasuredStep {
    /// Metrics of the step, as a run would log them.
    pub figures: BTreeMap<String, f64>,
    /// Work done in the step.
    pub work: StepWork,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The resolved configuration.
    pub config: RunConfig,
    /// Number of the model's parameters.
    pub parameters: usize,
    /// Model family, such as `Qwen2`.
    pub family: String,
    /// Data type, such as `f32`.
    pub dtype: String,
    /// Device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// Number of warm-up steps, which are excluded.
    pub warm_up: usize,
    /// The measured steps.
    pub steps: Vec<MeasuredStep>,
    /// Memory use of the process.
    pub memory: MemoryUse,
    /// Seconds that training waits for the copy when a checkpoint is saved.
    pub snapshot: f64,
    /// Bytes per second when reading as much memory as decoding one round of tokens reads.
    pub read_rate: f64,
    /// Floating-point operations per second in large matrix products.
    pub product_rate: f64,
}

/// Memory use of a process, in bytes. The parts may add up to less than the peak, which also includes buffers, the program and freed memory
/// that is retained.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUse {
    /// Peak memory of the process so far.
    pub peak: u64,
    /// Peak memory of the device, if there is one.
    pub device_peak: Option<u64>,
    /// Weights of the trained models and of the reference model, counting shared storage once.
    pub weights: usize,
    /// Copies of weights that a generation makes.
    pub copies: usize,
    /// Gradients of the trained weights.
    pub gradients: usize,
    /// Moments of the optimizer.
    pub moments: usize,
    /// Maximum memory that a pass keeps for its backward pass.
    pub activations: usize,
    /// Maximum memory of keys and values of a generation.
    pub caches: usize,
}

impl Trainer {
    /// Takes at least this many steps, in whole generations, after a warm-up of one generation in which the process allocates its memory.
    /// Then measures the device's limits.
    ///
    /// # Errors
    /// If anything fails, as in a run.
    pub fn measure(mut self, steps: usize) -> Result<Measurement> {
        let cycle = self.steps_between_generations();
        let mut measured = Vec::with_capacity(steps);
        for _ in 0..cycle + steps.next_multiple_of(cycle) {
            let figures = self.step().map_err(|error| known_to_all(&self.world, error))?;
            let work = figures.work();
            let all = self.gather(figures)?;
            self.observe(&all)?;
            measured.push(MeasuredStep { figures: self.journal.take(), work });
        }
        let memory = self.memory(&measured)?;
        // The first copy allocates memory that later copies reuse.
        drop(self.snapshot(None)?);
        let begun = Instant::now();
        let snapshot = self.snapshot(None)?;
        let copied = begun.elapsed();
        drop(snapshot);
        self.world.barrier("the end of the steps")?;

        let steps = measured.split_off(cycle);
        let output = self.learner.policy().compute_weights().output();
        let (bytes, rounds) = steps
            .iter()
            .fold((0.0, 0.0), |(bytes, rounds), step| (bytes + step.work.generation.bytes, rounds + step.work.generation.rounds));
        let read = if rounds > 0.0 { bytes / rounds } else { MOST_READ };
        let device = match output.device().location() {
            DeviceLocation::Cpu => "cpu".to_owned(),
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
        };
        let computed = self.learner.policy().computes_in();
        Ok(Measurement {
            parameters: self.learner.policy().weights().parameters(),
            family: format!("{:?}", self.source.architecture().family),
            dtype: output.dtype().as_str().to_owned(),
            device,
            warm_up: cycle,
            steps,
            memory,
            snapshot: copied.as_secs_f64(),
            read_rate: machine::read_rate(output.device(), read.clamp(LEAST_READ, MOST_READ) as usize)?,
            product_rate: machine::product_rate(output.device(), computed)?,
            config: (*self.settings).clone(),
        })
    }

    /// Returns the memory use of this process after these steps.
    fn memory(&self, steps: &[MeasuredStep]) -> Result<MemoryUse> {
        let (peak, device_peak) = (ops::peak_memory(), ops::device::peak_memory(self.learner.policy().device()));
        // If ranks share a model, each has only a part of it between steps.
        let bytes = |t: &Tensor| if self.learner.has(t) { t.elem_count() * t.dtype().size_in_bytes() } else { 0 };
        let copies = {
            let _whole = self.learner.gather_policy()?;
            self.collector.copied_bytes(self.learner.policy())?
        };
        let of_models = self.learner.models().flat_map(|model| [model.weights(), model.compute_weights()]);
        let all = of_models.chain(self.collector.reference().map(|reference| reference.model().weights()));
        // Tensors that share storage are counted once.
        let weights: HashMap<TensorId, usize> = all.flat_map(Weights::named).map(|(_, t)| (t.id(), bytes(t))).collect();
        let mut work = StepWork::default();
        steps.iter().for_each(|step| work += step.work);
        Ok(MemoryUse {
            peak,
            device_peak,
            weights: weights.into_values().sum(),
            copies,
            gradients: self.learner.gradients_here().map(|t| t.elem_count() * DType::F32.size_in_bytes()).sum(),
            moments: self.learner.optimizers()?.moments.values().map(bytes).sum(),
            activations: work.activations,
            caches: work.caches,
        })
    }

    /// Returns the number of steps until a step and a generation start together again.
    fn steps_between_generations(&self) -> usize {
        let (shares, a_step) = (self.plan.batching.micro_batches_per_generation(), self.plan.batching.accumulation);
        let (mut a, mut b) = (shares, a_step);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        shares / a
    }
}
