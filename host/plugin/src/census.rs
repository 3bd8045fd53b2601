//! Counts what a component contains before compiling it, with nested instantiation multiplied out. Otherwise a few kilobytes of components
//! that instantiate one another ten times each would become gigabytes.
//!
//! It also counts the memory that wasmtime allocates for each instance besides the instance's memories and tables: references to its
//! functions, its imports, globals and element segments. No limiter sees that memory, so it is bounded at this point and then counted
//! towards the instance (`limits.rs`).

use std::collections::BTreeMap;
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExport, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind,
    ComponentType, ComponentTypeDeclaration, ComponentTypeRef, ElementItems, Instance, InstanceTypeDeclaration, Parser, Payload,
};

/// Kinds of items in a component.
#[derive(Clone, Copy)]
enum CensusKind {
    Components,
    Modules,
    Instances,
    Memories,
    Tables,
    Globals,
    Types,
    Functions,
    Imports,
    Exports,
}

/// Name and limit of each kind. They exist to stop plugins built to exceed them: the largest plugin that we know, a complete Python, stays
/// far below.
const LIMITS: [(&str, u64); 10] = [
    ("components", 1_000),
    ("core modules", 1_000),
    ("instances", MOST_INSTANCES),
    ("memories", MOST_MEMORIES),
    ("tables", MOST_TABLES),
    ("globals", 200_000),
    ("types", 500_000),
    ("functions", 500_000),
    ("imports", 500_000),
    ("exports", 500_000),
];

/// Maximum number of instances in an instance of a component: components and core modules together.
pub(super) const MOST_INSTANCES: u64 = 10_000;

/// Maximum number of memories in an instance of a component.
pub(super) const MOST_MEMORIES: u64 = 100;

/// Maximum number of tables in an instance of a component.
pub(super) const MOST_TABLES: u64 = 1_000;

type CensusCounts = [u64; LIMITS.len()];

/// Lower bounds on the memory that wasmtime 48 allocates in an instance for each item of its definition, in bytes. A test in `tests/`
/// compares the sum with what instances actually take (`VMOffsets`, `Instance`, `Table` and `Memory` of wasmtime have the parts).
mod instance_cost {
    /// An instance of a core module, with its entries in the store.
    pub(super) const INSTANCE: u64 = 2048;
    /// An instance of a component: its handle table.
    pub(super) const COMPONENT: u64 = 1024;
    /// A function: the reference to it that tables and exports need.
    pub(super) const FUNCTION: u64 = 32;
    pub(super) const IMPORT: u64 = 64;
    pub(super) const EXPORT: u64 = 32;
    pub(super) const GLOBAL: u64 = 32;
    pub(super) const TABLE: u64 = 256;
    /// A memory: its description, and the page tables for its pages and for its reserved address space.
    pub(super) const MEMORY: u64 = 64 << 10;
    /// An element of a segment.
    pub(super) const ELEMENT: u64 = 16;
    /// A segment of elements or data.
    pub(super) const SEGMENT: u64 = 64;
    /// A function between components or to the host: a trampoline, and an instance of a module that forwards values.
    pub(super) const BETWEEN: u64 = 2 * INSTANCE;
}

/// The result of a count.
#[derive(Debug)]
struct CensusTotals {
    things: CensusCounts,
    /// Memory of an instance besides its memories and tables, in bytes.
    fixed: u64,
}

/// The reason why a component is not compiled.
#[derive(Debug)]
pub(super) enum CompileRefusal {
    /// The component can't be read.
    Damaged(String),
    /// The component contains more than a plugin may.
    TooMuch(String),
}

impl From<BinaryReaderError> for CompileRefusal {
    fn from(error: BinaryReaderError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// A component or core module in the file.
#[derive(Default)]
struct Definition {
    /// Contents that count once, however often the definition is instantiated.
    once: CensusCounts,
    /// Contents of each instance.
    each: CensusCounts,
    /// Memory allocated for each instance, in bytes.
    kept: u64,
    /// How often one instance instantiates each earlier definition.
    makes: BTreeMap<usize, u64>,
}

impl Definition {
    fn once(&mut self, kind: CensusKind, more: u64) {
        self.once[kind as usize] += more;
    }

    fn each(&mut self, kind: CensusKind, more: u64) {
        self.each[kind as usize] += more;
    }

    /// Counts items in each instance, together with the memory allocated for them.
    fn each_kept(&mut self, kind: CensusKind, more: u64, bytes: u64) {
        self.each(kind, more);
        self.kept = self.kept.saturating_add(more.saturating_mul(bytes));
    }

    /// Counts memory that is allocated for each instance, for `more` items of `bytes` each.
    fn keep(&mut self, more: u64, bytes: u64) {
        self.kept = self.kept.saturating_add(more.saturating_mul(bytes));
    }

    /// Counts an instance of another definition, with this many arguments.
    fn instance_of(&mut self, made: usize, arguments: usize) {
        self.each(CensusKind::Instances, 1);
        self.each(CensusKind::Imports, arguments as u64);
        *self.makes.entry(made).or_default() += 1;
    }

    /// Counts an instance made of this many exports.
    fn instance_from(&mut self, exports: usize) {
        self.each(CensusKind::Instances, 1);
        self.each(CensusKind::Exports, exports as u64);
    }
}

/// A definition being read, with the definitions that it can refer to by index.
#[derive(Default)]
struct Frame {
    is_module: bool,
    definition: Definition,
    modules: Vec<usize>,
    components: Vec<usize>,
}

#[derive(Default)]
struct Census {
    /// Definitions read to the end. Each can be instantiated only by later ones.
    read: Vec<Definition>,
    open: Vec<Frame>,
}

/// Rejects a component that contains more than a plugin may, or whose instances would take more than `most` bytes besides their memories
/// and tables. Returns those bytes.
pub(super) fn check(component: &[u8], most: u64) -> Result<u64, CompileRefusal> {
    let CensusTotals { fixed, .. } = counts(component)?;
    check_memory(fixed, most)?;
    Ok(fixed)
}

/// Rejects a component whose instances take more than `most` bytes besides their memories and tables.
pub(super) fn check_memory(fixed: u64, most: u64) -> Result<(), CompileRefusal> {
    if fixed <= most {
        return Ok(());
    }
    let takes = if fixed == u64::MAX { "too much to count".to_owned() } else { format!("{} MiB", fixed.div_ceil(1 << 20)) };
    Err(CompileRefusal::TooMuch(format!(
        "an instance of it, with all nested ones, takes {takes} of memory besides its memories and tables; at most {} MiB are allowed \
         (limits.memory_mb, limits.total_memory_mb)",
        most >> 20
    )))
}

fn counts(component: &[u8]) -> Result<CensusTotals, CompileRefusal> {
    let mut census = Census { read: Vec::new(), open: vec![Frame::default()] };
    for payload in Parser::new(0).parse_all(component) {
        census.take(payload?)?;
    }
    let counted = multiplied(&census.read);
    within(&counted.things)?;
    Ok(counted)
}

/// Returns the sum over all definitions, each multiplied by its number of instances.
fn multiplied(definitions: &[Definition]) -> CensusTotals {
    let (mut total, mut fixed) = ([0u64; LIMITS.len()], 0u64);
    let mut times = vec![0u64; definitions.len()];
    if let Some(root) = times.last_mut() {
        *root = 1;
    }
    for (at, definition) in definitions.iter().enumerate().rev() {
        let here = times[at];
        for (&target, &n) in &definition.makes {
            times[target] = times[target].saturating_add(n.saturating_mul(here));
        }
        fixed = fixed.saturating_add(definition.kept.saturating_mul(here));
        for ((total, once), each) in total.iter_mut().zip(definition.once).zip(definition.each) {
            // A definition that is never instantiated is still compiled.
            *total = total.saturating_add(once).saturating_add(each.saturating_mul(here.max(1)));
        }
    }
    CensusTotals { things: total, fixed }
}

fn within(counts: &CensusCounts) -> Result<(), CompileRefusal> {
    match counts.iter().zip(LIMITS).find(|(count, (_, most))| *count > most) {
        Some((count, (what, most))) => {
            let count = if *count == u64::MAX { "too many to count".to_owned() } else { count.to_string() };
            Err(CompileRefusal::TooMuch(format!("it contains {count} {what}, including nested ones; at most {most} are allowed")))
        }
        None => Ok(()),
    }
}

impl Census {
    fn take(&mut self, payload: Payload<'_>) -> Result<(), CompileRefusal> {
        match payload {
            Payload::ModuleSection { .. } => self.begin(true),
            Payload::ComponentSection { .. } => self.begin(false),
            Payload::End(_) => self.end(),
            other => {
                let Some((open, outer)) = self.open.split_last_mut() else { return Ok(()) };
                if open.is_module {
                    open.core(other)?;
                } else {
                    open.component(other, outer)?;
                }
                // Checked while reading, because this also bounds the memory that reading takes.
                within(&open.definition.each)
            }
        }
    }

    fn begin(&mut self, is_module: bool) -> Result<(), CompileRefusal> {
        if let Some(frame) = self.open.last_mut() {
            frame.definition.once(if is_module { CensusKind::Modules } else { CensusKind::Components }, 1);
        }
        let mut definition = Definition::default();
        definition.keep(1, if is_module { instance_cost::INSTANCE } else { instance_cost::COMPONENT });
        self.open.push(Frame { is_module, definition, ..Frame::default() });
        let definitions = (self.read.len() + self.open.len()) as u64;
        let [(components, most_components), (modules, most_modules), ..] = LIMITS;
        if definitions > most_components + most_modules {
            let most = format!("{most_components} {components} and {most_modules} {modules}");
            return Err(CompileRefusal::TooMuch(format!("it contains more than {most}")));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), CompileRefusal> {
        let Some(frame) = self.open.pop() else { return Ok(()) };
        if let Some(outer) = self.open.last_mut() {
            let list = if frame.is_module { &mut outer.modules } else { &mut outer.components };
            list.push(self.read.len());
        }
        self.read.push(frame.definition);
        Ok(())
    }
}

/// Returns the definition with this index.
fn named(list: &[usize], index: u32) -> Result<usize, CompileRefusal> {
    let damaged = || CompileRefusal::Damaged(format!("it refers to component or core module {index}, which does not exist"));
    list.get(index as usize).copied().ok_or_else(damaged)
}

/// Rejects passing components as values: the receiver could instantiate something that this count can't see.
fn as_value(what: &str) -> CompileRefusal {
    CompileRefusal::TooMuch(format!("it {what} components or core modules as values; a plugin must contain what it instantiates"))
}

impl Frame {
    fn core(&mut self, payload: Payload<'_>) -> Result<(), CompileRefusal> {
        let holds = &mut self.definition;
        match payload {
            Payload::TypeSection(section) => holds.once(CensusKind::Types, section.count().into()),
            Payload::FunctionSection(section) => {
                holds.once(CensusKind::Functions, section.count().into());
                holds.keep(section.count().into(), instance_cost::FUNCTION);
            }
            Payload::ExportSection(section) => {
                holds.once(CensusKind::Exports, section.count().into());
                holds.keep(section.count().into(), instance_cost::EXPORT);
            }
            Payload::MemorySection(section) => {
                holds.each_kept(CensusKind::Memories, section.count().into(), instance_cost::MEMORY);
            }
            Payload::TableSection(section) => holds.each_kept(CensusKind::Tables, section.count().into(), instance_cost::TABLE),
            Payload::GlobalSection(section) => {
                holds.each_kept(CensusKind::Globals, section.count().into(), instance_cost::GLOBAL);
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    import?;
                    // The import also needs a reference to the function.
                    holds.each_kept(CensusKind::Imports, 1, instance_cost::IMPORT + instance_cost::FUNCTION);
                }
            }
            Payload::ElementSection(section) => {
                for segment in section {
                    let elements = match segment?.items {
                        ElementItems::Functions(functions) => functions.count(),
                        ElementItems::Expressions(_, expressions) => expressions.count(),
                    };
                    holds.keep(elements.into(), instance_cost::ELEMENT);
                    holds.keep(1, instance_cost::SEGMENT);
                }
            }
            Payload::DataSection(section) => holds.keep(section.count().into(), instance_cost::SEGMENT),
            _ => {}
        }
        Ok(())
    }

    /// Counts an export, which is a new name for what it exports.
    fn export(&mut self, export: &ComponentExport<'_>) -> Result<(), CompileRefusal> {
        self.definition.each(CensusKind::Exports, 1);
        let list = match export.kind {
            ComponentExternalKind::Module => &mut self.modules,
            ComponentExternalKind::Component => &mut self.components,
            _ => return Ok(()),
        };
        list.push(named(list, export.index)?);
        Ok(())
    }

    fn component(&mut self, payload: Payload<'_>, outer: &[Self]) -> Result<(), CompileRefusal> {
        let holds = &mut self.definition;
        match payload {
            Payload::ComponentCanonicalSection(section) => {
                holds.each_kept(CensusKind::Functions, section.count().into(), instance_cost::BETWEEN);
            }
            Payload::CoreTypeSection(section) => holds.each(CensusKind::Types, section.count().into()),
            Payload::ComponentTypeSection(section) => {
                for ty in section {
                    holds.each(CensusKind::Types, parts(&ty?));
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    if matches!(import?.ty, ComponentTypeRef::Module(_) | ComponentTypeRef::Component(_)) {
                        return Err(as_value("imports"));
                    }
                    holds.each(CensusKind::Imports, 1);
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    self.export(&export?)?;
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section {
                    self.alias(&alias?, outer)?;
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section {
                    match instance? {
                        Instance::Instantiate { module_index, args } => {
                            let made = named(&self.modules, module_index)?;
                            self.definition.instance_of(made, args.len());
                        }
                        Instance::FromExports(exports) => self.definition.instance_from(exports.len()),
                    }
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section {
                    match instance? {
                        ComponentInstance::Instantiate { component_index, args } => {
                            let made = named(&self.components, component_index)?;
                            self.definition.instance_of(made, args.len());
                        }
                        ComponentInstance::FromExports(exports) => self.definition.instance_from(exports.len()),
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>, outer: &[Self]) -> Result<(), CompileRefusal> {
        self.definition.each(CensusKind::Exports, 1);
        match *alias {
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module | ComponentExternalKind::Component, .. } => {
                Err(as_value("takes"))
            }
            ComponentAlias::Outer { kind, count, index } => {
                let damaged = || CompileRefusal::Damaged(format!("an alias refers to a component {count} levels up"));
                let from = match (outer.len() as u64).checked_sub(count.into()) {
                    Some(at) if count > 0 => outer.get(at as usize).ok_or_else(damaged)?,
                    _ if count == 0 => &*self,
                    _ => return Err(damaged()),
                };
                match kind {
                    ComponentOuterAliasKind::CoreModule => {
                        let module = named(&from.modules, index)?;
                        self.modules.push(module);
                    }
                    ComponentOuterAliasKind::Component => {
                        let component = named(&from.components, index)?;
                        self.components.push(component);
                    }
                    ComponentOuterAliasKind::CoreType | ComponentOuterAliasKind::Type => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Counts a type and the types declared in it.
fn parts(ty: &ComponentType<'_>) -> u64 {
    let within = match ty {
        ComponentType::Component(declarations) => declarations
            .iter()
            .map(|declaration| match declaration {
                ComponentTypeDeclaration::Type(ty) => parts(ty),
                _ => 1,
            })
            .sum(),
        ComponentType::Instance(declarations) => declarations
            .iter()
            .map(|declaration| match declaration {
                InstanceTypeDeclaration::Type(ty) => parts(ty),
                _ => 1,
            })
            .sum(),
        _ => 0,
    };
    1 + within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(wat: &str) -> Result<CensusCounts, String> {
        counted_with_memory(wat).map(|counted| counted.things)
    }

    fn fixed(wat: &str) -> u64 {
        counted_with_memory(wat).unwrap().fixed
    }

    fn counted_with_memory(wat: &str) -> Result<CensusTotals, String> {
        counts(&wat::parse_str(wat).unwrap()).map_err(|refusal| match refusal {
            CompileRefusal::Damaged(text) | CompileRefusal::TooMuch(text) => text,
        })
    }

    fn count(wat: &str, kind: CensusKind) -> u64 {
        counted(wat).unwrap()[kind as usize]
    }

    /// Makes components, each of which instantiates the previous one `times` times.
    fn nested(levels: usize, times: usize) -> String {
        let level = |i: usize| {
            let alias = format!("(alias outer 1 {} (component $before))", i - 1);
            format!("(component {alias} {})", "(instance (instantiate $before))".repeat(times))
        };
        let core = "(core module $m (memory 1) (memory 1) (table 1 funcref) (global i32 (i32.const 0)) (func))";
        let leaf = format!("(component {core} (core instance (instantiate $m)) (core instance (instantiate $m)))");
        let last = levels - 1;
        let levels: String = (1..levels).map(level).collect();
        format!("(component {leaf}{levels} (instance (instantiate {last})))")
    }

    #[test]
    fn instances_are_multiplied_out() {
        // One of the root, three of the leaf, each with two of the module.
        let made = nested(2, 3);
        let found = counted(&made).unwrap();
        assert_eq!(found[CensusKind::Components as usize], 2);
        assert_eq!(found[CensusKind::Modules as usize], 1);
        assert_eq!(found[CensusKind::Instances as usize], 1 + 3 + 3 * 2);
        assert_eq!(found[CensusKind::Memories as usize], 3 * 2 * 2);
        assert_eq!((found[CensusKind::Tables as usize], found[CensusKind::Globals as usize]), (6, 6));
        assert_eq!(found[CensusKind::Functions as usize], 1);
        assert!(counted("(component)").unwrap().iter().all(|n| *n == 0));
    }

    #[test]
    fn a_few_kilobytes_that_multiply_are_refused() {
        for (levels, times) in [(6, 10), (13, 10), (40, 50)] {
            let bytes = wat::parse_str(nested(levels, times)).unwrap();
            assert!(bytes.len() < 20_000);
            let Err(CompileRefusal::TooMuch(said)) = check(&bytes, u64::MAX) else { panic!("{levels} levels of {times}") };
            assert!(said.contains("instances") && said.contains("at most 10000"), "{said}");
        }
    }

    #[test]
    fn a_name_for_a_component_is_no_way_round() {
        // By an alias of the component itself, and by an export, which makes a second name.
        let times = |name: &str| format!("(instance (instantiate {name}))").repeat(3);
        let two = "(component $a (core module $m (memory 1)) (core instance (instantiate $m)))";
        let exported = format!("(component {two} (export $again \"c\" (component $a)) {})", times("$again"));
        assert_eq!(count(&exported, CensusKind::Memories), 3);
        let aliased = format!("(component {two} (alias outer 0 $a (component $again)) {})", times("$again"));
        assert_eq!(count(&aliased, CensusKind::Memories), 3);
        let passed = "(component (component (import \"c\" (component $c)) (instance (instantiate $c))))";
        assert!(counted(passed).unwrap_err().contains("as values"));
        let taken = format!(
            "(component {two} (component $b (component $c) (export \"c\" (component $c))) (instance $i (instantiate $b))
                (alias export $i \"c\" (component $d)) (instance (instantiate $d)))"
        );
        assert!(counted(&taken).unwrap_err().contains("as values"));
    }

    #[test]
    fn what_is_in_types_and_modules_counts() {
        let types = "(component (type (instance (type u8) (type (record (field \"a\" u8))) (export \"f\" (func)))) (type u8))";
        assert!(count(types, CensusKind::Types) >= 5);
        let module = "(component (core module (import \"a\" \"b\" (func)) (func) (func) (func) (export \"f\" (func 0))))";
        assert_eq!(
            (count(module, CensusKind::Functions), count(module, CensusKind::Imports), count(module, CensusKind::Exports)),
            (3, 1, 1)
        );
        let many = format!("(component (core module {}))", "(global i32 (i32.const 0))".repeat(200_001));
        assert!(counted(&many).unwrap_err().contains("200001 globals"));
    }

    #[test]
    fn what_can_t_be_read_is_damaged() {
        let whole = wat::parse_str(nested(3, 2)).unwrap();
        for length in 9..whole.len() {
            assert!(!matches!(check(&whole[..length], u64::MAX), Err(CompileRefusal::TooMuch(_))), "{length}");
        }
        // Instantiates a component that does not exist.
        let bytes = [&b"\0asm\x0d\0\x01\0"[..], &[5, 4, 1, 0, 7, 0]].concat();
        assert!(matches!(check(&bytes, u64::MAX), Err(CompileRefusal::Damaged(_))));
    }
    #[test]
    fn what_each_instance_keeps_is_multiplied_by_their_number() {
        let functions = "(func)".repeat(20_000);
        let module = |instances: &str| {
            format!(
                "(component (component (core module $m {functions}) {instances}) (instance (instantiate 0)) (instance (instantiate 0)))"
            )
        };
        let made = |times: usize| fixed(&module(&"(core instance (instantiate $m))".repeat(times)));
        // A module that is not instantiated costs nothing, and each instance as much.
        assert!(made(0) < 10_000);
        assert_eq!(made(990) - made(0), 990 * (made(1) - made(0)));
        assert!(made(1) - made(0) >= 2 * 20_000 * 32);
        let bytes = wat::parse_str(module(&"(core instance (instantiate $m))".repeat(990))).unwrap();
        let Err(CompileRefusal::TooMuch(said)) = check(&bytes, 512 << 20) else { panic!("{} MiB", made(990) >> 20) };
        assert!(said.contains("MiB of memory besides its memories and tables; at most 512 MiB are allowed"), "{said}");
        check(&bytes, 2 << 30).unwrap();
    }

    #[test]
    fn everything_in_an_instance_counts() {
        let module = |fields: &str| fixed(&format!("(component (core module $m {fields}) (core instance (instantiate $m)))"));
        let (empty, elements) = (module(""), "0 ".repeat(1000));
        for (what, fields, least) in [
            ("globals", "(global v128 (v128.const i64x2 0 0))".repeat(1000), 16_000),
            ("passive elements", format!("(func) (elem func {elements})"), 16_000),
            ("active elements", format!("(func) (table 1000 funcref) (elem (i32.const 0) func {elements})"), 16_000),
            ("declared elements", format!("(func) (elem declare func {elements})"), 16_000),
            ("expressions", format!("(func) (elem funcref {})", "(ref.func 0)".repeat(1000)), 16_000),
            ("segments of data", "(data \"x\")".repeat(1000), 12_000),
            ("segments of elements", "(elem func)".repeat(1000), 32_000),
            ("functions", "(func)".repeat(1000), 32_000),
            ("tables", "(table 0 funcref)".repeat(100), 10_000),
            ("memories", "(memory 0)".repeat(10), 100_000),
        ] {
            assert!(module(&fields) - empty >= least, "{what}: {}", module(&fields) - empty);
        }
        let import = "(import \"a\" \"f\" (func))".repeat(1000);
        let imports = format!(
            "(component (core module $a (func (export \"f\"))) (core instance $i (instantiate $a))
                (core module $m {import}) (core instance (instantiate $m (with \"a\" (instance $i)))))"
        );
        assert!(fixed(&imports) > 56_000);
        // Instances that double at each level don't overflow.
        let doubled = |levels: usize| {
            let level = |i: usize| {
                format!(
                    "(component (alias outer 1 {} (component $b)) (instance (instantiate $b)) (instance (instantiate $b)))",
                    i - 1
                )
            };
            let levels: String = (1..levels).map(level).collect();
            format!(
                "(component (component (core module $m (func)) (core instance (instantiate $m))) {levels} (instance (instantiate {})))",
                levels.matches("(component (alias").count()
            )
        };
        assert!(counted(&doubled(80)).unwrap_err().contains("too many to count instances"));
        assert!(fixed(&doubled(10)) >= 512 * 2048);
    }
}
