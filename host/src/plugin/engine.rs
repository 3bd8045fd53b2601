//! The WebAssembly engine: compilation with a cache on disk, the clock that bounds calls, and
//! what plugins may import.

use super::cache::Cache;
use super::figures::Names;
use super::sandbox::Sandbox;
use super::{Error, Result};
use std::time::Duration;
use wasmtime::Config;
use wasmtime::component::{Component, HasSelf, Linker};

/// Resolution of time limits.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// One per process; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(super) wasmtime: wasmtime::Engine,
    pub(super) linker: Linker<Sandbox>,
    cache: Option<Cache>,
    pub(super) names: Names,
}

impl Engine {
    /// Starts the engine. Compiled plugins are kept under `RLHOST_CACHE_DIR`, or else the
    /// user's cache directory; without either they are compiled each time.
    pub fn new() -> Result<Self> {
        let fail = |e: wasmtime::Error| Error::Engine(format!("{e:#}"));
        let mut config = Config::new();
        config.epoch_interruption(true).concurrency_support(false).relaxed_simd_deterministic(true);
        let wasmtime = wasmtime::Engine::new(&config).map_err(fail)?;
        let mut linker = Linker::new(&wasmtime);
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
        Ok(Self { wasmtime, linker, cache: Cache::open(), names: Names::default() })
    }

    /// The component of these bytes, compiled now or before.
    pub(super) fn component(&self, bytes: &[u8]) -> wasmtime::Result<Component> {
        match &self.cache {
            Some(cache) => cache.component(&self.wasmtime, bytes),
            None => Component::new(&self.wasmtime, bytes),
        }
    }
}
