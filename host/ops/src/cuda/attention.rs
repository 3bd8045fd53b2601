//! Attention over a forest of segments.

use super::super::forest::Forest;
use super::super::heads::{AttentionConfig, AttentionTensors, Heads};
use super::super::{Error, LARGEST_HEAD, Result};
use super::array::{DeviceArray, ElementKind, at, buffer, unset};
use super::launch::KernelLaunch;
use super::plan::{ForestPlan, SIZES};
use candle_core::Tensor;

/// A set of kernels.
struct AttentionKernels {
    module: &'static str,
    /// Prefix of the kernels' names.
    name: &'static str,
    /// The kind of the plan's tiles that the kernels process.
    tiles: usize,
    threads: u32,
    /// Head sizes that the kernels are compiled for. Other sizes use the next larger one.
    dims: &'static [usize],
}

/// Kernels of `attention.cu` for f32.
const SINGLE: AttentionKernels =
    AttentionKernels { module: "attention", name: "attention", tiles: 0, threads: 64, dims: &[16, 64, 128, 256] };

/// Kernels of `attention.cu` for bf16 where tensor cores can't be used.
const SINGLE_BF16: AttentionKernels = AttentionKernels { dims: &[128, 256], ..SINGLE };

/// Kernels of `attention_bf16.cu`.
const TENSOR_CORES: AttentionKernels =
    AttentionKernels { module: "attention_bf16", name: "attention_mma", tiles: 1, threads: 128, dims: &[64, 128] };

/// Returns the kernels for values of this kind in heads of this size.
fn kernels(kind: ElementKind, head_dim: usize) -> AttentionKernels {
    match kind {
        ElementKind::F32 => SINGLE,
        // Rows are read in units of sixteen bytes.
        ElementKind::Bf16 if head_dim.is_multiple_of(8) && head_dim <= 128 => TENSOR_CORES,
        ElementKind::Bf16 => SINGLE_BF16,
    }
}

/// Returns the contents of the kernels' `struct Heads`.
pub(super) fn words(h: Heads) -> [u64; 2] {
    [h.heads as u64 | (h.kv_heads as u64) << 32, h.head_dim as u64]
}

/// Returns the contents of the kernels' `struct Scores`.
pub(super) fn scores(how: AttentionConfig) -> [u64; 2] {
    let bits = |x: f32| u64::from(x.to_bits());
    [bits(how.scale) | bits(how.cap.unwrap_or(0.0)) << 32, how.window.unwrap_or(0) as u64]
}

/// Number of warps of a block that processes one head per warp.
const WARPS: usize = 8;

struct AttentionLauncher<'a> {
    plan: &'a ForestPlan,
    kernels: AttentionKernels,
    attention: AttentionConfig,
    dim: usize,
    n: usize,
}

impl<'a> AttentionLauncher<'a> {
    fn new(q: DeviceArray<'_>, forest: &'a Forest, how: AttentionConfig) -> Result<Self> {
        let heads = how.heads;
        let kernels = kernels(q.kind, heads.head_dim);
        let dim = kernels.dims.iter().copied().find(|dim| heads.head_dim <= *dim);
        let dim = dim.ok_or_else(|| Error::Shape {
            op: "attention",
            detail: format!("heads of size {}; the limit on a device is {LARGEST_HEAD}", heads.head_dim),
        })?;
        Ok(Self { plan: forest.plan(q.device)?, kernels, attention: how, dim, n: forest.len() })
    }

    /// Launches a kernel over heads and tiles. Shared memory has `own` tiles of the block's own rows, and two tiles of the rows that it
    /// goes over: on tensor cores, for each of `stages` stages; otherwise one after the other in the same place, next to scores.
    fn launch<'b>(&self, of: DeviceArray<'b>, name: &str, own: usize, stages: usize) -> KernelLaunch<'b> {
        let AttentionKernels { module, name: set, tiles, threads, .. } = self.kernels;
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
        let launch = KernelLaunch::new(of.device, module, &kernel);
        launch.grid(self.attention.heads.heads, self.plan.tiles(tiles), 1).threads(threads).shared(shared)
    }

    /// Returns the number of stages of the backward kernels. With two stages and heads of 128 values, they would need more shared memory
    /// than devices of compute capability 8.6 and 8.9 have.
    fn stages_back(&self) -> usize {
        if self.dim <= 64 { 2 } else { 1 }
    }

    fn run(&self, launch: KernelLaunch<'_>) -> Result<()> {
        let launch = launch.structure(&self.plan.words(self.kernels.tiles)).structure(&words(self.attention.heads));
        launch.structure(&scores(self.attention)).run()
    }
}

/// Computes [`crate::attention::forward`] on a device.
pub(crate) fn forward(q: &Tensor, k: &Tensor, v: &Tensor, forest: &Forest, how: AttentionConfig) -> Result<(Tensor, Tensor)> {
    let h = how.heads;
    let qs = DeviceArray::from_tensor(q)?;
    let (ks, vs) = (DeviceArray::from_tensor_with_kind(k, qs.kind)?, DeviceArray::from_tensor_with_kind(v, qs.kind)?);
    let s = AttentionLauncher::new(qs, forest, how)?;
    let (out, log_sum) = (unset(qs.device, q.shape(), qs.kind)?, unset(qs.device, (s.n, h.heads), ElementKind::F32)?);
    let launch = s.launch(qs, "forward", 1, 2).array(DeviceArray::from_tensor(&out)?).array(DeviceArray::from_tensor(&log_sum)?);
    s.run(launch.array(qs).array(ks).array(vs))?;
    Ok((out, log_sum))
}

/// Computes [`crate::attention::backward`] on a device.
pub(crate) fn backward(
    kept: &AttentionTensors<'_>,
    d_out: &Tensor,
    forest: &Forest,
    how: AttentionConfig,
) -> Result<(Tensor, Tensor, Tensor)> {
    let h = how.heads;
    let q = DeviceArray::from_tensor(kept.q)?;
    let (device, kind) = (q.device, q.kind);
    let (k, v) = (DeviceArray::from_tensor_with_kind(kept.k, kind)?, DeviceArray::from_tensor_with_kind(kept.v, kind)?);
    let (out, d_outs) = (DeviceArray::from_tensor_with_kind(kept.out, kind)?, DeviceArray::from_tensor_with_kind(d_out, kind)?);
    let log_sum = DeviceArray::from_tensor_with_kind(kept.log_sum, ElementKind::F32)?;
    let s = AttentionLauncher::new(q, forest, how)?;

    let along = buffer::<f32>(device, s.n * h.heads)?;
    let launch = KernelLaunch::with_kind(device, "heads", "attention_along", kind).blocks((s.n * h.heads).div_ceil(WARPS));
    launch.address(at(&along)).array(out).array(d_outs).int(h.head_dim).size(s.n * h.heads).run()?;

    let dq = unset(device, kept.q.shape(), kind)?;
    let launch =
        s.launch(q, "backward_queries", 2, s.stages_back()).array(DeviceArray::from_tensor(&dq)?).array(q).array(k).array(v);
    s.run(launch.array(d_outs).array(log_sum).address(at(&along)))?;

    // Each query head's part of its key/value head's gradients. The parts are then summed in order.
    let (dk_parts, dv_parts) = (buffer::<f32>(device, q.len)?, buffer::<f32>(device, q.len)?);
    let launch =
        s.launch(q, "backward_keys", 2, s.stages_back()).address(at(&dk_parts)).address(at(&dv_parts)).array(q).array(k).array(v);
    s.run(launch.array(d_outs).array(log_sum).address(at(&along)))?;
    let summed = |parts: u64| -> Result<Tensor> {
        let out = unset(device, kept.k.shape(), kind)?;
        let launch = KernelLaunch::with_kind(device, "heads", "sum_heads", kind).over(k.len);
        launch.array(DeviceArray::from_tensor(&out)?).address(parts).structure(&words(h)).size(k.len).run()?;
        Ok(out)
    };
    Ok((dq, summed(at(&dk_parts))?, summed(at(&dv_parts))?))
}
