//! Compiles the first-party plugins of `plugins/` to WebAssembly components and writes the table of embedded plugins that
//! `embedded.rs` includes. A plugin that needs tools beyond cargo is kept compiled in its folder.

mod wasm;

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    // Not canonicalised: cargo is started there, and on Windows a path in that form is one in which `/` and `..` mean nothing.
    let root = manifest.ancestors().nth(2).ok_or("there is no folder above host/")?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for folder in ["host/plugin/build", "plugins", "plugin-sdk"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    let names = wasm::first_party(root)?;
    // In target/<profile>, so that builds with other features, whose OUT_DIR is another, find them.
    let target_dir = out.ancestors().nth(3).ok_or("OUT_DIR is not in a target directory")?.join("plugins");
    // Fuzz targets run no plugin, and their toolchain has no target for one.
    let fuzzing = std::env::var_os("CARGO_CFG_FUZZING").is_some();
    let table = if fuzzing {
        Ok("&[]".to_owned())
    } else {
        wasm::compile(root, &names, &target_dir).and_then(|built| embedded(&names, &built, &root.join("plugins")))
    };
    match table {
        Ok(table) => std::fs::write(out.join("embedded.rs"), table)?,
        Err(error) => println!("cargo::error={error}"),
    }
    Ok(())
}

/// The table of plugins: name, bytes.
fn embedded(names: &[String], built: &Path, folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut table = String::from("&[\n");
    let mut files: Vec<PathBuf> = names.iter().map(|name| built.join(format!("{name}.wasm"))).collect();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let file = path.join(path.file_name().unwrap_or_default()).with_extension("wasm");
        files.extend(file.exists().then_some(file));
    }
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    for file in files {
        writeln!(table, "    ({:?}, include_bytes!({file:?})),", file.file_name().unwrap_or_default().to_string_lossy())?;
    }
    table.push_str("]\n");
    Ok(table)
}
