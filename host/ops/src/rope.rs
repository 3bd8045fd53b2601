//! Rotary position embedding (Su et al. 2021): dimension `i` is rotated with dimension `i + C/2`, as in most models, or with its
//! neighbour.

#[cfg(feature = "cuda")]
use super::cuda;
use super::forest::Forest;
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, write};
use super::{Capability, Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use rayon::prelude::*;
#[cfg(feature = "cuda")]
use std::sync::Mutex;
use std::sync::{Arc, PoisonError, RwLock};

/// Minimum number of positions of a table, unless the rotation has fewer.
const FEWEST: usize = 1024;

/// Pairing of the dimensions of a head that are rotated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopePairing {
    /// Pairs dimensions that are half of the rotated dimensions apart.
    #[default]
    Halves,
    /// Pairs each even dimension with the next.
    Neighbours,
}

/// A rotary embedding, with tables of the positions in use; a model may allow millions more.
#[derive(Debug)]
pub struct Rotation {
    frequencies: Vec<f32>,
    positions: usize,
    attention_factor: f32,
    /// Size of a head. Dimensions after the rotated pairs are not changed.
    head_dim: usize,
    pairs: RopePairing,
    host_tables: RwLock<Arc<RopeTables>>,
    /// Tables in a device's memory, each longer than the previous one. All are kept, because recorded steps hold their addresses.
    #[cfg(feature = "cuda")]
    on_device: Mutex<Vec<Arc<cuda::rope::DeviceRopeTables>>>,
}

/// Cosines and sines of positions from 0, `[positions, C/2]`.
#[derive(Debug, Default)]
struct RopeTables {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Positions of rows.
#[derive(Clone, Copy)]
pub enum Positions<'a> {
    /// One position per row.
    Each(&'a [u32]),
    /// Positions of a forest's tokens, which a device keeps between operations.
    Forest(&'a Forest),
}

impl<'a> From<&'a [u32]> for Positions<'a> {
    fn from(each: &'a [u32]) -> Self {
        Self::Each(each)
    }
}

impl<'a> From<&'a Vec<u32>> for Positions<'a> {
    fn from(each: &'a Vec<u32>) -> Self {
        Self::Each(each)
    }
}

impl<'a> From<&'a Forest> for Positions<'a> {
    fn from(forest: &'a Forest) -> Self {
        Self::Forest(forest)
    }
}

impl<'a> Positions<'a> {
    /// Returns the position of each row.
    pub fn each(self) -> &'a [u32] {
        match self {
            Self::Each(each) => each,
            Self::Forest(forest) => forest.positions(),
        }
    }
}

impl Rotation {
    /// Creates a rotation for positions `0..positions` from one frequency per pair of dimensions, `[C/2]`, scaled by
    /// `attention_factor` (1 except for a few scaling methods).
    pub fn new(frequencies: &[f32], positions: usize, attention_factor: f32) -> Self {
        Self {
            frequencies: frequencies.to_vec(),
            positions,
            attention_factor,
            head_dim: 2 * frequencies.len(),
            pairs: RopePairing::default(),
            host_tables: RwLock::default(),
            #[cfg(feature = "cuda")]
            on_device: Mutex::default(),
        }
    }

    /// Sets the size of the heads, whose first dimensions are rotated.
    #[must_use]
    pub fn with_head_dim(self, head_dim: usize) -> Self {
        Self { head_dim, ..self }
    }

    /// Sets which dimensions are rotated together.
    #[must_use]
    pub fn with_pairing(self, pairs: RopePairing) -> Self {
        Self { pairs, ..self }
    }

    pub(super) fn half(&self) -> usize {
        self.frequencies.len()
    }

    /// Returns the size of tables for this many positions: the next power of two, so that a growing text needs few tables.
    fn table_size(&self, positions: usize) -> usize {
        positions.max(FEWEST).checked_next_power_of_two().unwrap_or(positions).min(self.positions)
    }

    /// Returns tables of at least this many positions.
    fn tables(&self, positions: usize) -> Arc<RopeTables> {
        let made = Arc::clone(&self.host_tables.read().unwrap_or_else(PoisonError::into_inner));
        let half = self.half();
        if made.cos.len() >= positions * half {
            return made;
        }
        let table = |known: &[f32], function: fn(f32) -> f32| -> Vec<f32> {
            // Computed in f32 like the original models, so that long positions agree.
            let entry = |i: usize| function((i / half) as f32 * self.frequencies[i % half]) * self.attention_factor;
            let mut table = known.to_vec();
            table.par_extend((known.len()..self.table_size(positions) * half).into_par_iter().map(entry));
            table
        };
        // Not done under the lock: a thread that waits for others here may run other work that needs tables too.
        let longer = Arc::new(RopeTables { cos: table(&made.cos, f32::cos), sin: table(&made.sin, f32::sin) });
        let mut made = self.host_tables.write().unwrap_or_else(PoisonError::into_inner);
        if made.cos.len() < longer.cos.len() {
            *made = Arc::clone(&longer);
        }
        longer
    }

    /// Returns tables of at least this many positions in a device's memory.
    #[cfg(feature = "cuda")]
    pub(super) fn tables_on(
        &self,
        device: &candle_core::CudaDevice,
        positions: usize,
    ) -> Result<Arc<cuda::rope::DeviceRopeTables>> {
        let room = self.table_size(positions);
        let all = || self.on_device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = all().last().filter(|tables| tables.positions() >= room) {
            return Ok(Arc::clone(tables));
        }
        let (host, values) = (self.tables(room), room * self.half());
        let tables = Arc::new(cuda::rope::DeviceRopeTables::new(device, &host.cos[..values], &host.sin[..values], room)?);
        all().push(Arc::clone(&tables));
        Ok(tables)
    }

    /// Returns the number of positions.
    pub fn positions(&self) -> usize {
        self.positions
    }
}

fn rotate(x: &Tensor, rotation: &Rotation, at: Positions<'_>, direction: f32) -> Result<()> {
    let (half, positions) = (rotation.half(), at.each());
    let (n, width) = matrix_dims(x);
    let head_dim = rotation.head_dim;
    let fits = n == positions.len() && half > 0 && 2 * half <= head_dim && width % head_dim == 0;
    let reached = positions.iter().max().map_or(0, |&last| last as usize + 1);
    if !fits || reached > rotation.positions() {
        let detail = format!(
            "{:?} at {} positions, tables of {} positions and head size {}",
            x.shape(),
            positions.len(),
            rotation.positions(),
            head_dim
        );
        return Err(Error::Shape { op: "rope", detail });
    }
    if rotation.pairs == RopePairing::Neighbours {
        Capability::NeighbouringRotation.require(x)?;
    }
    on_device!(x, rotate_on_device(x, rotation, at, reached, direction));
    let tables = rotation.tables(reached);
    write(x, |xs| {
        xs.par_chunks_mut(width * ROWS_PER_TASK).zip(positions.par_chunks(ROWS_PER_TASK)).for_each(|(rows, positions)| {
            wide!(for (row, &p) in rows.chunks_mut(width).zip(positions) {
                let at = p as usize * half;
                let (cos, sin) = (&tables.cos[at..at + half], &tables.sin[at..at + half]);
                for head in row.chunks_mut(head_dim) {
                    if rotation.pairs == RopePairing::Neighbours {
                        for ((pair, cos), sin) in head[..2 * half].chunks_exact_mut(2).zip(cos).zip(sin) {
                            let (a, b, s) = (pair[0], pair[1], sin * direction);
                            pair[0] = a * cos - b * s;
                            pair[1] = b * cos + a * s;
                        }
                        continue;
                    }
                    let (low, high) = head[..2 * half].split_at_mut(half);
                    for i in 0..half {
                        let (a, b, s) = (low[i], high[i], sin[i] * direction);
                        low[i] = a * cos[i] - b * s;
                        high[i] = b * cos[i] + a * s;
                    }
                }
            });
        });
    })
}

#[cfg(feature = "cuda")]
fn rotate_on_device(x: &Tensor, rotation: &Rotation, at: Positions<'_>, reached: usize, direction: f32) -> Result<()> {
    let device = x.device().as_cuda_device()?;
    let (tables, sizes) = (rotation.tables_on(device, reached)?, (rotation.half(), rotation.head_dim));
    match at {
        Positions::Forest(forest) => cuda::rope::rotate(x, &tables, forest.plan(device)?.positions(), sizes, direction),
        Positions::Each(each) => {
            let each = cuda::DeviceBuffer::new(device, each)?;
            cuda::rope::rotate(x, &tables, each.at(), sizes, direction)
        }
    }
}

/// Rotates the heads of `x: [N, heads * C]` in place by their rows' positions.
pub fn forward<'a>(x: &Tensor, rotation: &Rotation, positions: impl Into<Positions<'a>>) -> Result<()> {
    rotate(x, rotation, positions.into(), 1.0)
}

/// Rotates a gradient back, in place: the transpose of [`forward`].
pub fn backward<'a>(dx: &Tensor, rotation: &Rotation, positions: impl Into<Positions<'a>>) -> Result<()> {
    rotate(dx, rotation, positions.into(), -1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn tables_reach_as_far_as_is_used_and_growing_changes_no_bit() {
        let frequencies: Vec<f32> = (0..4).map(|i| 10_000f32.powf(-0.25 * i as f32)).collect();
        let turned = |rotation: &Rotation, positions: &[u32]| {
            let x = Tensor::ones((positions.len(), 8), candle_core::DType::F32, &Device::Cpu).unwrap();
            forward(&x, rotation, positions).map(|()| x.to_vec2::<f32>().unwrap())
        };
        let grown = Rotation::new(&frequencies, 10_000_000, 1.0);
        assert!(grown.tables(0).cos.is_empty());
        turned(&grown, &[3]).unwrap();
        assert_eq!(grown.tables(1).cos.len(), FEWEST * 4);
        let positions = [3, 1023, 1024, 70_000];
        assert_eq!(turned(&grown, &positions).unwrap(), turned(&Rotation::new(&frequencies, 70_001, 1.0), &positions).unwrap());
        assert_eq!(grown.tables(1).cos.len(), 4 << 17);
        assert!(turned(&Rotation::new(&frequencies, 100, 1.0), &[100]).is_err());
        // Heads in which only the first half is rotated.
        let x = Tensor::ones((1, 32), candle_core::DType::F32, &Device::Cpu).unwrap();
        forward(&x, &Rotation::new(&frequencies, 100, 1.0).with_head_dim(16), &[3][..]).unwrap();
        let head = [&turned(&grown, &[3]).unwrap()[0][..], &[1.0; 8]].concat();
        assert_eq!(x.to_vec2::<f32>().unwrap()[0], [head.clone(), head].concat());
    }

    #[test]
    fn neighbours_are_rotated_like_halves_in_another_order() {
        let frequencies = [1.0, 0.1, 0.01];
        let halves = Rotation::new(&frequencies, 100, 1.0).with_head_dim(8);
        let neighbours = Rotation::new(&frequencies, 100, 1.0).with_head_dim(8).with_pairing(RopePairing::Neighbours);
        // Dimensions of two heads, the last two of each not rotated, in the order of halves.
        let order = [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15];
        let values: Vec<f32> = (0..32).map(|i| (i as f32 * 0.7).sin()).collect();
        let ordered: Vec<f32> = values.chunks(16).flat_map(|row| order.map(|i| row[i])).collect();
        let of = |values: &[f32]| Tensor::from_slice(values, (2, 16), &Device::Cpu).unwrap();
        let (x, y) = (of(&values), of(&ordered));
        forward(&x, &neighbours, &[3, 41][..]).unwrap();
        forward(&y, &halves, &[3, 41][..]).unwrap();
        let got: Vec<f32> = x.to_vec2::<f32>().unwrap().iter().flat_map(|row| order.map(|i| row[i])).collect();
        assert_eq!(got, y.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert_ne!(got, ordered);
        backward(&x, &neighbours, &[3, 41][..]).unwrap();
        let back = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(back.iter().zip(&values).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
