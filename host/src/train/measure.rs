//! A run's steps for the sake of their time: what each took, what it did, and what the machine could
//! have done in that.

use super::Result;
use super::figures::Work;
use super::ranks::known_to_all;
use super::trainer::Trainer;
use crate::config::Config;
use crate::ops::{self, machine};
use candle_core::DeviceLocation;
use std::collections::BTreeMap;
use std::time::Instant;

/// Memory that the reading is measured on at least and at most, in bytes.
const LEAST_READ: f64 = 4e6;
const MOST_READ: f64 = 1e9;

/// One step.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its figures, as a run would log them.
    pub figures: BTreeMap<String, f64>,
    /// What it did.
    pub work: Work,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The configuration, settled.
    pub config: Config,
    /// Parameters of the model.
    pub parameters: usize,
    /// Kind of model: `Qwen2`.
    pub family: String,
    /// Type of its numbers: `f32`.
    pub dtype: String,
    /// Where it is: `cpu`, or `cuda:0`.
    pub device: String,
    /// Steps that came first and are not counted.
    pub warm_up: usize,
    /// The steps.
    pub steps: Vec<Measured>,
    /// The greatest size that the process had until then, in bytes.
    pub peak_memory: u64,
    /// The same of the device's memory, where there is one.
    pub peak_device_memory: Option<u64>,
    /// Seconds for the copy that training waits for when a checkpoint is saved.
    pub snapshot: f64,
    /// Bytes a second that can be read from as much memory as a round of tokens reads.
    pub read_rate: f64,
    /// Floating-point operations a second in large products.
    pub product_rate: f64,
}

impl Trainer {
    /// Takes at least so many steps, whole generations each, after those of one generation, in which
    /// the process gets its memory; and measures what the device can do.
    ///
    /// # Errors
    /// What a run can fail with.
    pub fn measure(mut self, steps: usize) -> Result<Measurement> {
        let cycle = self.steps_between_generations();
        let mut measured = Vec::with_capacity(steps);
        for _ in 0..cycle + steps.next_multiple_of(cycle) {
            let figures = self.step().map_err(|error| known_to_all(&self.world, error))?;
            let work = figures.work();
            self.gather(figures)?;
            measured.push(Measured { figures: self.journal.take(), work });
        }
        let peak_memory = ops::peak_memory();
        let peak_device_memory = ops::device::peak_memory(self.learner.policy().device());
        // The first copy's memory is new to the process, and later ones have the same again.
        drop(self.snapshot()?);
        let begun = Instant::now();
        let snapshot = self.snapshot()?;
        let copied = begun.elapsed();
        drop(snapshot);
        self.world.barrier("the end of the steps")?;

        let steps = measured.split_off(cycle);
        let output = self.learner.policy().computing().output();
        let (bytes, rounds) = steps
            .iter()
            .fold((0.0, 0.0), |(bytes, rounds), step| (bytes + step.work.generation.bytes, rounds + step.work.generation.rounds));
        let read = if rounds > 0.0 { bytes / rounds } else { MOST_READ };
        let device = match output.device().location() {
            DeviceLocation::Cpu => "cpu".to_owned(),
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
        };
        Ok(Measurement {
            parameters: self.learner.policy().weights().parameters(),
            family: format!("{:?}", self.source.architecture().family),
            dtype: output.dtype().as_str().to_owned(),
            device,
            warm_up: cycle,
            steps,
            peak_memory,
            peak_device_memory,
            snapshot: copied.as_secs_f64(),
            read_rate: machine::read_rate(output.device(), read.clamp(LEAST_READ, MOST_READ) as usize)?,
            product_rate: machine::product_rate(output.device(), output.dtype())?,
            config: (*self.settings).clone(),
        })
    }

    /// Steps after which generations and steps begin together again.
    fn steps_between_generations(&self) -> usize {
        if !self.collector.flow().generates() {
            return 1;
        }
        let (shares, a_step) =
            (self.settings.steps_per_generation() * self.settings.num_iterations, self.settings.gradient_accumulation_steps);
        let (mut a, mut b) = (shares, a_step);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        shares / a
    }
}
