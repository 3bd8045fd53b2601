//! The decoder's forward pass over a forest of segments and, beside it, its backward pass.
//!
//! There is no tape: a decoder is a fixed composition, so that each layer keeps exactly what
//! its gradient needs, and frees it as soon as the gradient has passed.

use super::rope_scaling::rotation;
use super::weights::{Layer, Linear, Weights};
use super::{Architecture, Lora, Place, Result};
use crate::ops::low_rank::Gradient;
use crate::ops::rope::Rotation;
use crate::ops::{self, Forest, attention, embedding, linear, norm, rope, swiglu};
use candle_core::Tensor;
use std::sync::Arc;

/// Sizes, parameters and position tables.
#[derive(Clone, Debug)]
pub struct Decoder {
    pub(super) architecture: Architecture,
    pub(super) weights: Weights,
    /// Shared by all views, since it is large for long contexts.
    pub(super) rotation: Arc<Rotation>,
}

/// What one layer's backward pass needs. Elementwise parts are computed again instead.
pub(super) struct LayerKept {
    input: Tensor,
    /// Query and key heads before their norms, where the family has these.
    unnormed: Option<(Tensor, Tensor)>,
    q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    attended: Tensor,
    log_sum: Tensor,
    middle: Tensor,
    gate: Tensor,
    up: Tensor,
}

/// A layer's kept values, or what they can be computed from again (gradient checkpointing, Chen et
/// al. 2016, arXiv 1604.06174).
enum Stored {
    Whole(LayerKept),
    Input(Tensor),
}

/// What the whole backward pass needs.
pub(super) struct Kept {
    layers: Vec<Stored>,
    last: Tensor,
}

/// The gradient of each parameter that is trained.
type Wanted = Option<Tensor>;

fn apply(l: &Linear, x: &Tensor) -> ops::Result<Tensor> {
    let y = linear::forward(x, &l.weight, l.bias.as_ref())?;
    if let Some(adapter) = &l.adapter {
        adapter.low_rank().forward_into(x, &y)?;
    }
    Ok(y)
}

/// Adds the gradients of a linear layer's parameters into `grad`; gives that of its input.
fn apply_backward(l: &Linear, x: &Tensor, dy: &Tensor, grad: &Linear<Wanted>) -> ops::Result<Tensor> {
    let dx = linear::backward_input(dy, &l.weight)?;
    backward_parameters(l, x, dy, grad, &dx)?;
    Ok(dx)
}

/// The same for an input that several layers read: its gradient is added into `dx`.
fn apply_backward_into(l: &Linear, x: &Tensor, dy: &Tensor, grad: &Linear<Wanted>, dx: &Tensor) -> ops::Result<()> {
    linear::backward_input_into(dx, dy, &l.weight)?;
    backward_parameters(l, x, dy, grad, dx)
}

/// Gradients of a linear layer's parameters, and what its adapter adds to that of the input.
fn backward_parameters(l: &Linear, x: &Tensor, dy: &Tensor, grad: &Linear<Wanted>, dx: &Tensor) -> ops::Result<()> {
    if let Some(d_weight) = &grad.weight {
        linear::backward_weight(x, dy, d_weight, grad.bias.as_ref().and_then(Option::as_ref))?;
    }
    let Some(adapter) = &l.adapter else { return Ok(()) };
    let gradient = grad.adapter.as_ref().and_then(|g| Some(Gradient { a: g.a.as_ref()?, b: g.b.as_ref()? }));
    adapter.low_rank().backward(x, dy, gradient, Some(dx))
}

/// What a layer hands to the next.
fn layer_output(w: &Layer, kept: &LayerKept) -> Result<Tensor> {
    let out = apply(&w.down, &swiglu::forward(&kept.gate, &kept.up)?)?;
    ops::add_into(&out, &kept.middle)?;
    Ok(out)
}

impl Decoder {
    /// A decoder of these weights.
    pub fn new(architecture: Architecture, weights: Weights) -> Self {
        let a = &architecture;
        let rotation = Arc::new(rotation(a.rope_theta, a.rope_scaling, a.heads.head_dim, a.max_positions));
        Self { architecture, weights, rotation }
    }

    /// The same as it computes in another place. What is trained is rounded there; see [`super::Policy::at`].
    pub fn at(self, place: &Place) -> Result<Self> {
        Ok(Self { weights: self.weights.map(|_, t| place.computed(t))?, ..self })
    }

    /// The same with a new adapter ([`Weights::with_new_adapter`]); all else is shared.
    pub fn with_new_adapter(self, lora: Lora, targets: &[String], seed: u64) -> Result<Self> {
        Ok(Self { weights: self.weights.with_new_adapter(lora, targets, seed)?, ..self })
    }

    /// Its parameters.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Runs all layers and hands each one's kept values to `keep`. Hidden states after the last
    /// norm come back for the packed places `rows` alone, `[M, D]`, since the last layer's
    /// gated unit needs no others.
    pub(super) fn run(
        &self,
        forest: &Forest,
        rows: &[usize],
        mut keep: impl FnMut(usize, LayerKept) -> Result<()>,
    ) -> Result<(Tensor, Tensor)> {
        let mut x = embedding::forward(&self.weights.embedding, forest.tokens())?;
        for (i, layer) in self.weights.layers.iter().enumerate() {
            let rows = (i + 1 == self.weights.layers.len()).then_some(rows);
            let kept = self.layer(layer, x, forest, rows)?;
            x = layer_output(layer, &kept)?;
            keep(i, kept)?;
        }
        let hidden = norm::forward(&x, &self.weights.norm, self.architecture.rms_norm_eps)?;
        Ok((hidden, x))
    }

    /// Hidden states of `rows`, `[M, D]`, and what [`Decoder::backward`] needs; to `recompute` most
    /// of that then, only the layers' inputs.
    pub(super) fn forward(&self, forest: &Forest, rows: &[usize], recompute: bool) -> Result<(Tensor, Kept)> {
        let count = self.weights.layers.len();
        let mut layers = Vec::with_capacity(count);
        let (hidden, last) = self.run(forest, rows, |i, kept| {
            // The last layer is the first that is needed again, when the others take up nothing.
            let again = recompute && i + 1 < count;
            layers.push(if again { Stored::Input(kept.input) } else { Stored::Whole(kept) });
            Ok(())
        })?;
        Ok((hidden, Kept { layers, last }))
    }

    /// All of a layer but its last product, which [`layer_output`] adds and no gradient needs.
    fn layer(&self, w: &Layer, x: Tensor, forest: &Forest, rows: Option<&[usize]>) -> Result<LayerKept> {
        let (eps, heads) = (self.architecture.rms_norm_eps, self.architecture.heads);
        let h = norm::forward(&x, &w.input_norm, eps)?;
        let (mut q, mut k, v) = (apply(&w.q, &h)?, apply(&w.k, &h)?, apply(&w.v, &h)?);
        let mut unnormed = None;
        if let Some((q_norm, k_norm)) = &w.qk_norm {
            let (normed_q, normed_k) = (self.head_norm(&q, q_norm)?, self.head_norm(&k, k_norm)?);
            unnormed = Some((q, k));
            (q, k) = (normed_q, normed_k);
        }
        rope::forward(&q, &self.rotation, forest)?;
        rope::forward(&k, &self.rotation, forest)?;
        let (attended, log_sum) = attention::forward(&q, &k, &v, forest, heads)?;
        let middle = match rows {
            None => {
                let middle = apply(&w.o, &attended)?;
                ops::add_into(&middle, &x)?;
                middle
            }
            Some(rows) => {
                let middle = apply(&w.o, &ops::gather_rows(&attended, rows)?)?;
                ops::add_into(&middle, &ops::gather_rows(&x, rows)?)?;
                middle
            }
        };
        let h = norm::forward(&middle, &w.post_norm, eps)?;
        let (gate, up) = (apply(&w.gate, &h)?, apply(&w.up, &h)?);
        Ok(LayerKept { input: x, unnormed, q, k, v, attended, log_sum, middle, gate, up })
    }

    /// Norm over each head of packed heads `[N, heads * C]`.
    pub(super) fn head_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let per_head = x.reshape(((), self.architecture.heads.head_dim))?;
        Ok(norm::forward(&per_head, weight, self.architecture.rms_norm_eps)?.reshape(x.shape())?)
    }

    fn head_norm_backward(&self, x: &Tensor, weight: &Tensor, dy: &Tensor, d_weight: Option<&Tensor>) -> Result<Tensor> {
        let dx = ops::zeros_like(x)?;
        let per_head = |t: &Tensor| t.reshape(((), self.architecture.heads.head_dim));
        norm::backward(&per_head(x)?, weight, self.architecture.rms_norm_eps, &per_head(dy)?, &per_head(&dx)?, d_weight)?;
        Ok(dx)
    }

    /// Adds the gradients of what is trained (but the output matrix's own use, which the
    /// log-probabilities' gradient covers) into `grads`, from that of the hidden states. `done` is
    /// called after the last norm, after each layer and after the embedding.
    pub(super) fn backward(
        &self,
        kept: Kept,
        forest: &Forest,
        rows: &[usize],
        d_hidden: &Tensor,
        grads: &Weights<Wanted>,
        done: &dyn Fn(),
    ) -> Result<()> {
        let mut dx = ops::zeros_like(&kept.last)?;
        norm::backward(&kept.last, &self.weights.norm, self.architecture.rms_norm_eps, d_hidden, &dx, grads.norm.as_ref())?;
        done();
        let last = kept.layers.len() - 1;
        for (i, stored) in kept.layers.into_iter().enumerate().rev() {
            let (layer, rows) = (&self.weights.layers[i], (i == last).then_some(rows));
            let kept = match stored {
                Stored::Whole(kept) => kept,
                Stored::Input(x) => self.layer(layer, x, forest, rows)?,
            };
            dx = self.layer_backward(layer, kept, forest, rows, dx, &grads.layers[i])?;
            done();
        }
        if let Some(d_embedding) = &grads.embedding {
            embedding::backward(forest.tokens(), &dx, d_embedding)?;
        }
        done();
        Ok(())
    }

    /// Takes the gradient of a layer's output, gives that of its input.
    fn layer_backward(
        &self,
        w: &Layer,
        kept: LayerKept,
        forest: &Forest,
        rows: Option<&[usize]>,
        d_out: Tensor,
        g: &Layer<Wanted>,
    ) -> Result<Tensor> {
        let (eps, heads) = (self.architecture.rms_norm_eps, self.architecture.heads);
        // The residual passes the output's gradient on: from here `d_middle` is that of `middle`.
        let d_middle = d_out;
        {
            let d_gated = apply_backward(&w.down, &swiglu::forward(&kept.gate, &kept.up)?, &d_middle, &g.down)?;
            let (d_gate, d_up) = swiglu::backward(&kept.gate, &kept.up, &d_gated)?;
            let h = norm::forward(&kept.middle, &w.post_norm, eps)?;
            let dh = apply_backward(&w.gate, &h, &d_gate, &g.gate)?;
            apply_backward_into(&w.up, &h, &d_up, &g.up, &dh)?;
            norm::backward(&kept.middle, &w.post_norm, eps, &dh, &d_middle, g.post_norm.as_ref())?;
        }
        let (d_attended, dx) = match rows {
            None => (apply_backward(&w.o, &kept.attended, &d_middle, &g.o)?, d_middle),
            Some(rows) => {
                let d_attended = apply_backward(&w.o, &ops::gather_rows(&kept.attended, rows)?, &d_middle, &g.o)?;
                let (all, dx) = (ops::zeros_like(&kept.attended)?, ops::zeros_like(&kept.input)?);
                ops::scatter_add_rows(&all, &d_attended, rows)?;
                ops::scatter_add_rows(&dx, &d_middle, rows)?;
                (all, dx)
            }
        };
        let from = attention::Kept { q: &kept.q, k: &kept.k, v: &kept.v, out: &kept.attended, log_sum: &kept.log_sum };
        let (mut dq, mut dk, dv) = attention::backward(&from, &d_attended, forest, heads)?;
        rope::backward(&dq, &self.rotation, forest)?;
        rope::backward(&dk, &self.rotation, forest)?;
        if let (Some((q, k)), Some((q_norm, k_norm)), Some((dq_norm, dk_norm))) = (&kept.unnormed, &w.qk_norm, &g.qk_norm) {
            dq = self.head_norm_backward(q, q_norm, &dq, dq_norm.as_ref())?;
            dk = self.head_norm_backward(k, k_norm, &dk, dk_norm.as_ref())?;
        }
        let h = norm::forward(&kept.input, &w.input_norm, eps)?;
        let dh = apply_backward(&w.q, &h, &dq, &g.q)?;
        apply_backward_into(&w.k, &h, &dk, &g.k, &dh)?;
        apply_backward_into(&w.v, &h, &dv, &g.v, &dh)?;
        norm::backward(&kept.input, &w.input_norm, eps, &dh, &dx, g.input_norm.as_ref())?;
        Ok(dx)
    }
}
