//! Modifies files of checkpoints such that their manifests still match.

use super::names;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Rewrites a checkpoint's manifest after a file was changed; `more` are additional names with their entries.
///
/// # Panics
/// If a file is missing.
pub fn seal(folder: &Path, more: &[(&str, Value)]) {
    // Older versions stored the manifest among the model's files.
    let places = ["trainer/manifest.json", "manifest.json"].map(|name| folder.join(name));
    let place = places.iter().find(|place| place.exists()).expect("what a checkpoint has");
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(place).expect("what a checkpoint has")).expect("what a checkpoint has");
    let mut files = BTreeMap::new();
    let apart = place == &places[0];
    for name in manifest["files"].as_object().expect("what a checkpoint has").keys() {
        let name = if apart { name } else { name.strip_prefix("trainer/").unwrap_or(name) };
        let bytes = std::fs::read(folder.join(name)).expect("what a checkpoint has");
        let sum: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        files.insert(name, (bytes.len(), sum));
    }
    for (name, entry) in more {
        files.insert(
            name,
            (
                entry["bytes"].as_u64().expect("what a checkpoint has") as usize,
                entry["sha256"].as_str().expect("what a checkpoint has").to_owned(),
            ),
        );
    }
    let entry = |(name, (bytes, sum)): (&&str, &(usize, String))| {
        format!("    {name:?}: {{\n      \"bytes\": {bytes},\n      \"sha256\": {sum:?}\n    }}")
    };
    let files: Vec<String> = files.iter().map(entry).collect();
    let text = format!("{{\n  \"step\": {},\n  \"files\": {{\n{}\n  }}\n}}", manifest["step"], files.join(",\n"));
    std::fs::write(place, text).expect("what a checkpoint has");
}

/// Moves the files of a checkpoint to where versions before the folder `trainer` stored them: among those of its model.
///
/// # Panics
/// If they can't be moved.
pub fn flatten(checkpoint: &Path) {
    let trainer = checkpoint.join("trainer");
    for name in names(&trainer) {
        std::fs::rename(trainer.join(&name), checkpoint.join(&name)).expect("a file can be moved");
    }
    std::fs::remove_dir(trainer).expect("nothing is left in it");
    seal(checkpoint, &[]);
}
