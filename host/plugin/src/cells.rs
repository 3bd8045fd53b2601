//! Cells: fresh instances of a plugin, which the plugin opens for untrusted code. A cell has its own memory and time limits, and only its
//! answers reach the plugin, so nothing that happens in a cell can forge a result or end the plugin's call.
//!
//! A *keeper* is a cell that may open cells; other cells may not. A plugin processes cells' answers in a keeper: if an answer causes an
//! endless loop or a huge list, that ends the keeper and not the plugin's call.

use super::contract::cells::Failure;
use super::deadline::{Deadline, EngineClock};
use super::function::ExportedFunction;
use super::limits::CARRIED;
use super::limits::MemoryShare;
use super::log_line_counts::LogLineCounts;
use super::sandbox::{OpenCells, Sandbox};
use crate::config::PluginLimits;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use wasmtime::component::{Instance as Linked, InstancePre};
use wasmtime::{Store, Trap};

/// Maximum number of cells that an instance may have open.
const MOST_OPEN: usize = 64;

/// Maximum number of resource handles in a cell. There may be thousands of cells, and no other limit counts their handles.
const HANDLES_OF_CELL: usize = 1_000;

/// Maximum size of an answer, in bytes.
const LARGEST_ANSWER: usize = 1 << 20;

/// Divisor of a call's time: this part of it remains for the plugin after its cells have run out of time.
const LEFT: u64 = 8;

/// Creates a plugin's cells. Shared by the plugin's instances.
pub(super) struct CellFactory {
    pre: InstancePre<Sandbox>,
    /// The exported function `inside.answer`.
    answer: ExportedFunction,
    limits: PluginLimits,
    /// Memory of each cell besides its memories and tables, in bytes.
    fixed: usize,
    logged: LogLineCounts,
    clock: EngineClock,
    name: String,
    seed: u64,
    /// The largest memory of any cell opened so far, in bytes; 0 before the first.
    size: AtomicUsize,
    /// The largest memory of any keeper opened so far, in bytes; 0 before the first.
    kept: AtomicUsize,
}

impl CellFactory {
    /// Prepares a factory of cells that are called through this function.
    pub(super) fn new(
        (pre, answer): (InstancePre<Sandbox>, ExportedFunction),
        (clock, logged): (EngineClock, LogLineCounts),
        name: &str,
        limits: &PluginLimits,
        fixed: usize,
        seed: u64,
    ) -> Self {
        let (name, limits) = (name.to_owned(), limits.clone());
        Self { pre, answer, limits, fixed, logged, clock, name, seed, size: AtomicUsize::new(0), kept: AtomicUsize::new(0) }
    }

    /// Returns the memory that a cell, and its keeper if there is one, may take, in bytes.
    pub(super) fn size(&self) -> usize {
        let cell = match self.size.load(Ordering::Relaxed) {
            0 => self.limits.memory(),
            size => size,
        };
        cell + self.kept.load(Ordering::Relaxed)
    }
}

/// A cell. The first call instantiates it, within that call's time.
struct SandboxCell {
    limits: PluginLimits,
    /// Whether the cell is a keeper, which may open cells.
    keeps: bool,
    running: Option<(Store<Sandbox>, Linked)>,
}

/// The cells that an instance has open.
pub(super) struct Cells {
    walls: Arc<CellFactory>,
    /// Memory share of the cells and the instance together.
    share: MemoryShare,
    open: BTreeMap<u32, SandboxCell>,
    opened: u32,
    /// Whether the cells may be keepers.
    may_keep: bool,
    /// Deadline of the cells' answers.
    deadline: Deadline,
}

impl Cells {
    pub(super) fn new(walls: Arc<CellFactory>, share: MemoryShare) -> Self {
        let deadline = walls.clock.after(Duration::ZERO);
        Self { walls, share, open: BTreeMap::new(), opened: 0, may_keep: true, deadline }
    }
}

impl OpenCells for Cells {
    fn until(&mut self, deadline: Deadline) {
        let ticks = self.walls.clock.until(deadline);
        self.deadline = self.walls.clock.in_ticks(ticks - ticks / LEFT);
    }

    fn open(&mut self, memory_mb: u32, keeps: bool) -> Result<u32, Failure> {
        if self.open.len() >= MOST_OPEN || (keeps && !self.may_keep) {
            return Err(Failure::Refused);
        }
        let memory_mb = self.walls.limits.memory_mb.min(memory_mb.into());
        let limits = PluginLimits { memory_mb, ..self.walls.limits.clone() };
        let size = if keeps { &self.walls.kept } else { &self.walls.size };
        size.fetch_max(limits.memory(), Ordering::Relaxed);
        self.opened = self.opened.wrapping_add(1);
        self.open.insert(self.opened, SandboxCell { limits, keeps, running: None });
        Ok(self.opened)
    }

    fn ask(&mut self, number: u32, message: &str, timeout_ms: u32) -> Result<String, Failure> {
        let mut cell = self.open.remove(&number).ok_or(Failure::Refused)?;
        let walls = &self.walls;
        let deadline = walls.clock.after(Duration::from_millis(timeout_ms.into())).min(self.deadline);
        let (store, linked) = cell.instance(walls, &self.share, deadline)?;
        let answered = walls.answer.call::<_, (String,)>(store, linked, (message,));
        let (answer,) = answered.map_err(|error| why(store, &error))?;
        self.open.insert(number, cell);
        Ok(answer)
    }

    fn close(&mut self, number: u32) {
        self.open.remove(&number);
    }
}

impl SandboxCell {
    /// Returns the instance, ready for a call until the deadline.
    fn instance(
        &mut self,
        walls: &Arc<CellFactory>,
        share: &MemoryShare,
        deadline: Deadline,
    ) -> Result<&mut (Store<Sandbox>, Linked), Failure> {
        let ticks = walls.clock.until(deadline) + 1;
        let (store, linked) = match self.running.take() {
            Some(running) => running,
            None => {
                let mut sandbox = Sandbox::new(&walls.name, &self.limits, share.clone(), walls.logged.clone(), walls.seed);
                if !sandbox.ceiling.take(walls.fixed) {
                    return Err(Failure::OutOfMemory);
                }
                sandbox.cells =
                    self.keeps.then(|| Box::new(Cells { may_keep: false, ..Cells::new(walls.clone(), share.clone()) }) as Box<_>);
                let mut store = Store::new(walls.pre.engine(), sandbox);
                store.set_hostcall_fuel(if self.keeps { CARRIED } else { LARGEST_ANSWER });
                store.set_max_component_handles(HANDLES_OF_CELL);
                store.limiter(|sandbox| &mut sandbox.ceiling);
                store.set_epoch_deadline(ticks);
                let linked = walls.pre.instantiate(&mut store).map_err(|error| why(&mut store, &error))?;
                (store, linked)
            }
        };
        let running = self.running.insert((store, linked));
        running.0.set_epoch_deadline(ticks);
        if let Some(cells) = &mut running.0.data_mut().cells {
            cells.until(deadline);
        }
        Ok(running)
    }
}

fn why(store: &mut Store<Sandbox>, error: &wasmtime::Error) -> Failure {
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => Failure::OutOfTime,
        _ if store.data().ceiling.refused.is_some() => Failure::OutOfMemory,
        _ => Failure::Trapped,
    }
}
