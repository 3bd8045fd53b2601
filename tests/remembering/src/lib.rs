//! A reward whose scores depend on all earlier completions, for the tests of resuming.

#![allow(missing_docs)]
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::prelude::*;

/// History of the completions' lengths.
#[derive(Default, Deserialize, Serialize)]
struct LengthHistory {
    batches: u64,
    mean_length: f64,
}

stateful_reward! {
    state: LengthHistory,
    needs: TOKEN_IDS,
    |_config, seen, samples| {
        let aim = seen.mean_length as f32 + (seen.batches % 3) as f32;
        for sample in samples {
            seen.mean_length += (sample.token_ids.len() as f64 - seen.mean_length) * 0.1;
        }
        seen.batches += 1;
        samples.iter().map(|s| -(s.token_ids.len() as f32 - aim).abs()).collect::<Vec<_>>()
    }
}
