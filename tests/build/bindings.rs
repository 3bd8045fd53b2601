//! Generates the SDK's bindings from the contract, for the test that compares them with the checked-in ones. This runs in a build script,
//! so that the generator's dependencies are compiled once, shared with macros, and not again for the tests.

use std::error::Error;
use std::path::Path;
use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator};
use wit_bindgen_rust::Opts;

/// A world of all interfaces, from which the bindings are generated in one run.
const EVERYTHING: &str = "
    package rlhost:sdk;
    world everything {
        import rlhost:plugin/host@1.0.0;
        import rlhost:plugin/http@1.0.0;
        import rlhost:plugin/cells@1.0.0;
        export rlhost:plugin/plugin@1.0.0;
        export rlhost:plugin/state@1.0.0;
        export rlhost:plugin/observer@1.0.0;
        export rlhost:plugin/reward@1.0.0;
        export rlhost:plugin/algorithm@1.0.0;
        export rlhost:plugin/estimator@1.0.0;
        export rlhost:plugin/pairing@1.0.0;
        export rlhost:plugin/teacher-prompts@1.0.0;
        export rlhost:plugin/environment@1.0.0;
        export rlhost:plugin/inside@1.0.0;
    }
";

/// Returns the bindings of the contract in the SDK's folder.
pub fn generated(sdk: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut resolve = Resolve::default();
    resolve.push_path(sdk.join("wit"))?;
    let package = resolve.push_str("beside.wit", EVERYTHING)?;
    let world = resolve.select_world(&[package], None)?;
    let options = Opts {
        pub_export_macro: true,
        default_bindings_module: Some("rlhost_plugin_sdk::bindings".to_owned()),
        additional_derive_attributes: vec!["PartialEq".to_owned()],
        generate_all: true,
        format: true,
        ..Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    let source = files.iter().find(|(name, _)| name.ends_with(".rs")).ok_or("the generator wrote no Rust")?;
    Ok(source.1.to_vec())
}
