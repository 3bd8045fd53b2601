//! Packages of this workspace compiled to WebAssembly components.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TARGET: &str = "wasm32-wasip2";

/// Returns the names of the packages in `plugins/`, sorted.
///
/// # Errors
/// If the folder can't be read.
pub fn first_party(root: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("plugins"))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(entry.file_name().into_string().map_err(|n| format!("plugin folder {n:?} is not UTF-8"))?);
        }
    }
    names.sort();
    Ok(names)
}

/// Compiles packages with cargo, and gives the folder of their `.wasm` files. It is a target directory of its own, since the
/// cargo that runs this holds the lock of the usual one, and one for all packages, which share what they depend on.
pub fn compile(root: &Path, packages: &[String], target_dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    if !has_target() && !add_target() {
        return Err(format!(
            "the plugins are compiled to WebAssembly, and this toolchain has no standard library for it: install it \
             (rustup target add {TARGET}, or your system's package of Rust for {TARGET}) and build again"
        )
        .into());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--profile", "plugin", "--target", TARGET, "--target-dir"]).arg(target_dir);
    for package in packages {
        cargo.args(["--package", package]);
    }
    // Flags and wrappers of the outer build are for another target.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("compiling the plugins to WebAssembly failed ({status})").into());
    }
    Ok(target_dir.join(TARGET).join("plugin"))
}

/// Whether the compiler in use has a standard library for the target.
fn has_target() -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output() else { return false };
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let Ok(mut files) = std::fs::read_dir(folder) else { return false };
    files.any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libcore-")))
}

/// Asks rustup for the target, which it does not add by itself everywhere (`RUSTUP_AUTO_INSTALL=0`).
fn add_target() -> bool {
    Command::new("rustup").args(["target", "add", TARGET]).stdout(Stdio::null()).status().is_ok() && has_target()
}
