//! The cases of TRL's `TestGetHighEntropyMask` and `test_get_off_policy_mask`.

use crate::masks::{high_entropy, near_policy};

fn flat<const N: usize>(rows: [[u8; N]; 2]) -> Vec<u8> {
    rows.concat()
}

#[test]
fn the_tokens_of_the_highest_entropy_are_kept() {
    let twelve: Vec<f32> = (1..=12).map(|i| i as f32 / 10.0).collect();
    let ten = flat([[1; 6], [1, 1, 1, 1, 0, 0]]);
    let none = flat([[0; 6]; 2]);
    let other = vec![0.1, 0.2, 0.3, 1.4, 0.5, 0.14, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
    let eight = flat([[1, 1, 1, 1, 0, 0]; 2]);
    for (entropy, mask, quantile, want) in [
        (&twelve, &ten, 0.8, [[0; 6], [0, 0, 1, 1, 0, 0]]),
        (&other, &eight, 0.8, [[0, 0, 0, 1, 0, 0]; 2]),
        (&twelve, &ten, 0.5, [[0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0]]),
        (&twelve, &ten, 0.0, [[1; 6], [1, 1, 1, 1, 0, 0]]),
        (&twelve, &ten, 1.0, [[0; 6], [0, 0, 0, 1, 0, 0]]),
        (&twelve, &none, 0.5, [[0; 6]; 2]),
    ] {
        let got: Vec<u8> = high_entropy(entropy, mask, quantile).into_iter().map(u8::from).collect();
        assert_eq!(got, flat(want), "quantile {quantile}");
    }
    // A quantile that falls on a value keeps that value, however it was rounded.
    let eleven: Vec<f32> = (0..11).map(|i| i as f32 / 7.0).collect();
    for tenths in 0..=10u8 {
        let kept = high_entropy(&eleven, &[1; 11], 1.0 - f64::from(tenths) / 10.0).into_iter().filter(|&k| k).count();
        assert_eq!(kept, usize::from(tenths) + 1);
    }
}

#[test]
fn completions_far_from_the_policy_are_dropped_if_they_were_bad() {
    let (sampled, ones) = ([0.0; 4], [1; 4]);
    assert!(near_policy(&[-0.5; 4], &sampled, &ones, 0..4, 1.0));
    assert!(!near_policy(&[-2.0; 4], &sampled, &ones, 0..4, 1.0));
    // Padding does not count, nor does a token whose sampling probability is unknown.
    assert!(near_policy(&[-0.5, -0.5, -9.0, -9.0], &sampled, &[1, 1, 0, 0], 0..4, 1.0));
    assert!(near_policy(&[-1.5, -9.0, -1.0, -1.0], &[0.0, f32::NAN, 0.0, 0.0], &ones, 0..4, 1.0));
    assert!(near_policy(&[-9.0; 4], &sampled, &[0; 4], 0..4, 1.0));
}
