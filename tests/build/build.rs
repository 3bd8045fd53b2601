//! Compiles the tests' own plugins to WebAssembly, and generates what the tests compare with what is kept.

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
    // In the host's folder and with its plugins, which are compiled already: cargo unites the features of all packages that it is given, so
    // that dependencies with fewer features would be compiled anew.
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
