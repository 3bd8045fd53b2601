//! A step that was recorded once (as a CUDA graph) and is run again as a whole: a step of a small model is hundreds of
//! launches, each of which takes the host longer than the device.

use super::super::super::{Error, Result};
use super::super::array::at;
use super::super::launch::driver_error;
use super::Session;
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

/// A recorded step, for as many rows and shares as it was recorded for, or fewer.
pub struct Recorded {
    graph: CudaGraph,
    shape: Shape,
}

/// What the launches of a step depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    rows: usize,
    shares: usize,
    shares_at: u64,
}

impl Session {
    /// The shape that this step would be recorded in: rows are rounded up, so that a few recordings do for all, and shares
    /// are as many as there is room for.
    fn shape(&self) -> Shape {
        let rows = self.rows.next_power_of_two().min(self.sizes.slots);
        Shape { rows, shares: self.state.shares.len() / 4, shares_at: at(&self.state.shares) }
    }

    /// Whether a recording is one of a step like the next.
    pub fn fits(&self, recorded: &Recorded) -> bool {
        self.shape() == recorded.shape
    }

    /// Does `step` in the shape that a recording of it has. cuBLAS chooses how to sum by the number of rows, so that in another
    /// shape the bits would be others.
    pub fn in_shape(&mut self, step: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let (shape, before) = (self.shape(), (self.rows, self.shares));
        (self.rows, self.shares) = (shape.rows, shape.shares);
        let done = step(self);
        (self.rows, self.shares) = before;
        done
    }

    /// Records what `step` puts on the device's stream, without doing it. It must have been done in this shape before, so that
    /// all kernels are loaded, and must not allocate. No other thread may use the device meanwhile: that would be recorded too.
    pub fn record(&mut self, step: impl FnOnce(&Self) -> Result<()>) -> Result<Recorded> {
        let (stream, shape) = (self.device.cuda_stream(), self.shape());
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(driver_error)?;
        let done = self.in_shape(step);
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        done?;
        match graph.map_err(driver_error)? {
            Some(graph) => Ok(Recorded { graph, shape }),
            None => Err(Error::Shape { op: "decode", detail: "nothing was recorded".into() }),
        }
    }

    /// Does again what was recorded, for the rows as they are now.
    pub fn replay(&self, recorded: &Recorded) -> Result<()> {
        recorded.graph.launch().map_err(driver_error)
    }
}
