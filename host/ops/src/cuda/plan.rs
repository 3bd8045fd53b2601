//! A forest of segments in device memory, in the layout of `forest.cuh`.

use super::super::Result;
use super::array::DeviceBuffer;
use candle_core::cuda_backend::CudaDevice;
use std::ops::Range;

/// Maximum number of rows per tile: for attention of any type, and on tensor cores.
pub(super) const SIZES: [usize; 2] = [32, 64];

/// Positions, segments and tiles of a forest on a device.
#[derive(Debug)]
pub(crate) struct ForestPlan {
    positions: DeviceBuffer<u32>,
    table: DeviceBuffer<u32>,
    /// Index of the first segment and of the first range in the table.
    segments: usize,
    ranges: usize,
    /// Index of the first tile of each of the [`SIZES`], and the number of tiles.
    tiles: [(usize, usize); 2],
}

impl ForestPlan {
    /// Lays out a forest and copies it to the device: the position of each token, the packed indices of each segment's tokens, and the
    /// prefix segments of each segment, itself last.
    pub fn new(device: &CudaDevice, positions: &[u32], all: &[Range<usize>], paths: &[Vec<usize>]) -> Result<Self> {
        let number = |n: usize| n as u32;
        let (mut segments, mut ranges) = (Vec::new(), Vec::new());
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); all.len()];
        for (index, path) in paths.iter().enumerate() {
            path[..path.len() - 1].iter().for_each(|&before| after[before].push(index));
        }
        for (index, (segment, path)) in all.iter().zip(paths).enumerate() {
            segments.extend([segment.start, segment.len()].map(number));
            for list in [&path[..path.len() - 1], &after[index][..]] {
                segments.extend([ranges.len() / 2, list.len()].map(number));
                ranges.extend(list.iter().flat_map(|&s| [all[s].start, all[s].len()].map(number)));
            }
        }
        let mut table = segments;
        let at_ranges = table.len();
        table.extend(ranges);
        let seen_by = |index: usize, first: usize| {
            let after = after[index].iter().map(|&s| all[s].len()).sum::<usize>();
            after + all[index].end - first
        };
        let tiles = SIZES.map(|size| {
            let begin = table.len();
            let of_segment = |index: usize| all[index].clone().step_by(size).map(move |first| (index, first));
            let mut tiles: Vec<(usize, usize)> = (0..all.len()).flat_map(of_segment).collect();
            // The order is explained at `struct Forest`.
            tiles.sort_by_cached_key(|&(index, first)| std::cmp::Reverse(seen_by(index, first)));
            for (index, first) in tiles {
                table.extend([first, size.min(all[index].end - first), index].map(number));
            }
            (begin, (table.len() - begin) / 3)
        });
        let (positions, table) = (DeviceBuffer::new(device, positions)?, DeviceBuffer::new(device, &table)?);
        Ok(Self { positions, table, segments: 0, ranges: at_ranges, tiles })
    }

    /// Returns the number of tiles of the `kind`-th of the [`SIZES`].
    pub fn tiles(&self, kind: usize) -> usize {
        self.tiles[kind].1
    }

    /// Returns the address of the positions.
    pub fn positions(&self) -> u64 {
        self.positions.at()
    }

    /// Returns the contents of the kernels' `struct Forest`, with tiles of the `kind`-th of the [`SIZES`].
    pub fn words(&self, kind: usize) -> [u64; 4] {
        let [tiles, segments, ranges] =
            [self.tiles[kind].0, self.segments, self.ranges].map(|begins| self.table.at() + 4 * begins as u64);
        [tiles, segments, ranges, self.positions()]
    }
}
