//! Attention over a forest of segments.

use super::super::forest::Forest;
use super::super::heads::{Attention, Heads, Kept};
use super::super::{Error, LARGEST_HEAD, Result};
use super::array::{Array, Kind, at, buffer, unset};
use super::launch::Launch;
use super::plan::{Plan, SIZES};
use candle_core::Tensor;

/// A set of kernels.
struct Kernels {
    module: &'static str,
    /// Prefix of their names.
    name: &'static str,
    /// The kind of the plan's tiles that they process.
    tiles: usize,
    threads: u32,
    /// Head sizes that they are compiled for; other sizes use the next larger one.
    dims: &'static [usize],
}

/// `attention.cu`, for f32.
const SINGLE: Kernels = Kernels { module: "attention", name: "attention", tiles: 0, threads: 64, dims: &[16, 64, 128, 256] };

/// `attention.cu`, for bf16 where tensor cores can't be used.
const SINGLE_BF16: Kernels = Kernels { dims: &[128, 256], ..SINGLE };

/// `attention_bf16.cu`.
const TENSOR_CORES: Kernels =
    Kernels { module: "attention_bf16", name: "attention_mma", tiles: 1, threads: 128, dims: &[64, 128] };

/// Returns the kernels for values of this kind in heads of this size.
fn kernels(kind: Kind, head_dim: usize) -> Kernels {
    match kind {
        Kind::F32 => SINGLE,
        // Rows are read in units of sixteen bytes.
        Kind::Bf16 if head_dim.is_multiple_of(8) && head_dim <= 128 => TENSOR_CORES,
        Kind::Bf16 => SINGLE_BF16,
    }
}

/// Returns the contents of the kernels' `struct Heads`.
pub(super) fn words(h: Heads) -> [u64; 2] {
    [h.heads as u64 | (h.kv_heads as u64) << 32, h.head_dim as u64]
}

/// Returns the contents of the kernels' `struct Scores`.
pub(super) fn scores(how: Attention) -> [u64; 2] {
    let bits = |x: f32| u64::from(x.to_bits());
    [bits(how.scale) | bits(how.cap.unwrap_or(0.0)) << 32, how.window.unwrap_or(0) as u64]
}

/// Warps of a block that processes one head per warp.
const WARPS: usize = 8;

struct Shape<'a> {
    plan: &'a Plan,
    kernels: Kernels,
    how: Attention,
    dim: usize,
    n: usize,
}

impl<'a> Shape<'a> {
    fn of(q: Array<'_>, forest: &'a Forest, how: Attention) -> Result<Self> {
        let heads = how.heads;
        let kernels = kernels(q.kind, heads.head_dim);
        let dim = kernels.dims.iter().copied().find(|dim| heads.head_dim <= *dim);
        let dim = dim.ok_or_else(|| Error::Shape {
            op: "attention",
            detail: format!("heads of size {}; the limit on a device is {LARGEST_HEAD}", heads.head_dim),
        })?;
        Ok(Self { plan: forest.plan(q.device)?, kernels, how, dim, n: forest.len() })
    }

    /// Launches a kernel over heads and tiles. In shared memory, it keeps `own` tiles of its own rows, and two of the rows that it
    /// goes over, on tensor cores at each of so many stages. Without tensor cores, the two are one after the other in one place,
    /// beside scores.
    fn launch<'b>(&self, of: Array<'b>, name: &str, own: usize, stages: usize) -> Launch<'b> {
        let Kernels { module, name: set, tiles, threads, .. } = self.kernels;
        let tile = SIZES[tiles];
        let (kernel, shared) = match module == TENSOR_CORES.module {
            true => {
                let shared = (own + 2 * stages) * tile * (self.dim + 8) * 2 + stages * 2 * tile * 4;
                (format!("{set}_{name}_{}", self.dim), shared)
            }
            false => {
                let kernel = format!("{set}_{name}_{}_{}", self.dim, of.kind.suffix());
                (kernel, 4 * tile * ((own + 1) * (self.dim + 1) + tile + 1))
            }
        };
        let launch = Launch::new(of.device, module, &kernel);
        launch.grid(self.how.heads.heads, self.plan.tiles(tiles), 1).threads(threads).shared(shared)
    }

    /// Returns the stages of the kernels on the way back: with two of heads of 128 values, they would need more shared memory than
    /// devices of 8.6 and 8.9 have.
    fn stages_back(&self) -> usize {
        if self.dim <= 64 { 2 } else { 1 }
    }

    fn run(&self, launch: Launch<'_>) -> Result<()> {
        let launch = launch.structure(&self.plan.words(self.kernels.tiles)).structure(&words(self.how.heads));
        launch.structure(&scores(self.how)).run()
    }
}

/// Computes [`crate::attention::forward`] on a device.
pub(crate) fn forward(q: &Tensor, k: &Tensor, v: &Tensor, forest: &Forest, how: Attention) -> Result<(Tensor, Tensor)> {
    let h = how.heads;
    let qs = Array::of(q)?;
    let (ks, vs) = (Array::of_kind(k, qs.kind)?, Array::of_kind(v, qs.kind)?);
    let s = Shape::of(qs, forest, how)?;
    let (out, log_sum) = (unset(qs.device, q.shape(), qs.kind)?, unset(qs.device, (s.n, h.heads), Kind::F32)?);
    let launch = s.launch(qs, "forward", 1, 2).array(Array::of(&out)?).array(Array::of(&log_sum)?);
    s.run(launch.array(qs).array(ks).array(vs))?;
    Ok((out, log_sum))
}

/// Computes [`crate::attention::backward`] on a device.
pub(crate) fn backward(kept: &Kept<'_>, d_out: &Tensor, forest: &Forest, how: Attention) -> Result<(Tensor, Tensor, Tensor)> {
    let h = how.heads;
    let q = Array::of(kept.q)?;
    let (device, kind) = (q.device, q.kind);
    let (k, v) = (Array::of_kind(kept.k, kind)?, Array::of_kind(kept.v, kind)?);
    let (out, d_outs) = (Array::of_kind(kept.out, kind)?, Array::of_kind(d_out, kind)?);
    let log_sum = Array::of_kind(kept.log_sum, Kind::F32)?;
    let s = Shape::of(q, forest, how)?;

    let along = buffer::<f32>(device, s.n * h.heads)?;
    let launch = Launch::of_kind(device, "heads", "attention_along", kind).blocks((s.n * h.heads).div_ceil(WARPS));
    launch.address(at(&along)).array(out).array(d_outs).int(h.head_dim).size(s.n * h.heads).run()?;

    let dq = unset(device, kept.q.shape(), kind)?;
    let launch = s.launch(q, "backward_queries", 2, s.stages_back()).array(Array::of(&dq)?).array(q).array(k).array(v);
    s.run(launch.array(d_outs).array(log_sum).address(at(&along)))?;

    // Each query head's part of its key/value head's gradients. They are then summed in order.
    let (dk_parts, dv_parts) = (buffer::<f32>(device, q.len)?, buffer::<f32>(device, q.len)?);
    let launch =
        s.launch(q, "backward_keys", 2, s.stages_back()).address(at(&dk_parts)).address(at(&dv_parts)).array(q).array(k).array(v);
    s.run(launch.array(d_outs).array(log_sum).address(at(&along)))?;
    let summed = |parts: u64| -> Result<Tensor> {
        let out = unset(device, kept.k.shape(), kind)?;
        let launch = Launch::of_kind(device, "heads", "sum_heads", kind).over(k.len);
        launch.array(Array::of(&out)?).address(parts).structure(&words(h)).size(k.len).run()?;
        Ok(out)
    };
    Ok((dq, summed(at(&dk_parts))?, summed(at(&dv_parts))?))
}
