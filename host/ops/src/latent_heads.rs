//! Heads of attention whose keys and values are compressed (DeepSeek-AI 2024, arXiv 2405.04434): arranges the results of their projections
//! for attention, which reads heads of one width with the rotated dimensions first.
//!
//! A query head has `U` dimensions that are not rotated and `R` that are. The rotated part of a key is shared by all heads; a key head and
//! a value head of `V` dimensions are adjacent. Here all heads get the width `C`, the larger of `R + U` and `V`, and are filled up with
//! zeros, which change neither scores nor the values' part of outputs. Scores don't change either if queries and keys are reordered alike.

use super::capability::Capability;
use super::slices::{ROWS_PER_TASK, read, tensor};
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Numbers and sizes of the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    /// Number of heads, `H`.
    pub heads: usize,
    /// Rotated dimensions of a query or key head, `R`.
    pub rotated: usize,
    /// Other dimensions of a query or key head, `U`.
    pub unrotated: usize,
    /// Dimensions of a value head, `V`.
    pub values: usize,
}

/// Place of a part of every head in a row: where that of the first head begins, and the distance between heads.
#[derive(Clone, Copy)]
struct HeadPart {
    first: usize,
    step: usize,
}

/// Values of every head to copy from one matrix to another.
#[derive(Clone, Copy)]
struct HeadCopy<'a> {
    rows: &'a [f32],
    /// Width of the rows that values are copied from.
    width: usize,
    from: HeadPart,
    to: HeadPart,
    /// Number of values of each head.
    size: usize,
}

/// Returns rows of this width that consist of copies and zeros.
fn copied(n: usize, width: usize, heads: usize, copies: &[HeadCopy<'_>]) -> Result<Tensor> {
    let mut out = vec![0f32; n * width];
    let tasks = out.par_chunks_mut((width * ROWS_PER_TASK).max(1)).enumerate();
    tasks.for_each(|(task, rows)| {
        for (row, out) in rows.chunks_mut(width).enumerate() {
            for copy in copies {
                let own = &copy.rows[(task * ROWS_PER_TASK + row) * copy.width..][..copy.width];
                for head in 0..heads {
                    let (from, to) = (copy.from.first + head * copy.from.step, copy.to.first + head * copy.to.step);
                    out[to..to + copy.size].copy_from_slice(&own[from..from + copy.size]);
                }
            }
        }
    });
    tensor(out, (n, width))
}

impl LatentHeads {
    /// Returns the width of a head as attention reads it, `C`.
    pub fn width(self) -> usize {
        // An even width, as of other models' heads.
        (self.rotated + self.unrotated).max(self.values).next_multiple_of(2)
    }

    /// Returns the width of a query head, `U + R`.
    pub fn query(self) -> usize {
        self.unrotated + self.rotated
    }

    /// Returns the width of a key head without its shared part, and of a value head.
    pub fn key_value(self) -> usize {
        self.unrotated + self.values
    }

    /// Returns the number of rows of matrices that must have these widths.
    fn rows<const P: usize>(self, op: &'static str, all: [(&Tensor, usize); P]) -> Result<usize> {
        let n = all.first().map_or(0, |(t, _)| matrix_dims(t).0);
        for (t, width) in all {
            Capability::LatentAttention.require(t)?;
            if matrix_dims(t) != (n, width) {
                return Err(Error::shape(op, format!("{:?} in the place of ({n}, {width}) for {self:?}", t.shape())));
            }
        }
        Ok(n)
    }

    /// Returns the place of a part of heads that are adjacent and have this width.
    fn part(first: usize, step: usize) -> HeadPart {
        HeadPart { first, step }
    }

    /// Returns queries as attention reads them, `[N, H * C]`, given those of the projection, `[N, H * (U + R)]`.
    pub fn queries(self, x: &Tensor) -> Result<Tensor> {
        let (width, query) = (self.heads * self.query(), self.query());
        let (n, rows) = (self.rows("queries", [(x, width)])?, read(x)?);
        let (own, wide) = (|first| Self::part(first, query), |first| Self::part(first, self.width()));
        let rotated = HeadCopy { rows: &rows, width, from: own(self.unrotated), to: wide(0), size: self.rotated };
        let others = HeadCopy { from: own(0), to: wide(self.rotated), size: self.unrotated, ..rotated };
        copied(n, self.heads * self.width(), self.heads, &[rotated, others])
    }

    /// Returns the gradient of the projection's queries, given that of [`LatentHeads::queries`].
    pub fn queries_backward(self, dy: &Tensor) -> Result<Tensor> {
        let (width, query) = (self.heads * self.width(), self.query());
        let (n, rows) = (self.rows("queries backward", [(dy, width)])?, read(dy)?);
        let (own, wide) = (|first| Self::part(first, query), |first| Self::part(first, self.width()));
        let rotated = HeadCopy { rows: &rows, width, from: wide(0), to: own(self.unrotated), size: self.rotated };
        let others = HeadCopy { from: wide(self.rotated), to: own(0), size: self.unrotated, ..rotated };
        copied(n, self.heads * query, self.heads, &[rotated, others])
    }

    /// Returns keys and values as attention reads them, `[N, H * C]`, given those of the projection, `[N, H * (U + V)]`, and the part of
    /// keys that heads share, `[N, R]`.
    pub fn keys_and_values(self, projected: &Tensor, shared: &Tensor) -> Result<(Tensor, Tensor)> {
        let width = self.heads * self.key_value();
        let n = self.rows("keys", [(projected, width), (shared, self.rotated)])?;
        let (rows, shared) = (read(projected)?, read(shared)?);
        let (own, wide) = (|first| Self::part(first, self.key_value()), |first| Self::part(first, self.width()));
        let (from, to) = (Self::part(0, 0), wide(0));
        let rotated = HeadCopy { rows: &shared, width: self.rotated, from, to, size: self.rotated };
        let others = HeadCopy { rows: &rows, width, from: own(0), to: wide(self.rotated), size: self.unrotated };
        let values = HeadCopy { from: own(self.unrotated), to: wide(0), size: self.values, ..others };
        let keys = copied(n, self.heads * self.width(), self.heads, &[rotated, others])?;
        Ok((keys, copied(n, self.heads * self.width(), self.heads, &[values])?))
    }

    /// Returns the gradients of both arguments of [`LatentHeads::keys_and_values`], given those of keys and of values.
    pub fn keys_and_values_backward(self, d_keys: &Tensor, d_values: &Tensor) -> Result<(Tensor, Tensor)> {
        let (width, head) = (self.heads * self.width(), self.width());
        let n = self.rows("keys backward", [(d_keys, width), (d_values, width)])?;
        let (d_keys, d_values) = (read(d_keys)?, read(d_values)?);
        let (own, wide) = (|first| Self::part(first, self.key_value()), |first| Self::part(first, head));
        let keys = HeadCopy { rows: &d_keys, width, from: wide(self.rotated), to: own(0), size: self.unrotated };
        let values = HeadCopy { rows: &d_values, width, from: wide(0), to: own(self.unrotated), size: self.values };
        let d_projected = copied(n, self.heads * self.key_value(), self.heads, &[keys, values])?;
        let (mut d_shared, d_keys) = (vec![0f32; n * self.rotated], &d_keys[..]);
        d_shared.par_chunks_mut(self.rotated.max(1)).zip(d_keys.par_chunks(width)).for_each(|(sum, row)| {
            for head in row.chunks(head) {
                sum.iter_mut().zip(head).for_each(|(sum, d)| *sum += d);
            }
        });
        Ok((d_projected, tensor(d_shared, (n, self.rotated))?))
    }

    /// Returns attention's outputs without what they are filled up with, `[N, H * V]`, from `[N, H * C]`. This is the transpose of
    /// [`LatentHeads::filled_up`].
    pub fn outputs(self, x: &Tensor) -> Result<Tensor> {
        self.between(x, self.width(), self.values)
    }

    /// Returns outputs, or their gradient, `[N, H * V]`, filled up with zeros to `[N, H * C]`.
    pub fn filled_up(self, x: &Tensor) -> Result<Tensor> {
        self.between(x, self.values, self.width())
    }

    /// Copies the values of heads of one width to heads of another.
    fn between(self, x: &Tensor, from: usize, to: usize) -> Result<Tensor> {
        let (n, width) = (self.rows("outputs", [(x, self.heads * from)])?, self.heads * from);
        if from == to {
            return Ok(x.clone());
        }
        let rows = read(x)?;
        let (from, to_part) = (Self::part(0, from), Self::part(0, to));
        let copy = HeadCopy { rows: &rows, width, from, to: to_part, size: self.values };
        copied(n, self.heads * to, self.heads, &[copy])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;
    use candle_core::Device;

    const HEADS: LatentHeads = LatentHeads { heads: 2, rotated: 2, unrotated: 1, values: 2 };

    fn rows(t: &Tensor) -> Vec<Vec<f32>> {
        t.to_vec2().unwrap()
    }

    #[test]
    fn heads_begin_with_their_rotated_part_and_end_with_zeros() {
        let of = |values: &[f32]| Tensor::from_slice(values, (1, values.len()), &Device::Cpu).unwrap();
        assert_eq!(HEADS.width(), 4);
        let q = HEADS.queries(&of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
        assert_eq!(rows(&q), [[2.0, 3.0, 1.0, 0.0, 5.0, 6.0, 4.0, 0.0]]);
        let (k, v) = HEADS.keys_and_values(&of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), &of(&[8.0, 9.0])).unwrap();
        assert_eq!(rows(&k), [[8.0, 9.0, 1.0, 0.0, 8.0, 9.0, 4.0, 0.0]]);
        assert_eq!(rows(&v), [[2.0, 3.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0]]);
        assert_eq!(rows(&HEADS.outputs(&v).unwrap()), [[2.0, 3.0, 5.0, 6.0]]);
        // Values that are wider than queries.
        assert_eq!(LatentHeads { values: 5, ..HEADS }.width(), 6);
        assert!(HEADS.queries(&of(&[1.0; 5])).is_err() && HEADS.keys_and_values(&of(&[1.0; 6]), &of(&[1.0; 3])).is_err());
    }

    #[test]
    fn a_gradient_is_the_transpose() {
        for h in [
            LatentHeads { heads: 3, rotated: 4, unrotated: 6, values: 5 },
            LatentHeads { heads: 2, rotated: 2, unrotated: 3, values: 8 },
        ] {
            let dot = |a: &Tensor, b: &Tensor| (a * b).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-4 * a.abs().max(1.0), "{a} {b}");
            // More rows than one task has.
            let (n, wide) = (70, h.heads * h.width());
            let (x, dy) = (random(&[n, h.heads * h.query()]), random(&[n, wide]));
            near(dot(&h.queries(&x).unwrap(), &dy), dot(&x, &h.queries_backward(&dy).unwrap()));
            let (x, shared) = (random(&[n, h.heads * h.key_value()]), random(&[n, h.rotated]));
            let (dk, dv) = (random(&[n, wide]), random(&[n, wide]));
            let ((k, v), (d_x, d_shared)) =
                (h.keys_and_values(&x, &shared).unwrap(), h.keys_and_values_backward(&dk, &dv).unwrap());
            near(dot(&k, &dk) + dot(&v, &dv), dot(&x, &d_x) + dot(&shared, &d_shared));
            let (x, dy) = (random(&[n, wide]), random(&[n, h.heads * h.values]));
            near(dot(&h.outputs(&x).unwrap(), &dy), dot(&x, &h.filled_up(&dy).unwrap()));
        }
    }
}
