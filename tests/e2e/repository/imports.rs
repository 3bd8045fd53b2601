//! Which files of a crate import from which, as their sources say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The sources of a crate without tests and comments, by module; the crate itself is "".
pub(super) struct Sources(pub(super) BTreeMap<String, String>);

impl Sources {
    pub(super) fn read(root: &Path) -> Self {
        let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let is = |name: &str| path.file_stem().is_some_and(|stem| stem == name);
                if path.is_dir() {
                    // Compiled for tests alone.
                    folders.extend((!is("tests") && !is("fuzzing")).then_some(path));
                    continue;
                }
                if path.extension().is_none_or(|ending| ending != "rs") || is("tests") || is("main") {
                    continue;
                }
                let inside = path.strip_prefix(root).unwrap().with_extension("");
                let names = inside.iter().map(|name| name.to_str().unwrap());
                let module: Vec<&str> = names.filter(|name| !["mod", "lib"].contains(name)).collect();
                found.insert(module.join("::"), code(&fs::read_to_string(&path).unwrap()));
            }
        }
        Self(found)
    }

    /// Returns the file that a path from the root of the crate leads to, through what files hand on.
    fn file(&self, path: &[String], depth: usize) -> String {
        let known = (0..=path.len()).rev().find(|&n| self.0.contains_key(&path[..n].join("::"))).unwrap_or(0);
        let module = path[..known].join("::");
        let Some(name) = path.get(known).filter(|_| depth < 16) else { return module };
        let found = self.uses(&module).into_iter().find(|used| used.name == *name && used.path[..] != path[..=known]);
        found.map_or(module, |used| self.file(&used.path, depth + 1))
    }

    /// Returns what the `use` declarations of a file name.
    fn uses(&self, module: &str) -> Vec<ImportedItem> {
        let of_tree = |(is_handed_on, tree): (bool, &str)| {
            leaves(tree.trim()).into_iter().filter_map(move |leaf| {
                let (path, alias) = leaf.split_once(" as ").map_or((leaf.as_str(), None), |(path, name)| (path, Some(name)));
                let path = self.absolute(module, path)?;
                let name = alias.map(str::to_owned).or_else(|| path.last().cloned())?;
                Some(ImportedItem { path, name, is_reexport: is_handed_on })
            })
        };
        self.0[module]
            .split(';')
            .filter_map(declaration)
            .flat_map(|(_, is_handed_on, tree)| of_tree((is_handed_on, tree)))
            .collect()
    }

    /// Returns a path as one from the root of the crate; none if it leads out of the crate.
    fn absolute(&self, module: &str, path: &str) -> Option<Vec<String>> {
        let mut from: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
        let mut rest = path.split("::").map(str::trim).peekable();
        match *rest.peek()? {
            "crate" => from.clear(),
            "super" | "self" => {}
            child if self.0.contains_key(from.iter().chain([&child]).copied().collect::<Vec<_>>().join("::").as_str()) => {}
            _ => return None,
        }
        for name in rest {
            match name {
                "crate" | "self" | "*" => {}
                "super" => drop(from.pop()),
                name => from.push(name),
            }
        }
        Some(from.into_iter().map(str::to_owned).collect())
    }

    /// Returns the files that a file imports from. What it only hands on, its own code does not need.
    pub(super) fn imports(&self, module: &str) -> BTreeSet<String> {
        self.files_of(module, |text, used| !used.is_reexport || words(text).any(|(_, word)| word == used.name))
    }

    /// Returns the files that a file imports from or hands on.
    pub(super) fn imports_and_exports(&self, module: &str) -> BTreeSet<String> {
        self.files_of(module, |_, _| true)
    }

    /// Returns the files of what a file names, of its `use` declarations as far as they count.
    fn files_of(&self, module: &str, counts: impl Fn(&str, &ImportedItem) -> bool) -> BTreeSet<String> {
        let own = |statement| match declaration(statement) {
            Some((before, true, _)) => before,
            _ => statement,
        };
        let text = &self.0[module].split(';').map(own).collect::<Vec<_>>().join(";");
        let uses: Vec<ImportedItem> = self.uses(module).into_iter().filter(|used| counts(text, used)).collect();
        let (mut paths, mut modules) = (Vec::new(), BTreeMap::new());
        for ImportedItem { path, name, .. } in uses {
            match self.0.contains_key(&path.join("::")) {
                true => drop(modules.insert(name, path)),
                false => paths.push(path),
            }
        }
        // What is named by its path, from here or through a module that was imported as a whole.
        for (at, word) in words(text).filter(|(at, word)| text[at + word.len()..].starts_with("::")) {
            let path = path_at(&text[at..]);
            match modules.get(word) {
                Some(through) => paths.push(through.iter().cloned().chain(path.split("::").skip(1).map(str::to_owned)).collect()),
                None => paths.extend(self.absolute(module, &path)),
            }
        }
        let files = paths.iter().filter(|path| !self.0.contains_key(&path.join("::"))).map(|path| self.file(path, 0));
        files.filter(|file| file != module && !file.is_empty()).collect()
    }

    /// Returns whether a file only hands on what is in others.
    pub(super) fn is_face(&self, module: &str) -> bool {
        let items = ["fn ", "struct ", "enum ", "trait ", "const ", "type ", "static ", "macro_rules!"];
        !items.iter().any(|item| self.0[module].contains(item))
    }

    /// Returns the sets of files that import each other, if only over others of the set; `imports` returns what a file imports.
    pub(super) fn import_cycles(&self, imports: fn(&Self, &str) -> BTreeSet<String>) -> BTreeSet<Vec<String>> {
        let files = self.0.keys().filter(|module| !module.is_empty() && !self.is_face(module));
        let imports: BTreeMap<&str, BTreeSet<String>> = files.map(|file| (file.as_str(), imports(self, file))).collect();
        let reached = |from: &str| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
            while let Some(file) = next.pop() {
                let imported = imports.get(file.as_str()).into_iter().flatten();
                next.extend(imported.filter(|file| reached.insert((*file).clone())).cloned());
            }
            reached
        };
        let reached: BTreeMap<&str, BTreeSet<String>> = imports.keys().map(|file| (*file, reached(file))).collect();
        let circle = |(file, after): (&&str, &BTreeSet<String>)| {
            let back = |other: &&String| reached.get(other.as_str()).is_some_and(|after| after.contains(*file));
            after.iter().filter(back).cloned().collect::<Vec<_>>()
        };
        reached.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
    }
}

/// An item that a `use` declaration names.
struct ImportedItem {
    path: Vec<String>,
    /// Its name in the file.
    name: String,
    is_reexport: bool,
}

/// Returns the tree of a `use` declaration that a statement ends with, whether it is handed on, and what is before it.
fn declaration(statement: &str) -> Option<(&str, bool, &str)> {
    let (before, tree) = statement.rsplit_once("use ")?;
    let begin = before.rfind('\n').map_or(0, |at| at + 1);
    let is_handed_on = before[begin..].trim_start().starts_with("pub");
    Some((&before[..begin], is_handed_on, tree))
}

/// Returns a source without its tests and comments.
fn code(text: &str) -> String {
    let text = ["#[cfg(test)]\nmod tests", "#[cfg(all(test"].iter().fold(text, |text, tests| text.split(tests).next().unwrap());
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the words of a source that no path leads to, with their places.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let begins = text.char_indices().filter(move |(at, c)| is_word(*c) && !text[..*at].ends_with(|c| is_word(c) || c == ':'));
    begins.map(move |(at, _)| (at, text[at..].split(|c| !is_word(c)).next().unwrap_or_default()))
}

/// Returns the path that a text begins with.
fn path_at(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    text[..end].trim_end_matches(':').to_owned()
}

/// Returns the paths of a tree such as `a::{b, c::{d, e as f}}`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let (mut found, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                let part = rest[begin..at].trim();
                found.extend(leaves(part).into_iter().filter(|leaf| !leaf.is_empty()).map(|leaf| format!("{head}{leaf}")));
                begin = at + 1;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

#[test]
fn imports_are_found_however_they_are_written() {
    let sources = [
        ("", "mod a; mod b; mod f;\npub use b::Face;"),
        ("a", "use super::Face;\nuse crate::{b::{c as d, e}, f};\nfn x() { b::c::go(); f::g() }\nuse super::b;"),
        ("b", "mod c;\npub use c::Inner as Shown;\npub struct Face;\nfn e() {}"),
        ("b::c", "use crate::f::g;\nfn y() { super::super::a::x() }"),
        ("f", "use std::fs;\nuse candle_core::Tensor;\nfn g() {}"),
        ("h", "use super::b::Shown;\nconst H: u8 = 0;"),
        ("i", "pub use super::h::H;"),
    ];
    let sources = Sources(sources.map(|(module, text)| (module.to_owned(), text.to_owned())).into());
    let found = |module: &str| sources.imports(module).into_iter().collect::<Vec<_>>();
    assert_eq!(found("a"), ["b", "b::c", "f"]);
    assert_eq!((found("b"), found("b::c"), found("h")), (vec![], vec!["a".to_owned(), "f".to_owned()], vec!["b::c".to_owned()]));
    assert!(found("f").is_empty() && sources.is_face("i"));
    assert_eq!(sources.import_cycles(Sources::imports), [["a", "b::c"].map(str::to_owned).to_vec()].into());
    assert_eq!(code("a // b\nc\n#[cfg(test)]\nmod tests {}"), "a \nc");
}
