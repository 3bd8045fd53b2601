//! Compiles the tests' own plugins to WebAssembly, and generates files that the tests compare with checked-in ones.

mod bindings;
#[path = "../../host/plugin/build/wasm.rs"]
mod wasm;

use std::error::Error;
use std::path::PathBuf;

const PLUGINS: [&str; 6] = ["contrary", "contrary_pairs", "hostile", "remembering", "unruly", "versioned"];

fn main() -> Result<(), Box<dyn Error>> {
    for path in ["build", "contrary", "contrary_pairs", "hostile", "remembering", "unruly", "versioned", "../plugin-sdk"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("..");
    // Runs in the host's folder together with its plugins, which are compiled already: cargo unifies the features of all packages of a
    // build, so with fewer packages, dependencies would be compiled again with fewer features.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let target_dir = out.ancestors().nth(3).ok_or("OUT_DIR is not in a target directory")?.join("plugins");
    let packages = [wasm::first_party(&root)?, PLUGINS.map(String::from).to_vec()].concat();
    let built = wasm::compile(&root, &packages, &target_dir)?;
    std::fs::write(out.join("generated.rs"), bindings::generated(&root.join("plugin-sdk"))?)?;
    for name in PLUGINS {
        println!("cargo::rustc-env={}_WASM={}", name.to_uppercase(), built.join(format!("{name}.wasm")).display());
    }
    Ok(())
}
