//! The WebAssembly engine: compilation with a cache on disk, the clock that bounds calls, and
//! what plugins may import.

use super::sandbox::Sandbox;
use super::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Cache, CacheConfig, Config};

/// Resolution of time limits.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// One per process; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(super) wasmtime: wasmtime::Engine,
    pub(super) linker: Linker<Sandbox>,
}

impl Engine {
    /// Starts the engine. Compiled plugins are kept under `RLHOST_CACHE_DIR`, or else the
    /// user's cache directory; without either they are compiled each time.
    pub fn new() -> Result<Self> {
        let fail = |e: wasmtime::Error| Error::Engine(format!("{e:#}"));
        let mut config = Config::new();
        config.epoch_interruption(true).concurrency_support(false).relaxed_simd_deterministic(true);
        if let Some(directory) = cache_directory() {
            let mut cache = CacheConfig::new();
            cache.with_directory(directory);
            match Cache::new(cache) {
                Ok(cache) => {
                    config.cache(Some(cache));
                }
                Err(e) => tracing::debug!("plugins are compiled without a cache: {e:#}"),
            }
        }
        let wasmtime = wasmtime::Engine::new(&config).map_err(fail)?;
        let mut linker = Linker::new(&wasmtime);
        wasmtime_wasi::p2::add_to_linker_sync(&mut linker).map_err(fail)?;
        super::world::host::add_to_linker::<_, HasSelf<Sandbox>>(&mut linker, |sandbox| sandbox).map_err(fail)?;
        let weak = wasmtime.weak();
        std::thread::Builder::new()
            .name("plugin-clock".into())
            .spawn(move || {
                while let Some(engine) = weak.upgrade() {
                    engine.increment_epoch();
                    drop(engine);
                    std::thread::sleep(TICK);
                }
            })
            .map_err(|e| Error::Engine(e.to_string()))?;
        Ok(Self { wasmtime, linker })
    }
}

fn cache_directory() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("RLHOST_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("rlhost")))
        .or_else(|| set("HOME").map(|d| d.join(".cache").join("rlhost")))?;
    let directory = base.join("plugins");
    std::fs::create_dir_all(&directory).ok()?;
    directory.canonicalize().ok()
}
