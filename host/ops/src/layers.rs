//! The layers of this crate, and a test that its files keep to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files of each layer, as modules. A folder stands for all of its files that no other line names.
const LAYERS: [(&str, &[&str]); 6] = [
    ("the machine", &["layers", "math", "processor", "simd", "system", "team"]),
    (
        "tensors",
        &[
            "adapter",
            "capability",
            "codes",
            "cuda::array",
            "cuda::device",
            "cuda::elementwise",
            "cuda::launch",
            "cuda::plan",
            "cuda::reduce",
            "cuda::rows",
            "device",
            "dispatch",
            "elementwise",
            "error",
            "forest",
            "heads",
            "quantized",
            "reading",
            "reduce",
            "rounding",
            "rows",
            "shape",
            "slices",
            "stored",
            "support",
            "update",
            "view",
        ],
    ),
    ("products", &["bf16", "cuda::gemm", "f32_kernel", "gemm", "int8", "lines", "tiles", "unpack"]),
    (
        "operations",
        &[
            "activation",
            "adamw",
            "adamw_8bit",
            "attention",
            "columns",
            "cuda",
            "dropout",
            "embedding",
            "experts",
            "layer_norm",
            "linear",
            "logprob",
            "low_rank",
            "magnitude",
            "mean_rows",
            "noise",
            "norm",
            "optimizers",
            "rope",
            "routes",
            "splice",
            "squares",
            "token_stats",
        ],
    ),
    ("generation", &["cached_attention", "caches", "cuda::decode", "panels", "sampler"]),
    ("measurements", &["machine"]),
];

/// The sources of this crate without tests and comments, by module; the crate itself is "".
struct Sources(BTreeMap<String, String>);

impl Sources {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut found, mut folders) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let inside = path.strip_prefix(&root).unwrap().with_extension("");
                let names = inside.iter().map(|name| name.to_str().unwrap());
                let module: Vec<&str> = names.filter(|name| !["mod", "lib"].contains(name)).collect();
                found.insert(module.join("::"), code(&fs::read_to_string(&path).unwrap()));
            }
        }
        Self(found)
    }

    /// Returns the file that a path from the root of the crate leads to, through what files hand on.
    fn file(&self, path: &[String]) -> String {
        let depth = (0..=path.len()).rev().find(|&n| self.0.contains_key(&path[..n].join("::"))).unwrap_or(0);
        let module = path[..depth].join("::");
        let Some(name) = path.get(depth) else { return module };
        let handed_on = self.uses(&module).into_iter().find(|used| used.last() == Some(name) && used[..] != path[..=depth]);
        handed_on.map_or(module, |used| self.file(&used))
    }

    /// Returns the paths from the root of the crate that `use` declarations of a file name.
    fn uses(&self, module: &str) -> Vec<Vec<String>> {
        let declared = self.0[module].split(';').filter_map(|line| line.rsplit_once("use ").map(|(_, tree)| tree));
        let trees = declared.flat_map(|tree| leaves(tree.trim()));
        trees.filter_map(|path| self.absolute(module, &path)).collect()
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
                "crate" | "self" => {}
                "super" => drop(from.pop()),
                name => from.push(name),
            }
        }
        Some(from.into_iter().map(str::to_owned).collect())
    }

    /// Returns the files that a file imports from.
    fn imports(&self, module: &str) -> BTreeSet<String> {
        let (text, mut paths) = (&self.0[module], self.uses(module));
        let named = ["super::", "crate::"].iter().flat_map(|start| text.match_indices(start));
        // Where a path begins, not where it goes on.
        let begins = named.filter(|(at, _)| !text[..*at].ends_with([':', '_']));
        paths.extend(begins.filter_map(|(at, _)| self.absolute(module, &path_at(&text[at..]))));
        // What is named through a module that was imported as a whole.
        for used in paths.clone().into_iter().filter(|used| self.0.contains_key(&used.join("::"))) {
            let Some(name) = used.last() else { continue };
            let through: Vec<_> = text.match_indices(&format!("{name}::")).map(|(at, _)| path_at(&text[at..])).collect();
            let inner = through.iter().map(|path| used.iter().cloned().chain(path.split("::").skip(1).map(str::to_owned)));
            paths.extend(inner.map(Iterator::collect));
            if !through.is_empty() {
                paths.retain(|path| *path != used);
            }
        }
        let files = paths.iter().map(|path| self.file(path));
        files.filter(|file| file != module && !file.is_empty()).collect()
    }
}

/// Returns a source without its tests and comments.
fn code(text: &str) -> String {
    let text = ["#[cfg(test)]\nmod tests", "#[cfg(all(test"].iter().fold(text, |text, tests| text.split(tests).next().unwrap());
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the path that a text begins with.
fn path_at(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    text[..end].trim_end_matches(':').to_owned()
}

/// Returns the paths of a tree such as `a::{b, c::{d, e}}`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().to_owned()];
    };
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

/// Returns the layer of a file.
fn layer(module: &str) -> Option<usize> {
    let mut named = Some(module);
    while let Some(name) = named {
        if let Some(found) = LAYERS.iter().position(|(_, files)| files.contains(&name)) {
            return Some(found);
        }
        named = name.rsplit_once("::").map(|(folder, _)| folder);
    }
    None
}

#[test]
fn files_import_from_their_own_layer_and_those_before_it() {
    let sources = Sources::read();
    for module in sources.0.keys().filter(|module| !module.is_empty()) {
        let own = layer(module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for used in sources.imports(module) {
            let of = layer(&used).unwrap_or_else(|| panic!("{used} is in no layer"));
            assert!(of <= own, "{module}, of {}, imports from {used}, of {}", LAYERS[own].0, LAYERS[of].0);
        }
    }
    let stale = LAYERS.iter().flat_map(|(_, files)| *files).find(|file| !sources.0.contains_key(**file));
    assert_eq!(stale, None, "a file of a layer that does not exist");
}

#[test]
fn no_two_files_import_each_other() {
    let sources = Sources::read();
    // Faces only hand on what is in other files.
    let is_face = |module: &str| !["fn ", "struct ", "enum ", "trait "].iter().any(|item| sources.0[module].contains(item));
    let mut left: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for module in sources.0.keys().filter(|module| !module.is_empty() && !is_face(module)) {
        left.insert(module, sources.imports(module));
    }
    assert!(left.len() > 60 && left["attention"].contains("gemm") && left["attention"].contains("cuda::attention"));
    // A file goes once none that is left is imported by it, or imports it; those of a circle never do.
    loop {
        let leads_on = |used: &BTreeSet<String>| used.iter().any(|file| left.contains_key(file.as_str()));
        let is_used = |file: &str| left.values().any(|used| used.contains(file));
        let Some(free) = left.iter().find(|(file, used)| !leads_on(used) || !is_used(file)) else { break };
        let free = *free.0;
        left.remove(free);
    }
    assert!(left.is_empty(), "circles: {left:#?}");
}

#[test]
fn imports_are_found_however_they_are_written() {
    let sources = [
        ("", "mod a; mod b; pub use b::Face;"),
        ("a", "use super::Face;\nuse crate::{b::{c as d, e}, f};\nfn x() { b::c::go() }\nuse super::b;"),
        ("b", "mod c;\npub use c::Inner;\npub struct Face;"),
        ("b::c", "use crate::f::g;\nfn y() { super::super::a::x() }"),
        ("f", "use std::fs;\nuse candle_core::Tensor;"),
    ];
    let sources = Sources(sources.map(|(module, text)| (module.to_owned(), text.to_owned())).into());
    let found = |module: &str| sources.imports(module).into_iter().collect::<Vec<_>>();
    assert_eq!(found("a"), ["b", "b::c", "f"]);
    assert_eq!(found("b::c"), ["a", "f"]);
    assert!(found("f").is_empty());
    assert_eq!(sources.file(&["b", "Inner"].map(str::to_owned)), "b::c");
    assert_eq!(code("a // b\nc\n#[cfg(test)]\nmod tests {}"), "a \nc");
}
