//! Wraps core modules into components, so that a language needs no component tools: it only has to export the contract's functions under
//! their canonical names.

use std::borrow::Cow;
use std::collections::BTreeSet;
use wasmparser::{Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{InterfaceId, Package, Resolve};

/// Interfaces of the contract: those of version 1.0, those of 0.1, and those added in 0.2.
const CONTRACT: [&str; 3] = [
    include_str!("../../../plugin-sdk/wit/rlhost-plugin.wit"),
    include_str!("../../../plugin-sdk/wit/0.1/rlhost-plugin.wit"),
    include_str!("../../../plugin-sdk/wit/0.2/rlhost-plugin.wit"),
];

/// Interfaces that plugins may import.
const IMPORTED: [&str; 3] = ["host", "http", "cells"];

const PREVIEW1: &str = "wasi_snapshot_preview1";
/// A WASI preview 1 without access to anything: `preview1.wat`, assembled.
const PREVIEW1_STUB: &[u8] = include_bytes!("preview1.wasm");

/// The custom section in which wit-bindgen and similar tools describe a module's world.
const WORLD_SECTION: &str = "component-type";

/// The imports and exports that determine a core module's world.
#[derive(Default)]
struct ModuleOutline {
    exports: BTreeSet<String>,
    imports: Vec<(String, String)>,
    says_its_world: bool,
}

impl ModuleOutline {
    fn parse(core: &[u8]) -> Result<Self, wasmparser::BinaryReaderError> {
        let mut outline = Self::default();
        for payload in Parser::new(0).parse_all(core) {
            match payload? {
                Payload::ExportSection(exports) => {
                    for export in exports {
                        outline.exports.insert(export?.name.to_owned());
                    }
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        let import = import?;
                        outline.imports.push((import.module.to_owned(), import.name.to_owned()));
                    }
                }
                Payload::CustomSection(section) => outline.says_its_world |= section.name().starts_with(WORLD_SECTION),
                _ => {}
            }
        }
        Ok(outline)
    }
}

/// Returns whether bytes are a core module rather than a component, by the preamble's fifth byte.
pub(super) fn is_core(bytes: &[u8]) -> bool {
    matches!(bytes, [b'\0', b'a', b's', b'm', 1, ..])
}

/// Returns a component's bytes: the plugin's own, or those of the component that wraps a core module.
pub(super) fn as_component(bytes: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    match bytes {
        core if is_core(core) => component(core).map(Cow::Owned),
        [b'\0', b'a', b's', b'm', ..] => Ok(Cow::Borrowed(bytes)),
        [] => Err("the file is empty".to_owned()),
        _ => Err("the file does not begin with WebAssembly's magic bytes".to_owned()),
    }
}

/// Returns the inputs, besides the module, that determine a wrapped component.
pub(super) fn made_with() -> [&'static [u8]; 4] {
    let [current, first, newer] = CONTRACT.map(str::as_bytes);
    [current, first, newer, PREVIEW1_STUB]
}

/// Wraps a core module into a component. The world comes from the `component-type` section or, without one, from the names of the exports.
fn component(core: &[u8]) -> Result<Vec<u8>, String> {
    let outline = ModuleOutline::parse(core).map_err(|e| format!("it is damaged: {e}"))?;
    let stub_outline = ModuleOutline::parse(PREVIEW1_STUB).map_err(|e| e.to_string())?;
    for needed in ["memory", "cabi_realloc"] {
        if !outline.exports.contains(needed) {
            return Err(format!("it is a core module that does not export {needed:?}, which is needed to pass arguments"));
        }
    }
    if let Some((_, name)) = outline.imports.iter().find(|(m, n)| m == PREVIEW1 && !stub_outline.exports.contains(n)) {
        return Err(format!("it imports {name:?} from {PREVIEW1}, which has no such function"));
    }

    let mut module = core.to_vec();
    if !outline.says_its_world {
        let world = WitWorld::from_outline(&outline)?;
        embed_component_metadata(&mut module, &world.resolve, world.id, StringEncoding::UTF8).map_err(|e| format!("{e:#}"))?;
    }
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.adapter(PREVIEW1, PREVIEW1_STUB))
        .and_then(|mut encoder| encoder.encode())
        .map_err(|e| format!("it can't be wrapped into a component: {e:#}"))
}

struct WitWorld {
    resolve: Resolve,
    id: wit_parser::WorldId,
}

impl WitWorld {
    fn from_outline(outline: &ModuleOutline) -> Result<Self, String> {
        let mut resolve = Resolve::default();
        let mut push = |text| resolve.push_str("rlhost-plugin.wit", text).map_err(|e| format!("{e:#}"));
        let [current, first, newer] = [push(CONTRACT[0])?, push(CONTRACT[1])?, push(CONTRACT[2])?];
        let [current, first, newer] = [current, first, newer].map(|id| &resolve.packages[id]);
        let hosts = [current, first].map(|package| interface_name(package, "host"));
        let mut text = format!("package rlhost:wrapped; world wrapped {{ import {}; import {};", hosts[0], hosts[1]);
        for name in exported_interfaces(&resolve, [current, first, newer], outline)? {
            text.push_str(&format!("export {name};"));
        }
        text.push('}');
        check_imports(&resolve, [current, first], outline)?;

        let wrapped = resolve.push_str("wrapped.wit", &text).map_err(|e| format!("{e:#}"))?;
        let id = resolve.select_world(&[wrapped], None).map_err(|e| format!("{e:#}"))?;
        Ok(Self { resolve, id })
    }
}

/// Returns a name like `rlhost:plugin/reward@0.1.0`.
fn interface_name(package: &Package, interface: &str) -> String {
    package.name.interface_id(interface)
}

fn functions(resolve: &Resolve, interface: InterfaceId) -> impl Iterator<Item = &str> {
    resolve.interfaces[interface].functions.keys().map(String::as_str)
}

/// Returns the contract's interfaces of which the module exports a function. It must then export all functions of each.
fn exported_interfaces(resolve: &Resolve, versions: [&Package; 3], outline: &ModuleOutline) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    let interfaces =
        versions.into_iter().flat_map(|package| package.interfaces.iter().map(move |(short, &id)| (package, short, id)));
    for (package, short, id) in interfaces.filter(|(_, short, _)| !IMPORTED.contains(&short.as_str())) {
        let name = interface_name(package, short);
        let wanted: Vec<String> = functions(resolve, id).map(|function| format!("{name}#{function}")).collect();
        let missing: Vec<&str> = wanted.iter().map(String::as_str).filter(|w| !outline.exports.contains(*w)).collect();
        if missing.len() < wanted.len() {
            if !missing.is_empty() {
                return Err(format!("it exports part of {name} but not {}", missing.join(", ")));
            }
            found.push(name);
        }
        known.extend(wanted);
    }

    let [current, first, _] = versions;
    let contract = format!("{}:{}/", current.name.namespace, current.name.name);
    let strange = outline.exports.iter().find(|e| e.starts_with(&contract) && !known.contains(*e));
    if let Some(strange) = strange {
        return Err(format!("it exports {strange}, which is not in this rlhost's contract; the contract has {}", listed(&known)));
    }
    let plugins = [current, first].map(|package| interface_name(package, "plugin"));
    if !plugins.iter().any(|plugin| found.contains(plugin)) {
        // The missing `plugin` has the version of the module's other exports.
        let is_old = found.iter().any(|name| !name.ends_with("@1.0.0"));
        let plugin = &plugins[usize::from(is_old)];
        return Err(format!(
            "it is a core module that does not export {plugin}#describe; it exports {}",
            listed(&outline.exports)
        ));
    }
    Ok(found)
}

/// Checks imports: a module without a described world may import the contract's `host` and preview 1.
fn check_imports(resolve: &Resolve, versions: [&Package; 2], outline: &ModuleOutline) -> Result<(), String> {
    let hosts = versions.map(|package| interface_name(package, "host"));
    let [current, _] = versions;
    let offered: Vec<&str> = current.interfaces.get("host").map_or_else(Vec::new, |&id| functions(resolve, id).collect());
    for (module, name) in &outline.imports {
        let fine = module == PREVIEW1 || hosts.contains(module) && offered.contains(&name.as_str());
        if !fine {
            return Err(format!(
                "it imports {name:?} from {module:?}, which rlhost does not offer to core modules; it offers {PREVIEW1} and {} ({})",
                hosts.join(" or "),
                offered.join(", ")
            ));
        }
    }
    Ok(())
}

fn listed(names: &BTreeSet<String>) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.iter().map(String::as_str).collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wit_component::DecodedWasm;

    const MEMORY: &str = r#"
        (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable)"#;
    const PLUGIN: &str = r#"
        (func (export "rlhost:plugin/plugin@0.1.0#describe") (result i32) unreachable)
        (func (export "rlhost:plugin/plugin@0.1.0#configure") (param i32 i32) (result i32) unreachable)"#;
    const REWARD: &str = r#"
        (func (export "rlhost:plugin/reward@0.1.0#score")
          (param i64 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32) unreachable)"#;
    const ESTIMATE: &str = r#"(func (export "rlhost:plugin/policy@0.1.0#estimate") (param i32) (result i32) unreachable)"#;
    const LOSS: &str = r#"(func (export "rlhost:plugin/policy@0.1.0#loss") (param i32) (result i32) unreachable)"#;

    fn module(parts: &[&str]) -> Vec<u8> {
        wat::parse_str(format!("(module {})", parts.join("\n"))).unwrap()
    }

    fn wrapped(parts: &[&str]) -> Result<Vec<u8>, String> {
        component(&module(parts))
    }

    /// Returns the imports and exports of a component.
    fn doors(component: &[u8]) -> (Vec<String>, Vec<String>) {
        let DecodedWasm::Component(resolve, world) = wit_component::decode(component).unwrap() else { panic!("no component") };
        let world = &resolve.worlds[world];
        let imports = world.imports.keys().map(|k| resolve.name_world_key(k)).collect();
        let exports = world.exports.keys().map(|k| resolve.name_world_key(k)).collect();
        (imports, exports)
    }

    #[test]
    fn the_world_follows_from_the_exports() {
        let (_, exports) = doors(&wrapped(&[MEMORY, PLUGIN, REWARD]).unwrap());
        assert_eq!(exports, ["rlhost:plugin/plugin@0.1.0", "rlhost:plugin/reward@0.1.0"]);
        let (_, exports) = doors(&wrapped(&[MEMORY, PLUGIN, ESTIMATE, LOSS]).unwrap());
        assert_eq!(exports, ["rlhost:plugin/plugin@0.1.0", "rlhost:plugin/policy@0.1.0"]);
    }

    #[test]
    fn all_interfaces_of_1_0_may_be_exported() {
        let part = |text: &str| text.replace("@0.1.0", "@1.0.0");
        let pointer = |name: &str| format!(r#"(func (export "rlhost:plugin/{name}") (param i32) (result i32) unreachable)"#);
        let algorithm = r#"(func (export "rlhost:plugin/algorithm@1.0.0#describe-data") (result i32) unreachable)"#;
        let loss = pointer("algorithm@1.0.0#loss");
        let estimate = pointer("estimator@1.0.0#estimate");
        let log = r#"(import "rlhost:plugin/host@1.0.0" "log" (func (param i32 i32 i32)))"#;
        let (imports, exports) = doors(&wrapped(&[log, MEMORY, &part(PLUGIN), algorithm, &loss, &estimate]).unwrap());
        assert_eq!(exports, ["plugin", "algorithm", "estimator"].map(|name| format!("rlhost:plugin/{name}@1.0.0")));
        assert!(imports.contains(&"rlhost:plugin/host@1.0.0".to_owned()), "{imports:?}");
        assert!(!imports.iter().any(|import| import.contains("@0.1.0")), "{imports:?}");
        refused(&[MEMORY, &part(PLUGIN), &loss], &["part of rlhost:plugin/algorithm@1.0.0", "#describe-data"]);
        refused(&[MEMORY, algorithm, &loss], &["rlhost:plugin/plugin@1.0.0#describe"]);
    }

    #[test]
    fn an_interface_may_be_of_a_later_version() {
        let loss = r#"(func (export "rlhost:plugin/reward-model@0.2.0#loss")
            (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32) (result i32) unreachable)"#;
        let (_, exports) = doors(&wrapped(&[MEMORY, PLUGIN, loss]).unwrap());
        assert_eq!(exports, ["rlhost:plugin/plugin@0.1.0", "rlhost:plugin/reward-model@0.2.0"]);
    }

    #[test]
    fn a_world_that_the_module_names_itself_is_taken() {
        let mut core = module(&[MEMORY, PLUGIN, REWARD]);
        let world = WitWorld::from_outline(&ModuleOutline::parse(&core).unwrap()).unwrap();
        embed_component_metadata(&mut core, &world.resolve, world.id, StringEncoding::UTF8).unwrap();
        let (_, exports) = doors(&component(&core).unwrap());
        assert_eq!(exports.len(), 2, "{exports:?}");
    }

    #[test]
    fn preview_1_leads_to_no_import() {
        let stub = ModuleOutline::parse(PREVIEW1_STUB).unwrap();
        assert!(stub.exports.len() > 40, "{:?}", stub.exports);
        let using = r#"
            (import "wasi_snapshot_preview1" "clock_time_get" (func (param i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))
            (import "rlhost:plugin/host@0.1.0" "log" (func (param i32 i32 i32)))"#;
        let (imports, _) = doors(&wrapped(&[using, MEMORY, PLUGIN, REWARD]).unwrap());
        assert!(imports.iter().all(|i| i.starts_with("rlhost:plugin/")), "{imports:?}");
    }

    #[track_caller]
    fn refused(parts: &[&str], words: &[&str]) {
        let error = wrapped(parts).unwrap_err();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    }

    #[test]
    fn a_missing_export_is_named() {
        refused(&[PLUGIN, REWARD], &["\"memory\""]);
        refused(&[MEMORY], &["rlhost:plugin/plugin@1.0.0#describe", "it exports cabi_realloc, memory"]);
        refused(&[MEMORY, REWARD], &["rlhost:plugin/plugin@0.1.0#describe"]);
        refused(&[MEMORY, PLUGIN, LOSS], &["part of rlhost:plugin/policy@0.1.0", "policy@0.1.0#estimate"]);
        let other = r#"(func (export "rlhost:plugin/reward@9.0.0#score"))"#;
        refused(&[MEMORY, PLUGIN, other], &["reward@9.0.0#score", "reward@0.1.0#score"]);
    }

    #[test]
    fn an_unknown_import_is_named() {
        refused(
            &[r#"(import "env" "abort" (func))"#, MEMORY, PLUGIN, REWARD],
            &["\"abort\" from \"env\"", "rlhost:plugin/host@0.1.0"],
        );
        refused(
            &[r#"(import "wasi_snapshot_preview1" "fork" (func))"#, MEMORY, PLUGIN, REWARD],
            &["\"fork\"", "no such function"],
        );
    }

    #[test]
    fn a_function_of_another_shape_is_refused() {
        let crooked = r#"(func (export "rlhost:plugin/reward@0.1.0#score") (param i32) (result i32) unreachable)"#;
        refused(&[MEMORY, PLUGIN, crooked], &["score", "type mismatch"]);
        assert!(component(b"\0asm\x01\0\0\0\xff").unwrap_err().contains("damaged"));
    }
}
