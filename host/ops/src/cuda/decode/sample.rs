//! Samples tokens on the device; see `host/kernels/sample.cu` and, for sampling without filters, `sample_parts.cu`.

use super::super::super::sampler::{SampledToken, Sampler};
#[cfg(doc)]
use super::super::super::support::Support;
use super::super::super::{Error, Result, matrix_dims};
use super::super::array::{DeviceArray, DeviceBuffer, ElementKind, at};
use super::super::launch::{KernelLaunch, driver_error};
use super::session::DecodeSession;
use super::state::PART;
use candle_core::Tensor;

/// Maximum number of threads per block.
const THREADS: usize = 1024;

/// Maximum number of parts of a row of logits, as in the kernels.
const MOST_PARTS: usize = 1024;

/// Settings of sampling on a device.
#[derive(Clone, Copy, Debug)]
pub struct DrawOptions {
    /// Sampling settings of the policy.
    pub sampling: Sampler,
    /// Divisor of the logits for the log-probability.
    pub logp_temperature: f32,
    /// Whether to record each token's support, as in [`Sampler::draw`].
    pub keep_support: bool,
}

impl DecodeSession {
    /// Samples a token for every row from the step's logits.
    pub fn draw(&self, how: &DrawOptions) -> Result<()> {
        let [_, slots, step] = self.tables();
        self.launch_draw(how, DeviceArray::from_tensor(&self.values.logits)?, 0, slots, step, self.rows)
    }

    /// Samples the first token of the sequences in `slots` from rows `rows` of other logits, `[P, V]` in f32. [`DecodeSession::drawn`]
    /// returns the tokens in that order.
    pub fn draw_first(&self, how: &DrawOptions, logits: &Tensor, slots: &[u32], rows: &[u32]) -> Result<()> {
        let (count, vocabulary) = matrix_dims(logits);
        if vocabulary != self.sizes.vocabulary || slots.len() != rows.len() || rows.iter().any(|r| *r as usize >= count) {
            return Err(Error::Shape { op: "decode", detail: format!("logits of {:?} for rows {rows:?}", logits.shape()) });
        }
        let step = DeviceBuffer::new(&self.device, &[slots.len() as u32, 0])?;
        let (of_slots, of_rows) = (DeviceBuffer::new(&self.device, slots)?, DeviceBuffer::new(&self.device, rows)?);
        self.launch_draw(
            how,
            DeviceArray::from_tensor_with_kind(logits, ElementKind::F32)?,
            of_rows.at(),
            of_slots.at(),
            step.at(),
            slots.len(),
        )
    }

    fn launch_draw(
        &self,
        how: &DrawOptions,
        logits: DeviceArray<'_>,
        logit_rows: u64,
        slots: u64,
        step: u64,
        rows: usize,
    ) -> Result<()> {
        if how.sampling.repetition_penalty != 1.0 && !self.sizes.remembers {
            return Err(Error::Shape {
                op: "decode",
                detail: "a repetition penalty in a session that does not remember tokens".into(),
            });
        }
        let (s, vocabulary) = (&how.sampling, self.sizes.vocabulary);
        let filters = (s.top_k > 0 && s.top_k < vocabulary) || s.top_p < 1.0 || s.min_p > 0.0;
        let support = if how.keep_support && s.temperature > 0.0 { self.support_at()? } else { 0 };
        if support == 0 && (s.temperature == 0.0 || !filters) && vocabulary <= MOST_PARTS * PART {
            let penalty = u64::from(s.repetition_penalty.to_bits());
            let sizes = vocabulary as u64 | u64::from(s.temperature.to_bits()) << 32;
            let of = [logits.at, logit_rows, slots, step, at(&self.state.seen), sizes, penalty];
            return self.launch_in_parts(how, &of, rows);
        }
        let threads = vocabulary.next_multiple_of(32).min(THREADS) as u32;
        let launch = KernelLaunch::new(&self.device, "sample", "sample").blocks(rows).threads(threads);
        let launch = launch.address(at(&self.state.drawn)).address(support).array(logits).address(logit_rows);
        let launch = launch.address(at(&self.state.sequences)).address(slots).address(step);
        let launch = launch.address(at(&self.state.uniforms)).address(at(&self.state.seen));
        let launch = launch.int(vocabulary).int(self.sizes.max_own_positions).float(s.temperature).float(how.logp_temperature);
        launch.float(s.top_p).float(s.min_p).float(s.repetition_penalty).int(s.top_k).run()
    }

    /// Samples with the kernels of `host/kernels/sample_parts.cu`. `of` is their `struct Rows`.
    fn launch_in_parts(&self, how: &DrawOptions, of: &[u64; 7], rows: usize) -> Result<()> {
        let parts = self.sizes.parts();
        let launch = |kernel: &str| KernelLaunch::new(&self.device, "sample_parts", kernel);
        let (tops, masses) = (at(&self.state.tops), at(&self.state.masses));
        launch("sample_tops").grid(parts, rows, 1).address(tops).structure(of).float(how.logp_temperature).run()?;
        if how.sampling.temperature > 0.0 {
            launch("sample_masses").grid(parts, rows, 1).address(masses).address(tops).structure(of).run()?;
        }
        let launch = launch("sample_parts").blocks(rows).address(at(&self.state.drawn)).address(tops).address(masses);
        let launch = launch.structure(of).int(parts).float(how.logp_temperature).address(at(&self.state.sequences));
        launch.address(at(&self.state.uniforms)).int(self.sizes.max_own_positions).address(at(&self.state.seen)).run()
    }

    /// Waits for the first `count` samples and returns them.
    pub fn drawn(&self, count: usize) -> Result<Vec<SampledToken>> {
        let words = self.device.clone_dtoh(&self.state.drawn.slice(..count * 2))?;
        self.device.cuda_stream().synchronize().map_err(driver_error)?;
        Ok(words.chunks_exact(2).map(|d| SampledToken { token: d[0], logp: f32::from_bits(d[1]) }).collect())
    }

    /// Waits for the first `count` samples and returns the bits of the tokens that each could have been; see [`Support::push_bits`].
    ///
    /// # Errors
    /// If the session does not record supports.
    pub fn supports(&self, count: usize) -> Result<Vec<Vec<u32>>> {
        self.support_at()?;
        let words = self.sizes.words();
        let bits = self.device.clone_dtoh(&self.state.support.slice(..count * words))?;
        self.device.cuda_stream().synchronize().map_err(driver_error)?;
        Ok(bits.chunks_exact(words).map(<[u32]>::to_vec).collect())
    }

    fn support_at(&self) -> Result<u64> {
        if !self.sizes.keeps_support {
            return Err(Error::Shape { op: "decode", detail: "a session that does not keep tokens' supports".into() });
        }
        Ok(at(&self.state.support))
    }
}
