//! The layers of the operations (`host/ops`): their files keep to them.

use super::house::root;
use super::imports::Sources;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The files of each layer, as modules. A folder stands for all of its files that no other line names.
const LAYERS: [(&str, &[&str]); 6] = [
    ("the machine", &["math", "processor", "simd", "system", "team", "testing"]),
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
            "residency",
            "rounding",
            "rows",
            "shape",
            "slices",
            "support",
            "update",
            "view",
            "weight_storage",
            "writing",
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
            "convolution",
            "cuda",
            "delta_backward",
            "delta_rule",
            "dropout",
            "embedding",
            "expert_biases",
            "experts",
            "gated_delta",
            "latent_heads",
            "layer_norm",
            "linear",
            "logprob",
            "divergence",
            "top_divergence",
            "low_rank",
            "magnitude",
            "mean_rows",
            "mxfp4",
            "network_kind",
            "noise",
            "norm",
            "optimizers",
            "output_gate",
            "recurrent_network",
            "state_space",
            "rope",
            "routes",
            "sinks",
            "splice",
            "squares",
            "token_stats",
        ],
    ),
    ("generation", &["cached_attention", "caches", "cuda::decode", "panels", "sampler"]),
    ("measurements", &["machine"]),
];

/// The sources of the operations.
fn operations() -> PathBuf {
    root().join("host/ops/src")
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
    let sources = Sources::read(&operations());
    for module in sources.0.keys().filter(|module| !module.is_empty()) {
        let own = layer(module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for used in sources.imports_and_exports(module) {
            let of = layer(&used).unwrap_or_else(|| panic!("{used} is in no layer"));
            assert!(of <= own, "{module}, of {}, imports from {used}, of {}", LAYERS[own].0, LAYERS[of].0);
        }
    }
    let stale = LAYERS.iter().flat_map(|(_, files)| *files).find(|file| !sources.0.contains_key(**file));
    assert_eq!(stale, None, "a file of a layer that does not exist");
}

#[test]
fn no_two_files_import_each_other() {
    let sources = Sources::read(&operations());
    let files = sources.0.keys().filter(|module| !module.is_empty() && !sources.is_face(module)).count();
    let attention = sources.imports("attention");
    assert!(files > 60 && attention.contains("gemm") && attention.contains("cuda::attention"), "{files} files, {attention:?}");
    assert_eq!(sources.import_cycles(Sources::imports_and_exports), BTreeSet::new());
}
