//! Finds the files next to a script that it imports. It searches the text, wherever an import can be written, without running it: a name in
//! a comment or a string at worst adds an unused file.

use super::Language;
use super::text::text;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Maximum number of files that a script may import.
const MOST: usize = 5_000;

/// Returns the files that a script imports, directly or indirectly, by path. Paths are relative to the script's folder or to the first of
/// the `others` that has the file.
///
/// # Errors
/// If one of the files can't be read.
pub(super) fn modules(file: &Path, source: &str, language: Language, others: &[PathBuf]) -> io::Result<BTreeMap<String, String>> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let place = |path: &Path| {
        let places = std::iter::once(folder).chain(others.iter().map(PathBuf::as_path));
        places.map(|folder| folder.join(path)).find(|path| path.is_file())
    };
    let mut found = BTreeMap::new();
    let own = file.file_name().map(PathBuf::from).unwrap_or_default();
    let mut waiting = candidates(&own, source, language);
    while let Some(path) = waiting.pop() {
        let Some(name) = portable(&path) else { continue };
        if path == own || found.contains_key(&name) {
            continue;
        }
        let Some(file) = place(&path) else { continue };
        if found.len() == MOST {
            return Err(io::Error::other(format!("it imports more than {MOST} files")));
        }
        let source = text(&file).map_err(|e| io::Error::new(e.kind(), format!("{name}, which it imports: {e}")))?;
        waiting.extend(candidates(&path, &source, language));
        found.insert(name, source);
    }
    Ok(found)
}

/// Returns a path with `/` as its separator, if it stays in the folder.
fn portable(path: &Path) -> Option<String> {
    let parts = path.components().map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    Some(parts.collect::<Option<Vec<_>>>()?.join("/"))
}

/// Returns the paths that a file's imports may refer to.
fn candidates(file: &Path, source: &str, language: Language) -> Vec<PathBuf> {
    match language {
        Language::Python => logical_lines(source).iter().flat_map(|line| python(file, line)).collect(),
        Language::JavaScript => source.lines().flat_map(|line| javascript(file, line)).collect(),
    }
}

/// Returns Python's lines without comments, with an import that uses parentheses or a backslash joined into one line.
fn logical_lines(source: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in source.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let (text, goes_on) = line.trim_end().strip_suffix('\\').map_or((line, false), |text| (text, true));
        match lines.last_mut().filter(|_| is_open) {
            Some(last) => {
                last.push(' ');
                last.push_str(text);
            }
            None => lines.push(text.to_owned()),
        }
        let last = lines.last().map(String::as_str).unwrap_or_default();
        let in_parentheses = last.contains("import") && last.contains('(') && !last.contains(')');
        is_open = goes_on || in_parentheses;
    }
    lines
}

/// Returns the files that a line of Python may import: `import a.b, c`, `from a import b`, `from .a import b`.
fn python(file: &Path, line: &str) -> Vec<PathBuf> {
    // An import may follow a semicolon, or a colon on the same line.
    let statements = line.split([';', ':']).map(str::trim);
    let mut names: Vec<String> = Vec::new();
    for statement in statements {
        if let Some(rest) = statement.strip_prefix("import ") {
            names.extend(rest.split(',').filter_map(|name| name.split_whitespace().next()).map(str::to_owned));
        } else if let Some(rest) = statement.strip_prefix("from ") {
            let (module, imported) = rest.split_once(" import").unwrap_or((rest, ""));
            let module = module.trim();
            names.push(module.to_owned());
            let imported = imported.split([',', '(', ')']).filter_map(|name| name.split_whitespace().next());
            let joint = if module.ends_with('.') { "" } else { "." };
            names.extend(imported.map(|name| format!("{module}{joint}{name}")));
        }
    }
    names.iter().flat_map(|name| of_python_name(file, name)).collect()
}

/// Returns the files of a module and of the packages that it is in.
fn of_python_name(file: &Path, name: &str) -> Vec<PathBuf> {
    let dots = name.len() - name.trim_start_matches('.').len();
    let mut folder = PathBuf::new();
    if dots > 0 {
        folder = file.parent().unwrap_or(Path::new("")).to_owned();
        for _ in 1..dots {
            folder.pop();
        }
    }
    let mut paths = Vec::new();
    for part in name.trim_start_matches('.').split('.').take_while(|part| !part.is_empty()) {
        paths.extend([folder.join(part).with_extension("py"), folder.join(part).join("__init__.py")]);
        folder.push(part);
    }
    paths
}

/// Returns the files that a line of JavaScript may import: quoted texts that begin with `./` or `../`.
fn javascript(file: &Path, line: &str) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut paths = Vec::new();
    for quote in ['"', '\'', '`'] {
        for given in line.split(quote).skip(1).step_by(2).filter(|given| given.starts_with("./") || given.starts_with("../")) {
            let Some(path) = joined(folder, given) else { continue };
            // TypeScript files import each other by the names of the compiled JavaScript files.
            let stem = path.with_extension("");
            paths.extend(["js", "ts", "mjs", "mts"].map(|extension| stem.with_extension(extension)));
            paths.push(path);
        }
    }
    paths
}

/// Joins a relative path to a folder and resolves `.` and `..`.
fn joined(folder: &Path, given: &str) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for part in given.split('/') {
        match part {
            "" | "." => {}
            ".." => path.pop().then_some(())?,
            part => path.push(part),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn found(files: &[(&str, &str)], language: Language) -> io::Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let (name, source) = files[0];
        modules(&folder.path().join(name), source, language, &[]).map(|all| all.into_keys().collect())
    }

    #[test]
    fn files_that_a_python_script_imports_are_found_through_others() {
        let files = [
            (
                "main.py",
                "import re, words as w\nfrom pack.inner import (  # one\n    f,\n    more as m,\n)\nif True: import late\ntry: from . import beside\nexcept: pass\nimport json",
            ),
            ("words.py", "from deeper import *"),
            ("deeper.py", "import main\nimport words"),
            ("late.py", ""),
            ("beside.py", ""),
            ("pack/__init__.py", "from .other import g"),
            ("pack/inner.py", "from ..words import x\nfrom . import sibling"),
            ("pack/more.py", ""),
            ("pack/inner/more.py", ""),
            ("pack/other.py", ""),
            ("pack/sibling.py", ""),
            ("unused.py", ""),
        ];
        let names = found(&files, Language::Python).unwrap();
        let expected = [
            "beside.py",
            "deeper.py",
            "late.py",
            "pack/__init__.py",
            "pack/inner.py",
            "pack/inner/more.py",
            "pack/other.py",
            "pack/sibling.py",
            "words.py",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn files_that_a_javascript_module_imports_are_found_and_none_outside_the_folder() {
        let files = [
            ("a/main.ts", "import { x } from './words.js';\nexport * from \"./inner/more\";\nimport y from '../outside.js';"),
            ("a/words.ts", ""),
            ("a/inner/more.mjs", "import '../last.js'"),
            ("a/last.js", ""),
            ("outside.js", ""),
        ];
        assert_eq!(found(&files, Language::JavaScript).unwrap(), ["inner/more.mjs", "last.js", "words.ts"]);
    }

    #[test]
    fn a_file_that_is_no_text_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("words.py"), b"x = 1\n\xff").unwrap();
        let error = modules(&folder.path().join("a.py"), "import words", Language::Python, &[]).unwrap_err().to_string();
        assert!(error.contains("words.py, which it imports: it is not text in UTF-8, from byte 6 on"), "{error}");
    }
}
