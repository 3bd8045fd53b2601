//! Compiles the tests' own plugins to WebAssembly.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

const PLUGINS: [&str; 3] = ["hostile", "remembering", "versioned"];

fn main() -> Result<(), Box<dyn Error>> {
    for path in ["hostile", "remembering", "versioned", "../plugin-sdk"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let target = PathBuf::from(std::env::var("OUT_DIR")?).join("plugins");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--profile", "plugin", "--target", "wasm32-wasip2", "--target-dir"]).arg(&target);
    for name in PLUGINS {
        cargo.args(["--package", name]);
    }
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building the tests' plugins failed ({status})").into());
    }
    for name in PLUGINS {
        let file = target.join("wasm32-wasip2/plugin").join(format!("{name}.wasm"));
        println!("cargo::rustc-env={}_WASM={}", name.to_uppercase(), file.display());
    }
    Ok(())
}
