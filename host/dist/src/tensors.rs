//! Collectives on tensors: sums for all ranks or for a tensor's owner, and broadcasts of owned tensors.

use super::{Channel, Error, Result};
use crate::config::ReduceDtype;
use crate::ops;
use candle_core::Tensor;
use std::ops::Range;

/// A tensor that each rank has, or has room for, with the rank that owns it.
#[derive(Clone, Debug)]
pub struct OwnedTensor {
    /// This rank's copy of the tensor.
    pub tensor: Tensor,
    /// The owner's rank.
    pub owner: usize,
}

/// Number of values exchanged at once, large enough to make a message's overhead negligible.
const BUCKET: usize = 1 << 20;

/// Splits the concatenated values of tensors of these lengths into buckets. Each entry holds a tensor's index and a range of its values.
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

/// Passes the values of all tensors to `exchange` one bucket at a time, with a buffer for its results. With `returns`, the results replace
/// the values.
fn in_buckets(tensors: &[&Tensor], returns: bool, mut exchange: impl FnMut(&[f32], &mut [f32])) -> Result<()> {
    let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.elem_count()).collect();
    let (mut own, mut back) = (Vec::new(), Vec::new());
    for bucket in buckets(&lengths, BUCKET) {
        own.clear();
        for (tensor, range) in &bucket {
            ops::write(tensors[*tensor], |values| own.extend_from_slice(&values[range.clone()]))?;
        }
        back.resize(own.len(), 0.0);
        exchange(&own, &mut back);
        let mut at = 0;
        for (tensor, range) in bucket.into_iter().filter(|_| returns) {
            let part = &back[at..at + range.len()];
            ops::write(tensors[tensor], |values| values[range.clone()].copy_from_slice(part))?;
            at += range.len();
        }
    }
    Ok(())
}

/// Sums every rank's values. In bf16, each rank sums a part of them in f32, so only sent values and returned sums are rounded.
fn reduce(by: Channel, dtype: ReduceDtype, own: &[f32], sums: &mut [f32]) {
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

/// Sums every rank's values for their owner. In bf16, only the values that other ranks send are rounded.
fn reduce_to(by: Channel, dtype: ReduceDtype, owner: usize, own: &[f32], sums: &mut [f32]) {
    match dtype {
        ReduceDtype::Float32 => by.reduce(own, sums, owner),
        ReduceDtype::Bfloat16 => {
            let mut all = if by.rank() == owner { vec![0; own.len() * by.size()] } else { Vec::new() };
            by.gather(&ops::round_bf16(own), &mut all, owner);
            if by.rank() != owner {
                return;
            }
            sums.copy_from_slice(own);
            let mut widened = vec![0.0; own.len()];
            let others = all.chunks_exact(own.len()).enumerate().filter(|(rank, _)| *rank != owner);
            for (_, values) in others {
                ops::widen_bf16(values, &mut widened);
                sums.iter_mut().zip(&widened).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// Sums f32 tensors over the ranks in place, with bit-identical results on each. Tensors on a device go through host memory.
pub(super) fn sum(by: Channel, dtype: ReduceDtype, tensors: &[&Tensor]) -> Result<()> {
    if tensors.iter().any(|tensor| !tensor.device().is_cpu()) {
        let host = tensors.iter().map(|tensor| ops::on_host(tensor)).collect::<ops::Result<Vec<Tensor>>>()?;
        sum(by, dtype, &host.iter().collect::<Vec<_>>())?;
        for (tensor, sums) in tensors.iter().zip(&host) {
            let sums = ops::to_vec(sums)?;
            ops::write(tensor, |values| values.copy_from_slice(&sums))?;
        }
        return Ok(());
    }
    in_buckets(tensors, true, |own, sums| reduce(by, dtype, own, sums))
}

/// Sums f32 tensors over the ranks into the tensors of their owners. On other ranks, tensors keep their values, or are freed if `frees` is
/// set. A rank whose tensor is already freed adds nothing.
pub(super) fn sum_to_owners(by: Channel, dtype: ReduceDtype, tensors: &[OwnedTensor], frees: bool) -> Result<()> {
    tensors.iter().try_for_each(|owned| ops::allocate_values(&owned.tensor))?;
    for (owner, tensors) in by_owner(tensors) {
        let is_own = owner == by.rank();
        in_buckets(&tensors, is_own, |own, sums| reduce_to(by, dtype, owner, own, sums))?;
        if frees && !is_own {
            tensors.into_iter().try_for_each(ops::free_values)?;
        }
    }
    Ok(())
}

/// Copies tensors of any type from their owners to all ranks, allocating freed ones.
pub(super) fn broadcast(by: Channel, tensors: &[OwnedTensor]) -> Result<()> {
    // Other ranks also wait for the values that an owner lacks.
    let lacks = |owned: &&OwnedTensor| owned.owner == by.rank() && !ops::has_values(&owned.tensor);
    let lacked = tensors.iter().find(lacks);
    tensors.iter().try_for_each(|owned| ops::allocate_values(&owned.tensor))?;
    for (owner, tensors) in by_owner(tensors) {
        let lengths: Vec<usize> = tensors.iter().map(|t| t.elem_count() * t.dtype().size_in_bytes()).collect();
        let mut bytes = Vec::new();
        for bucket in buckets(&lengths, BUCKET * size_of::<f32>()) {
            bytes.clear();
            for (tensor, range) in &bucket {
                ops::write_bytes_of(tensors[*tensor], |own| bytes.extend_from_slice(&own[range.clone()]))?;
            }
            by.broadcast(&mut bytes, owner);
            let mut at = 0;
            for (tensor, range) in bucket.into_iter().filter(|_| owner != by.rank()) {
                let part = &bytes[at..at + range.len()];
                ops::write_bytes_of(tensors[tensor], |own| own[range.clone()].copy_from_slice(part))?;
                at += range.len();
            }
        }
    }
    lacked.map_or(Ok(()), |owned| Err(Error::NotOwned { rank: by.rank(), shape: owned.tensor.dims().to_vec() }))
}

/// Returns the tensors of each owner, by rank.
fn by_owner(tensors: &[OwnedTensor]) -> Vec<(usize, Vec<&Tensor>)> {
    let mut owners: Vec<usize> = tensors.iter().map(|owned| owned.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let of = |owner| tensors.iter().filter(|owned| owned.owner == owner).map(|owned| &owned.tensor).collect();
    owners.into_iter().map(|owner| (owner, of(owner))).collect()
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
