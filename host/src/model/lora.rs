//! Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685): begun, taken off, and merged into
//! the weights.

use super::weights::{Adapter, Layer, Linear};
use super::{Result, Weights};
use crate::ops;
use crate::ops::low_rank::LowRank;
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Sets an adapter's random numbers apart from those that the same seed gives elsewhere.
const STREAM: u64 = 0x10_4a;

/// Settings of an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    /// Rank, at least 1.
    pub r: usize,
    /// Numerator of the factor on what the adapter adds.
    pub alpha: f64,
    /// Whether its denominator is the root of the rank (rsLoRA, arXiv 2312.03732) rather than the
    /// rank.
    pub use_rslora: bool,
}

impl Lora {
    /// The factor on `B A`.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (self.alpha / if self.use_rslora { r.sqrt() } else { r }) as f32
    }
}

impl Adapter {
    pub(super) fn low_rank(&self) -> LowRank<'_> {
        LowRank { a: &self.a, b: &self.b, scale: self.scale }
    }
}

impl Linear {
    /// The weight with what the adapter adds.
    pub(super) fn merged(&self) -> ops::Result<Tensor> {
        self.adapter.as_ref().map_or_else(|| Ok(self.weight.clone()), |adapter| adapter.low_rank().merged(&self.weight))
    }
}

impl Layer {
    fn linears(&mut self) -> [(&'static str, &mut Linear); 7] {
        [
            ("self_attn.q_proj", &mut self.q),
            ("self_attn.k_proj", &mut self.k),
            ("self_attn.v_proj", &mut self.v),
            ("self_attn.o_proj", &mut self.o),
            ("mlp.gate_proj", &mut self.gate),
            ("mlp.up_proj", &mut self.up),
            ("mlp.down_proj", &mut self.down),
        ]
    }
}

impl Weights {
    /// The same parameters with an adapter in place of the one they have. `part` is asked for the
    /// two matrices, `[r, in]` and `[out, r]`, of each linear layer by its name, inputs and outputs.
    pub(super) fn adapted(
        mut self,
        lora: Lora,
        mut part: impl FnMut(&str, usize, usize) -> Result<Option<(Tensor, Tensor)>>,
    ) -> Result<Self> {
        for (l, layer) in self.layers.iter_mut().enumerate() {
            for (name, linear) in layer.linears() {
                let (d_out, d_in) = linear.weight.dims2()?;
                let found = part(&format!("model.layers.{l}.{name}"), d_in, d_out)?;
                linear.adapter = found.map(|(a, b)| Adapter { a, b, scale: lora.scale() });
            }
        }
        self.lora = Some(lora);
        Ok(self)
    }

    /// A new adapter on the linear layers of these names (`q_proj` and so on), which changes nothing
    /// until it is trained: `A` uniform within the inverse root of the inputs, as `peft` draws it
    /// (Kaiming's with slope root 5), and `B` zero.
    pub fn with_new_adapter(self, lora: Lora, targets: &[String], seed: u64) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(STREAM);
        self.adapted(lora, |name, d_in, d_out| {
            if !targets.iter().any(|target| name.ends_with(&format!(".{target}"))) {
                return Ok(None);
            }
            let bound = (d_in as f32).sqrt().recip();
            // 24 bits are what an f32 below one holds.
            let mut drawn = || ((rng.next_u32() >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * bound;
            let a: Vec<f32> = (0..lora.r * d_in).map(|_| drawn()).collect();
            let a = Tensor::from_vec(a, (lora.r, d_in), &Device::Cpu)?;
            Ok(Some((a, Tensor::zeros((d_out, lora.r), candle_core::DType::F32, &Device::Cpu)?)))
        })
    }

    /// The same storage without the adapter.
    pub fn without_adapter(&self) -> Self {
        let mut plain = Self { lora: None, ..self.clone() };
        for (_, linear) in plain.layers.iter_mut().flat_map(Layer::linears) {
            linear.adapter = None;
        }
        plain
    }

    /// The model as one without an adapter: what that adds is in the weights.
    pub fn merged(&self) -> Result<Self> {
        let mut plain = Self { lora: None, ..self.clone() };
        for (_, linear) in plain.layers.iter_mut().flat_map(Layer::linears) {
            linear.weight = linear.merged()?;
            linear.adapter = None;
        }
        Ok(plain)
    }
}
