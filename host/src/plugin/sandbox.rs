//! What surrounds an instance: a WASI that opens onto nothing, clocks and random numbers that
//! follow from the seed, bounded output, and the run's log.

use super::capture::Capture;
use super::limits::Ceiling;
use super::world::{host, types};
use crate::config::Limits;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView};

/// Lines that a plugin may log in one call.
const LOG_LINES: u32 = 100;

/// What an instance can reach: a WASI that opens onto nothing, and the run's log.
pub(super) struct Sandbox {
    wasi: WasiCtx,
    table: ResourceTable,
    pub(super) ceiling: Ceiling,
    /// What it printed.
    pub(super) output: Capture,
    /// Lines that it may still log in this call.
    log_lines: u32,
    name: String,
}

/// A clock that advances by a microsecond with each reading, so that runs can be repeated.
struct Ticks(AtomicU64);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1_000, Ordering::Relaxed)
    }
}

impl HostWallClock for Ticks {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.next())
    }
}

impl HostMonotonicClock for Ticks {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        self.next()
    }
}

impl Sandbox {
    pub(super) fn new(name: &str, limits: &Limits, seed: u64) -> Self {
        let output = Capture::new(limits.output_kb as usize * 1024);
        let random = |stream: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(stream);
            rng
        };
        let wasi = WasiCtx::builder()
            .stdout(output.clone())
            .stderr(output.clone())
            .secure_random(random(1))
            .insecure_random(random(2))
            .insecure_random_seed(u128::from(seed))
            .wall_clock(Ticks(AtomicU64::new(0)))
            .monotonic_clock(Ticks(AtomicU64::new(0)))
            .build();
        let ceiling = Ceiling::new(limits);
        Self { wasi, table: ResourceTable::new(), ceiling, output, log_lines: LOG_LINES, name: name.to_owned() }
    }

    /// A call begins.
    pub(super) fn begin_call(&mut self) {
        self.log_lines = LOG_LINES;
    }
}

impl WasiView for Sandbox {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl types::Host for Sandbox {}

impl host::Host for Sandbox {
    fn log(&mut self, level: host::Level, message: String) {
        const LONGEST: usize = 4096;
        if self.log_lines == 0 {
            return;
        }
        self.log_lines -= 1;
        if self.log_lines == 0 {
            tracing::warn!(plugin = %self.name, "logs more than {LOG_LINES} lines in a call; the rest of this one's are left out");
            return;
        }
        let end = message.char_indices().map(|(i, _)| i).take_while(|&i| i <= LONGEST).last().unwrap_or(0);
        let message = if message.len() > LONGEST { &message[..end] } else { &message };
        match level {
            host::Level::Debug => tracing::debug!(plugin = %self.name, "{message}"),
            host::Level::Info => tracing::info!(plugin = %self.name, "{message}"),
            host::Level::Warn => tracing::warn!(plugin = %self.name, "{message}"),
            host::Level::Error => tracing::error!(plugin = %self.name, "{message}"),
        }
    }
}
