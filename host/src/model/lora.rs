//! Creates low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685; with magnitudes, DoRA, Liu et al. 2024, arXiv 2402.09353),
//! removes them, and merges them into the weights.

use super::families::Names;
use super::stacks::Stacks;
use super::weights::{Adapter, Layer, Linear, Unit};
use super::whole::Whole;
use super::{Result, Weights};
use crate::ops::low_rank::LowRank;
use crate::ops::magnitude::{self, Magnitude};
use crate::ops::{self, Matrix, Precision};
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Distinguishes an adapter's random numbers from others with the same seed.
const STREAM: u64 = 0x10_4a;

/// Settings of an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    /// Rank, at least 1.
    pub r: usize,
    /// Numerator of the adapter's scale.
    pub alpha: f64,
    /// Whether the denominator is the square root of the rank (rsLoRA, arXiv 2312.03732) instead of the rank.
    pub use_rslora: bool,
    /// Whether each output has a magnitude of its own (DoRA).
    pub use_dora: bool,
    /// Dropout probability of the adapter's input in training.
    pub dropout: f64,
    /// The modules that are trained whole beside it.
    pub whole: Whole,
    /// The matrices of experts that it applies to.
    pub stacks: Stacks,
}

impl Lora {
    /// Returns whether another adapter's matrices have the same meaning as this one's.
    pub fn fits(&self, other: &Self) -> bool {
        Self { dropout: 0.0, ..*self } == Self { dropout: 0.0, ..*other }
    }

    /// Returns the same settings for a value model, which has no output matrix.
    #[must_use]
    pub fn of_value_model(self) -> Self {
        Self { whole: self.whole.without_head(), ..self }
    }

    /// Returns the scale of `B A`.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (self.alpha / if self.use_rslora { r.sqrt() } else { r }) as f32
    }
}

impl Adapter {
    pub(super) fn low_rank(&self) -> LowRank<'_> {
        LowRank { a: &self.a, b: &self.b, scale: self.scale, precision: Precision::F32 }
    }

    /// Returns the weight with the adapter merged in.
    fn merged(&self, w: Matrix<'_>) -> ops::Result<Tensor> {
        let merged = self.low_rank().merged(w)?;
        if let Some(values) = &self.magnitude {
            Magnitude { values, lengths: &magnitude::lengths(w, &self.low_rank())? }.scale_rows(&merged)?;
        }
        Ok(merged)
    }
}

impl Linear {
    /// Returns the weight with the adapter merged in.
    pub(super) fn merged(&self) -> ops::Result<Tensor> {
        match (&self.adapter, &self.scales) {
            (Some(adapter), _) if self.weight.dims().len() > 2 => adapter.merged_stack(&self.weight),
            (Some(adapter), _) => adapter.merged(self.matrix()),
            (None, None) => Ok(self.weight.clone()),
            (None, Some(_)) => self.matrix().in_f32(),
        }
    }
}

impl Layer {
    /// Returns the experts' matrices, which an adapter can apply to.
    fn stacks(&mut self, names: &'static Names) -> Vec<(&'static str, &mut Linear)> {
        let Some((experts, names)) = self.experts.as_mut().zip(names.experts) else { return Vec::new() };
        vec![(names.wide, &mut experts.wide), (names.down, &mut experts.down)]
    }

    /// Returns the linear maps that an adapter can apply to; as in `peft`, routers are excluded.
    fn linears(&mut self, names: &'static Names) -> Vec<(&'static str, &mut Linear)> {
        let Self { qkv, o, unit, .. } = self;
        let named = |names: &'static [&'static str]| names.iter().copied();
        let mut all: Vec<_> = named(names.qkv).zip(qkv).collect();
        all.push((names.o, o));
        if let Some(Unit { wide, down }) = unit {
            all.extend(named(names.mlp).zip(wide));
            all.push((names.down, down));
        }
        all
    }
}

impl Weights {
    /// Returns the same parameters with another adapter. Calls `part` with each linear layer and its name.
    pub(super) fn adapted(mut self, lora: Lora, mut part: impl FnMut(&str, &Linear) -> Result<Option<Adapter>>) -> Result<Self> {
        let names = self.names;
        for (l, layer) in self.layers.iter_mut().enumerate() {
            for (name, linear) in layer.linears(names) {
                linear.adapter = part(&format!("{}.{l}.{name}", names.layers), linear)?;
            }
            let adapted = lora.stacks.listed(names);
            for (name, stack) in layer.stacks(names).into_iter().filter(|(name, _)| adapted.contains(name)) {
                stack.adapter = part(&format!("{}.{l}.{name}", names.layers), stack)?;
            }
        }
        self.lora = Some(lora);
        Ok(self)
    }

    /// Returns the parameters with a new adapter on the linear layers of these names (`q_proj` and so on). It has no effect until
    /// it is trained: `A` is uniform within the inverse square root of the inputs, as in `peft` (Kaiming with slope sqrt(5)), `B`
    /// is zero, and magnitudes are the lengths of the weight's rows.
    pub fn with_new_adapter(self, lora: Lora, targets: &[String], seed: u64) -> Result<Self> {
        let lora = if self.is_value_model() { lora.of_value_model() } else { lora };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(STREAM);
        let adapted = self.adapted(lora, |name, linear| {
            let experts = if let [experts, _, _] = *linear.weight.dims() { Some(experts) } else { None };
            if experts.is_none() && !targets.iter().any(|target| name.ends_with(&format!(".{target}"))) {
                return Ok(None);
            }
            let (rows, d_in) = linear.matrix().dims();
            let d_out = rows / experts.unwrap_or(1);
            let bound = (d_in as f32).sqrt().recip();
            // 24 bits are what an f32 below one holds.
            let mut drawn = || ((rng.next_u32() >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * bound;
            let shape = |sizes: [usize; 2]| experts.into_iter().chain(sizes).collect::<Vec<usize>>();
            let a: Vec<f32> = (0..experts.unwrap_or(1) * lora.r * d_in).map(|_| drawn()).collect();
            let a = Tensor::from_vec(a, shape([lora.r, d_in]), &Device::Cpu)?;
            let b = Tensor::zeros(shape([d_out, lora.r]), candle_core::DType::F32, &Device::Cpu)?;
            let mut adapter = Adapter { a, b, magnitude: None, scale: lora.scale() };
            if lora.use_dora && experts.is_none() {
                adapter.magnitude = Some(magnitude::lengths(linear.matrix(), &adapter.low_rank())?);
            }
            Ok(Some(adapter))
        })?;
        adapted.training_whole(lora.whole, |_, _| Ok(None))
    }

    /// Returns the parameters without the adapter, in the same storage. Modules that are trained whole beside it stay as trained.
    pub fn without_adapter(&self) -> Self {
        let mut plain = Self { lora: None, ..self.clone() };
        for (_, linear) in plain.layers.iter_mut().flat_map(|layer| layer.linears(self.names)) {
            linear.adapter = None;
        }
        for (_, stack) in plain.layers.iter_mut().flat_map(|layer| layer.stacks(self.names)) {
            stack.adapter = None;
        }
        plain
    }

    /// Returns the model with its adapter merged into the weights.
    pub fn merged(&self) -> Result<Self> {
        let mut plain = Self { lora: None, ..self.clone() };
        for (_, linear) in plain.layers.iter_mut().flat_map(|layer| layer.linears(self.names)) {
            linear.weight = linear.merged()?;
            (linear.adapter, linear.scales) = (None, None);
        }
        for (_, stack) in plain.layers.iter_mut().flat_map(|layer| layer.stacks(self.names)) {
            stack.weight = stack.merged()?;
            stack.adapter = None;
        }
        Ok(plain)
    }
}
