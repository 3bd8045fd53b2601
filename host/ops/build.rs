//! With the feature `cuda`: compiles `../kernels/` to PTX and machine code.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        let out = PathBuf::from(std::env::var("OUT_DIR")?);
        let kernels = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../kernels");
        std::fs::write(out.join("kernels.rs"), table(&kernels, &out)?)?;
    }
    Ok(())
}

/// Architectures that get machine code, so that a first start on A100 or H100 doesn't wait for the driver to compile.
const MACHINES: [u32; 2] = [80, 90];

/// Compiles each file of CUDA kernels to PTX that devices of compute capability 8.0 and later run, and to machine code for some, and
/// gives the table of them: name, PTX, and machine code by the major version of the architecture.
fn table(folder: &Path, out: &Path) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "cu"));
    files.sort();
    let compiler = nvcc()?;
    let next = AtomicUsize::new(0);
    let worker = || -> Result<(), String> {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            compile(&compiler, file, out).inspect_err(|_| next.store(files.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        // As many as cargo may run at once.
        let workers = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
        let workers: Vec<_> = (0..workers.min(files.len())).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a compiling thread panicked".to_owned())?)
    })?;
    let mut table = String::from("&[\n");
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        write!(table, "    ({name:?}, include_str!({:?}), &[", out.join(format!("{name}.ptx")))?;
        for machine in MACHINES {
            write!(table, "({}, include_bytes!({:?})), ", machine / 10, machine_code(out, &name, machine))?;
        }
        table.push_str("]),\n");
    }
    table.push_str("]\n");
    Ok(table)
}

fn machine_code(out: &Path, name: &str, machine: u32) -> PathBuf {
    out.join(format!("{name}.{machine}.cubin"))
}

/// Compiles one file.
fn compile(compiler: &Path, file: &Path, out: &Path) -> Result<(), String> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let ptx = out.join(format!("{name}.ptx"));
    let run = |arguments: &[&str], to: &Path, from: &Path| {
        let status = Command::new(compiler).args(arguments).arg("-o").args([to, from]).status();
        let status = status.map_err(|e| format!("{}: {e}", compiler.display()))?;
        let failed = || format!("{} could not compile {} ({status})", compiler.display(), from.display());
        if status.success() { Ok(()) } else { Err(failed()) }
    };
    run(&["--ptx", "-O3", "-std=c++17", "-arch=compute_80"], &ptx, file)?;
    let text = std::fs::read_to_string(&ptx).map_err(|e| e.to_string())?;
    std::fs::write(&ptx, for_older_drivers(&text)).map_err(|e| e.to_string())?;
    for machine in MACHINES {
        run(&["--cubin", "-O3", &format!("-arch=sm_{machine}")], &machine_code(out, &name, machine), &ptx)?;
    }
    Ok(())
}

/// Returns PTX with its version lowered to that of CUDA 11.8, the first that knows compute capability 9.0. Nothing in it needs a
/// newer version, and a driver refuses PTX that is newer than itself.
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
