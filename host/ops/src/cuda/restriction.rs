//! Restricts logits on the device to the tokens that could be sampled; see [`crate::support`].

use super::super::Result;
use super::super::support::{OfRows, Restriction};
use super::array::{Array, Uploaded, at, buffer};
use super::launch::Launch;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use std::ops::Range;

/// Threads of a block that restricts a row.
const THREADS: u32 = 512;

/// Threads of a block that multiplies a token's logits.
const THREADS_OF_TOKEN: u32 = 64;

/// The logits of a block that a penalty multiplied, each with its factor.
pub(super) struct Penalised {
    entries: Uploaded<u32>,
    count: usize,
    factors: CudaSlice<f32>,
}

/// Restricts a block of logits `[rows, vocab]` in f32. Returns those that a penalty multiplied.
pub(super) fn apply(
    logits: Array<'_>,
    restriction: Option<&Restriction>,
    rows: &Range<usize>,
    vocab: usize,
) -> Result<Option<Penalised>> {
    let Some(restriction) = restriction else { return Ok(None) };
    let (device, of_rows) = (logits.device, restriction.of_rows(rows));
    let penalised = penalise(logits, &of_rows, vocab)?;
    let count = of_rows.restricted.len() / 3;
    if count > 0 {
        let (entries, words) = (Uploaded::new(device, &of_rows.restricted)?, Uploaded::new(device, of_rows.words)?);
        let launch = Launch::new(device, "logprob", "restrict_rows").blocks(count).threads(THREADS);
        launch.array(logits).address(entries.at()).address(words.at()).int(vocab).run()?;
    }
    Ok(penalised)
}

fn penalise(logits: Array<'_>, of_rows: &OfRows<'_>, vocab: usize) -> Result<Option<Penalised>> {
    let (device, count) = (logits.device, of_rows.penalised.len() / 4);
    if count == 0 {
        return Ok(None);
    }
    let (entries, factors) = (Uploaded::new(device, &of_rows.penalised)?, buffer::<f32>(device, of_rows.factors)?);
    let launch = Launch::new(device, "logprob", "penalise").blocks(count).threads(THREADS_OF_TOKEN);
    let launch = launch.array(logits).address(at(&factors)).address(entries.at());
    launch.float(of_rows.penalty).int(vocab).run()?;
    Ok(Some(Penalised { entries, count, factors }))
}

impl Penalised {
    /// Multiplies the derivatives by these logits as the logits were.
    pub fn scale(&self, d_logits: Array<'_>, vocab: usize) -> Result<()> {
        let launch = Launch::of_kind(d_logits.device, "logprob", "scale_penalised", d_logits.kind).blocks(self.count);
        let launch = launch.threads(THREADS_OF_TOKEN).array(d_logits).address(at(&self.factors));
        launch.address(self.entries.at()).int(vocab).run()
    }
}
