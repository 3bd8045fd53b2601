//! Division of a round's sequences among threads.

/// Sequences per thread from which threads split the batch by sequence rather than within matrices, as in generation for training.
const SEQUENCES_A_THREAD: usize = 8;

/// Divides sequences, of which each reads this many tokens, into contiguous parts with about the same number of tokens, and returns the
/// parts' numbers of sequences. `None` if threads had better share the matrices: with few sequences, or one that is too long for a thread.
pub(super) fn parts_of_threads(counts: &[usize], threads: usize) -> Option<Vec<usize>> {
    let (total, longest) = (counts.iter().sum::<usize>(), counts.iter().copied().max().unwrap_or(0));
    if counts.len() < SEQUENCES_A_THREAD * threads || 2 * threads * longest > total {
        return None;
    }
    let (mut lengths, mut before) = (vec![0; threads], 0);
    for count in counts {
        // A sequence belongs to the part in which its middle lies.
        lengths[(2 * before + count) * threads / (2 * total)] += 1;
        before += count;
    }
    Some(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_about_the_same_number_of_tokens() {
        assert_eq!(parts_of_threads(&[1; 32], 2), Some(vec![16, 16]));
        // 30 tokens of replies, and 17 tokens that follow sampled ones.
        let counts = [&[10, 10, 10][..], &[1; 17]].concat();
        assert_eq!(parts_of_threads(&counts, 2), Some(vec![2, 18]));
        for threads in 1..5 {
            let counts: Vec<usize> = (0..64).map(|i| 1 + i * 7 % 13).collect();
            let lengths = parts_of_threads(&counts, threads).unwrap();
            let (mut left, total) = (&counts[..], counts.iter().sum::<usize>());
            for length in &lengths {
                let (part, rest) = left.split_at(*length);
                assert!((part.iter().sum::<usize>()).abs_diff(total / threads) <= 13, "{lengths:?}");
                left = rest;
            }
            assert!(left.is_empty());
        }
    }

    #[test]
    fn few_sequences_and_long_prompts_share_the_matrices() {
        assert_eq!(parts_of_threads(&[1; 15], 2), None);
        assert_eq!(parts_of_threads(&[], 2), None);
        assert_eq!(parts_of_threads(&[&[500][..], &[1; 40]].concat(), 2), None);
    }
}
