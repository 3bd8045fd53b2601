//! Packs rows of different lengths into as few bins as possible.

use std::collections::BTreeSet;

/// Packs rows into bins with a total length of at most `capacity`, by best-fit decreasing (TRL's `bfd`); a longer row gets its own bin. The
/// rows in each bin, and the bins, are in the order of the rows.
pub fn pack(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| (std::cmp::Reverse(lengths[row]), row));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    // Free space and index of each bin.
    let mut left: BTreeSet<(usize, usize)> = BTreeSet::new();
    for row in order {
        let length = lengths[row];
        let (room, bin) = match left.range((length, 0)..).next().copied() {
            Some(found) => {
                left.remove(&found);
                found
            }
            None => {
                bins.push(Vec::new());
                (capacity.max(length), bins.len() - 1)
            }
        };
        bins[bin].push(row);
        left.insert((room - length, bin));
    }
    bins.iter_mut().for_each(|bin| bin.sort_unstable());
    bins.sort_unstable();
    bins
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fullest_bin_with_room_is_taken() {
        // 7 and 3, 6 and 4; 5 fits with neither.
        assert_eq!(pack(&[3, 7, 4, 6, 5], 10), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(pack(&[12, 1], 10), [vec![0], vec![1]]);
        assert!(pack(&[], 10).is_empty());
    }

    /// Output of trl 1.16's `pack_dataset` for texts of these lengths, in sequences of 16 tokens.
    #[test]
    fn texts_are_packed_as_trl_packs_them() {
        let lengths = [
            20, 9, 24, 12, 23, 24, 21, 17, 1, 15, 25, 8, 21, 2, 6, 4, 12, 16, 8, 13, 18, 4, 19, 8, 1, 24, 7, 14, 9, 6, 25, 13, 6,
            25, 3, 5, 20, 20, 15, 5,
        ];
        let packed = |lengths: &[usize]| {
            let bins = pack(lengths, 16).into_iter().map(|bin| {
                let mut bin: Vec<usize> = bin.into_iter().map(|row| lengths[row]).collect();
                bin.sort_by_key(|length| std::cmp::Reverse(*length));
                bin
            });
            let mut bins: Vec<Vec<usize>> = bins.filter(|bin| bin[0] < 16).collect();
            bins.sort_unstable();
            bins.iter().map(|bin| bin.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")).collect::<Vec<_>>().join(" ")
        };
        let truncated: Vec<usize> = lengths.iter().map(|length| (*length).min(16)).collect();
        assert_eq!(packed(&truncated), "6+5+5 8+6 8+8 9+6 9+7 12+4 12+4 13 13+3 14+2 15+1 15+1", "bfd");
        let part = |length: usize| (0..length.div_ceil(16)).map(move |i| (length - 16 * i).min(16));
        let split: Vec<usize> = lengths.iter().flat_map(|length| part(*length)).collect();
        let wanted = "4 5+4+4+2 5+5+5 8+8 8+8 8+8 9+6 9+6 9+6+1 9+7 9+7 12+4 12+4 13+3 13+3 14+2 15+1 15+1";
        assert_eq!(packed(&split), wanted, "bfd_split");
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_bin_and_no_bin_is_too_full(lengths in prop::collection::vec(1usize..40, 0..60)) {
            let bins = pack(&lengths, 32);
            let mut rows = bins.concat();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..lengths.len()).collect::<Vec<_>>());
            let full = |bin: &Vec<usize>| bin.iter().map(|&row| lengths[row]).sum::<usize>();
            prop_assert!(bins.iter().all(|bin| full(bin) <= 32 || bin.len() == 1));
            // Best fit would have merged two bins that fit into one.
            let mut sums: Vec<usize> = bins.iter().map(full).collect();
            sums.sort_unstable();
            prop_assert!(sums.windows(2).skip(1).all(|pair| pair[0] + pair[1] > 32));
        }
    }
}
