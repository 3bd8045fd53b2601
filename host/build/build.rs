//! Writes the tables of files that `rlhost plugin new` makes.

mod templates;

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    // Not canonicalised: cargo is started there, and on Windows a path in that form is one in which `/` and `..` mean nothing.
    let root = manifest.parent().ok_or("there is no folder above host/")?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for folder in ["host/build", "plugin-sdk"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    std::fs::write(out.join("templates.rs"), templates::projects(&root.join("examples/languages"))?)?;
    std::fs::write(out.join("sdk.rs"), templates::sdk(&root.join("plugin-sdk"))?)?;
    Ok(())
}
