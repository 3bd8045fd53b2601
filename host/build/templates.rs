//! What `rlhost plugin new` writes: projects in each language, and the Rust SDK, which they may need where there is no checkout.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The table of projects that `rlhost plugin new` makes: language, path inside, contents.
pub(super) fn projects(examples: &Path) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", examples.display());
    let mut table = String::from("&[\n");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(examples)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    folders.sort();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let language = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for name in ["", "src"] {
            let Ok(entries) = std::fs::read_dir(folder.join(name)) else { continue };
            let mut files: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
            files.sort();
            for file in files.iter().filter(|file| file.is_file()) {
                let inside = file.strip_prefix(folder)?.display().to_string();
                writeln!(table, "    ({language:?}, {inside:?}, include_str!({file:?})),")?;
            }
        }
    }
    table.push_str("]\n");
    Ok(table)
}

/// The table of the SDK's files: path inside, contents.
pub(super) fn sdk(folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut table = String::from("&[\n");
    let mut folders = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for file in files {
        writeln!(table, "    ({:?}, include_bytes!({file:?})),", file.strip_prefix(folder)?)?;
    }
    table.push_str("]\n");
    Ok(table)
}
