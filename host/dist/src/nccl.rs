//! Sums tensors on NVIDIA devices through NCCL, in order with all other work on the device's stream.

use super::collectives::CollectiveJob;
use super::{Error, Result};
use crate::config::ReduceDtype;
use crate::ops;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::cuda_backend::cudarc::nccl::result::NcclError;
use candle_core::cuda_backend::cudarc::nccl::sys::ncclResult_t;
use candle_core::cuda_backend::cudarc::nccl::{Comm, Id, ReduceOp, group_end, group_start};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Storage, Tensor};
use half::bf16;
use std::ops::Range;

/// Maximum number of values sent at once in bf16, which need a second copy.
const BUCKET: usize = 1 << 24;

/// Alignment that kernels need to read bf16 values, in values.
const ALIGNED: usize = 8;

/// Connection of this rank's device to all ranks' devices.
pub(super) struct NcclCommunicator {
    comm: Comm,
    device: CudaDevice,
}

fn failed(what: &'static str) -> impl Fn(NcclError) -> Error {
    move |NcclError(status)| {
        let detail = match status {
            // The library's stub returns this status if the library is missing.
            ncclResult_t::ncclInternalError => {
                "libnccl.so.2 was not found (host/cuda/README.md says where it is looked for), or NCCL_DEBUG=WARN gives details"
                    .to_owned()
            }
            other => format!("it returned {other:?}"),
        };
        Error::Nccl { what, detail }
    }
}

/// Runs the NCCL calls of `calls` as one group. The group is closed even if one fails, since later calls would block in it.
fn grouped(calls: impl FnOnce() -> Result<()>) -> Result<()> {
    group_start().map_err(failed("exchange gradients"))?;
    let called = calls();
    let closed = group_end().map_err(failed("exchange gradients"));
    called?;
    closed.map(drop)
}

/// An operation that sums a tensor in place.
struct AllReduce<'a>(&'a Comm);

impl InplaceOp1 for AllReduce<'_> {
    fn name(&self) -> &'static str {
        "rlhost-all-reduce"
    }

    fn cpu_fwd(&self, _storage: &mut CpuStorage, _layout: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("NCCL can't sum on the CPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("NCCL can't sum a tensor that is not contiguous")
        };
        let mut values = storage.as_cuda_slice_mut::<f32>()?.try_slice_mut(start..end);
        let Some(values) = &mut values else { candle_core::bail!("there are no values to sum") };
        let summed = self.0.all_reduce_in_place(values, &ReduceOp::Sum);
        summed.map(drop).map_err(|e| candle_core::Error::Msg(failed("sum gradients")(e).to_string()))
    }
}

impl NcclCommunicator {
    /// Returns the NCCL id with which all ranks find the first.
    ///
    /// # Errors
    /// If NCCL is missing.
    pub(super) fn id() -> Result<Vec<i8>> {
        Ok(Id::new().map_err(failed("begin"))?.internal().to_vec())
    }

    /// Connects to the other ranks, waiting for all of them.
    ///
    /// # Errors
    /// If NCCL can't connect them.
    pub(super) fn meet(device: &CudaDevice, rank: usize, size: usize, id: &[i8]) -> Result<Self> {
        let mut internal = [0; 128];
        internal.iter_mut().zip(id).for_each(|(to, from)| *to = *from);
        let comm =
            Comm::from_rank(device.cuda_stream(), rank, size, Id::uninit(internal)).map_err(failed("connect the devices"))?;
        Ok(Self { comm, device: device.clone() })
    }

    /// Runs a collective.
    ///
    /// # Errors
    /// If NCCL fails, or the job needs owned tensors.
    pub(super) fn run(&self, dtype: ReduceDtype, job: CollectiveJob) -> Result<()> {
        match job {
            CollectiveJob::Sum(tensors) => self.sum(dtype, &tensors.iter().collect::<Vec<_>>()),
            CollectiveJob::SumToOwners { .. } | CollectiveJob::Broadcast { .. } => {
                Err(Error::Nccl { what: "exchange what ranks own", detail: "this is for the CPU so far".to_owned() })
            }
        }
    }

    /// Sums f32 tensors on the device over the ranks, in place, with bit-identical results on each rank. Returns after the sums have
    /// arrived.
    ///
    /// # Errors
    /// If NCCL fails.
    fn sum(&self, dtype: ReduceDtype, tensors: &[&Tensor]) -> Result<()> {
        match dtype {
            ReduceDtype::Float32 => {
                let sum = |tensor: &&Tensor| Ok(tensor.inplace_op1(&AllReduce(&self.comm)).map_err(ops::Error::from)?);
                grouped(|| tensors.iter().try_for_each(sum))?;
            }
            ReduceDtype::Bfloat16 => tensors.iter().try_for_each(|tensor| self.sum_rounded(tensor))?,
        }
        if let Some(last) = tensors.last() {
            ops::device::wait_for(last)?;
        }
        Ok(())
    }

    /// Sums in bf16. NCCL would round each partial sum; here each rank sums its part of the values in f32.
    fn sum_rounded(&self, tensor: &Tensor) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.world_size());
        let whole = tensor.flatten_all().map_err(ops::Error::from)?;
        for first in (0..whole.elem_count()).step_by(BUCKET) {
            let length = BUCKET.min(whole.elem_count() - first);
            let piece = length.div_ceil(size).next_multiple_of(ALIGNED);
            let part = |rank: usize| (rank * piece).min(length)..((rank + 1) * piece).min(length);
            let values = |range: Range<usize>| whole.narrow(0, first + range.start, range.len()).map_err(ops::Error::from);

            let own = part(rank);
            let rounded = ops::cast(&values(0..length)?, DType::BF16)?;
            let parts = self.exchange(&rounded, part, |_| own.len())?;
            // A rank without a part has nothing to send, so any tensor will do.
            let mut sums = rounded;
            if !own.is_empty() {
                let sum = ops::zeros_like(&values(own.clone())?)?;
                for part in parts {
                    ops::add_into(&sum, &ops::cast(&part, DType::F32)?)?;
                }
                sums = ops::cast(&sum, DType::BF16)?;
            }
            let all = self.exchange(&sums, |_| 0..own.len(), |rank| part(rank).len())?;
            for (rank, sums) in all.iter().enumerate().filter(|(rank, _)| !part(*rank).is_empty()) {
                let place = values(part(rank))?;
                ops::fill_zero(&place)?;
                ops::add_into(&place, &ops::cast(sums, DType::F32)?)?;
            }
        }
        Ok(())
    }

    /// Sends each rank its range of bf16 values. Returns the values received from each rank, as many as that rank sends.
    fn exchange(&self, sent: &Tensor, to: impl Fn(usize) -> Range<usize>, from: impl Fn(usize) -> usize) -> Result<Vec<Tensor>> {
        let room = |rank| self.device.alloc_zeros::<bf16>(from(rank).max(1));
        let ranks = 0..self.comm.world_size();
        let mut received = ranks.map(room).collect::<candle_core::Result<Vec<CudaSlice<bf16>>>>().map_err(ops::Error::from)?;
        {
            let (storage, _) = sent.storage_and_layout();
            let Storage::Cuda(storage) = &*storage else { return Err(ops::Error::from(not_there()).into()) };
            let values = storage.as_cuda_slice::<bf16>().map_err(ops::Error::from)?;
            grouped(|| {
                for (rank, into) in received.iter_mut().enumerate() {
                    if !to(rank).is_empty() {
                        self.comm.send(&values.slice(to(rank)), rank as i32).map_err(failed("send gradients"))?;
                    }
                    if from(rank) > 0 {
                        self.comm.recv(&mut into.slice_mut(..from(rank)), rank as i32).map_err(failed("receive gradients"))?;
                    }
                }
                Ok(())
            })?;
        }
        let tensor = |(rank, slice): (usize, CudaSlice<bf16>)| {
            let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, self.device.clone()));
            let whole = Tensor::from_storage(storage, from(rank).max(1), BackpropOp::none(), false);
            Ok(whole.narrow(0, 0, from(rank)).map_err(ops::Error::from)?)
        };
        received.into_iter().enumerate().map(tensor).collect()
    }
}

fn not_there() -> candle_core::Error {
    candle_core::Error::Msg("the values to send are not on the device".into())
}
