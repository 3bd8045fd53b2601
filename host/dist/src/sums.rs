//! Sums gradients over the ranks, with bit-identical results on each rank.

use super::{Result, Sums, World};
use crate::config::ReduceDtype;
use crate::ops;
use candle_core::Tensor;
use std::ops::Range;
use std::sync::mpsc;

/// Values summed at once: enough that a message's overhead does not count.
const BUCKET: usize = 1 << 20;

/// Cuts the concatenated values of tensors of these lengths into buckets. An entry says which tensor and which of its values.
fn buckets(lengths: &[usize], size: usize) -> Vec<Vec<(usize, Range<usize>)>> {
    let (mut all, mut bucket, mut room) = (Vec::new(), Vec::new(), size);
    for (tensor, &length) in lengths.iter().enumerate() {
        let mut from = 0;
        while from < length {
            let to = length.min(from + room);
            bucket.push((tensor, from..to));
            room -= to - from;
            from = to;
            if room == 0 {
                all.push(std::mem::take(&mut bucket));
                room = size;
            }
        }
    }
    all.extend((!bucket.is_empty()).then_some(bucket));
    all
}

/// Sums every rank's values. In bf16, each rank adds up a part of them in f32, so a value is rounded when it is sent, a sum when
/// it is sent back, and nothing else is.
fn reduce(by: Sums, dtype: ReduceDtype, own: &[f32], sums: &mut [f32]) {
    match dtype {
        ReduceDtype::Float32 => by.all_reduce(own, sums),
        ReduceDtype::Bfloat16 => {
            let whole = own.len().next_multiple_of(by.size());
            let (mut sent, mut parts) = (ops::round_bf16(own), vec![0; whole]);
            sent.resize(whole, 0);
            by.all_to_all(&sent, &mut parts);
            by.all_gather(&ops::round_bf16(&ops::sum_bf16(&parts, by.size())), &mut sent);
            ops::widen_bf16(&sent, sums);
        }
    }
}

/// Sums tensors in place; those on a device go through the host.
fn sum_tensors(by: Sums, dtype: ReduceDtype, tensors: &[&Tensor]) -> Result<()> {
    if tensors.iter().any(|tensor| !tensor.device().is_cpu()) {
        let host = tensors.iter().map(|tensor| ops::on_host(tensor)).collect::<ops::Result<Vec<Tensor>>>()?;
        sum_tensors(by, dtype, &host.iter().collect::<Vec<_>>())?;
        for (tensor, sums) in tensors.iter().zip(&host) {
            let sums = ops::to_vec(sums)?;
            ops::write(tensor, |values| values.copy_from_slice(&sums))?;
        }
        return Ok(());
    }
    let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.elem_count()).collect();
    let (mut own, mut sums) = (Vec::new(), Vec::new());
    for bucket in buckets(&lengths, BUCKET) {
        own.clear();
        for (tensor, range) in &bucket {
            ops::write(tensors[*tensor], |values| own.extend_from_slice(&values[range.clone()]))?;
        }
        sums.resize(own.len(), 0.0);
        reduce(by, dtype, &own, &mut sums);
        let mut at = 0;
        for (tensor, range) in bucket {
            let part = &sums[at..at + range.len()];
            ops::write(tensors[tensor], |values| values[range.clone()].copy_from_slice(part))?;
            at += range.len();
        }
    }
    Ok(())
}

impl World {
    /// Sums groups of f32 tensors over the ranks, in place. `work` computes them and calls its argument when the next group is
    /// ready. With `beside`, ready groups are summed on another thread while `work` continues; the sums are the same.
    ///
    /// All ranks must have reported in a gathering directly before. All sums are made even if `work` fails, so no rank waits; a
    /// rank where it failed reports that in the next gathering. Connected devices sum by themselves after `work`, on the same
    /// stream.
    ///
    /// # Errors
    /// If a tensor is not f32, or NCCL fails.
    #[cfg_attr(not(feature = "mpi"), expect(unreachable_code, unused_variables, reason = "there are no others without MPI"))]
    pub fn sum_beside<R>(
        &self,
        what: &'static str,
        (dtype, beside): (ReduceDtype, bool),
        groups: &[Vec<&Tensor>],
        work: impl FnOnce(&dyn Fn()) -> R,
    ) -> Result<R> {
        let Some((ranks, watchdog)) = &self.others else { return Ok(work(&|| ())) };
        #[cfg(feature = "nccl")]
        if let Some(devices) = self.devices.get() {
            let done = work(&|| ());
            watchdog.watch(what, Vec::new(), || groups.iter().try_for_each(|group| devices.sum(dtype, group)))?;
            return Ok(done);
        }
        let by = ranks.sums();
        let sum = |group: &Vec<&Tensor>| watchdog.watch(what, Vec::new(), || sum_tensors(by, dtype, group));
        if !(beside && ranks.serialized()) {
            let done = work(&|| ());
            groups.iter().try_for_each(sum)?;
            return Ok(done);
        }
        std::thread::scope(|scope| {
            let (ready, readiness) = mpsc::channel();
            let summing = scope.spawn(move || {
                groups.iter().try_for_each(|group| {
                    // A group not ready when the work has ended never will be.
                    let _ = readiness.recv();
                    sum(group)
                })
            });
            // The work does not depend on whether anybody listens.
            let done = work(&|| {
                let _ = ready.send(());
            });
            drop(ready);
            summing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(done)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_every_value_once_in_order() {
        for lengths in [&[3, 10, 1, 0, 4][..], &[8], &[4, 4], &[], &[0]] {
            let all = buckets(lengths, 4);
            let size = |bucket: &Vec<(usize, Range<usize>)>| bucket.iter().map(|(_, range)| range.len()).sum::<usize>();
            let (last, full) = all.split_last().map_or((None, &[][..]), |(last, full)| (Some(last), full));
            assert!(full.iter().all(|bucket| size(bucket) == 4) && last.is_none_or(|last| (1..=4).contains(&size(last))));
            let flat = all.into_iter().flatten().flat_map(|(tensor, range)| range.map(move |i| (tensor, i)));
            let want = lengths.iter().enumerate().flat_map(|(tensor, length)| (0..*length).map(move |i| (tensor, i)));
            assert!(flat.eq(want), "{lengths:?}");
        }
    }
}
