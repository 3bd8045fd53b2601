//! Joins rows of two tensors in any order.

use super::slices::{SharedPointer, TensorSlice, filled, read_as, tensor_of};
use super::weight_storage::WeightValues;
use super::{Error, Result, matrix_dims};
use candle_core::{DType, Tensor, WithDType};
use half::bf16;
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Number of values that one task copies.
const TASK: usize = 1 << 14;

/// The tensor that a run of rows comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpliceSource {
    /// The first tensor.
    First,
    /// The second tensor.
    Second,
}

/// The rows of two tensors that make up another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splice {
    runs: Vec<(SpliceSource, Range<usize>)>,
    len: usize,
}

impl Splice {
    /// Appends rows of one of the tensors.
    pub fn push(&mut self, from: SpliceSource, rows: Range<usize>) {
        self.len += rows.len();
        match self.runs.last_mut() {
            Some((last, run)) if *last == from && run.end == rows.start => run.end = rows.end,
            _ => self.runs.push((from, rows)),
        }
    }

    /// Returns the number of rows, `N`.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the joined rows `[N, D]` of two CPU tensors `[., D]`: in bf16 if both are, otherwise in f32.
    ///
    /// # Errors
    /// If one of the tensors has too few rows, or they have different widths.
    pub fn forward(&self, first: &Tensor, second: &Tensor) -> Result<Tensor> {
        if first.dtype() == DType::BF16 && second.dtype() == DType::BF16 {
            let sources: [TensorSlice<'_, bf16>; 2] = [read_as(first)?, read_as(second)?];
            return self.rows(first, second, |from, start, to: &mut [MaybeUninit<bf16>]| {
                to.write_copy_of_slice(&sources[from as usize][start..start + to.len()]);
            });
        }
        let sources = [WeightValues::open(first.into())?, WeightValues::open(second.into())?];
        self.rows(first, second, |from, start, to| sources[from as usize].widen(start, to))
    }

    /// Calls `copy` for runs of rows of one tensor, to write its values from an index on to their destination.
    fn rows<T: WithDType>(
        &self,
        first: &Tensor,
        second: &Tensor,
        copy: impl Fn(SpliceSource, usize, &mut [MaybeUninit<T>]) + Sync,
    ) -> Result<Tensor> {
        let (sizes, width) = ([matrix_dims(first).0, matrix_dims(second).0], matrix_dims(first).1);
        let fits = |(from, rows): &(SpliceSource, Range<usize>)| rows.end <= sizes[*from as usize];
        if width != matrix_dims(second).1 || !self.runs.iter().all(fits) {
            let detail = format!("{:?} of {:?} and {:?}", self.runs, first.shape(), second.shape());
            return Err(Error::Shape { op: "splice", detail });
        }
        let (mut tasks, mut to) = (Vec::new(), 0);
        for (from, rows) in &self.runs {
            let (start, count) = (rows.start * width, rows.len() * width);
            tasks.extend((0..count).step_by(TASK).map(|at| (*from, start + at, to + at, TASK.min(count - at))));
            to += count;
        }
        // SAFETY: the tasks' destinations don't overlap and are all of it.
        let values = unsafe {
            filled::<T>(self.len * width, |out| {
                let out = SharedPointer::from_uninit(out);
                tasks.into_par_iter().for_each(|(from, start, to, count)| {
                    copy(from, start, std::slice::from_raw_parts_mut(out.at(to).cast(), count));
                });
            })
        };
        tensor_of(values, (self.len, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::to_vec;
    use candle_core::Device;

    /// Returns rows of `width` values that are their number.
    fn numbered(rows: usize, width: usize, first: usize) -> Tensor {
        let values = (0..rows * width).map(|i| (first + i / width) as f32).collect();
        Tensor::from_vec(values, (rows, width), &Device::Cpu).unwrap()
    }

    #[test]
    fn rows_come_from_where_they_were_taken() {
        let mut splice = Splice::default();
        splice.push(SpliceSource::First, 2..5);
        splice.push(SpliceSource::First, 5..6);
        splice.push(SpliceSource::Second, 0..1);
        splice.push(SpliceSource::First, 0..1);
        splice.push(SpliceSource::Second, 1..1);
        splice.push(SpliceSource::Second, 1..3);
        let wanted = [2, 3, 4, 5, 100, 0, 101, 102];
        assert_eq!((splice.len(), splice.is_empty()), (wanted.len(), false));
        // Rows of one task and of several, in f32 and in bf16, which represents these numbers exactly.
        for width in [1, 3, TASK + 5] {
            let (first, second) = (numbered(6, width, 0), numbered(3, width, 100).to_dtype(DType::BF16).unwrap());
            let got = to_vec(&splice.forward(&first, &second).unwrap()).unwrap();
            let want: Vec<f32> = wanted.iter().flat_map(|row| std::iter::repeat_n(*row as f32, width)).collect();
            assert_eq!(got, want);
            let halves = splice.forward(&first.to_dtype(DType::BF16).unwrap(), &second).unwrap();
            assert_eq!((halves.dtype(), to_vec(&halves).unwrap()), (DType::BF16, want));
        }
        assert!(splice.forward(&numbered(6, 2, 0), &numbered(2, 2, 0)).is_err(), "rows beyond the end");
        assert!(splice.forward(&numbered(6, 2, 0), &numbered(7, 3, 0)).is_err());
    }
}
