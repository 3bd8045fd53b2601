//! A reward that scores every completion with its own version's number, for the tests of swapping: a test creates a version by overwriting
//! [`VERSION`] in the compiled file.

#![allow(missing_docs)]
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::prelude::*;

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct VersionedSettings {
    /// Added to the version.
    plus: f32,
    /// Panic in a batch of step `trap_at` or later, if the version is odd.
    trap_at: Option<u64>,
    /// Additions that a completion takes, so that steps can be made long beside what a test waits for.
    additions: u64,
    /// A folder to look at. Its number of lines is added too.
    folder: Option<String>,
}

/// Counts the lines of all files of a folder, and tries operations that must fail.
fn lines(folder: &str) -> std::io::Result<f32> {
    use std::fs;
    use std::io::{Read, Seek, SeekFrom};
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        let (entry, mut text) = (entry?, String::new());
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            count += lines(&path)? as usize;
            continue;
        }
        let mut file = fs::File::open(&path)?;
        file.read_to_string(&mut text)?;
        assert_eq!((text.len() as u64, file.read(&mut [0])?), (fs::metadata(&path)?.len(), 0));
        file.seek(SeekFrom::Start(1))?;
        let mut rest = String::new();
        file.read_to_string(&mut rest)?;
        assert_eq!(rest, text[1..]);
        count += text.lines().count();
        assert!(fs::OpenOptions::new().append(true).open(&path).is_err() && fs::remove_file(&path).is_err());
    }
    for outside in ["../../../../etc/passwd", "/etc/passwd", "../../../..", "missing"] {
        assert!(fs::File::open(format!("{folder}/{outside}")).is_err() && fs::File::open(outside).is_err(), "{outside}");
    }
    assert!(fs::write(format!("{folder}/new"), "x").is_err() && fs::create_dir(format!("{folder}/new")).is_err());
    Ok(count as f32)
}

static VERSION: [u8; 16] = *b"version=00000000";

fn version() -> f32 {
    // `black_box` prevents the compiler from inlining the number.
    let text = std::hint::black_box(&VERSION);
    text[8..].iter().fold(0.0, |n, digit| n * 10.0 + f32::from(digit - b'0'))
}

reward! {
    config: VersionedSettings,
    needs: TOKEN_IDS,
    |config, sample| {
        let version = version();
        let sum = (0..config.additions).fold(0u64, |sum, i| std::hint::black_box(sum.wrapping_add(i)));
        std::hint::black_box(sum);
        let odd = version % 2.0 == 1.0;
        assert!(!(odd && config.trap_at.is_some_and(|step| sample.step() >= step)), "version {version} on real data");
        let lines = config.folder.as_deref().map_or(0.0, |folder| lines(folder).unwrap_or_else(|e| panic!("{folder}: {e}")));
        version + config.plus + lines
    }
}
