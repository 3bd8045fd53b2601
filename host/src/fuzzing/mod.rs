//! Fuzz targets, one for each kind of outside input, and a test that runs them on inputs that fuzzers found. Compiled only for these two
//! purposes; `tests/fuzz` has the fuzzing programs, the seeds and the saved cases.
//!
//! A target may accept or refuse its input. It panics on a bug: if the input makes the host panic, hang or use too much memory, or if an
//! accepted input violates an invariant.

mod answers;
mod episode;
mod files;
mod hub;
mod judge;
mod model;
mod plugin;
mod server;
mod text;

use crate::config::is_hidden;
use std::path::PathBuf;
use tempfile::TempDir;

pub use answers::plugin_answers;
pub use episode::episode;
pub use files::{checkpoint, completions, dataset, report};
pub use hub::hub;
pub use judge::judge;
pub use model::{gguf_tokenizer, model, tokenizer};
pub use plugin::{plugin_bytes, plugin_schema};
pub use text::{config, template};

/// Returns a temporary folder of this thread, which exists until the thread ends.
fn scratch() -> PathBuf {
    thread_local! {
        static FOLDER: TempDir = TempDir::new().unwrap_or_else(|e| panic!("no temporary folder: {e}"));
    }
    FOLDER.with(|folder| folder.path().to_owned())
}

/// Writes a file into this thread's folder.
fn put(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    let folder = path.parent().unwrap_or(&path);
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, bytes));
    written.unwrap_or_else(|e| panic!("can't write {}: {e}", path.display()));
    path
}

/// Returns the parts of an input, separated by zero bytes.
fn parts(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    input.split(|byte| *byte == 0)
}

/// Selects one of several actions by an input's first byte (`0`, `1`, ...); returns the action with the rest.
fn choice(input: &[u8], choices: u8) -> Option<(u8, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((first.wrapping_sub(b'0') % choices, rest))
}

/// Maximum length of an error message, in bytes.
const LONGEST_ERROR: usize = 16 << 10;

/// Checks an error that quotes outside input: it must be one line of normal length.
#[track_caller]
fn refused(error: &impl std::fmt::Display) {
    let said = error.to_string();
    assert!(said.len() <= LONGEST_ERROR, "an error of {} bytes: {said:.200}", said.len());
    let hidden = said.chars().find(|c| is_hidden(*c));
    assert!(hidden.is_none(), "an error with {hidden:?}: {said:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A target with its name. Each fuzzing program contains only one, because the fuzzer inspects all code after every input.
    type Target = (&'static str, fn(&[u8]));

    const TARGETS: [Target; 15] = [
        ("checkpoint", checkpoint),
        ("completions", completions),
        ("config", config),
        ("dataset", dataset),
        ("episode", episode),
        ("gguf_tokenizer", gguf_tokenizer),
        ("hub", hub),
        ("judge", judge),
        ("model", model),
        ("plugin_answers", plugin_answers),
        ("plugin_bytes", plugin_bytes),
        ("plugin_schema", plugin_schema),
        ("report", report),
        ("template", template),
        ("tokenizer", tokenizer),
    ];
    use std::time::{Duration, Instant};

    /// Time limit of a target, generous for a loaded machine; a hang takes longer.
    const LONGEST: Duration = Duration::from_secs(60);

    #[test]
    fn what_fuzzers_found_stays_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz");
        let mut run = 0;
        for kind in ["cases", "seeds"] {
            for (name, target) in TARGETS {
                let inputs = folder.join(kind).join(name).read_dir().into_iter().flatten();
                for input in inputs.map(|entry| entry.unwrap().path()) {
                    // Names the input if the test fails.
                    eprintln!("{}", input.display());
                    let begun = Instant::now();
                    target(&std::fs::read(&input).unwrap());
                    assert!(begun.elapsed() < LONGEST, "{} took {:?}", input.display(), begun.elapsed());
                    run += 1;
                }
            }
        }
        assert!(run > 0, "no inputs in {}", folder.display());
    }

    #[test]
    fn every_target_has_a_program_and_seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz");
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for (name, _) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in Cargo.toml");
            assert!(folder.join("fuzz_targets").join(format!("{name}.rs")).is_file(), "{name} has no program");
            assert!(folder.join("seeds").join(name).is_dir(), "{name} has no seeds");
        }
    }
}
