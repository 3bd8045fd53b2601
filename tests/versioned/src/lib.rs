//! A reward that gives every completion the number of its own version, for the tests of swapping:
//! a test makes another version by writing another number over [`VERSION`] in the compiled file.

#![allow(missing_docs)]
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::prelude::*;

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Added to the version.
    plus: f32,
    /// Panic in a batch of step `trap_at` or later, if the version is odd.
    trap_at: Option<u64>,
    /// Additions that a completion takes, so that steps can be made long beside what a test waits for.
    additions: u64,
}

static VERSION: [u8; 16] = *b"version=00000000";

fn version() -> f32 {
    // Read as if it could be anything, or the compiler would put the number into the code.
    let text = std::hint::black_box(&VERSION);
    text[8..].iter().fold(0.0, |n, digit| n * 10.0 + f32::from(digit - b'0'))
}

reward! {
    config: Settings,
    needs: TOKEN_IDS,
    |config, sample| {
        let version = version();
        let sum = (0..config.additions).fold(0u64, |sum, i| std::hint::black_box(sum.wrapping_add(i)));
        std::hint::black_box(sum);
        let odd = version % 2.0 == 1.0;
        assert!(!(odd && config.trap_at.is_some_and(|step| sample.step() >= step)), "version {version} on real data");
        version + config.plus
    }
}
