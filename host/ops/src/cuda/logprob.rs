//! Log-probabilities and entropies in blocks of rows, so that the complete logits never exist.

use super::super::support::Restriction;
use super::super::tiles::LogitScale;
use super::super::token_stats::TokenStats;
use super::super::{Result, matrix_dims};
use super::array::{DeviceArray, DeviceBuffer, ElementKind, at, buffer, unset};
use super::gemm::{DeviceMatrix, product};
use super::launch::{KernelLaunch, driver_error};
use super::{elementwise, reduce, restriction};
use candle_core::Tensor;

/// Maximum number of logits at once: 1 GiB in f32, and half of that for derivatives in bf16. With fewer, the output matrix's gradient would
/// be read and written too often.
const LOGITS: usize = 1 << 28;

/// Number of threads of a block that processes a row of logits.
const THREADS: u32 = 512;

/// Computes the logits of some rows of hidden states.
fn logits_of(out: DeviceArray<'_>, h: DeviceMatrix, w: DeviceMatrix, scale: LogitScale) -> Result<()> {
    product(out, DeviceMatrix::new(out, h.rows, w.rows), 0.0, h, w.t(), scale.factor())?;
    let logits = out.first(h.rows * w.rows);
    scale.cap().map_or(Ok(()), |cap| elementwise::bound(logits, logits, cap))
}

fn rows_per_block(rows: usize, vocab: usize) -> usize {
    (LOGITS / vocab.max(1)).clamp(16, 4096).min(rows.max(1))
}

/// Computes [`crate::logprob::forward`] on a device.
pub(crate) fn forward(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    scale: LogitScale,
    restriction: Option<&Restriction>,
) -> Result<TokenStats> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = DeviceArray::from_tensor(hidden)?;
    let (h, w) = (DeviceMatrix::new(hs, m, d), DeviceMatrix::new(DeviceArray::from_tensor_with_kind(w, hs.kind)?, vocab, d));
    let block = rows_per_block(m, vocab);
    let logits = unset(hs.device, (block, vocab), ElementKind::F32)?;
    let logits = DeviceArray::from_tensor(&logits)?;
    let index = DeviceBuffer::new(hs.device, targets)?;
    // Four columns for each block of rows, one block after the other.
    let stats = buffer::<f32>(hs.device, 4 * m)?;
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        logits_of(logits, h.rows(first, rows), w, scale)?;
        restriction::apply(logits, restriction, &(first..first + rows), vocab)?;
        let launch = KernelLaunch::new(hs.device, "logprob", "row_stats").blocks(rows).threads(THREADS);
        let launch = launch.address(at(&stats) + (16 * first) as u64).array(logits);
        launch.address(index.at() + (4 * first) as u64).int(rows).int(vocab).run()?;
    }
    let values = hs.device.clone_dtoh(&stats)?;
    hs.device.cuda_stream().synchronize().map_err(driver_error)?;
    let mut all = TokenStats::default();
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        let column = |i: usize| &values[4 * first + i * rows..4 * first + (i + 1) * rows];
        all.logp.extend_from_slice(column(0));
        all.entropy.extend_from_slice(column(1));
        all.top.extend(column(2).iter().map(|top| *top == 1.0));
        all.log_sum.extend_from_slice(column(3));
    }
    Ok(all)
}

/// Computes [`crate::logprob::backward`] on a device.
#[expect(clippy::too_many_arguments, reason = "as in the operation")]
pub(crate) fn backward(
    hidden: &Tensor,
    w: &Tensor,
    targets: &[u32],
    scale: LogitScale,
    restriction: Option<&Restriction>,
    stats: &TokenStats,
    d_logp: &[f32],
    d_entropy: Option<&[f32]>,
    dw: Option<&Tensor>,
) -> Result<Tensor> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = DeviceArray::from_tensor(hidden)?;
    let (device, kind) = (hs.device, hs.kind);
    let (h, w) = (DeviceMatrix::new(hs, m, d), DeviceMatrix::new(DeviceArray::from_tensor_with_kind(w, kind)?, vocab, d));
    let dw = dw.map(|dw| DeviceArray::from_tensor_with_kind(dw, ElementKind::F32)).transpose()?;
    let dh = unset(device, (m, d), kind)?;
    let block = rows_per_block(m, vocab);
    let logits = unset(device, (block, vocab), ElementKind::F32)?;
    let logits = DeviceArray::from_tensor(&logits)?;
    // The derivatives replace the logits if they have the same size.
    let rounded = (kind != ElementKind::F32).then(|| unset(device, (block, vocab), kind)).transpose()?;
    let d_logits = rounded.as_ref().map_or(Ok(logits), DeviceArray::from_tensor)?;
    let slopes = scale.cap.map(|_| unset(device, (block, vocab), ElementKind::F32)).transpose()?;
    let index = DeviceBuffer::new(device, targets)?;
    let (log_sum, entropy) = (DeviceBuffer::new(device, &stats.log_sum)?, DeviceBuffer::new(device, &stats.entropy)?);
    let (by_logp, by_entropy) =
        (DeviceBuffer::new(device, d_logp)?, d_entropy.map(|d| DeviceBuffer::new(device, d)).transpose()?);
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        let h = h.rows(first, rows);
        logits_of(logits, h, w, scale)?;
        let slopes = slopes.as_ref().map(DeviceArray::from_tensor).transpose()?.map(|slopes| slopes.first(rows * vocab));
        let all = logits.first(rows * vocab);
        slopes.zip(scale.cap()).map_or(Ok(()), |(slopes, cap)| elementwise::bound_slopes(slopes, all, cap))?;
        let penalised = restriction::apply(logits, restriction, &(first..first + rows), vocab)?;
        let from = |at: u64| at + (4 * first) as u64;
        let launch = KernelLaunch::with_kind(device, "logprob", "logit_gradient", kind).grid(vocab.div_ceil(4096), rows, 1);
        let launch = launch.array(d_logits).array(logits).address(from(index.at())).address(from(log_sum.at()));
        let launch = launch.address(from(entropy.at())).address(from(by_logp.at()));
        launch.address(by_entropy.as_ref().map_or(0, |d| from(d.at()))).int(vocab).run()?;
        penalised.map_or(Ok(()), |penalised| penalised.scale(d_logits, vocab))?;
        slopes.map_or(Ok(()), |slopes| elementwise::multiply_into(d_logits.first(rows * vocab), slopes))?;
        let d_logits = DeviceMatrix::new(d_logits, rows, vocab);
        product(hs, DeviceMatrix::new(DeviceArray::from_tensor(&dh)?, m, d).rows(first, rows), 0.0, d_logits, w, scale.factor())?;
        if let Some(dw) = dw {
            product(hs, DeviceMatrix::new(dw, vocab, d), 1.0, d_logits.t(), h, scale.factor())?;
        }
    }
    Ok(dh)
}

/// Computes [`crate::logprob::mean_logits`] on a device.
pub(crate) fn mean_logits(hidden: &Tensor, w: &Tensor) -> Result<Vec<f32>> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = DeviceArray::from_tensor(hidden)?;
    let mean = Tensor::zeros(d, candle_core::DType::F32, hidden.device())?;
    reduce::add_column_sums(&mean, w, 1.0 / vocab as f32)?;
    let out = unset(hs.device, m, ElementKind::F32)?;
    let launch = KernelLaunch::with_kind(hs.device, "rows", "row_products", hs.kind).blocks(m.div_ceil(8));
    launch
        .array(DeviceArray::from_tensor(&out)?)
        .array(hs)
        .array(DeviceArray::from_tensor(&mean)?)
        .float(1.0)
        .int(m)
        .int(d)
        .run()?;
    super::to_vec(&out)
}

/// Computes each row's mean logit over the vocabulary if logits are capped, which needs all of them; see [`crate::logprob::mean_logits`].
pub(crate) fn mean_of_logits(hidden: &Tensor, w: &Tensor, scale: LogitScale) -> Result<Vec<f32>> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = DeviceArray::from_tensor(hidden)?;
    let (h, w) = (DeviceMatrix::new(hs, m, d), DeviceMatrix::new(DeviceArray::from_tensor_with_kind(w, hs.kind)?, vocab, d));
    let block = rows_per_block(m, vocab);
    let logits = unset(hs.device, (block, vocab), ElementKind::F32)?;
    let (logits, ones) = (DeviceArray::from_tensor(&logits)?, DeviceBuffer::new(hs.device, &vec![1.0f32; vocab])?);
    let out = unset(hs.device, m, ElementKind::F32)?;
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        logits_of(logits, h.rows(first, rows), w, scale)?;
        let launch = KernelLaunch::with_kind(hs.device, "rows", "row_products", ElementKind::F32).blocks(rows.div_ceil(8));
        let launch = launch.address(DeviceArray::from_tensor(&out)?.at + (4 * first) as u64).array(logits).address(ones.at());
        launch.float(1.0 / vocab as f32).int(rows).int(vocab).run()?;
    }
    super::to_vec(&out)
}
