//! Encodes each world of the contract as the `component-type` section that a plugin carries:
//! wit-bindgen makes one for the world it generates, and the SDK's bindings cover all.

use std::path::Path;
use wit_component::{StringEncoding, metadata};
use wit_parser::Resolve;

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=wit");
    let mut resolve = Resolve::default();
    let (contract, _) = resolve.push_path("wit")?;
    let stateful = resolve.push_str("stateful.wit", STATEFUL)?;
    let out = std::env::var("OUT_DIR")?;
    let worlds = [
        (contract, "reward-plugin"),
        (contract, "policy-plugin"),
        (stateful, "stateful-reward-plugin"),
        (stateful, "stateful-policy-plugin"),
        (stateful, "observing-policy-plugin"),
        (contract, "preference-plugin"),
        (contract, "online-preference-plugin"),
    ];
    for (package, world) in worlds {
        let id = resolve.select_world(&[package], Some(world))?;
        let section = metadata::encode(&resolve, id, StringEncoding::UTF8, None, false)?;
        std::fs::write(Path::new(&out).join(format!("{world}.component-type")), section)?;
    }
    Ok(())
}
