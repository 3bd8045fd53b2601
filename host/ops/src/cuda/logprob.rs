//! Log-probabilities and entropies in blocks of rows, so that the complete logits never exist.

use super::super::support::Restriction;
use super::super::tiles::Scale;
use super::super::token_stats::TokenStats;
use super::super::{Result, matrix_dims};
use super::array::{Array, Kind, Uploaded, at, buffer, unset};
use super::gemm::{Mat, product};
use super::launch::{Launch, driver_error};
use super::{elementwise, reduce, restriction};
use candle_core::Tensor;

/// Most logits at once: 1 GiB in f32, and half of that for derivatives in bf16. With fewer, the output matrix's gradient would be
/// read and written too often.
const LOGITS: usize = 1 << 28;

/// Threads of a block that processes a row of logits.
const THREADS: u32 = 512;

/// Computes the logits of some rows of hidden states.
fn logits_of(out: Array<'_>, h: Mat, w: Mat, scale: Scale) -> Result<()> {
    product(out, Mat::new(out, h.rows, w.rows), 0.0, h, w.t(), scale.factor())?;
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
    scale: Scale,
    restriction: Option<&Restriction>,
) -> Result<TokenStats> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = Array::of(hidden)?;
    let (h, w) = (Mat::new(hs, m, d), Mat::new(Array::of_kind(w, hs.kind)?, vocab, d));
    let block = rows_per_block(m, vocab);
    let logits = unset(hs.device, (block, vocab), Kind::F32)?;
    let logits = Array::of(&logits)?;
    let index = Uploaded::new(hs.device, targets)?;
    // Four columns for each block of rows, one block after the other.
    let stats = buffer::<f32>(hs.device, 4 * m)?;
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        logits_of(logits, h.rows(first, rows), w, scale)?;
        restriction::apply(logits, restriction, &(first..first + rows), vocab)?;
        let launch = Launch::new(hs.device, "logprob", "row_stats").blocks(rows).threads(THREADS);
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
    scale: Scale,
    restriction: Option<&Restriction>,
    stats: &TokenStats,
    d_logp: &[f32],
    d_entropy: Option<&[f32]>,
    dw: Option<&Tensor>,
) -> Result<Tensor> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = Array::of(hidden)?;
    let (device, kind) = (hs.device, hs.kind);
    let (h, w) = (Mat::new(hs, m, d), Mat::new(Array::of_kind(w, kind)?, vocab, d));
    let dw = dw.map(|dw| Array::of_kind(dw, Kind::F32)).transpose()?;
    let dh = unset(device, (m, d), kind)?;
    let block = rows_per_block(m, vocab);
    let logits = unset(device, (block, vocab), Kind::F32)?;
    let logits = Array::of(&logits)?;
    // The derivatives replace the logits if they have the same size.
    let rounded = (kind != Kind::F32).then(|| unset(device, (block, vocab), kind)).transpose()?;
    let d_logits = rounded.as_ref().map_or(Ok(logits), Array::of)?;
    let slopes = scale.cap.map(|_| unset(device, (block, vocab), Kind::F32)).transpose()?;
    let index = Uploaded::new(device, targets)?;
    let (log_sum, entropy) = (Uploaded::new(device, &stats.log_sum)?, Uploaded::new(device, &stats.entropy)?);
    let (by_logp, by_entropy) = (Uploaded::new(device, d_logp)?, d_entropy.map(|d| Uploaded::new(device, d)).transpose()?);
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        let h = h.rows(first, rows);
        logits_of(logits, h, w, scale)?;
        let slopes = slopes.as_ref().map(Array::of).transpose()?.map(|slopes| slopes.first(rows * vocab));
        let all = logits.first(rows * vocab);
        slopes.zip(scale.cap()).map_or(Ok(()), |(slopes, cap)| elementwise::bound_slopes(slopes, all, cap))?;
        let penalised = restriction::apply(logits, restriction, &(first..first + rows), vocab)?;
        let from = |at: u64| at + (4 * first) as u64;
        let launch = Launch::of_kind(device, "logprob", "logit_gradient", kind).grid(vocab.div_ceil(4096), rows, 1);
        let launch = launch.array(d_logits).array(logits).address(from(index.at())).address(from(log_sum.at()));
        let launch = launch.address(from(entropy.at())).address(from(by_logp.at()));
        launch.address(by_entropy.as_ref().map_or(0, |d| from(d.at()))).int(vocab).run()?;
        penalised.map_or(Ok(()), |penalised| penalised.scale(d_logits, vocab))?;
        slopes.map_or(Ok(()), |slopes| elementwise::multiply_into(d_logits.first(rows * vocab), slopes))?;
        let d_logits = Mat::new(d_logits, rows, vocab);
        product(hs, Mat::new(Array::of(&dh)?, m, d).rows(first, rows), 0.0, d_logits, w, scale.factor())?;
        if let Some(dw) = dw {
            product(hs, Mat::new(dw, vocab, d), 1.0, d_logits.t(), h, scale.factor())?;
        }
    }
    Ok(dh)
}

/// Computes [`crate::logprob::mean_logits`] on a device.
pub(crate) fn mean_logits(hidden: &Tensor, w: &Tensor) -> Result<Vec<f32>> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = Array::of(hidden)?;
    let mean = Tensor::zeros(d, candle_core::DType::F32, hidden.device())?;
    reduce::add_column_sums(&mean, w, 1.0 / vocab as f32)?;
    let out = unset(hs.device, m, Kind::F32)?;
    let launch = Launch::of_kind(hs.device, "rows", "row_products", hs.kind).blocks(m.div_ceil(8));
    launch.array(Array::of(&out)?).array(hs).array(Array::of(&mean)?).float(1.0).int(m).int(d).run()?;
    super::to_vec(&out)
}

/// Computes the mean of each row's logits over the vocabulary where logits are bounded, which needs all of them; see
/// [`crate::logprob::mean_logits`].
pub(crate) fn mean_of_logits(hidden: &Tensor, w: &Tensor, scale: Scale) -> Result<Vec<f32>> {
    let ((m, d), (vocab, _)) = (matrix_dims(hidden), matrix_dims(w));
    let hs = Array::of(hidden)?;
    let (h, w) = (Mat::new(hs, m, d), Mat::new(Array::of_kind(w, hs.kind)?, vocab, d));
    let block = rows_per_block(m, vocab);
    let logits = unset(hs.device, (block, vocab), Kind::F32)?;
    let (logits, ones) = (Array::of(&logits)?, Uploaded::new(hs.device, &vec![1.0f32; vocab])?);
    let out = unset(hs.device, m, Kind::F32)?;
    for first in (0..m).step_by(block) {
        let rows = block.min(m - first);
        logits_of(logits, h.rows(first, rows), w, scale)?;
        let launch = Launch::of_kind(hs.device, "rows", "row_products", Kind::F32).blocks(rows.div_ceil(8));
        let launch = launch.address(Array::of(&out)?.at + (4 * first) as u64).array(logits).address(ones.at());
        launch.float(1.0 / vocab as f32).int(rows).int(vocab).run()?;
    }
    super::to_vec(&out)
}
