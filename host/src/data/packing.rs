//! Rows of unequal lengths into as few bins as can be.

use std::collections::BTreeSet;

/// Bins of rows whose lengths together are at most `capacity`, by best-fit decreasing (TRL's `bfd`);
/// a row that is longer has a bin to itself. Rows of a bin and bins keep the order of the rows.
pub fn pack(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| (std::cmp::Reverse(lengths[row]), row));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    // What each bin has left, and its index.
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
        // 7 and 3, 6 and 4; 5 fits beside neither.
        assert_eq!(pack(&[3, 7, 4, 6, 5], 10), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(pack(&[12, 1], 10), [vec![0], vec![1]]);
        assert!(pack(&[], 10).is_empty());
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
            // Of two bins that could be one, best fit would have made one.
            let mut sums: Vec<usize> = bins.iter().map(full).collect();
            sums.sort_unstable();
            prop_assert!(sums.windows(2).skip(1).all(|pair| pair[0] + pair[1] > 32));
        }
    }
}
