//! What is generated and kept in the tree is what its source gives: the SDK's bindings, the preview 1 of core modules, and the
//! reference of the book.

use rlhost_tests::TestFolder;
use std::path::{Path, PathBuf};
use wit_component::{StringEncoding, metadata};
use wit_parser::decoding::{DecodedWasm, decode};
use wit_parser::{PackageId, Resolve};

/// The interfaces that a plugin may export, each of which has a section of its own. What a plugin imports is in a section of the
/// bindings.
const EXPORTED: [&str; 10] =
    ["plugin", "state", "observer", "reward", "algorithm", "estimator", "pairing", "teacher-prompts", "environment", "inside"];

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-sdk")
}

/// The contract with another package beside it.
fn contract_and(text: &str) -> (Resolve, PackageId) {
    let mut resolve = Resolve::default();
    resolve.push_path(sdk().join("wit")).unwrap();
    let other = resolve.push_str("beside.wit", text).unwrap();
    (resolve, other)
}

/// The bindings of the contract, as the build script generated them.
fn bindings() -> Vec<u8> {
    include_bytes!(concat!(env!("OUT_DIR"), "/generated.rs")).to_vec()
}

/// The section of a world that exports one interface. The linker merges those of a plugin.
fn section(interface: &str) -> Vec<u8> {
    let text = format!("package rlhost:sections; world {interface}-section {{ export rlhost:plugin/{interface}@1.0.0; }}");
    let (resolve, package) = contract_and(&text);
    let world = resolve.select_world(&[package], None).unwrap();
    metadata::encode(&resolve, world, StringEncoding::UTF8, None).unwrap()
}

/// Each kept file of the SDK and what it should hold.
fn bound() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = sdk().join("src/bindings");
    let sections = EXPORTED.map(|name| (folder.join(format!("{name}.component-type")), section(name)));
    [(folder.join("generated.rs"), bindings())].into_iter().chain(sections).collect()
}

fn check(files: Vec<(PathBuf, Vec<u8>)>) {
    for (file, wanted) in files {
        if std::env::var_os("RLHOST_WRITE_GENERATED").is_some_and(|v| v == "1") {
            std::fs::write(&file, &wanted).unwrap();
        }
        let kept = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let write =
            "RLHOST_WRITE_GENERATED=1 cargo test --package rlhost-tests --test e2e -- repository::generated writes it anew";
        assert!(kept == wanted, "{} is not what its source gives: {write}", file.display());
    }
}

#[test]
fn kept_bindings_are_those_of_the_contract() {
    check(bound());
}

#[test]
fn the_kept_preview_1_is_that_of_its_text() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/plugin/src/preview1.wat");
    check(vec![(text.with_extension("wasm"), wat::parse_file(&text).unwrap())]);
}

#[test]
fn the_kept_reference_is_that_of_the_program() {
    let place = TestFolder::new();
    place.run(&["man", "--markdown", "reference"]).succeeded();
    let pages = std::fs::read_dir(place.path("reference")).unwrap().map(|entry| entry.unwrap().path());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/docs/reference");
    let kept: Vec<_> = pages.map(|page| (folder.join(page.file_name().unwrap()), std::fs::read(&page).unwrap())).collect();
    assert_eq!(kept.len(), 3);
    check(kept);
}

/// The contract's interfaces that a compiled plugin imports and exports, without the types that they share.
fn interfaces(plugin: &Path) -> [Vec<String>; 2] {
    let bytes = std::fs::read(plugin).unwrap_or_else(|e| panic!("{}: {e}", plugin.display()));
    let DecodedWasm::Component(resolve, world) = decode(&bytes).unwrap() else { panic!("{} is no component", plugin.display()) };
    let world = &resolve.worlds[world];
    [&world.imports, &world.exports].map(|items| {
        let of_contract = |key| resolve.name_world_key(key).strip_prefix("rlhost:plugin/").map(str::to_owned);
        let mut names: Vec<String> = items.keys().filter_map(of_contract).filter(|name| name != "types@1.0.0").collect();
        names.sort();
        names
            .iter()
            .map(|name| name.strip_suffix("@1.0.0").unwrap_or_else(|| panic!("{name} is another version")).to_owned())
            .collect()
    })
}

#[test]
fn a_plugins_sections_make_a_component_of_its_interfaces_alone() {
    for (plugin, imports, exports) in [
        ("tldr_length_reward", &[][..], &["plugin", "reward"][..]),
        ("judge_reward", &["host", "http"], &["plugin", "reward"]),
        ("hostile", &["host"], &["plugin", "reward", "state"]),
        ("remembering", &[], &["plugin", "reward", "state"]),
        ("calculator_tool", &[], &["environment", "plugin"]),
        ("openenv_tool", &["host", "http"], &["environment", "plugin"]),
        ("sft", &[], &["algorithm", "plugin"]),
        ("rloo", &[], &["algorithm", "estimator", "plugin"]),
        ("grpo", &["host"], &["algorithm", "estimator", "observer", "plugin", "state"]),
        ("dpo", &[], &["algorithm", "plugin"]),
        ("sdpo", &[], &["algorithm", "estimator", "plugin", "teacher-prompts"]),
        ("online_dpo", &[], &["algorithm", "pairing", "plugin"]),
        ("kto", &[], &["algorithm", "plugin"]),
        ("reward_model", &[], &["algorithm", "plugin"]),
    ] {
        let file = Path::new(rlhost_tests::HOSTILE).with_file_name(format!("{plugin}.wasm"));
        assert_eq!(interfaces(&file), [imports, exports], "{plugin}");
    }
}
