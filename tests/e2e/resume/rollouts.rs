//! Rollouts that wait in a checkpoint are checked before they are trained on.

use rlhost_tests::{TestFolder, seal};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Changes the header and the numbers of the waiting rollouts in a checkpoint, and their sum. The numbers begin where the header's
/// `data_offsets` count from.
fn change_rollouts(folder: &Path, change: impl FnOnce(&mut Value, &mut [u8])) {
    let file = folder.join("trainer/rollouts.safetensors");
    let bytes = fs::read(&file).unwrap();
    let (size, rest) = bytes.split_at(8);
    let (header, numbers) = rest.split_at(u64::from_le_bytes(size.try_into().unwrap()) as usize);
    let (mut header, mut numbers) = (serde_json::from_slice(header).unwrap(), numbers.to_vec());
    change(&mut header, &mut numbers);
    let mut header = header.to_string().into_bytes();
    // Numbers are aligned, as the format has it.
    header.resize(header.len().next_multiple_of(8), b' ');
    let size = (header.len() as u64).to_le_bytes();
    fs::write(&file, [&size[..], &header, &numbers].concat()).unwrap();
    seal(folder, &[]);
}

/// Sets the first number of a tensor.
fn set_first(header: &Value, numbers: &mut [u8], tensor: &str, number: &[u8]) {
    let begin = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    numbers[begin..begin + number.len()].copy_from_slice(number);
}

/// Gives a tensor another name.
fn rename(header: &mut Value, from: &str, to: &str) {
    let tensor = header.as_object_mut().unwrap().remove(from).unwrap();
    header[to] = tensor;
}

#[test]
fn tensors_of_waiting_rollouts_that_do_not_fit_are_one_line() {
    let place = TestFolder::new();
    let parts = ["--per-device-train-batch-size", "8", "--steps-per-generation", "4", "--max-steps", "1"];
    place.train("run", &parts).succeeded();
    type RolloutFileEdit = fn(&mut Value, &mut [u8]);
    let changes: &[(&str, RolloutFileEdit)] = &[
        ("has token 999999", |h, n| set_first(h, n, "0/tokens", &999_999u32.to_le_bytes())),
        ("values in", |h, n| set_first(h, n, "0/lengths", &1_000u32.to_le_bytes())),
        ("values in", |h, n| set_first(h, n, "0/lengths", &u32::MAX.to_le_bytes())),
        ("mask holds values", |h, n| set_first(h, n, "0/mask", &[7])),
        ("0/column/advantage in trainer/rollouts.safetensors is not finite", |h, n| {
            set_first(h, n, "0/column/advantage", &f32::NAN.to_le_bytes());
        }),
        ("no tensor 0/tokens", |h, _| rename(h, "0/tokens", "0/token")),
        ("no tensor 0/column/sampling_logp", |h, _| rename(h, "0/column/sampling_logp", "1/column/sampling_logp")),
        // Which entries are missing is said in 32 bits.
        ("rollouts.safetensors", |h, _| rename(h, "0/mask", "0/missing/advantage")),
        ("rollouts.safetensors", |h, _| h["0/mask"]["dtype"] = json!("F64")),
        ("rollouts.safetensors", |h, _| h["0/tokens"]["shape"] = json!([1u64 << 60])),
    ];
    for (expected, change) in changes {
        place.copy("run", "copy");
        change_rollouts(&place.path("copy/checkpoint-1"), change);
        let refused = place.run(&["resume", "copy", "--max-steps", "2"]);
        assert_eq!(refused.code, Some(2), "{expected}: {}", refused.stderr);
        assert!(refused.error().contains(expected), "{expected}: {}", refused.error());
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
    change_rollouts(&place.path("run/checkpoint-1"), |_, _| ());
    place.run(&["resume", "run", "--max-steps", "2"]).succeeded();
}
