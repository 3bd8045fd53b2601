//! Loading of plugins that are scripts: an interpreter describes the script, is configured with its text, and reports errors as tracebacks.

use super::{LoadedPlugin, LoadedScript, PluginCall, PluginInfo, error_text};
use crate::config::{PluginLimits, printable, printable_lines};
use crate::contract::types;
use crate::deadline::Deadline;
use crate::error::LONGEST_TEXT;
use crate::hints::Hints;
use crate::plugin_instance::PluginInstance;
use crate::sandbox::Sandbox;
use crate::script::{self, ExtraColumn, Script, ScriptFunction};
use crate::{Error, PluginEngine, PluginSource, Result, Role};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// Maximum length of a script's error shown, in bytes.
const LONGEST_TRACEBACK: usize = 8 << 10;

/// Returns the public functions of a script; an empty list for any other plugin.
///
/// # Errors
/// If the interpreter can't be started, or running the script's top level fails.
pub fn functions_of(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<Vec<ScriptFunction>> {
    if source.script().is_none() {
        return Ok(Vec::new());
    }
    LoadedPlugin::functions(engine, source, limits)
}

impl LoadedPlugin {
    /// Returns the public functions of a script.
    pub(crate) fn functions(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<Vec<ScriptFunction>> {
        let (this, _) = Self::compile(engine, source, Role::Reward, limits, 0)?;
        let deadline = this.deadline();
        let mut plain = this.instantiate(&this.whole_share(), deadline, true)?;
        this.inspected(&mut plain, deadline)
    }

    /// Returns whether the plugin is a script.
    pub(crate) fn is_script(&self) -> bool {
        self.maker.script.is_some()
    }

    /// Adds the description of the built-in algorithm for which this script estimates advantages.
    pub(crate) fn join_base(&mut self, of_base: &PluginInfo, config: Map<String, Value>, schema: String, base: &str) {
        self.info.needs = self.info.needs.names().chain(of_base.needs.names()).collect();
        self.info.hints = of_base.hints.clone();
        self.info.config_schema = schema;
        let own = std::mem::replace(&mut self.config, config);
        self.config.insert("base".to_owned(), base.into());
        self.config.extend(own.clone());
        self.maker.script.iter_mut().for_each(|scripted| scripted.own_config = Some(own.clone()));
    }

    /// Returns the public functions of this plugin's script.
    fn inspected(&self, running: &mut PluginInstance, deadline: Deadline) -> Result<Vec<ScriptFunction>> {
        let wrong = |detail: String| Error::Config { name: self.name.clone(), detail };
        let (Some(scripted), Some(interpreter)) = (&self.maker.script, self.exports.interpreter()) else {
            return Err(wrong("the interpreter that it brings along exports no rlhost:script".to_owned()));
        };
        let (call, modules) = (PluginCall::new("running its top level"), scripted.modules());
        let inspect =
            |store: &mut Store<Sandbox>, linked: &Linked| interpreter.inspect(store, linked, &scripted.script, &modules);
        let functions = self.call_bounded(running, call, deadline, inspect)?.map_err(|e| wrong(self.error_text(e)))?;
        if let Some(bytecode) = scripted.bytecode.as_ref().filter(|bytecode| bytecode.files().is_none()) {
            let call = PluginCall::new("returning what it imported");
            let imported = self.call_bounded(running, call, deadline, |store, linked| interpreter.imported(store, linked))?;
            match self.compiled_modules(&scripted.script, imported) {
                Ok(found) => bytecode.keep(found),
                // Later instances also import from source.
                Err(e) => tracing::debug!("{}: no bytecode of its modules: {e}", self.name),
            }
        }
        Ok(functions)
    }

    /// Compiles modules of a script in a separate instance.
    fn compiled_modules(&self, script: &Script, paths: Vec<String>) -> Result<BTreeMap<String, String>> {
        let Some(interpreter) = self.exports.interpreter() else { return Ok(BTreeMap::new()) };
        let modules: Vec<(&str, &str)> = paths
            .iter()
            .filter_map(|path| script.modules.get_key_value(path))
            .map(|(path, source)| (path.as_str(), source.as_str()))
            .collect();
        let deadline = self.deadline();
        let mut running = self.instantiate(&self.whole_share(), deadline, true)?;
        let call = PluginCall::new("compiling modules");
        self.call_bounded(&mut running, call, deadline, |store, linked| interpreter.bytecode(store, linked, &modules))
    }

    /// Describes the script's function that is used as the plugin.
    pub(super) fn describe_script(
        &self,
        script: &Script,
        running: &mut PluginInstance,
        deadline: Deadline,
    ) -> Result<PluginInfo> {
        let wrong = |detail: String| Error::Config { name: self.name.clone(), detail };
        let function = script::choose_function(self.inspected(running, deadline)?, script, self.role).map_err(wrong)?;
        let hints = Hints::from_schema(&function.settings_schema).map_err(|e| wrong(format!("its settings {e}")))?;
        let described = match function.description.as_str() {
            "" => format!("{} of {}", function.name, script.name),
            text => text.to_owned(),
        };
        Ok(PluginInfo {
            name: printable(&function.name, LONGEST_TEXT),
            version: script.language().name().to_owned(),
            description: printable(&described, LONGEST_TEXT),
            config_schema: function.settings_schema,
            hints,
            needs: function.needs.into_iter().collect(),
            stateless: function.stateless,
        })
    }

    /// Returns the JSON that configures an instance: for a script, its text and files with the settings inside.
    pub(super) fn configuration(&self) -> String {
        match &self.maker.script {
            None => Value::Object(self.config.clone()).to_string(),
            Some(scripted) => {
                let settings = scripted.own_config.as_ref().unwrap_or(&self.config);
                let (Script { name, source, .. }, modules) = (&scripted.script, scripted.modules());
                // If there are several functions, the one chosen for the role.
                let function = &self.info.name;
                let script = json!({"name": name, "source": source, "function": function, "modules": modules});
                json!({"script": script, "settings": settings}).to_string()
            }
        }
    }

    /// Returns the values that an instance's last scoring logged for its completions. Empty unless the plugin is a script that logged some.
    pub(crate) fn extra(&self, store: &mut Store<Sandbox>, linked: &Linked) -> wasmtime::Result<Vec<ExtraColumn>> {
        match self.exports.interpreter().filter(|_| self.is_script()) {
            Some(interpreter) => interpreter.extra(store, linked),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the text of the plugin's own error. A script's error has several lines, since it is a traceback.
    pub(crate) fn error_text(&self, error: types::Error) -> String {
        match (&self.maker.script, error) {
            (Some(_), types::Error::Config(text) | types::Error::Internal(text)) => printable_lines(&text, LONGEST_TRACEBACK),
            (_, error) => error_text(error),
        }
    }
}

impl LoadedScript {
    /// Returns the files that the script may import: its modules, and their bytecode if it is known.
    fn modules(&self) -> BTreeMap<&str, &str> {
        let bytecode = self.bytecode.as_ref().and_then(|bytecode| bytecode.files());
        let files = self.script.modules.iter().chain(bytecode.into_iter().flatten());
        files.map(|(path, text)| (path.as_str(), text.as_str())).collect()
    }
}
