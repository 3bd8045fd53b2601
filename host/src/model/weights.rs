//! All parameters of a decoder under their Hugging Face names, and their gradients.

use super::layer::Maps;
use super::lora::Lora;
use super::{Architecture, Result};
use crate::ops;
use candle_core::{DType, Device, Tensor};
use std::convert::Infallible;

/// Names of a critic's head.
pub(super) const VALUE_WEIGHT: &str = "value_head.weight";
pub(super) const VALUE_BIAS: &str = "value_head.bias";

/// A weight `[out, in]`, its bias and its adapter.
#[derive(Clone, Debug)]
pub struct Linear<T = Tensor> {
    /// `[out, in]`
    pub weight: T,
    /// `[out]`
    pub bias: Option<T>,
    /// Present if an adapter applies to this layer.
    pub adapter: Option<Adapter<T>>,
}

/// A linear layer's adapter: `scale * b a` is added to the weight.
#[derive(Clone, Debug)]
pub struct Adapter<T = Tensor> {
    /// `lora_A`, `[r, in]`
    pub a: T,
    /// `lora_B`, `[out, r]`
    pub b: T,
    /// [`Lora::scale`]
    pub scale: f32,
}

/// Parameters of one layer.
#[derive(Clone, Debug)]
pub struct Layer<T = Tensor> {
    /// Norm before attention.
    pub input_norm: T,
    /// Query projection.
    pub q: Linear<T>,
    /// Key projection.
    pub k: Linear<T>,
    /// Value projection.
    pub v: Linear<T>,
    /// Attention output.
    pub o: Linear<T>,
    /// Norms of each query head and each key head.
    pub qk_norm: Option<(T, T)>,
    /// Norm before the gated unit.
    pub post_norm: T,
    /// Gate.
    pub gate: Linear<T>,
    /// Up projection, which is gated.
    pub up: Linear<T>,
    /// Down projection, back to the hidden size.
    pub down: Linear<T>,
}

/// Parameters of a decoder, or something for each of them.
#[derive(Clone, Debug)]
pub struct Weights<T = Tensor> {
    /// Token embedding, `[V, D]`.
    pub embedding: T,
    /// Layers from first to last.
    pub layers: Vec<Layer<T>>,
    /// Last norm.
    pub norm: T,
    /// Output matrix `[V, D]`, unless it is the embedding.
    pub head: Option<T>,
    /// A critic's head on the last hidden states, `[1, hidden]` and `[1]`.
    pub value_head: Option<Linear<T>>,
    /// Settings of the adapter, if there is one. Then only it and a critic's head are trained.
    pub lora: Option<Lora>,
}

/// The gradient of each trained parameter.
pub struct Gradients(pub(super) Weights<Option<Tensor>>);

impl<T> Linear<T> {
    fn map<'a, U, E>(
        &'a self,
        weight: &str,
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<Linear<U>, E> {
        Ok(Linear {
            weight: f(format!("{weight}.weight"), &self.weight)?,
            bias: self.bias.as_ref().map(|bias| f(format!("{weight}.bias"), bias)).transpose()?,
            adapter: match &self.adapter {
                None => None,
                Some(Adapter { a, b, scale }) => Some(Adapter {
                    a: f(format!("{weight}.lora_A.weight"), a)?,
                    b: f(format!("{weight}.lora_B.weight"), b)?,
                    scale: *scale,
                }),
            },
        })
    }
}

impl<T> Linear<T> {
    /// Returns all parts, in the order of [`Linear::map`].
    fn parts(&self) -> Vec<&T> {
        let mut all = Vec::new();
        let Ok(_) = self.map("", &mut |_, part| {
            all.push(part);
            Ok::<(), Infallible>(())
        });
        all
    }
}

impl<T> Layer<T> {
    /// Returns its linear maps.
    pub(super) fn maps(&self) -> Maps<&Linear<T>> {
        let Self { q, k, v, o, gate, up, down, .. } = self;
        Maps { q, k, v, o, gate, up, down }
    }

    /// Returns all parts, in the order of [`Layer::map`].
    fn parts(&self) -> Vec<&T> {
        let mut all = Vec::new();
        let Ok(_) = self.map("", &mut |_, part| {
            all.push(part);
            Ok::<(), Infallible>(())
        });
        all
    }

    fn map<'a, U, E>(
        &'a self,
        layer: &str,
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<Layer<U>, E> {
        let name = |part: &str| format!("{layer}.{part}");
        // In this order random weights are drawn.
        Ok(Layer {
            q: self.q.map(&name("self_attn.q_proj"), f)?,
            k: self.k.map(&name("self_attn.k_proj"), f)?,
            v: self.v.map(&name("self_attn.v_proj"), f)?,
            o: self.o.map(&name("self_attn.o_proj"), f)?,
            gate: self.gate.map(&name("mlp.gate_proj"), f)?,
            up: self.up.map(&name("mlp.up_proj"), f)?,
            down: self.down.map(&name("mlp.down_proj"), f)?,
            qk_norm: match &self.qk_norm {
                None => None,
                Some((q, k)) => Some((f(name("self_attn.q_norm.weight"), q)?, f(name("self_attn.k_norm.weight"), k)?)),
            },
            input_norm: f(name("input_layernorm.weight"), &self.input_norm)?,
            post_norm: f(name("post_attention_layernorm.weight"), &self.post_norm)?,
        })
    }
}

impl<T> Weights<T> {
    /// Maps each parameter with `f`, which gets its name and value, in a fixed order.
    pub fn map<'a, U, E>(
        &'a self,
        mut f: impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<Weights<U>, E> {
        let embedding = f("model.embed_tokens.weight".to_owned(), &self.embedding)?;
        let layers = self.layers.iter().enumerate().map(|(l, layer)| layer.map(&format!("model.layers.{l}"), &mut f));
        let layers = layers.collect::<std::result::Result<_, E>>()?;
        let norm = f("model.norm.weight".to_owned(), &self.norm)?;
        let head = self.head.as_ref().map(|head| f("lm_head.weight".to_owned(), head)).transpose()?;
        let value_head = self.value_head.as_ref().map(|head| head.map("value_head", &mut f)).transpose()?;
        Ok(Weights { embedding, layers, norm, head, value_head, lora: self.lora })
    }

    /// Returns every parameter with its name, in the order of [`Weights::map`].
    pub fn named(&self) -> Vec<(String, &T)> {
        let mut all = Vec::new();
        let Ok(_) = self.map(|name, t| {
            all.push((name, t));
            Ok::<(), Infallible>(())
        });
        all
    }

    /// Returns whether the parameter of this name is trained.
    pub fn trains(&self, name: &str) -> bool {
        self.lora.is_none() || of_adapter(name) || of_critic(name)
    }
}

/// Returns whether a parameter of this name belongs to an adapter.
pub(super) fn of_adapter(name: &str) -> bool {
    name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")
}

/// Returns whether a parameter of this name belongs to a critic's head.
pub fn of_critic(name: &str) -> bool {
    name == VALUE_WEIGHT || name == VALUE_BIAS
}

/// Returns the shape of every parameter.
fn shapes(a: &Architecture) -> Weights<Vec<usize>> {
    let (d, i, c) = (a.hidden_size, a.intermediate_size, a.heads.head_dim);
    let linear =
        |out: usize, input: usize, bias: bool| Linear { weight: vec![out, input], bias: bias.then(|| vec![out]), adapter: None };
    let layer = Layer {
        input_norm: vec![d],
        q: linear(a.query_width(), d, a.qkv_bias),
        k: linear(a.kv_width(), d, a.qkv_bias),
        v: linear(a.kv_width(), d, a.qkv_bias),
        o: linear(d, a.query_width(), a.output_bias),
        qk_norm: a.qk_norm.then(|| (vec![c], vec![c])),
        post_norm: vec![d],
        gate: linear(i, d, a.mlp_bias),
        up: linear(i, d, a.mlp_bias),
        down: linear(d, i, a.mlp_bias),
    };
    Weights {
        embedding: vec![a.vocab_size, d],
        layers: vec![layer; a.layers],
        norm: vec![d],
        head: (!a.tied).then(|| vec![a.vocab_size, d]),
        value_head: None,
        lora: None,
    }
}

impl Architecture {
    /// Returns the name and shape of every parameter, in the order of [`Weights::map`].
    pub(super) fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        shapes(self).named().into_iter().map(|(name, shape)| (name, shape.clone())).collect()
    }
}

impl Weights {
    /// Builds the weights, calling `make` with each parameter's name and shape in a fixed order.
    pub fn build(a: &Architecture, mut make: impl FnMut(&str, &[usize]) -> Result<Tensor>) -> Result<Self> {
        shapes(a).map(|name, shape| make(&name, shape))
    }

    /// Returns the trained parameters with their names, in the order of [`Weights::map`].
    pub fn trained(&self) -> Vec<(String, &Tensor)> {
        self.named().into_iter().filter(|(name, _)| self.trains(name)).collect()
    }

    /// Returns the matrix from hidden states to logits, `[V, D]`.
    pub fn output(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Returns whether this is a value model: it has a value head, without a bias, instead of an output matrix.
    pub fn is_value_model(&self) -> bool {
        self.value_head.as_ref().is_some_and(|head| head.bias.is_none())
    }

    /// Returns the number of the model's values, excluding an adapter's.
    pub fn parameters(&self) -> usize {
        self.named().iter().filter(|(name, _)| !of_adapter(name)).map(|(_, t)| t.elem_count()).sum()
    }

    /// Adds a critic's head that initially values everything at zero.
    pub fn with_value_head(mut self, hidden_size: usize) -> Result<Self> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
        self.value_head = Some(Linear { weight: zeros(&[1, hidden_size])?, bias: Some(zeros(&[1])?), adapter: None });
        Ok(self)
    }

    /// Returns zeroed f32 gradients of the trained parameters.
    pub fn zero_gradients(&self) -> Result<Gradients> {
        let zeros = |t: &Tensor| Tensor::zeros(t.shape(), DType::F32, t.device());
        Ok(Gradients(self.map(|name, t| self.trains(&name).then(|| zeros(t)).transpose())?))
    }

    /// Copies the values so that training does not change them. Trained parameters get their own storage; the others share it.
    pub fn copied(&self) -> Result<Self> {
        self.map(|name, t| Ok(if self.trains(&name) { ops::copied(t)? } else { t.clone() }))
    }
}

impl Gradients {
    /// Returns the gradient of each trained parameter, in the order of [`Weights::trained`].
    pub fn named(&self) -> Vec<(String, &Tensor)> {
        self.0.named().into_iter().filter_map(|(name, gradient)| Some((name, gradient.as_ref()?))).collect()
    }

    /// Returns the gradients in groups, in the order in which a backward pass finishes them: everything after the layers, each
    /// layer from last to first, and the embedding.
    pub fn in_backward_order(&self) -> Vec<Vec<&Tensor>> {
        let Weights { embedding, layers, norm, head, value_head, lora: _ } = &self.0;
        let after = [Some(norm), head.as_ref()].into_iter().flatten().chain(value_head.iter().flat_map(Linear::parts));
        let mut groups = vec![after.flatten().collect::<Vec<_>>()];
        groups.extend(layers.iter().rev().map(|layer| layer.parts().into_iter().flatten().collect()));
        groups.push(embedding.iter().collect());
        groups
    }
}
