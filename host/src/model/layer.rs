//! Composes a decoder layer once: attention and gated unit, generic over how products are applied and over what attends, a forest
//! in training or a token with its caches. `decoder.rs` has its gradient, `work.rs` counts its cost, and on a device
//! `device_decoding.rs` launches it as fused kernels.

use super::weights::{Layer as Norms, Linear};
use super::{Architecture, Result};
use crate::ops::panels::Panels;
use crate::ops::rope::{Positions, Rotation};
use crate::ops::{self, linear, norm, rope, swiglu};
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
        linear::forward(x, &self.weight, self.bias.as_ref())
    }
}

impl Product for Panels {
    fn product(&self, x: &Tensor) -> ops::Result<Tensor> {
        self.forward(x)
    }
}

/// The linear maps of a layer.
pub(super) struct Maps<P> {
    pub q: P,
    pub k: P,
    pub v: P,
    pub o: P,
    pub gate: P,
    pub up: P,
    pub down: P,
}

impl<P> Maps<P> {
    /// Borrows each of them.
    pub(super) fn each(&self) -> Maps<&P> {
        let Self { q, k, v, o, gate, up, down } = self;
        Maps { q, k, v, o, gate, up, down }
    }

    /// Applies a function to each of them.
    pub(super) fn map<T>(self, f: impl Fn(P) -> ops::Result<T>) -> ops::Result<Maps<T>> {
        let Self { q, k, v, o, gate, up, down } = self;
        Ok(Maps { q: f(q)?, k: f(k)?, v: f(v)?, o: f(o)?, gate: f(gate)?, up: f(up)?, down: f(down)? })
    }

    /// Splits them into those that read the layer's input and those after its attention.
    pub(super) fn before_and_behind(self) -> ([P; 3], [P; 4]) {
        ([self.q, self.k, self.v], [self.o, self.gate, self.up, self.down])
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
    pub middle: Tensor,
    pub gate: Tensor,
    pub up: Tensor,
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
        let (maps, norms, eps) = (&self.maps, self.norms, self.architecture.rms_norm_eps);
        let positions = positions.into();
        let h = norm::forward(&x, &norms.input_norm, eps)?;
        let (mut q, mut k, v) = (maps.q.product(&h)?, maps.k.product(&h)?, maps.v.product(&h)?);
        let mut unnormed = None;
        if let Some((q_norm, k_norm)) = &norms.qk_norm {
            let (normed_q, normed_k) = (self.head_norm(&q, q_norm)?, self.head_norm(&k, k_norm)?);
            unnormed = Some((q, k));
            (q, k) = (normed_q, normed_k);
        }
        if let Some(rotation) = self.rotation {
            rope::forward(&q, rotation, positions)?;
            rope::forward(&k, rotation, positions)?;
        }
        let attended = attend(&q, &k, &v)?;
        let middle = match rows {
            None => {
                let middle = maps.o.product(&attended.out)?;
                ops::add_into(&middle, &x)?;
                middle
            }
            Some(rows) => {
                let middle = maps.o.product(&ops::gather_rows(&attended.out, rows)?)?;
                ops::add_into(&middle, &ops::gather_rows(&x, rows)?)?;
                middle
            }
        };
        let h = norm::forward(&middle, &norms.post_norm, eps)?;
        let (gate, up) = (maps.gate.product(&h)?, maps.up.product(&h)?);
        Ok(LayerKept { input: x, unnormed, q, k, v, attended, middle, gate, up })
    }

    /// Returns the layer's output for the next layer.
    pub(super) fn output(&self, kept: &LayerKept) -> Result<Tensor> {
        let out = self.maps.down.product(&swiglu::forward(&kept.gate, &kept.up)?)?;
        ops::add_into(&out, &kept.middle)?;
        Ok(out)
    }

    /// Normalises each head of packed heads `[N, heads * C]`.
    fn head_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let per_head = x.reshape(((), self.architecture.heads.head_dim))?;
        Ok(norm::forward(&per_head, weight, self.architecture.rms_norm_eps)?.reshape(x.shape())?)
    }
}
