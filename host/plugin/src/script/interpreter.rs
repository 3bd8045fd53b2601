//! The interface of script interpreters in addition to the plugin contract (`host/interpreters/wit/script.wit`), and the compiled
//! interpreters of a process.

use super::{Language, Script};
use crate::Role;
use crate::compiler::CompiledPlugin;
use crate::config::did_you_mean;
use crate::function::ExportedFunction;
use crate::plugin_instance::CallResult;
use crate::sandbox::Sandbox;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use wasmtime::Store;
use wasmtime::component::{Component, ComponentType, Instance as Linked, Lift, Lower};

/// Name of the interface.
const INTERFACE: &str = "rlhost:script/script@1.0.0";

/// The use of a script's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
pub enum ScriptKind {
    /// Scores completions.
    #[component(name = "reward")]
    Reward,
    /// Turns rewards into advantages.
    #[component(name = "advantages")]
    Advantages,
    /// A class with `reset` and methods that are tools, or functions that are tools.
    #[component(name = "environment")]
    Environment,
    /// A loss by columns.
    #[component(name = "loss")]
    Loss,
}

impl ScriptKind {
    /// Returns the role of a plugin of this kind.
    #[must_use]
    pub fn role(self) -> Role {
        match self {
            Self::Reward => Role::Reward,
            Self::Advantages | Self::Loss => Role::Algorithm,
            Self::Environment => Role::Environment,
        }
    }
}

/// A public function of a script, as its interpreter describes it.
#[derive(Clone, Debug, ComponentType, Lift)]
#[component(record)]
pub struct ScriptFunction {
    /// Name of the function.
    pub name: String,
    /// First line of the documentation; empty without any.
    pub description: String,
    /// JSON Schema of the settings.
    #[component(name = "settings-schema")]
    pub settings_schema: String,
    /// Columns of the contract that the function needs.
    pub needs: Vec<String>,
    /// Whether each answer is independent of earlier calls and other rows.
    pub stateless: bool,
    /// Use of the function.
    pub kind: ScriptKind,
    /// Columns of the dataset that the function requires.
    pub columns: Vec<String>,
}

/// A file that a script may import.
#[derive(Clone, Copy, ComponentType, Lower)]
#[component(record)]
struct ModuleFile<'a> {
    path: &'a str,
    source: &'a str,
}

/// A file that an interpreter returns.
#[derive(ComponentType, Lift)]
#[component(record)]
struct BytecodeFile {
    path: String,
    source: String,
}

/// Values that a reward logged for its completions.
#[derive(Debug, ComponentType, Lift)]
#[component(record)]
pub(crate) struct ExtraColumn {
    /// Name of the logged column.
    pub name: String,
    /// One JSON value per completion.
    pub values: Vec<String>,
}

/// Functions of an interpreter, beyond the plugin contract.
#[derive(Clone, Copy)]
pub(crate) struct Interpreter {
    inspect: ExportedFunction,
    extra: ExportedFunction,
    imported: ExportedFunction,
    bytecode: ExportedFunction,
}

impl Interpreter {
    /// Looks up the functions in a component. Returns `None` if the component is not an interpreter.
    pub(crate) fn find(component: &Component) -> Option<Self> {
        let find = |name| ExportedFunction::find(component, INTERFACE, name);
        let (imported, bytecode) = (find("imported")?, find("bytecode")?);
        Some(Self { inspect: find("inspect")?, extra: find("extra")?, imported, bytecode })
    }

    /// Runs the script's top level, with these files to import, and returns its public functions.
    pub(crate) fn inspect(
        self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        script: &Script,
        modules: &BTreeMap<&str, &str>,
    ) -> CallResult<Vec<ScriptFunction>> {
        let modules: Vec<ModuleFile<'_>> = modules.iter().map(|(path, source)| ModuleFile { path, source }).collect();
        self.inspect.ask(store, linked, (script.name.as_str(), script.source.as_str(), modules.as_slice()))
    }

    /// Returns the values that the last scoring logged for completions.
    pub(crate) fn extra(self, store: &mut Store<Sandbox>, linked: &Linked) -> wasmtime::Result<Vec<ExtraColumn>> {
        let (columns,) = self.extra.call::<(), (Vec<ExtraColumn>,)>(store, linked, ())?;
        Ok(columns)
    }

    /// Returns the paths of the modules that the script has imported from source.
    pub(crate) fn imported(self, store: &mut Store<Sandbox>, linked: &Linked) -> wasmtime::Result<Vec<String>> {
        let (paths,) = self.imported.call::<(), (Vec<String>,)>(store, linked, ())?;
        Ok(paths)
    }

    /// Compiles modules to bytecode files, by path. The instance must not have run a script, which could forge what others import.
    pub(crate) fn bytecode(
        self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        modules: &[(&str, &str)],
    ) -> wasmtime::Result<BTreeMap<String, String>> {
        let modules: Vec<ModuleFile<'_>> = modules.iter().map(|(path, source)| ModuleFile { path, source }).collect();
        let (files,) = self.bytecode.call::<_, (Vec<BytecodeFile>,)>(store, linked, (modules.as_slice(),))?;
        Ok(files.into_iter().map(|BytecodeFile { path, source }| (path, source)).collect())
    }
}

/// Chooses the script's function for a role. The error lists the script's functions.
pub(crate) fn choose_function(
    functions: Vec<ScriptFunction>,
    script: &Script,
    role: Role,
) -> std::result::Result<ScriptFunction, String> {
    if script.function.is_some() {
        let function = named(functions, script)?;
        let is = function.kind.role();
        return match is == role {
            true => Ok(function),
            false => Err(format!("{} in {} is {}, not {}", function.name, script.name, is.name(), role.name())),
        };
    }
    let (mut fitting, others): (Vec<_>, Vec<_>) = functions.into_iter().partition(|function| function.kind.role() == role);
    // A loss takes the script's own advantages.
    if fitting.iter().any(|function| function.kind == ScriptKind::Loss) {
        fitting.retain(|function| function.kind == ScriptKind::Loss);
    }
    match fitting.len() {
        1 => Ok(fitting.remove(0)),
        0 => Err(format!(
            "{} is not {}: it has {}; {}",
            script.name,
            role.name(),
            listed(&others),
            usage_hint(script.language(), role)
        )),
        number => {
            let (names, first) = (listed(&fitting), &fitting[0].name);
            let name = &script.name;
            Err(format!(
                "{name} has {number} functions that could be {}: {names}; name one, as in {name}:{first}, or begin the names of the others with _",
                role.name()
            ))
        }
    }
}

/// Returns the role of a script: that of the function that it names, or of its first function.
pub(crate) fn role_of(functions: Vec<ScriptFunction>, script: &Script) -> std::result::Result<Role, String> {
    if script.function.is_some() {
        return named(functions, script).map(|function| function.kind.role());
    }
    let first = functions.first().map(|function| function.kind.role());
    first.ok_or_else(|| format!("{} has {}; {}", script.name, listed(&functions), usage_hint(script.language(), Role::Reward)))
}

/// Returns the function that a script's location names.
fn named(mut functions: Vec<ScriptFunction>, script: &Script) -> std::result::Result<ScriptFunction, String> {
    let name = script.function.as_deref().unwrap_or_default();
    match functions.iter().position(|function| function.name == name) {
        Some(at) => Ok(functions.swap_remove(at)),
        None => {
            let meant = did_you_mean(name, functions.iter().map(|function| function.name.as_str()));
            Err(format!("{} has no public function {name}; it has {}{meant}", script.name, listed(&functions)))
        }
    }
}

fn listed(functions: &[ScriptFunction]) -> String {
    match functions {
        [] => "no function that can be a plugin".to_owned(),
        all => all.iter().map(|function| function.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Describes how to write a script for a role.
fn usage_hint(language: Language, role: Role) -> &'static str {
    match (role, language) {
        (Role::Reward, Language::Python) => {
            "a reward is def NAME(completions, **columns), which returns a list with a score for each completion"
        }
        (Role::Reward, Language::JavaScript) => {
            "a reward is export function NAME({ completions }), which returns an array with a score for each completion"
        }
        (Role::Environment, _) => "an environment is a class with a method reset and typed methods, which are its tools",
        (Role::Algorithm, _) => {
            "an algorithm is def advantages(rewards, groups, **columns), which returns a list with a number for each completion, or def \
             loss(logp, advantage, **columns)"
        }
    }
}

/// The built-in interpreters that were compiled or read from the cache, once per process: reading one takes longer than a swap should.
#[derive(Clone, Default)]
pub(crate) struct Interpreters(Arc<Mutex<BTreeMap<Language, CompiledPlugin>>>);

impl Interpreters {
    /// Returns an interpreter. The first call creates it with `compile`; other threads wait meanwhile, since they need it too.
    pub(crate) fn get<E>(
        &self,
        language: Language,
        compile: impl FnOnce() -> std::result::Result<CompiledPlugin, E>,
    ) -> std::result::Result<CompiledPlugin, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = all.get(&language) {
            return Ok(compiled.clone());
        }
        let compiled = compile()?;
        all.insert(language, compiled.clone());
        Ok(compiled)
    }
}
