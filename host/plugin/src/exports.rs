//! Looks up, once, which interfaces of the contract a component exports, in any version. Interfaces that have the same shape in all
//! versions are called with the types of 1.0; the others differ by version ([`adapters`](super::adapters), [`AlgorithmInterface`]).

use super::adapters::{self, OldAlgorithm};
use super::algorithm::{AlgorithmInterface, CurrentAlgorithm};
use super::contract::{environment, plugin, reward, types};
use super::function::ExportedFunction;
use super::hints::DerivedMetricHint;
use super::needs::NeededInputs;
use super::plugin_instance::CallResult;
use super::sandbox::Sandbox;
use super::script::Interpreter;
use super::world::{PACKAGE, Role};
use std::sync::Arc;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;
use wasmtime::component::InstancePre;

/// Returns an interface that exists only in some roles, or an error that names it.
fn require_interface<T>(interface: Option<T>, name: &str) -> wasmtime::Result<T> {
    interface.ok_or_else(|| wasmtime::Error::msg(format!("it does not export {PACKAGE}{name}")))
}

/// The function by which a plugin describes itself.
#[derive(Clone)]
enum DescribeFunction {
    Current(ExportedFunction),
    Old(adapters::plugin::GuestIndices),
}

/// The functions of an environment.
#[derive(Clone, Copy)]
pub(super) struct EnvironmentExports {
    begin: ExportedFunction,
    step: ExportedFunction,
    finish: ExportedFunction,
}

impl EnvironmentExports {
    pub(super) fn begin(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        starts: &[environment::Start],
    ) -> CallResult<Vec<environment::Opening>> {
        self.begin.ask(store, linked, (starts,))
    }

    pub(super) fn step(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        turns: &[environment::Turn],
    ) -> CallResult<Vec<environment::Reply>> {
        self.step.ask(store, linked, (turns,))
    }

    pub(super) fn finish(&self, store: &mut Store<Sandbox>, linked: &Linked, episodes: &[u64]) -> CallResult<Vec<types::Metric>> {
        self.finish.ask(store, linked, (episodes,))
    }
}

/// A plugin's description of itself, independent of the contract's version.
pub(super) struct Description {
    pub name: String,
    pub version: String,
    pub description: String,
    pub config_schema: String,
    pub needs: NeededInputs,
    pub stateless: bool,
    /// Metrics derived from the plugin's own, in addition to those of its schema.
    pub derived_metrics: Vec<DerivedMetricHint>,
}

/// The interfaces of the contract that a component exports, in any version, looked up once.
#[derive(Clone)]
pub(super) struct Exports {
    describe: DescribeFunction,
    configure: ExportedFunction,
    /// The functions `snapshot` and `restore`.
    state: Option<[ExportedFunction; 2]>,
    observe: Option<ExportedFunction>,
    answer: Option<ExportedFunction>,
    score: Option<ExportedFunction>,
    interpreter: Option<Interpreter>,
    environment: Option<EnvironmentExports>,
    current: Option<Arc<CurrentAlgorithm>>,
    old: Option<Arc<OldAlgorithm>>,
}

impl Exports {
    /// Looks up the exports of a component that was checked against a role.
    pub(super) fn from_instance_pre(pre: &InstancePre<Sandbox>) -> wasmtime::Result<Self> {
        let component = pre.component();
        let find = |interface: &str, version: &str, name: &str| {
            ExportedFunction::find(component, &format!("{PACKAGE}{interface}@{version}.0"), name)
        };
        let current = find("plugin", "1.0", "describe");
        let (first, second) = if current.is_some() { ("1.0", "1.0") } else { ("0.1", "0.2") };
        let describe = match current {
            Some(describe) => DescribeFunction::Current(describe),
            None => DescribeFunction::Old(adapters::plugin::GuestIndices::new(pre)?),
        };
        let pair = |interface: &str, names: [&str; 2]| -> Option<[ExportedFunction; 2]> {
            Some([find(interface, first, names[0])?, find(interface, first, names[1])?])
        };
        let environment = |name| find("environment", second, name);
        let environment = || {
            Some(EnvironmentExports { begin: environment("begin")?, step: environment("step")?, finish: environment("finish")? })
        };
        Ok(Self {
            configure: require_interface(find("plugin", first, "configure"), "plugin")?,
            state: pair("state", ["snapshot", "restore"]),
            observe: find("observer", first, "observe"),
            answer: find("inside", second, "answer"),
            score: find("reward", first, "score"),
            interpreter: Interpreter::find(component),
            environment: environment(),
            current: current.and_then(|_| CurrentAlgorithm::from_component(component)).map(Arc::new),
            old: if current.is_some() { None } else { OldAlgorithm::from_instance_pre(pre).map(Arc::new) },
            describe,
        })
    }

    /// Returns whether the component exports `state`.
    pub(super) fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// Returns whether the component exports `observer`.
    pub(super) fn observes(&self) -> bool {
        self.observe.is_some()
    }

    /// Returns the function through which cells are called, if the component opens any.
    pub(super) fn answer(&self) -> Option<ExportedFunction> {
        self.answer
    }

    /// Returns the functions of a script interpreter, if the component is one.
    pub(super) fn interpreter(&self) -> Option<Interpreter> {
        self.interpreter
    }

    /// Returns the functions of an environment.
    pub(super) fn environment(&self) -> wasmtime::Result<EnvironmentExports> {
        require_interface(self.environment, "environment")
    }

    /// Returns the functions of an algorithm.
    pub(super) fn algorithm(&self) -> wasmtime::Result<Arc<dyn AlgorithmInterface>> {
        let current = || self.current.clone().map(|current| current as Arc<dyn AlgorithmInterface>);
        require_interface(self.old.clone().map(|old| old as Arc<dyn AlgorithmInterface>).or_else(current), "algorithm")
    }

    /// Returns the functions of an algorithm of version 0.1 or 0.2.
    #[cfg(test)]
    pub(super) fn old(&self) -> wasmtime::Result<&OldAlgorithm> {
        require_interface(self.old.as_deref(), "policy")
    }

    /// Has an instance describe itself in this role. The inner error is the end of a sentence about the configuration schema.
    pub(super) fn describe(
        &self,
        role: Role,
        store: &mut Store<Sandbox>,
        linked: &Linked,
    ) -> wasmtime::Result<Result<Description, String>> {
        match &self.describe {
            DescribeFunction::Current(describe) => {
                let (info,): (plugin::Info,) = describe.call(store, linked, ())?;
                let plugin::Info { name, version, description, config_schema, needs, stateless } = info;
                let needs = needs.into_iter().collect();
                let derived_metrics = Vec::new();
                Ok(Ok(Description { name, version, description, config_schema, needs, stateless, derived_metrics }))
            }
            DescribeFunction::Old(describe) => {
                let info = describe.load(&mut *store, linked)?.call_describe(&mut *store)?;
                let needs = match (&self.old, role) {
                    (_, Role::Reward | Role::Environment) | (None, _) => Ok(adapters::needs_of_texts(info.needs)),
                    (Some(old), _) => old.needs(info.needs, &info.config_schema),
                };
                let adapters::plugin::Info { name, version, description, config_schema, stateless, .. } = info;
                let derived_metrics = self.old.as_ref().map(|old| old.derived_metrics()).unwrap_or_default();
                Ok(needs.map(|needs| Description {
                    name,
                    version,
                    description,
                    config_schema,
                    needs,
                    stateless,
                    derived_metrics,
                }))
            }
        }
    }

    pub(super) fn configure(&self, store: &mut Store<Sandbox>, linked: &Linked, json: &str) -> CallResult<()> {
        self.configure.ask(store, linked, (json,))
    }

    pub(super) fn snapshot(&self, store: &mut Store<Sandbox>, linked: &Linked) -> CallResult<Vec<u8>> {
        let [snapshot, _] = require_interface(self.state, "state")?;
        snapshot.ask(store, linked, ())
    }

    pub(super) fn restore(&self, store: &mut Store<Sandbox>, linked: &Linked, state: &[u8], written_by: &str) -> CallResult<()> {
        let [_, restore] = require_interface(self.state, "state")?;
        restore.ask(store, linked, (state, written_by))
    }

    pub(super) fn observe(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        step: u64,
        metrics: &[(String, f64)],
    ) -> CallResult<()> {
        require_interface(self.observe, "observer")?.call::<_, ()>(store, linked, (step, metrics))?;
        Ok(Ok(()))
    }

    pub(super) fn score(&self, store: &mut Store<Sandbox>, linked: &Linked, batch: &reward::Batch) -> CallResult<reward::Scores> {
        require_interface(self.score, "reward")?.ask(store, linked, (batch,))
    }
}
