//! Bundles the page's modules into one script. Each module becomes a function that returns its exports, so that names in different modules
//! can't clash. The modules are kept simple: `import { a, b } from "./x.js";` on one line, and `export` before a declaration.

use crate::assets::Asset;
use std::fmt::Write;

/// Returns a script equivalent to these modules.
pub(super) fn joined(modules: &[Asset]) -> String {
    let mut order = Vec::new();
    for module in modules {
        visit(modules, module.path, &mut Vec::new(), &mut order);
    }
    let mut script = String::from("const modules = {};\n");
    for module in order.iter().filter_map(|path| modules.iter().find(|module| module.path == *path)) {
        add(module, &mut script);
    }
    script
}

/// Adds a module after the modules that it imports.
fn visit<'a>(modules: &'a [Asset], path: &'a str, within: &mut Vec<&'a str>, order: &mut Vec<&'a str>) {
    let Some(module) = modules.iter().find(|module| module.path == path) else { return };
    if order.contains(&path) || within.contains(&path) {
        return;
    }
    within.push(path);
    for (_, from) in module.text.lines().filter_map(import) {
        visit(modules, from, within, order);
    }
    within.pop();
    order.push(path);
}

/// Returns the names that a line imports, and the path of their module.
pub(super) fn import(line: &str) -> Option<(&str, &str)> {
    let (names, from) = line.strip_prefix("import {")?.split_once("} from \"./")?;
    Some((names.trim(), from.strip_suffix("\";")?))
}

/// Returns a line without its `export`, and the name that it exports.
pub(super) fn export(line: &str) -> Option<(&str, &str)> {
    let declaration = line.strip_prefix("export ")?;
    let words = declaration.split_whitespace();
    let named = words.clone().zip(words.skip(1)).find(|(word, _)| ["const", "function", "class"].contains(word))?.1;
    let end = named.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').unwrap_or(named.len());
    Some((declaration, &named[..end]))
}

fn add(module: &Asset, script: &mut String) {
    let mut exported = Vec::new();
    // Writing to a string can't fail.
    let _ = writeln!(script, "modules[\"{}\"] = (() => {{", module.path);
    for line in module.text.lines() {
        let _ = match (import(line), export(line)) {
            (Some((names, from)), _) => writeln!(script, "const {{ {} }} = modules[\"{from}\"];", names.replace(" as ", ": ")),
            (None, Some((declaration, name))) => {
                exported.push(name);
                writeln!(script, "{declaration}")
            }
            (None, None) => writeln!(script, "{line}"),
        };
    }
    let _ = writeln!(script, "return {{ {} }};\n}})();", exported.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::modules;
    use std::collections::BTreeSet;

    fn module(path: &'static str, text: &'static str) -> Asset {
        Asset { path, kind: "", text }
    }

    #[test]
    fn modules_come_after_those_that_they_import() {
        let script = joined(&[
            module("a.js", "import { b, c as d } from \"./b.js\";\nlet shown = b + d;"),
            module(
                "b.js",
                "const shown = 1;\nexport const b = shown;\nexport async function c(x) {\n  return x;\n}\nexport class D {}",
            ),
        ]);
        assert_eq!(
            script,
            "const modules = {};\nmodules[\"b.js\"] = (() => {\nconst shown = 1;\nconst b = shown;\nasync function c(x) {\n  return x;\n}\n\
             class D {}\nreturn { b, c, D };\n})();\nmodules[\"a.js\"] = (() => {\nconst { b, c: d } = modules[\"b.js\"];\n\
             let shown = b + d;\nreturn {  };\n})();\n"
        );
    }

    #[test]
    fn the_pages_modules_can_be_joined() {
        let modules: Vec<Asset> = modules().collect();
        assert!(modules.len() > 12);
        for module in &modules {
            let names: BTreeSet<&str> = module.text.lines().filter_map(export).map(|(_, name)| name).collect();
            // A statement that spans several lines is not understood.
            for line in module.text.lines() {
                let is_understood =
                    import(line).is_some() == line.starts_with("import") && export(line).is_some() == line.starts_with("export");
                assert!(is_understood && !line.contains("import(") && !line.contains("import.meta"), "{}: {line}", module.path);
            }
            for (imported, from) in module.text.lines().filter_map(import) {
                let of = modules.iter().find(|other| other.path == from).unwrap_or_else(|| panic!("{}: {from}", module.path));
                let exported: BTreeSet<&str> = of.text.lines().filter_map(export).map(|(_, name)| name).collect();
                let wanted = imported.split(',').map(|name| name.split(" as ").next().unwrap_or(name).trim());
                wanted.for_each(|name| assert!(exported.contains(name), "{} imports {name} from {from}", module.path));
            }
            assert!(!names.contains(""), "{}", module.path);
            let mut begun = vec![module.path];
            assert!(!leads_to(&modules, module.path, module.path, &mut begun), "{} imports itself by others", module.path);
        }
        let script = joined(&modules);
        for (i, line) in script.lines().enumerate() {
            assert!(!line.starts_with("import ") && !line.starts_with("export "), "line {i}: {line}");
        }
        assert_eq!(script.matches("modules[\"app.js\"] = ").count(), 1);
    }

    /// Returns whether a module imports another, directly or indirectly.
    fn leads_to<'a>(modules: &'a [Asset], from: &str, to: &str, seen: &mut Vec<&'a str>) -> bool {
        let Some(module) = modules.iter().find(|module| module.path == from) else { return false };
        module.text.lines().filter_map(import).any(|(_, next)| {
            let known = seen.contains(&next);
            seen.push(next);
            next == to || !known && leads_to(modules, next, to, seen)
        })
    }
}
