//! Compiles the first-party plugins of `plugins/` to WebAssembly components and writes the
//! table of embedded plugins that `plugin/embedded.rs` includes; with the feature `cuda`, compiles
//! `kernels/` to PTX.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-wasip2";

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("..").canonicalize()?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for folder in ["plugins", "plugin-sdk"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    let names = plugin_names(&root.join("plugins"))?;
    // In target/<profile>, so that builds with other features, whose OUT_DIR is another, find them.
    let built = out.ancestors().nth(3).ok_or("OUT_DIR is not in a target directory")?.join("plugins");
    compile(&root, &names, &built)?;

    let mut table = String::from("&[\n");
    for name in &names {
        let file = built.join(TARGET).join("plugin").join(format!("{name}.wasm"));
        writeln!(table, "    ({:?}, include_bytes!({file:?})),", format!("{name}.wasm"))?;
    }
    table.push_str("]\n");
    std::fs::write(out.join("embedded.rs"), table)?;
    std::fs::write(out.join("templates.rs"), templates(&root.join("examples/languages"))?)?;
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        std::fs::write(out.join("kernels.rs"), kernels(&root.join("host/kernels"), &out)?)?;
    }
    Ok(())
}

/// Compiles each file of CUDA kernels to PTX that devices of compute capability 8.0 and later run, and
/// gives the table of them: name, PTX.
fn kernels(folder: &Path, out: &Path) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "cu"));
    files.sort();
    let compiler = nvcc()?;
    let mut table = String::from("&[\n");
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let ptx = out.join(format!("{name}.ptx"));
        let mut command = Command::new(&compiler);
        command.args(["--ptx", "-O3", "-std=c++17", "-arch=compute_80", "-o"]).args([&ptx, &file]);
        let status = command.status().map_err(|e| format!("{}: {e}", compiler.display()))?;
        if !status.success() {
            return Err(format!("{} could not compile {} ({status})", compiler.display(), file.display()).into());
        }
        std::fs::write(&ptx, for_older_drivers(&std::fs::read_to_string(&ptx)?))?;
        writeln!(table, "    ({name:?}, include_str!({ptx:?})),")?;
    }
    table.push_str("]\n");
    Ok(table)
}

/// The same PTX with the version of CUDA 11.8, the first that knows compute capability 9.0: nothing in it needs a newer one,
/// and a driver refuses what is newer than itself.
fn for_older_drivers(ptx: &str) -> String {
    const ENOUGH: f32 = 7.8;
    let lower = |line: &str| match line.strip_prefix(".version ").and_then(|version| version.trim().parse::<f32>().ok()) {
        Some(version) if version > ENOUGH => format!(".version {ENOUGH}\n"),
        _ => format!("{line}\n"),
    };
    ptx.lines().map(lower).collect()
}

/// The CUDA compiler: NVCC, or the one on PATH, or the one of CUDA_HOME.
fn nvcc() -> Result<PathBuf, Box<dyn Error>> {
    for variable in ["NVCC", "CUDA_HOME", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Some(given) = std::env::var_os("NVCC") {
        return Ok(given.into());
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let of_home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let mut folders = std::env::split_paths(&on_path).chain(of_home).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders.find(|folder| folder.join("nvcc").is_file()).map(|folder| folder.join("nvcc")).ok_or_else(|| {
        "the feature cuda needs nvcc, and neither NVCC, PATH nor CUDA_HOME has one; host/cuda/setup.sh FOLDER makes a toolkit, \
         without a GPU"
            .into()
    })
}

/// The table of projects that `rlhost plugin new` makes: language, path inside, contents.
fn templates(examples: &Path) -> Result<String, Box<dyn Error>> {
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

fn plugin_names(folder: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(entry.file_name().into_string().map_err(|n| format!("plugin folder {n:?} is not UTF-8"))?);
        }
    }
    names.sort();
    Ok(names)
}

/// Runs cargo for the wasm target in a target directory of its own, since the outer cargo holds
/// the lock of the usual one.
fn compile(root: &Path, names: &[String], target_dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--profile", "plugin", "--target", TARGET, "--target-dir"]).arg(target_dir);
    for name in names {
        cargo.args(["--package", name]);
    }
    // Flags and wrappers of the outer build are for another target.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(
            format!("building the plugins failed ({status}); if the target is missing: rustup target add {TARGET}").into()
        );
    }
    Ok(())
}
