//! Records a step once as a CUDA graph and replays it. A step of a small model has hundreds of launches, each of which takes the host
//! longer than the device.

use super::super::super::{Error, Result};
use super::super::array::at;
use super::super::launch::driver_error;
use super::session::DecodeSession;
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

/// A recorded step, usable for at most as many rows and shares as it was recorded for.
pub struct RecordedStep {
    graph: CudaGraph,
    shape: StepShape,
}

/// Sizes that the launches of a step depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StepShape {
    rows: usize,
    shares: usize,
    shares_at: u64,
}

impl DecodeSession {
    /// Returns the shape in which this step would be recorded. Rows are rounded up, so that a few recordings are enough; the number of
    /// shares is the maximum that fits.
    fn shape(&self) -> StepShape {
        let rows = self.rows.next_power_of_two().min(self.sizes.slots);
        StepShape { rows, shares: self.state.shares.len() / 4, shares_at: at(&self.state.shares) }
    }

    /// Returns whether a recording can be used for the next step.
    pub fn fits(&self, recorded: &RecordedStep) -> bool {
        self.shape() == recorded.shape
    }

    /// Runs `step` in the shape that its recording would have. cuBLAS chooses the order of sums by the number of rows, so another shape
    /// would change bits.
    pub fn in_shape(&mut self, step: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let (shape, before) = (self.shape(), (self.rows, self.shares));
        (self.rows, self.shares) = (shape.rows, shape.shares);
        let done = step(self);
        (self.rows, self.shares) = before;
        done
    }

    /// Records the launches of `step` on the device's stream without running them. The step must have run in this shape before, so that all
    /// kernels are loaded, and must not allocate. No other thread may use the device meanwhile, because its work would be recorded too.
    pub fn record(&mut self, step: impl FnOnce(&Self) -> Result<()>) -> Result<RecordedStep> {
        let (stream, shape) = (self.device.cuda_stream(), self.shape());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(driver_error)?;
        let done = self.in_shape(step);
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        done?;
        match graph.map_err(driver_error)? {
            Some(graph) => Ok(RecordedStep { graph, shape }),
            None => Err(Error::Shape { op: "decode", detail: "nothing was recorded".into() }),
        }
    }

    /// Replays a recording for the current rows.
    pub fn replay(&self, recorded: &RecordedStep) -> Result<()> {
        recorded.graph.launch().map_err(driver_error)
    }
}
