//! What is generated and kept in the tree is what its source gives: the SDK's bindings, and the preview 1 of core modules.

use std::path::{Path, PathBuf};
use wit_bindgen_core::{Files, WorldGenerator};
use wit_bindgen_rust::Opts;
use wit_component::{StringEncoding, metadata};
use wit_parser::{PackageId, Resolve, WorldId};

/// A world of every interface, of which bindings are made once.
const EVERYTHING: &str = "
    package rlhost:sdk;
    world everything {
        import rlhost:plugin/host@0.1.0;
        export rlhost:plugin/plugin@0.1.0;
        export rlhost:plugin/reward@0.1.0;
        export rlhost:plugin/policy@0.1.0;
        export rlhost:plugin/preference@0.1.0;
        export rlhost:plugin/pairing@0.1.0;
        export rlhost:plugin/state@0.1.0;
        export rlhost:plugin/observer@0.1.0;
    }
";

/// Worlds of the contract with its optional interfaces.
const STATEFUL: &str = "
    package rlhost:stateful;
    world stateful-reward-plugin {
        include rlhost:plugin/reward-plugin@0.1.0;
        export rlhost:plugin/state@0.1.0;
    }
    world stateful-policy-plugin {
        include rlhost:plugin/policy-plugin@0.1.0;
        export rlhost:plugin/state@0.1.0;
    }
    world observing-policy-plugin {
        include stateful-policy-plugin;
        export rlhost:plugin/observer@0.1.0;
    }
";

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-sdk")
}

/// The contract, with another package beside it.
fn contract_and(text: &str) -> (Resolve, PackageId, PackageId) {
    let mut resolve = Resolve::default();
    let (contract, _) = resolve.push_path(sdk().join("wit")).unwrap();
    let other = resolve.push_str("beside.wit", text).unwrap();
    (resolve, contract, other)
}

fn bindings() -> Vec<u8> {
    let (mut resolve, _, package) = contract_and(EVERYTHING);
    let world = resolve.select_world(&[package], None).unwrap();
    let options = Opts {
        pub_export_macro: true,
        default_bindings_module: Some("rlhost_plugin_sdk::bindings".to_owned()),
        generate_all: true,
        format: true,
        ..Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).unwrap();
    let (_, source) = files.iter().find(|(name, _)| name.ends_with(".rs")).unwrap();
    source.to_vec()
}

fn section(resolve: &Resolve, world: WorldId) -> Vec<u8> {
    metadata::encode(resolve, world, StringEncoding::UTF8, None).unwrap()
}

/// Each kept file of the SDK and what it should hold.
fn bound() -> Vec<(PathBuf, Vec<u8>)> {
    let (resolve, contract, stateful) = contract_and(STATEFUL);
    let worlds = [
        (contract, "reward-plugin"),
        (contract, "policy-plugin"),
        (stateful, "stateful-reward-plugin"),
        (stateful, "stateful-policy-plugin"),
        (stateful, "observing-policy-plugin"),
        (contract, "preference-plugin"),
        (contract, "online-preference-plugin"),
    ];
    let folder = sdk().join("src/bindings");
    let sections = worlds.map(|(package, world)| {
        let id = resolve.select_world(&[package], Some(world)).unwrap();
        (folder.join(format!("{world}.component-type")), section(&resolve, id))
    });
    std::iter::once((folder.join("generated.rs"), bindings())).chain(sections).collect()
}

fn check(files: Vec<(PathBuf, Vec<u8>)>) {
    for (file, wanted) in files {
        if std::env::var_os("RLHOST_WRITE_GENERATED").is_some_and(|v| v == "1") {
            std::fs::write(&file, &wanted).unwrap();
        }
        let kept = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let write = "RLHOST_WRITE_GENERATED=1 cargo test --package rlhost-tests --test generated writes it anew";
        assert!(kept == wanted, "{} is not what its source gives: {write}", file.display());
    }
}

#[test]
fn kept_bindings_are_those_of_the_contract() {
    check(bound());
}

#[test]
fn the_kept_preview_1_is_that_of_its_text() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src/plugin/preview1.wat");
    check(vec![(text.with_extension("wasm"), wat::parse_file(&text).unwrap())]);
}
