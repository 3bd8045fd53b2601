//! Runs the decoder forward over a forest of segments, with the backward pass beside it. `layer.rs` defines a layer.
//!
//! There is no tape. A decoder is a fixed composition, so each layer keeps exactly what its gradient needs and frees it as soon
//! as the gradient has passed.

use super::dropped::{Dropout, Masked};
use super::layer::{self, Attended, LayerKept, Maps, Product};
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

/// A layer's kept values, or what they are recomputed from (gradient checkpointing, Chen et al. 2016, arXiv 1604.06174).
enum Stored {
    Whole(LayerKept),
    Input(Tensor),
}

/// What the whole backward pass needs.
pub(super) struct Kept {
    layers: Vec<Stored>,
    last: Tensor,
    dropout: Option<Dropout>,
}

/// The gradient of each trained parameter.
type Wanted = Option<Tensor>;

/// Adds the gradients of a linear layer's parameters to `grad` and returns that of its input.
fn apply_backward(l: &Masked<'_>, x: &Tensor, dy: &Tensor, grad: &Linear<Wanted>) -> ops::Result<Tensor> {
    let dx = linear::backward_input(dy, &l.linear.weight)?;
    backward_parameters(l, x, dy, grad, &dx)?;
    Ok(dx)
}

/// Does the same for an input that several layers read: adds its gradient to `dx`.
fn apply_backward_into(l: &Masked<'_>, x: &Tensor, dy: &Tensor, grad: &Linear<Wanted>, dx: &Tensor) -> ops::Result<()> {
    linear::backward_input_into(dx, dy, &l.linear.weight)?;
    backward_parameters(l, x, dy, grad, dx)
}

/// Adds the gradients of a linear layer's parameters, and the adapter's contribution to that of the input.
fn backward_parameters(l: &Masked<'_>, x: &Tensor, dy: &Tensor, grad: &Linear<Wanted>, dx: &Tensor) -> ops::Result<()> {
    if let Some(d_weight) = &grad.weight {
        linear::backward_weight(x, dy, d_weight, grad.bias.as_ref().and_then(Option::as_ref))?;
    }
    let Some(adapter) = &l.linear.adapter else { return Ok(()) };
    let gradient = grad.adapter.as_ref().and_then(|g| Some(Gradient { a: g.a.as_ref()?, b: g.b.as_ref()? }));
    let Some(mask) = &l.mask else { return adapter.low_rank().backward(x, dy, gradient, Some(dx)) };
    let d_dropped = ops::zeros_like(x)?;
    adapter.low_rank().backward(&mask.apply(x)?, dy, gradient, Some(&d_dropped))?;
    mask.add_applied(&d_dropped, dx)
}

/// Returns what attention over a forest keeps for its gradient.
fn log_sum(kept: &LayerKept) -> ops::Result<&Tensor> {
    let missing = || ops::Error::Shape { op: "attention", detail: "a forward pass that kept nothing for its gradient".into() };
    kept.attended.log_sum.as_ref().ok_or_else(missing)
}

impl Decoder {
    /// Creates a decoder with these weights.
    pub fn new(architecture: Architecture, weights: Weights) -> Self {
        let a = &architecture;
        let rotation = Arc::new(rotation(a.rope_theta, a.rope_scaling, a.heads.head_dim, a.max_positions));
        Self { architecture, weights, rotation }
    }

    /// Converts the decoder to another place, where trained weights are rounded; see [`super::Policy::at`].
    ///
    /// # Errors
    /// If the place has too little memory or can't compute the model.
    pub fn at(self, place: &Place) -> Result<Self> {
        place.check(&self.architecture)?;
        Ok(Self { weights: self.weights.map(|_, t| place.computed(t))?, ..self })
    }

    /// Adds a new adapter ([`Weights::with_new_adapter`]); everything else is shared.
    pub fn with_new_adapter(self, lora: Lora, targets: &[String], seed: u64) -> Result<Self> {
        Ok(Self { weights: self.weights.with_new_adapter(lora, targets, seed)?, ..self })
    }

    /// Returns the parameters.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Runs all layers and passes each layer's kept values to `keep`. Returns the hidden states after the last norm only for the
    /// packed positions `rows`, `[M, D]`, since the last layer's gated unit needs no others.
    pub(super) fn run(
        &self,
        forest: &Forest,
        rows: &[usize],
        dropout: Option<&Dropout>,
        mut keep: impl FnMut(usize, LayerKept) -> Result<()>,
    ) -> Result<(Tensor, Tensor)> {
        let mut x = embedding::forward(&self.weights.embedding, forest.tokens())?;
        for (i, w) in self.weights.layers.iter().enumerate() {
            let rows = (i + 1 == self.weights.layers.len()).then_some(rows);
            let maps = Masked::of(w.maps(), dropout, i, rows.is_some());
            let kept = self.layer(i, x, forest, rows, &maps)?;
            x = self.layer_of(i, maps.each()).output(&kept)?;
            keep(i, kept)?;
        }
        let hidden = norm::forward(&x, &self.weights.norm, self.architecture.rms_norm_eps)?;
        Ok((hidden, x))
    }

    /// Returns the hidden states of `rows`, `[M, D]`, and what [`Decoder::backward`] needs. With `recompute` it keeps only the
    /// layers' inputs and recomputes the rest then.
    pub(super) fn forward(
        &self,
        forest: &Forest,
        rows: &[usize],
        recompute: bool,
        dropout: Option<Dropout>,
    ) -> Result<(Tensor, Kept)> {
        let count = self.weights.layers.len();
        let mut layers = Vec::with_capacity(count);
        let (hidden, last) = self.run(forest, rows, dropout.as_ref(), |i, kept| {
            // The last layer is the first that is needed again, when the others take up nothing.
            let again = recompute && i + 1 < count;
            layers.push(if again { Stored::Input(kept.input) } else { Stored::Whole(kept) });
            Ok(())
        })?;
        Ok((hidden, Kept { layers, last, dropout }))
    }

    /// Runs layer `i` except its last product.
    fn layer(&self, i: usize, x: Tensor, forest: &Forest, rows: Option<&[usize]>, maps: &Maps<Masked<'_>>) -> Result<LayerKept> {
        let attention = self.architecture.attention(i);
        let layer = self.layer_of(i, maps.each());
        layer.forward(x, forest, rows, |q, k, v| {
            let (out, log_sum) = attention::forward(q, k, v, forest, attention)?;
            Ok(Attended { out, log_sum: Some(log_sum) })
        })
    }

    /// Returns the rotary embedding of layer `i`, if it has one.
    fn rotation(&self, i: usize) -> Option<&Rotation> {
        self.architecture.rotates[i].then_some(&*self.rotation)
    }

    /// Returns layer `i` with these products.
    pub(super) fn layer_of<'a, P: Product>(&'a self, i: usize, maps: Maps<&'a P>) -> layer::Layer<'a, P> {
        layer::Layer { architecture: &self.architecture, rotation: self.rotation(i), norms: &self.weights.layers[i], maps }
    }

    /// Computes the gradient of [`layer::Layer::head_norm`].
    fn head_norm_backward(&self, x: &Tensor, weight: &Tensor, dy: &Tensor, d_weight: Option<&Tensor>) -> Result<Tensor> {
        let dx = ops::zeros_like(x)?;
        let per_head = |t: &Tensor| t.reshape(((), self.architecture.heads.head_dim));
        norm::backward(&per_head(x)?, weight, self.architecture.rms_norm_eps, &per_head(dy)?, &per_head(&dx)?, d_weight)?;
        Ok(dx)
    }

    /// Adds the gradients of the trained parameters to `grads`, given that of the hidden states. The output matrix's own use is
    /// not included; the log-probabilities' gradient covers it. Calls `done` after the last norm, after each layer and after the
    /// embedding.
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
            let rows = (i == last).then_some(rows);
            let maps = Masked::of(self.weights.layers[i].maps(), kept.dropout.as_ref(), i, rows.is_some());
            let kept = match stored {
                Stored::Whole(kept) => kept,
                Stored::Input(x) => self.layer(i, x, forest, rows, &maps)?,
            };
            dx = self.layer_backward((i, &maps), kept, forest, rows, dx, &grads.layers[i])?;
            done();
        }
        if let Some(d_embedding) = &grads.embedding {
            embedding::backward(forest.tokens(), &dx, d_embedding)?;
        }
        done();
        Ok(())
    }

    /// Takes the gradient of a layer's output and returns that of its input.
    fn layer_backward(
        &self,
        (i, maps): (usize, &Maps<Masked<'_>>),
        kept: LayerKept,
        forest: &Forest,
        rows: Option<&[usize]>,
        d_out: Tensor,
        g: &Layer<Wanted>,
    ) -> Result<Tensor> {
        let (w, eps) = (&self.weights.layers[i], self.architecture.rms_norm_eps);
        // The residual passes the output's gradient on: from here `d_middle` is that of `middle`.
        let d_middle = d_out;
        {
            let d_gated = apply_backward(&maps.down, &swiglu::forward(&kept.gate, &kept.up)?, &d_middle, &g.down)?;
            let (d_gate, d_up) = swiglu::backward(&kept.gate, &kept.up, &d_gated)?;
            let h = norm::forward(&kept.middle, &w.post_norm, eps)?;
            let dh = apply_backward(&maps.gate, &h, &d_gate, &g.gate)?;
            apply_backward_into(&maps.up, &h, &d_up, &g.up, &dh)?;
            norm::backward(&kept.middle, &w.post_norm, eps, &dh, &d_middle, g.post_norm.as_ref())?;
        }
        let (d_attended, dx) = match rows {
            None => (apply_backward(&maps.o, &kept.attended.out, &d_middle, &g.o)?, d_middle),
            Some(rows) => {
                let d_attended = apply_backward(&maps.o, &ops::gather_rows(&kept.attended.out, rows)?, &d_middle, &g.o)?;
                let (all, dx) = (ops::zeros_like(&kept.attended.out)?, ops::zeros_like(&kept.input)?);
                ops::scatter_add_rows(&all, &d_attended, rows)?;
                ops::scatter_add_rows(&dx, &d_middle, rows)?;
                (all, dx)
            }
        };
        let from = attention::Kept { q: &kept.q, k: &kept.k, v: &kept.v, out: &kept.attended.out, log_sum: log_sum(&kept)? };
        let (mut dq, mut dk, dv) = attention::backward(&from, &d_attended, forest, self.architecture.attention(i))?;
        if let Some(rotation) = self.rotation(i) {
            rope::backward(&dq, rotation, forest)?;
            rope::backward(&dk, rotation, forest)?;
        }
        if let (Some((q, k)), Some((q_norm, k_norm)), Some((dq_norm, dk_norm))) = (&kept.unnormed, &w.qk_norm, &g.qk_norm) {
            dq = self.head_norm_backward(q, q_norm, &dq, dq_norm.as_ref())?;
            dk = self.head_norm_backward(k, k_norm, &dk, dk_norm.as_ref())?;
        }
        let h = norm::forward(&kept.input, &w.input_norm, eps)?;
        let dh = apply_backward(&maps.q, &h, &dq, &g.q)?;
        apply_backward_into(&maps.k, &h, &dk, &g.k, &dh)?;
        apply_backward_into(&maps.v, &h, &dv, &g.v, &dh)?;
        norm::backward(&kept.input, &w.input_norm, eps, &dh, &dx, g.input_norm.as_ref())?;
        Ok(dx)
    }
}
