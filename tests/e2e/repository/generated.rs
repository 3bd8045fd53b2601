//! What is generated and kept in the tree is what its source gives: the SDK's bindings, and the preview 1 of core modules.

use std::path::{Path, PathBuf};
use wit_bindgen_core::{Files, WorldGenerator};
use wit_bindgen_rust::{Opts, WithOption};
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

/// A world of every interface that came later.
const NEWER: &str = "
    package rlhost:newer;
    world newer {
        import rlhost:plugin/http@0.2.0;
        export rlhost:plugin/environment@0.2.0;
        export rlhost:plugin/reward-model@0.2.0;
        export rlhost:plugin/labelled@0.2.0;
        export rlhost:plugin/weighted-preference@0.2.0;
        export rlhost:plugin/prompted-preference@0.2.0;
        export rlhost:plugin/turn-policy@0.2.0;
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

/// The worlds that came later, each under its own name.
const INCLUDED: &str = "
    package rlhost:included;
    world asking-reward-plugin {
        include rlhost:plugin/asking-reward-plugin@0.2.0;
    }
    world asking-environment-plugin {
        include rlhost:plugin/asking-environment-plugin@0.2.0;
    }
    world environment-plugin {
        include rlhost:plugin/environment-plugin@0.2.0;
    }
    world reward-model-plugin {
        include rlhost:plugin/reward-model-plugin@0.2.0;
    }
    world labelled-plugin {
        include rlhost:plugin/labelled-plugin@0.2.0;
    }
    world weighted-preference-plugin {
        include rlhost:plugin/weighted-preference-plugin@0.2.0;
    }
    world prompted-preference-plugin {
        include rlhost:plugin/prompted-preference-plugin@0.2.0;
    }
    world turn-policy-plugin {
        include rlhost:plugin/turn-policy-plugin@0.2.0;
    }
    world observing-turn-policy-plugin {
        include turn-policy-plugin;
        export rlhost:plugin/state@0.1.0;
        export rlhost:plugin/observer@0.1.0;
    }
";

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-sdk")
}

/// The contract in these folders, one version each, with another package beside it.
fn contract_and(versions: &[&str], text: &str) -> (Resolve, PackageId, PackageId) {
    let mut resolve = Resolve::default();
    let pushed: Vec<PackageId> = versions.iter().map(|folder| resolve.push_path(sdk().join(folder)).unwrap().0).collect();
    let other = resolve.push_str("beside.wit", text).unwrap();
    (resolve, pushed[0], other)
}

/// Bindings of a package's world; those of the interfaces in `kept` are elsewhere.
fn bindings(versions: &[&str], text: &str, kept: &[(&str, &str)]) -> Vec<u8> {
    let (mut resolve, _, package) = contract_and(versions, text);
    let world = resolve.select_world(&[package], None).unwrap();
    let kept = kept.iter().map(|(interface, module)| ((*interface).to_owned(), WithOption::Path((*module).to_owned())));
    let options = Opts {
        pub_export_macro: true,
        default_bindings_module: Some("rlhost_plugin_sdk::bindings".to_owned()),
        with: kept.collect(),
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
    const FIRST: &[&str] = &["wit/0.1"];
    const BOTH: &[&str] = &["wit/0.1", "wit/0.2"];
    let (resolve, contract, stateful) = contract_and(FIRST, STATEFUL);
    let (newer, _, included) = contract_and(BOTH, INCLUDED);
    let worlds = [
        (&resolve, contract, "reward-plugin"),
        (&resolve, contract, "policy-plugin"),
        (&resolve, stateful, "stateful-reward-plugin"),
        (&resolve, stateful, "stateful-policy-plugin"),
        (&resolve, stateful, "observing-policy-plugin"),
        (&resolve, contract, "preference-plugin"),
        (&resolve, contract, "online-preference-plugin"),
        (&newer, included, "asking-reward-plugin"),
        (&newer, included, "environment-plugin"),
        (&newer, included, "asking-environment-plugin"),
        (&newer, included, "reward-model-plugin"),
        (&newer, included, "labelled-plugin"),
        (&newer, included, "weighted-preference-plugin"),
        (&newer, included, "prompted-preference-plugin"),
        (&newer, included, "turn-policy-plugin"),
        (&newer, included, "observing-turn-policy-plugin"),
    ];
    let folder = sdk().join("src/bindings");
    let sections = worlds.map(|(resolve, package, world)| {
        let id = resolve.select_world(&[package], Some(world)).unwrap();
        (folder.join(format!("{world}.component-type")), section(resolve, id))
    });
    let types = [
        ("rlhost:plugin/types@0.1.0", "crate::bindings::types"),
        ("rlhost:plugin/preference@0.1.0", "crate::bindings::contract::preference"),
        ("rlhost:plugin/policy@0.1.0", "crate::bindings::contract::policy"),
    ];
    let first = (folder.join("generated.rs"), bindings(FIRST, EVERYTHING, &[]));
    let newer = (folder.join("newer.rs"), bindings(BOTH, NEWER, &types));
    [first, newer].into_iter().chain(sections).collect()
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
