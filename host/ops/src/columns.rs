//! Joint projections: several matrices that share an input are stored as one, whose output is split.
//!
//! A row of outputs consists of groups, each with parts of these widths in turn. Phi 3 has one group of all query, key and value heads;
//! GPT-NeoX has a group for each head.

#[cfg(feature = "cuda")]
use super::cuda;
use super::simd::wide;
use super::slices::{read, tensor, write};
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;

/// Splits `x: [N, groups * (a + b + ...)]` into `[N, groups * a]`, `[N, groups * b]`, and so on.
pub fn split(x: &Tensor, widths: &[usize]) -> Result<Vec<Tensor>> {
    let (n, width) = matrix_dims(x);
    let group: usize = widths.iter().sum();
    if group == 0 || width % group != 0 {
        return Err(Error::Shape { op: "split", detail: format!("{:?} into parts of {widths:?}", x.shape()) });
    }
    on_device!(x, cuda::columns::split(x, widths));
    let xs = read(x)?;
    let mut first = 0;
    let part = |&width: &usize| {
        let mut out = Vec::with_capacity(xs.len() / group * width);
        xs.chunks_exact(group).for_each(|group| out.extend_from_slice(&group[first..first + width]));
        first += width;
        let columns = out.len() / n.max(1);
        tensor(out, (n, columns))
    };
    widths.iter().map(part).collect()
}

/// Joins parts into one matrix. This is the inverse of [`split`], and its transpose.
pub fn join(parts: &[&Tensor], widths: &[usize]) -> Result<Tensor> {
    let n = parts.first().map_or(0, |part| matrix_dims(part).0);
    let groups = parts.first().map_or(0, |part| matrix_dims(part).1 / widths.first().copied().unwrap_or(1).max(1));
    let fits = |(part, &width): (&&Tensor, &usize)| matrix_dims(part) == (n, groups * width);
    if parts.len() != widths.len() || !parts.iter().zip(widths).all(fits) {
        let shapes: Vec<_> = parts.iter().map(|part| part.shape()).collect();
        return Err(Error::Shape { op: "join", detail: format!("{shapes:?} with parts of {widths:?}") });
    }
    #[cfg(feature = "cuda")]
    if let Some(first) = parts.first() {
        on_device!(first, cuda::columns::join(parts, widths));
    }
    let read: Vec<_> = parts.iter().map(|part| read(part)).collect::<Result<_>>()?;
    let group: usize = widths.iter().sum();
    let mut out = Vec::with_capacity(n * groups * group);
    for i in 0..n * groups {
        for (part, &width) in read.iter().zip(widths) {
            out.extend_from_slice(&part[i * width..(i + 1) * width]);
        }
    }
    tensor(out, (n, groups * group))
}

/// Multiplies each column of `x: [N, C]` with its factor, in place.
pub fn scale(x: &Tensor, factors: &[f32]) -> Result<()> {
    let (_, width) = matrix_dims(x);
    if width != factors.len() {
        return Err(Error::Shape { op: "scale", detail: format!("{:?} by {} factors", x.shape(), factors.len()) });
    }
    write(x, |xs| {
        let row = |row: &mut [f32]| wide!(row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor));
        xs.chunks_exact_mut(width).for_each(row);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn parts_are_taken_from_each_group_and_joined_again() {
        let x = Tensor::arange(0f32, 24.0, &Device::Cpu).unwrap().reshape((2, 12)).unwrap();
        let rows = |t: &Tensor| t.to_vec2::<f32>().unwrap();
        let one = split(&x, &[6, 4, 2]).unwrap();
        assert_eq!(rows(&one[1]), [[6.0, 7.0, 8.0, 9.0], [18.0, 19.0, 20.0, 21.0]]);
        let groups = split(&x, &[2, 1, 1]).unwrap();
        assert_eq!(rows(&groups[0])[0], [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]);
        assert_eq!(rows(&groups[2])[1], [15.0, 19.0, 23.0]);
        for (parts, widths) in [(one, [6, 4, 2]), (groups, [2, 1, 1])] {
            let joined = join(&parts.iter().collect::<Vec<_>>(), &widths).unwrap();
            assert_eq!(rows(&joined), rows(&x));
        }
        scale(&x, &(0..12).map(|column| column as f32).collect::<Vec<_>>()).unwrap();
        assert_eq!((rows(&x)[0][3], rows(&x)[1][11], scale(&x, &[2.0]).is_err()), (9.0, 253.0, true));
        assert!(split(&x, &[5, 2]).is_err() && join(&[&x], &[5]).is_err());
    }
}
