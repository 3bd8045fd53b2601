//! Restricts logits on the device to the tokens that could be sampled; see [`crate::support`].

use super::super::Result;
use super::super::support::{BlockRestriction, Restriction};
use super::array::{DeviceArray, DeviceBuffer, at, buffer};
use super::launch::KernelLaunch;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use std::ops::Range;

/// Number of threads of a block that restricts a row.
const THREADS: u32 = 512;

/// Number of threads of a block that multiplies a token's logits.
const THREADS_OF_TOKEN: u32 = 64;

/// The logits of a block that a penalty multiplied, each with its factor.
pub(super) struct PenalisedLogits {
    entries: DeviceBuffer<u32>,
    count: usize,
    factors: CudaSlice<f32>,
}

/// Restricts a block of logits `[rows, vocab]` in f32. Returns those that a penalty multiplied.
pub(super) fn apply(
    logits: DeviceArray<'_>,
    restriction: Option<&Restriction>,
    rows: &Range<usize>,
    vocab: usize,
) -> Result<Option<PenalisedLogits>> {
    let Some(restriction) = restriction else { return Ok(None) };
    let (device, of_rows) = (logits.device, restriction.of_rows(rows));
    let penalised = penalise(logits, &of_rows, vocab)?;
    let count = of_rows.restricted.len() / 3;
    if count > 0 {
        let (entries, words) = (DeviceBuffer::new(device, &of_rows.restricted)?, DeviceBuffer::new(device, of_rows.words)?);
        let launch = KernelLaunch::new(device, "logprob", "restrict_rows").blocks(count).threads(THREADS);
        launch.array(logits).address(entries.at()).address(words.at()).int(vocab).run()?;
    }
    Ok(penalised)
}

fn penalise(logits: DeviceArray<'_>, of_rows: &BlockRestriction<'_>, vocab: usize) -> Result<Option<PenalisedLogits>> {
    let (device, count) = (logits.device, of_rows.penalised.len() / 4);
    if count == 0 {
        return Ok(None);
    }
    let (entries, factors) = (DeviceBuffer::new(device, &of_rows.penalised)?, buffer::<f32>(device, of_rows.factors)?);
    let launch = KernelLaunch::new(device, "logprob", "penalise").blocks(count).threads(THREADS_OF_TOKEN);
    let launch = launch.array(logits).address(at(&factors)).address(entries.at());
    launch.float(of_rows.penalty).int(vocab).run()?;
    Ok(Some(PenalisedLogits { entries, count, factors }))
}

impl PenalisedLogits {
    /// Multiplies the derivatives with respect to these logits by the logits' factors.
    pub fn scale(&self, d_logits: DeviceArray<'_>, vocab: usize) -> Result<()> {
        let launch = KernelLaunch::with_kind(d_logits.device, "logprob", "scale_penalised", d_logits.kind).blocks(self.count);
        let launch = launch.threads(THREADS_OF_TOKEN).array(d_logits).address(at(&self.factors));
        launch.address(self.entries.at()).int(vocab).run()
    }
}
