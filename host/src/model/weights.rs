//! All parameters of a decoder under their Hugging Face names. Gradients have the same shape,
//! so that they are [`Weights`] too.

use super::{Architecture, Result};
use candle_core::{DType, Device, Tensor};

/// Names of a critic's head.
pub(super) const VALUE_WEIGHT: &str = "value_head.weight";
pub(super) const VALUE_BIAS: &str = "value_head.bias";

/// A weight `[out, in]` and its bias.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`
    pub weight: Tensor,
    /// `[out]`
    pub bias: Option<Tensor>,
}

/// Parameters of one layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Norm before attention.
    pub input_norm: Tensor,
    /// Query projection.
    pub q: Linear,
    /// Key projection.
    pub k: Linear,
    /// Value projection.
    pub v: Linear,
    /// Attention output.
    pub o: Linear,
    /// Norms of each query head and each key head.
    pub qk_norm: Option<(Tensor, Tensor)>,
    /// Norm before the gated unit.
    pub post_norm: Tensor,
    /// Gate.
    pub gate: Linear,
    /// What is gated.
    pub up: Linear,
    /// Back to the hidden size.
    pub down: Linear,
}

/// Parameters of a decoder.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Token embedding, `[V, D]`.
    pub embedding: Tensor,
    /// Layers from first to last.
    pub layers: Vec<Layer>,
    /// Last norm.
    pub norm: Tensor,
    /// Output matrix `[V, D]`, where it is not the embedding.
    pub head: Option<Tensor>,
    /// A critic's head on the last hidden states, `[1, hidden]` and `[1]`.
    pub value_head: Option<Linear>,
}

impl Weights {
    /// Asks `make` for each parameter by name and shape, in a fixed order.
    pub fn build(a: &Architecture, mut make: impl FnMut(&str, &[usize]) -> Result<Tensor>) -> Result<Self> {
        let (d, i) = (a.hidden_size, a.intermediate_size);
        let embedding = make("model.embed_tokens.weight", &[a.vocab_size, d])?;
        let mut layers = Vec::with_capacity(a.layers);
        for l in 0..a.layers {
            let mut linear = |name: &str, out: usize, input: usize, bias: bool| -> Result<Linear> {
                let weight = make(&format!("model.layers.{l}.{name}.weight"), &[out, input])?;
                let bias = bias.then(|| make(&format!("model.layers.{l}.{name}.bias"), &[out])).transpose()?;
                Ok(Linear { weight, bias })
            };
            let q = linear("self_attn.q_proj", a.query_width(), d, a.qkv_bias)?;
            let k = linear("self_attn.k_proj", a.kv_width(), d, a.qkv_bias)?;
            let v = linear("self_attn.v_proj", a.kv_width(), d, a.qkv_bias)?;
            let o = linear("self_attn.o_proj", d, a.query_width(), a.output_bias)?;
            let gate = linear("mlp.gate_proj", i, d, a.mlp_bias)?;
            let up = linear("mlp.up_proj", i, d, a.mlp_bias)?;
            let down = linear("mlp.down_proj", d, i, a.mlp_bias)?;
            let mut norm = |name: &str, size: usize| make(&format!("model.layers.{l}.{name}.weight"), &[size]);
            let c = a.heads.head_dim;
            let qk_norm = a.qk_norm.then(|| Ok::<_, super::Error>((norm("self_attn.q_norm", c)?, norm("self_attn.k_norm", c)?)));
            let qk_norm = qk_norm.transpose()?;
            let (input_norm, post_norm) = (norm("input_layernorm", d)?, norm("post_attention_layernorm", d)?);
            layers.push(Layer { input_norm, q, k, v, o, qk_norm, post_norm, gate, up, down });
        }
        let norm = make("model.norm.weight", &[d])?;
        let head = (!a.tied).then(|| make("lm_head.weight", &[a.vocab_size, d])).transpose()?;
        Ok(Self { embedding, layers, norm, head, value_head: None })
    }

    /// Every parameter with its name, in the order of [`Weights::build`].
    pub fn named(&self) -> Vec<(String, &Tensor)> {
        let mut all = vec![("model.embed_tokens.weight".to_owned(), &self.embedding)];
        for (l, layer) in self.layers.iter().enumerate() {
            let linears = [
                ("self_attn.q_proj", &layer.q),
                ("self_attn.k_proj", &layer.k),
                ("self_attn.v_proj", &layer.v),
                ("self_attn.o_proj", &layer.o),
                ("mlp.gate_proj", &layer.gate),
                ("mlp.up_proj", &layer.up),
                ("mlp.down_proj", &layer.down),
            ];
            for (name, linear) in linears {
                all.push((format!("model.layers.{l}.{name}.weight"), &linear.weight));
                all.extend(linear.bias.as_ref().map(|b| (format!("model.layers.{l}.{name}.bias"), b)));
            }
            if let Some((q, k)) = &layer.qk_norm {
                all.push((format!("model.layers.{l}.self_attn.q_norm.weight"), q));
                all.push((format!("model.layers.{l}.self_attn.k_norm.weight"), k));
            }
            all.push((format!("model.layers.{l}.input_layernorm.weight"), &layer.input_norm));
            all.push((format!("model.layers.{l}.post_attention_layernorm.weight"), &layer.post_norm));
        }
        all.push(("model.norm.weight".to_owned(), &self.norm));
        all.extend(self.head.as_ref().map(|h| ("lm_head.weight".to_owned(), h)));
        if let Some(Linear { weight, bias }) = &self.value_head {
            all.push((VALUE_WEIGHT.to_owned(), weight));
            all.extend(bias.as_ref().map(|bias| (VALUE_BIAS.to_owned(), bias)));
        }
        all
    }

    /// The matrix from hidden states to logits, `[V, D]`.
    pub fn output(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Number of trainable values.
    pub fn parameters(&self) -> usize {
        self.named().iter().map(|(_, t)| t.elem_count()).sum()
    }

    /// A critic's head that values everything at zero, until it learns better.
    pub fn with_value_head(mut self, hidden_size: usize) -> Result<Self> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
        self.value_head = Some(Linear { weight: zeros(&[1, hidden_size])?, bias: Some(zeros(&[1])?) });
        Ok(self)
    }

    /// Zeros of the same shapes, for gradients.
    pub fn zeros(&self, a: &Architecture) -> Result<Self> {
        let zeros = Self::build(a, |_, shape| Ok(Tensor::zeros(shape, DType::F32, &Device::Cpu)?))?;
        if self.value_head.is_some() { zeros.with_value_head(a.hidden_size) } else { Ok(zeros) }
    }

    /// The same values in storage of their own.
    pub fn copied(&self, a: &Architecture) -> Result<Self> {
        let mut tensors = self.named().into_iter();
        let mut copy = Self::build(a, |name, _| match tensors.next() {
            Some((n, t)) if n == name => Ok(t.copy()?),
            _ => Err(super::Error::Weights {
                path: name.into(),
                detail: "parameters are listed in another order than built".into(),
            }),
        })?;
        if let Some(Linear { weight, bias }) = &self.value_head {
            let bias = bias.as_ref().map(Tensor::copy).transpose()?;
            copy.value_head = Some(Linear { weight: weight.copy()?, bias });
        }
        Ok(copy)
    }
}
