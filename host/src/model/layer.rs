//! Composes a decoder layer once: attention and gated unit, generic over how products are applied and over what attends, a forest
//! in training or a token with its caches. `decoder.rs` has its gradient, `work.rs` counts its cost, and on a device
//! `device_decoding.rs` launches it as fused kernels.

use super::architecture::NormKind;
use super::weights::{Layer as Norms, Linear, Norm};
use super::{Architecture, Result};
use crate::ops::rope::{Positions, Rotation};
use crate::ops::{self, activation, columns, layer_norm, linear, norm, rope};
use candle_core::Tensor;

/// A linear map as it is applied.
pub(super) trait Product {
    /// Maps `x: [N, in]` to `[N, out]`.
    fn product(&self, x: &Tensor) -> ops::Result<Tensor>;
}

impl Product for Linear {
    fn product(&self, x: &Tensor) -> ops::Result<Tensor> {
        let y = self.plain(x)?;
        if let Some(adapter) = &self.adapter {
            adapter.low_rank().forward_into(x, &y)?;
        }
        Ok(y)
    }
}

impl Linear {
    /// Maps `x` without the adapter.
    pub(super) fn plain(&self, x: &Tensor) -> ops::Result<Tensor> {
        linear::forward(x, self.matrix(), self.bias.as_ref())
    }
}

/// Multiplies values, unless by one.
pub(super) fn multiplied(x: Tensor, factor: f32) -> ops::Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { ops::scaled(&x, factor) }
}

/// The linear maps of a layer; those that read the same may be joined.
pub(super) struct Maps<P> {
    pub qkv: Vec<P>,
    pub o: P,
    pub mlp: Vec<P>,
    pub down: P,
}

impl<P> Maps<P> {
    /// Borrows them.
    pub(super) fn each(&self) -> Maps<&P> {
        Maps { qkv: self.qkv.iter().collect(), o: &self.o, mlp: self.mlp.iter().collect(), down: &self.down }
    }

    /// Applies a function to each of them.
    pub(super) fn map<T>(self, f: impl Fn(P) -> ops::Result<T>) -> ops::Result<Maps<T>> {
        let Self { qkv, o, mlp, down } = self;
        let all = |maps: Vec<P>| maps.into_iter().map(&f).collect::<ops::Result<Vec<T>>>();
        Ok(Maps { qkv: all(qkv)?, o: f(o)?, mlp: all(mlp)?, down: f(down)? })
    }

    /// Splits them into those that read the layer's input and those after its attention.
    pub(super) fn before_and_behind(self) -> (Vec<P>, Vec<P>) {
        (self.qkv, std::iter::once(self.o).chain(self.mlp).chain([self.down]).collect())
    }
}

/// Applies maps that read the same, and takes joined results apart.
fn products<P: Product>(maps: &[&P], x: &Tensor, widths: &[usize]) -> ops::Result<Vec<Tensor>> {
    match maps {
        [joined] if widths.len() > 1 => columns::split(&joined.product(x)?, widths),
        _ => maps.iter().map(|map| map.product(x)).collect(),
    }
}

/// The result of attention.
pub(super) struct Attended {
    /// The heads' outputs, `[N, H * C]`.
    pub out: Tensor,
    /// What its gradient needs, if there will be one.
    pub log_sum: Option<Tensor>,
}

/// What one layer's backward pass needs. Elementwise parts are recomputed instead.
pub(super) struct LayerKept {
    pub input: Tensor,
    /// Query and key heads before their norms, if the family has them.
    pub unnormed: Option<(Tensor, Tensor)>,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub attended: Attended,
    /// The attention's output before its norm, if it has one.
    pub projected: Option<Tensor>,
    pub middle: Tensor,
    pub gate: Tensor,
    /// What the gate is multiplied with, if anything.
    pub up: Option<Tensor>,
    /// The gated unit's output before its norm, if it has one and [`Layer::output`] was called.
    pub lowered: Option<Tensor>,
}

impl LayerKept {
    /// Returns the bytes of all parts.
    pub(super) fn bytes(&self) -> usize {
        let Self { input, unnormed, q, k, v, attended, projected, middle, gate, up, lowered } = self;
        let always = [input, q, k, v, &attended.out, middle, gate];
        let heads = unnormed.iter().flat_map(|(q, k)| [q, k]);
        let more = [&attended.log_sum, projected, up, lowered].into_iter().flatten();
        always.into_iter().chain(heads).chain(more).map(super::decoder::bytes).sum()
    }
}

/// A layer.
pub(super) struct Layer<'a, P> {
    pub architecture: &'a Architecture,
    /// Its rotary embedding, if it has one.
    pub rotation: Option<&'a Rotation>,
    /// Its norms.
    pub norms: &'a Norms,
    pub maps: Maps<&'a P>,
}

impl<P: Product> Layer<'_, P> {
    /// Runs the layer except its last product, which [`Layer::output`] adds and no gradient needs. If `rows` is given, everything
    /// after the attention is computed only for these packed positions.
    pub(super) fn forward<'p>(
        &self,
        x: Tensor,
        positions: impl Into<Positions<'p>>,
        rows: Option<&[usize]>,
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Attended>,
    ) -> Result<LayerKept> {
        let (maps, norms, a) = (&self.maps, self.norms, self.architecture);
        let positions = positions.into();
        let [mut q, mut k, v] = three(products(&maps.qkv, &a.normed(&x, norms.input_norm.as_ref())?, &a.qkv_widths())?)?;
        let mut unnormed = None;
        if let Some((q_norm, k_norm)) = &norms.qk_norm {
            let (normed_q, normed_k) = (a.normed_heads(&q, q_norm)?, a.normed_heads(&k, k_norm)?);
            unnormed = Some((q, k));
            (q, k) = (normed_q, normed_k);
        }
        if let Some(rotation) = self.rotation {
            rope::forward(&q, rotation, positions)?;
            rope::forward(&k, rotation, positions)?;
        }
        let attended = attend(&q, &k, &v)?;
        let (out, residual) = match rows {
            None => (attended.out.clone(), x.clone()),
            Some(rows) => (ops::gather_rows(&attended.out, rows)?, ops::gather_rows(&x, rows)?),
        };
        let (middle, projected) = self.added(maps.o.product(&out)?, norms.attended_norm.as_ref())?;
        ops::add_into(&middle, &residual)?;
        let h = a.normed(if a.parallel { &residual } else { &middle }, norms.mlp_norm.as_ref())?;
        let mut wide = products(&maps.mlp, &h, &a.mlp_widths())?.into_iter();
        let gate = wide.next().ok_or_else(none)?;
        Ok(LayerKept { input: x, unnormed, q, k, v, attended, projected, middle, gate, up: wide.next(), lowered: None })
    }

    /// Returns the layer's output for the next layer.
    pub(super) fn output(&self, kept: &mut LayerKept) -> Result<Tensor> {
        let active = activation::forward(&kept.gate, kept.up.as_ref(), self.architecture.activation)?;
        let (out, lowered) = self.added(self.maps.down.product(&active)?, self.norms.added_norm.as_ref())?;
        kept.lowered = lowered;
        ops::add_into(&out, &kept.middle)?;
        Ok(out)
    }

    /// Returns what is added to the residual for a product's result, as new storage, and that result, if a norm's gradient needs it.
    fn added(&self, product: Tensor, norm: Option<&Norm>) -> Result<(Tensor, Option<Tensor>)> {
        let a = self.architecture;
        let before = norm.is_some().then(|| product.clone());
        Ok((multiplied(a.normed(&product, norm)?, a.factors.residual)?, before))
    }
}

fn none() -> ops::Error {
    ops::Error::Shape { op: "layer", detail: "a layer without projections".into() }
}

fn three(all: Vec<Tensor>) -> ops::Result<[Tensor; 3]> {
    all.try_into().map_err(|_| none())
}

impl Architecture {
    /// Normalises `x`; without a norm, returns it as it is.
    pub(super) fn normed(&self, x: &Tensor, norm: Option<&Norm>) -> ops::Result<Tensor> {
        let Some(Norm { weight, bias }) = norm else { return Ok(x.clone()) };
        match (self.norm, bias) {
            (NormKind::RmsFromOne, _) => norm::forward(x, &ops::plus_one(weight)?, self.norm_eps),
            (NormKind::Layer, Some(bias)) => layer_norm::forward(x, weight, bias, self.norm_eps),
            _ => norm::forward(x, weight, self.norm_eps),
        }
    }

    /// Adds the gradient of [`Architecture::normed`] to `dx`, and those of the parameters to `grad`.
    pub(super) fn norm_backward(&self, x: &Tensor, norm: &Norm, dy: &Tensor, dx: &Tensor, grad: &Wanted<'_>) -> ops::Result<()> {
        let (eps, d_weight) = (self.norm_eps, grad.and_then(|grad| grad.weight.as_ref()));
        match self.norm {
            NormKind::Rms => norm::backward(x, &norm.weight, eps, dy, dx, d_weight),
            NormKind::RmsFromOne => norm::backward(x, &ops::plus_one(&norm.weight)?, eps, dy, dx, d_weight),
            NormKind::Layer => {
                let d_bias = grad.and_then(|grad| grad.bias.as_ref().and_then(Option::as_ref));
                layer_norm::backward(x, &norm.weight, eps, dy, dx, d_weight.zip(d_bias))
            }
        }
    }

    /// Returns the logits at temperature one for products with the output matrix.
    pub(super) fn logits_of(&self, products: Tensor) -> ops::Result<Tensor> {
        let logits = multiplied(products, self.factors.logits.recip())?;
        self.factors.logits_cap.map_or(Ok(logits.clone()), |cap| ops::bounded_by(&logits, cap))
    }

    /// Normalises packed heads `[N, heads * C]`: each, or all of a row together, by the size of the weight.
    fn normed_heads(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let norm = Norm { weight: weight.clone(), bias: None };
        Ok(self.normed(&x.reshape(((), weight.elem_count()))?, Some(&norm))?.reshape(x.shape())?)
    }

    /// Computes the gradient of [`Architecture::normed_heads`].
    pub(super) fn normed_heads_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        dy: &Tensor,
        d_weight: &Option<Tensor>,
    ) -> Result<Tensor> {
        let (norm, grad) = (Norm { weight: weight.clone(), bias: None }, Norm { weight: d_weight.clone(), bias: None });
        let (dx, parts) = (ops::zeros_like(x)?, |t: &Tensor| t.reshape(((), weight.elem_count())));
        self.norm_backward(&parts(x)?, &norm, &parts(dy)?, &parts(&dx)?, &Some(&grad))?;
        Ok(dx)
    }
}

/// Where the gradient of a norm's parameters goes.
type Wanted<'a> = Option<&'a Norm<Option<Tensor>>>;
