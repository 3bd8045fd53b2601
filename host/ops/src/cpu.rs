//! Slices of CPU tensors, and row operations that need nothing else.

#[cfg(feature = "cuda")]
use super::cuda;
use super::math::tanh;
use super::rounding::rounded;
use super::simd::wide;
use super::stored::Stored;
use super::{Error, Result, matrix_dims, on_device, team};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Shape, Storage, StorageRef, Tensor, WithDType};
use half::bf16;
use rayon::prelude::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, Range};
use std::sync::Mutex;

/// Rows per task in row-parallel operations. It is constant, so that sums over rows have the same order with any number of
/// threads.
pub(super) const ROWS_PER_TASK: usize = 32;

/// Values per task where each is treated by itself.
const PART: usize = 1 << 15;

/// Runs `work` with tensors like `t`, on the CPU on a thread of the pool. If it comes from outside, the pool's other threads stay awake
/// for a while: operations don't wait for one to wake up.
pub fn on_pool<T: Send>(t: &Tensor, work: impl FnOnce() -> T + Send) -> T {
    // On a thread of the pool, or in a team, others may be busy with parts of their own, which it must not wait for.
    let outside = t.device().is_cpu() && rayon::current_thread_index().is_none() && !team::is_led();
    if outside { team::awake(work) } else { work() }
}

/// Read access to a contiguous CPU tensor.
pub(super) struct Read<'a, T = f32> {
    guard: StorageRef<'a>,
    start: usize,
    end: usize,
    kind: PhantomData<T>,
}

impl<T: WithDType> Deref for Read<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &*self.guard {
            Storage::Cpu(data) => T::cpu_storage_as_slice(data).map_or(&[], |data| &data[self.start..self.end]),
            _ => &[],
        }
    }
}

pub(super) fn unsupported(op: &'static str, t: &Tensor) -> Error {
    Error::Unsupported { op, dtype: t.dtype(), device: format!("{:?}", t.device().location()) }
}

/// Returns the values of an f32 tensor without a copy.
pub(super) fn read(t: &Tensor) -> Result<Read<'_>> {
    read_as(t)
}

/// Returns the values of a tensor of this type without a copy.
pub(super) fn read_as<T: WithDType>(t: &Tensor) -> Result<Read<'_, T>> {
    let (guard, layout) = t.storage_and_layout();
    match layout.contiguous_offsets() {
        Some((start, end)) if t.dtype() == T::DTYPE && matches!(&*guard, Storage::Cpu(_)) => {
            Ok(Read { guard, start, end, kind: PhantomData })
        }
        _ => Err(unsupported("read", t)),
    }
}

struct Write<F>(Mutex<Option<F>>);

impl<F: FnOnce(&mut [f32])> InplaceOp1 for Write<F> {
    fn name(&self) -> &'static str {
        "rlhost-write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(data), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("in-place operation on a tensor that is not contiguous f32")
        };
        let task = self.0.lock().ok().and_then(|mut f| f.take());
        if let Some(f) = task {
            f(&mut data[start..end]);
        }
        Ok(())
    }
}

/// Changes a tensor's values in place, visibly to every view of the storage. A device's values are copied to the host and back.
pub fn write(t: &Tensor, f: impl FnOnce(&mut [f32])) -> Result<()> {
    on_device!(t, cuda::write(t, f));
    if t.dtype() != DType::F32 || !matches!(t.device(), Device::Cpu) || !t.is_contiguous() {
        return Err(unsupported("write", t));
    }
    t.inplace_op1(&Write(Mutex::new(Some(f))))?;
    Ok(())
}

struct WriteBytes<F>(Mutex<Option<F>>);

impl<F: FnOnce(&mut [u8])> InplaceOp1 for WriteBytes<F> {
    fn name(&self) -> &'static str {
        "rlhost-write-bytes"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::U8(data), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("in-place operation on a tensor that is not contiguous bytes")
        };
        let task = self.0.lock().ok().and_then(|mut f| f.take());
        if let Some(f) = task {
            f(&mut data[start..end]);
        }
        Ok(())
    }
}

/// Changes a CPU tensor of bytes in place, like [`write()`].
pub(super) fn write_bytes(t: &Tensor, f: impl FnOnce(&mut [u8])) -> Result<()> {
    if t.dtype() != DType::U8 || !matches!(t.device(), Device::Cpu) || !t.is_contiguous() {
        return Err(unsupported("write", t));
    }
    t.inplace_op1(&WriteBytes(Mutex::new(Some(f))))?;
    Ok(())
}

/// Creates a CPU tensor from its values.
pub(super) fn tensor(data: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    tensor_of(data, shape)
}

/// Does the same with values of any type.
pub(super) fn tensor_of<T: WithDType>(data: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    Ok(Tensor::from_vec(data, shape.into(), &Device::Cpu)?)
}

/// Returns `n` values set by `fill`, without clearing the memory first.
///
/// # Safety
/// `fill` must set all of them.
pub(super) unsafe fn filled<T>(n: usize, fill: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut data = Vec::with_capacity(n);
    fill(&mut data.spare_capacity_mut()[..n]);
    // SAFETY: the capacity suffices, and `fill` has set all values.
    unsafe { data.set_len(n) };
    data
}

/// Does the same for several vectors.
///
/// # Safety
/// `fill` must set all values of all of them.
pub(super) unsafe fn filled_each<const N: usize, T>(
    lengths: [usize; N],
    fill: impl FnOnce([&mut [MaybeUninit<T>]; N]),
) -> [Vec<T>; N] {
    let mut all = lengths.map(Vec::with_capacity);
    let mut rest = lengths.iter();
    fill(all.each_mut().map(|data| &mut data.spare_capacity_mut()[..rest.next().copied().unwrap_or(0)]));
    // SAFETY: the capacities suffice, and `fill` has set all values.
    all.iter_mut().zip(lengths).for_each(|(data, n)| unsafe { data.set_len(n) });
    all
}

/// Does the same for any number of vectors of these lengths, whose parts tasks write in any order.
///
/// # Safety
/// `fill` must set all values of all of them.
pub(super) unsafe fn filled_all(lengths: impl Iterator<Item = usize>, fill: impl FnOnce(&[Shared])) -> Vec<Vec<f32>> {
    let lengths: Vec<usize> = lengths.collect();
    let mut all: Vec<Vec<f32>> = lengths.iter().map(|n| Vec::with_capacity(*n)).collect();
    let places: Vec<Shared> = all.iter_mut().map(|data| Shared::of(data.spare_capacity_mut())).collect();
    fill(&places);
    // SAFETY: the capacities suffice, and `fill` has set all values.
    all.iter_mut().zip(lengths).for_each(|(data, n)| unsafe { data.set_len(n) });
    all
}

/// A raw pointer that tasks share to write disjoint places of a buffer.
pub(super) struct Shared<T = f32>(*mut T);
// SAFETY: every user gives its tasks disjoint ranges and outlives them.
unsafe impl<T: Send> Send for Shared<T> {}
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(data: &mut [T]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// Creates one from a pointer to the buffer.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn at_pointer(data: *mut T) -> Self {
        Self(data)
    }

    /// Creates one for uninitialised values.
    pub(super) fn of(data: &mut [MaybeUninit<T>]) -> Self {
        Self(data.as_mut_ptr().cast())
    }

    /// # Safety
    /// `offset` is within the buffer, and no other task accesses what the caller writes there.
    pub(super) unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: the caller keeps `offset` in bounds.
        unsafe { self.0.add(offset) }
    }
}

/// Creates a tensor of these f32 values.
pub fn from_vec(values: Vec<f32>, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    match device {
        Device::Cpu => tensor(values, shape),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::from_vec(&values, shape, device),
        _ => Ok(Tensor::from_vec(values, shape, device)?),
    }
}

/// Returns zeros with the shape, type and device of a tensor.
pub fn zeros_like(t: &Tensor) -> Result<Tensor> {
    on_device!(t, cuda::zeros_like(t));
    if t.dtype() != DType::F32 || t.elem_count() < 2 * PART {
        return Ok(t.zeros_like()?);
    }
    // SAFETY: the parts cover all of it.
    let zeros = unsafe {
        filled(t.elem_count(), |all| {
            all.par_chunks_mut(PART).for_each(|part| part.fill(MaybeUninit::new(0.0)));
        })
    };
    tensor(zeros, t.shape())
}

/// Returns the values in f32 in host memory, unaffected by later changes.
pub fn on_host(t: &Tensor) -> Result<Tensor> {
    match t.device() {
        Device::Cpu => Ok(t.copy()?),
        _ => tensor(to_vec(t)?, t.shape()),
    }
}

/// Copies the values into new storage.
pub fn copied(t: &Tensor) -> Result<Tensor> {
    on_device!(t, cuda::copy(t));
    Ok(t.copy()?)
}

/// Converts the values to another precision. Returns the same tensor if it has that one.
pub fn cast(t: &Tensor, dtype: DType) -> Result<Tensor> {
    on_device!(t, cuda::cast(t, dtype));
    match (t.dtype(), dtype) {
        (own, wanted) if own == wanted => Ok(t.clone()),
        (DType::F32, DType::BF16) => Ok(Tensor::from_vec(rounded(&read(t)?), t.shape(), &Device::Cpu)?),
        (DType::BF16 | DType::F16, DType::F32) => tensor(Stored::of(t.into())?.all(t.elem_count()), t.shape()),
        _ => Ok(t.to_dtype(dtype)?),
    }
}

/// Returns `(1 - alpha) own + alpha other` as a new tensor of the type of `own`.
pub fn mixed(own: &Tensor, other: &Tensor, alpha: f64) -> Result<Tensor> {
    on_device!(own, cuda::mixed(own, other, alpha));
    Ok(((own * (1.0 - alpha))? + (other * alpha)?)?)
}

/// Copies a tensor's values out in f32, in row-major order.
pub fn to_vec(t: &Tensor) -> Result<Vec<f32>> {
    on_device!(t, cuda::to_vec(t));
    Ok(Stored::of(t.into())?.all(t.elem_count()))
}

/// Returns whether no value is infinite or NaN. On the CPU only.
pub fn all_finite(t: &Tensor) -> Result<bool> {
    Ok(of_parts(t, |part| part.iter().all(|x| x.is_finite()))?.into_iter().all(|finite| finite))
}

/// Computes something of each part of a tensor's values in f32. The parts are the same with any number of threads.
fn of_parts<T: Send>(t: &Tensor, of: impl Fn(&[f32]) -> T + Sync) -> Result<Vec<T>> {
    let (values, count) = (Stored::of(t.into())?, t.elem_count());
    let of_part = |i: usize| of(&values.values(i * PART..count.min((i + 1) * PART)));
    Ok((0..count.div_ceil(PART)).into_par_iter().map(of_part).collect())
}

/// Adds elementwise: `into += t`.
pub fn add_into(into: &Tensor, t: &Tensor) -> Result<()> {
    on_device!(into, cuda::add_into(into, t));
    let src = read(t)?;
    if into.elem_count() != src.len() {
        return Err(Error::Shape { op: "add_into", detail: format!("{:?} += {:?}", into.shape(), t.shape()) });
    }
    write(into, |dst| {
        dst.par_chunks_mut(PART).zip(src.par_chunks(PART)).for_each(|(d, s)| {
            wide!(for (d, s) in d.iter_mut().zip(s) {
                *d += s;
            });
        });
    })
}

/// Returns `factor * t`.
pub fn scaled(t: &Tensor, factor: f32) -> Result<Tensor> {
    on_device!(t, cuda::scaled_and_added(t, factor, 0.0));
    each(t, |x| x * factor)
}

/// Returns `t + 1`, for norms whose weights are stored as offsets from one.
pub fn plus_one(t: &Tensor) -> Result<Tensor> {
    on_device!(t, cuda::scaled_and_added(t, 1.0, 1.0));
    each(t, |x| x + 1.0)
}

/// Returns `cap * tanh(t / cap)`.
pub fn bounded_by(t: &Tensor, cap: f32) -> Result<Tensor> {
    on_device!(t, cuda::bounded_by(t, cap));
    each(t, |x| cap * tanh(x / cap))
}

fn each(t: &Tensor, f: impl Fn(f32) -> f32 + Sync) -> Result<Tensor> {
    let src = read(t)?;
    // SAFETY: the chunks cover all of it.
    let out = unsafe {
        filled(src.len(), |out| {
            out.par_chunks_mut(PART).zip(src.par_chunks(PART)).for_each(|(out, src)| {
                wide!(for (o, s) in out.iter_mut().zip(src) {
                    o.write(f(*s));
                });
            });
        })
    };
    tensor(out, t.shape())
}

/// Sets every value to zero.
pub fn fill_zero(t: &Tensor) -> Result<()> {
    on_device!(t, cuda::fill_zero(t));
    write(t, |dst| dst.par_chunks_mut(PART).for_each(|d| d.fill(0.0)))
}

/// Returns the sum of the squares of all values of tensors on one device, in f64 and in an order that does not depend on threads.
pub fn sum_of_squares<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    #[cfg(feature = "cuda")]
    if let Some(first) = tensors.first() {
        on_device!(first, cuda::sum_of_squares(&tensors));
    }
    tensors.into_iter().try_fold(0.0, |sum, t| Ok(sum + squares(t)?))
}

/// Returns the `i`-th of `count` shares of so many things. Shares differ by one at most, as do sums of as many neighbouring ones.
pub(super) fn share(total: usize, i: usize, count: usize) -> Range<usize> {
    total * i / count..total * (i + 1) / count
}

pub(super) fn squares(t: &Tensor) -> Result<f64> {
    /// Number of interleaved partial sums, as many as fit into vector registers. A single sum would make each addition wait for
    /// the previous one.
    const LANES: usize = 32;
    let src = read(t)?;
    #[inline(always)]
    fn add(lanes: &mut [f64; LANES], group: &[f32]) {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane = f64::from(x).mul_add(f64::from(x), *lane);
        }
    }
    let part = |c: &[f32]| -> f64 {
        let mut lanes = [0f64; LANES];
        let (whole, rest) = c.as_chunks::<LANES>();
        wide!({
            for group in whole {
                add(&mut lanes, group);
            }
            add(&mut lanes, rest);
        });
        lanes.iter().sum()
    };
    let parts: Vec<f64> = src.par_chunks(1 << 13).map(part).collect();
    Ok(parts.iter().sum())
}

/// Returns a checksum that almost surely differs if any bit of a value does. A device's checksum differs from the CPU's.
pub fn checksum(t: &Tensor) -> Result<u64> {
    on_device!(t, cuda::checksum(t));
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |sum: u64, x: u64| (sum.rotate_left(5) ^ x).wrapping_mul(ODD);
    // Of codes too, which stand for themselves.
    let codes = if t.dtype() == DType::U8 { t.to_dtype(DType::F32)? } else { t.clone() };
    let parts = of_parts(&codes, |part| part.iter().fold(0, |sum, x| mix(sum, u64::from(x.to_bits()))))?;
    Ok(parts.into_iter().fold(0, mix))
}

/// Converts row numbers to a device's type. All must be rows of `t`.
#[cfg(feature = "cuda")]
fn numbers(t: &Tensor, rows: &[usize]) -> Result<Vec<u32>> {
    let (n, _) = matrix_dims(t);
    match rows.iter().find(|&&row| row >= n) {
        Some(bad) => Err(Error::Shape { op: "rows", detail: format!("row {bad} of {n}") }),
        None => Ok(rows.iter().map(|&row| row as u32).collect()),
    }
}

/// Returns rows `rows` of `t: [N, D]` as `[M, D]`.
pub fn gather_rows(t: &Tensor, rows: &[usize]) -> Result<Tensor> {
    on_device!(t, cuda::rows::gather(t, &numbers(t, rows)?));
    if t.dtype() == DType::BF16 { gathered::<bf16>(t, rows) } else { gathered::<f32>(t, rows) }
}

fn gathered<T: WithDType>(t: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let (_, cols) = matrix_dims(t);
    let src = read_as::<T>(t)?;
    let mut out = Vec::with_capacity(rows.len() * cols);
    for &r in rows {
        out.extend_from_slice(&src[r * cols..(r + 1) * cols]);
    }
    tensor_of(out, (rows.len(), cols))
}

/// Adds row `i` of `from: [M, D]` to row `rows[i]` of `into: [N, D]`: the transpose of [`gather_rows`].
pub fn scatter_add_rows(into: &Tensor, from: &Tensor, rows: &[usize]) -> Result<()> {
    on_device!(into, cuda::rows::scatter_add(into, from, &numbers(into, rows)?));
    let (_, cols) = matrix_dims(into);
    let src = read(from)?;
    if src.len() != rows.len() * cols {
        return Err(Error::Shape {
            op: "scatter_add_rows",
            detail: format!("{:?} for {} rows of {cols}", from.shape(), rows.len()),
        });
    }
    write(into, |dst| {
        for (from, &r) in src.chunks(cols).zip(rows) {
            for (d, s) in dst[r * cols..(r + 1) * cols].iter_mut().zip(from) {
                *d += s;
            }
        }
    })
}
