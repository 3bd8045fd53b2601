//! Reads and writes an adapter's folder in the format of the `peft` package: `adapter_config.json` and
//! `adapter_model.safetensors`.

use super::adapter_reader::{AdapterReader, BASE, CONFIG, MOST_RANK, PREFIX, TENSORS};
use super::json::ConfigObject;
use super::lora::{LoraSettings, TrainedBiases};
use super::names::FileForm;
use super::patterns::{self, Patterns};
use super::shards::SafetensorsReader;
use super::stacks::ExpertStacks;
use super::trained_modules::TrainedModules;
use super::trained_rows::TrainedRows;
use super::weights::SCORE;
use super::weights::{LinearAdapter, MAGNITUDE, is_adapter_parameter};
use super::write::{torch_metadata, write_tensors};
use super::{Architecture, Error, Result, Weights};
use crate::config::{printable, shortest};
use candle_core::Tensor;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Settings of `peft` that change an adapter's computation and are not supported. Each is off if it is null, false, zero or empty.
const UNSUPPORTED: [&str; 9] = [
    "alora_invocation_tokens",
    "arrow_config",
    "layer_replication",
    "megatron_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
    "use_qalora",
    "velora_config",
];

/// Modules that `peft` trains fully in addition to the adapter of a sequence classification model.
const HEADS: [&str; 2] = ["classifier", "score"];

/// Returns whether a folder has an adapter rather than a model.
pub(super) fn is_adapter(folder: &Path) -> bool {
    folder.join(CONFIG).exists() && !folder.join("config.json").exists()
}

/// Reads an adapter's settings, the names of its fully trained modules, and the folder of its base model.
///
/// # Errors
/// If a setting would be computed differently than by `peft`.
pub(super) fn read_config(folder: &Path) -> Result<(LoraSettings, PeftModules, PathBuf)> {
    let path = folder.join(CONFIG);
    let text = super::json::read_text(&path)?.ok_or_else(|| Error::Missing { path: path.clone() })?;
    let (lora, [names, parameters], base) = parse(&text).map_err(|detail| Error::Config { path: path.clone(), detail })?;
    // Resolves the path relative to the working directory, as in peft, or else to the adapter's folder.
    let beside = folder.join(&base);
    let base = if !Path::new(&base).exists() && beside.exists() { beside } else { base.into() };
    Ok((lora, PeftModules { names, parameters, path }, base))
}

/// The names in `modules_to_save`, except the head of a value model, and in `target_parameters`.
pub(super) struct PeftModules {
    names: Vec<String>,
    parameters: Vec<String>,
    /// The file that lists the names.
    path: PathBuf,
}

impl PeftModules {
    /// Returns the settings with the modules that the names match in the base model.
    ///
    /// # Errors
    /// If a name matches no module, or one that can't be fully trained.
    pub(super) fn resolve(self, lora: LoraSettings, a: &Architecture) -> Result<LoraSettings> {
        let whole = TrainedModules::from_names(self.names.iter().map(String::as_str), a);
        let refused = |key: &str, detail: String| Error::Config { path: self.path.clone(), detail: format!("{key}: {detail}") };
        let whole = whole.map_err(|detail| refused("modules_to_save", detail))?;
        let stacks = ExpertStacks::from_names(self.parameters.iter().map(String::as_str), a);
        let stacks = stacks.map_err(|detail| refused("target_parameters", detail))?;
        if !stacks.is_empty() && (lora.dropout > 0.0 || lora.use_dora) {
            let detail = "is not supported with lora_dropout or use_dora, as in peft".to_owned();
            return Err(refused("target_parameters", detail));
        }
        Ok(LoraSettings { trained_modules: whole, stacks, ..lora })
    }
}

pub(super) fn parse(text: &str) -> std::result::Result<(LoraSettings, [Vec<String>; 2], String), String> {
    let config = ConfigObject::parse(text)?;
    match config.text("peft_type")? {
        Some("LORA") => {}
        Some(other) => return Err(format!("peft_type {:?} is not supported; only LORA is", printable(other, 80))),
        None => return Err("peft_type is missing; only LORA is supported".into()),
    }
    let off = |value: &Value| match value {
        Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    };
    let on = UNSUPPORTED.into_iter().find_map(|key| Some((key, config.get(key).filter(|value| !off(value))?)));
    if let Some((key, value)) = on {
        return Err(format!("{key} is not supported: {}", printable(&value.to_string(), 80)));
    }
    let list = |key: &str| -> std::result::Result<Vec<String>, String> {
        let Some(value) = config.get(key).filter(|value| !off(value)) else { return Ok(Vec::new()) };
        let names = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let wrong = || format!("{key} is {}; it must be a list of names", printable(&value.to_string(), 80));
        Ok(names.ok_or_else(wrong)?.into_iter().map(str::to_owned).collect())
    };
    let (mut modules, parameters) = (list("modules_to_save")?, list("target_parameters")?);
    modules.retain(|name| !HEADS.contains(&name.as_str()));
    if !modules.is_empty() && config.flag("ensure_weight_tying")? == Some(true) {
        return Err("ensure_weight_tying with modules_to_save is not supported: each module is trained by itself".into());
    }
    let bias = config.text("bias")?.unwrap_or("none");
    let wrong = || format!("bias is {:?}; it must be \"none\", \"all\" or \"lora_only\"", printable(bias, 80));
    let biases = TrainedBiases::parse(bias).ok_or_else(wrong)?;
    Patterns::parse(&config, MOST_RANK)?;
    TrainedRows::parse(&config)?;
    // Some of the other values change the base model's weights too.
    let begun = config.get("init_lora_weights").unwrap_or(&Value::Bool(true));
    if !begun.is_boolean() && !["gaussian", "orthogonal", "eva"].iter().any(|plain| begun == plain) {
        return Err(format!("init_lora_weights {} is not supported", printable(&begun.to_string(), 80)));
    }
    let lora = LoraSettings {
        use_rslora: config.flag("use_rslora")?.unwrap_or(false),
        use_dora: config.flag("use_dora")?.unwrap_or(false),
        dropout: config.number("lora_dropout")?.unwrap_or(0.0),
        biases,
        b_bias: config.flag("lora_bias")?.unwrap_or(false),
        ..LoraSettings::new(
            config.needed_size("r", MOST_RANK)?,
            config.number("lora_alpha")?.ok_or("lora_alpha is missing; it must be a number")?,
        )
    };
    if lora.b_bias && lora.use_dora {
        return Err("lora_bias is not supported with use_dora, as in peft".into());
    }
    if !(0.0..1.0).contains(&lora.dropout) {
        return Err(format!("lora_dropout is {}; it must be at least 0 and less than 1", shortest(lora.dropout)));
    }
    if !lora.scale().is_finite() {
        return Err(format!("lora_alpha {} with r {} gives a scale that is not finite", shortest(lora.alpha), lora.r));
    }
    let base = config.text("base_model_name_or_path")?.filter(|base| !base.is_empty());
    let base = base.ok_or("base_model_name_or_path is missing; set it to the folder of the adapter's base model")?;
    Ok((lora, [modules, parameters], base.to_owned()))
}

/// Returns a model's parameters with the adapter in `folder`.
pub(super) fn read(folder: &Path, lora: LoraSettings, weights: Weights) -> Result<Weights> {
    let names = weights.names;
    let mut reader = AdapterReader::new(folder, lora, names)?;
    let mut weights = weights;
    let fixed = reader.merge_tables(&mut weights)?;
    let lora = LoraSettings { fixed, ..lora };
    let adapted = weights.adapted(lora, |name, linear| match *linear.weight.dims() {
        [experts, d_out, d_in] => reader.stack(name, [experts, d_out, d_in]).map(Some),
        _ => reader.linear(name, linear.matrix().dims()),
    })?;
    let wrapped: BTreeSet<String> = adapted.adapters().into_iter().map(|(module, _)| module).collect();
    let adapted = adapted.with_trained_modules(lora, |name, shape| {
        if lora.trained_modules.has(name, names) {
            return reader.needed(&names.in_adapter(name), shape, "modules_to_save").map(Some);
        }
        // If an adapter's file lacks the bias, the model's is kept, as in peft.
        reader.take(&bias_in_file(name, |module| wrapped.contains(module)), shape)
    })?;
    if adapted.value_head.is_some() {
        reader.shards.forget(&format!("{PREFIX}{SCORE}"));
    }
    match reader.shards.left() {
        Some(left) => Err(reader.fail(unused(&left, &adapted))),
        None => Ok(adapted),
    }
}

/// Returns the name of a bias in an adapter's file. `peft` wraps the layers that it adapts.
fn bias_in_file(name: &str, is_wrapped: impl Fn(&str) -> bool) -> String {
    match name.strip_suffix(".bias").filter(|module| is_wrapped(module)) {
        Some(module) => format!("{module}.{BASE}.bias"),
        None => name.to_owned(),
    }
}

/// Describes a tensor that no setting explains.
fn unused(left: &str, adapted: &Weights) -> String {
    if left == format!("{PREFIX}{SCORE}") {
        return format!("{left} is a reward head: this is a reward model's adapter; use it with --reward-model");
    }
    for (end, what, key) in [
        (MAGNITUDE, "a magnitude of DoRA", "use_dora"),
        (".lora_B.bias", "the bias of an adapter's matrix", "lora_bias"),
        (".bias", "a bias", "a bias that is trained (\"all\" or \"lora_only\")"),
    ] {
        if left.ends_with(end) {
            return format!("{left} is {what}, but {CONFIG} does not have {key}");
        }
    }
    let experts = match adapted.layers.iter().any(|layer| layer.experts.is_some()) {
        true => ", nor one of experts that target_parameters lists",
        false => "",
    };
    format!("{left} is not part of a linear layer of attention or of the gated MLP{experts}")
}

/// Reads the value head next to the adapter in `folder`, if there is one; `by` names the source of the shape.
pub(super) fn read_head(folder: &Path, shape: &[usize], by: &str) -> Result<Option<Tensor>> {
    SafetensorsReader::open_file(&folder.join(TENSORS))?.take(&format!("{PREFIX}{SCORE}"), shape, by)
}

/// Returns the names of the adapted linear layers as `target_modules` lists them. A short name is used if all layers of that name are
/// adapted.
pub(super) fn targets(weights: &Weights) -> Vec<String> {
    let named = weights.named();
    let stacks = weights.lora.map_or(ExpertStacks::NONE, |lora| lora.stacks);
    let modules = named.iter().filter(|(name, _)| stacks.renamed(name, weights.names).is_none());
    let modules = modules.filter_map(|(name, _)| name.strip_suffix(".lora_A.weight"));
    let modules = modules.filter(|module| !stacks.is_router(module, weights.names));
    let mut layers_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (layer, module) in modules.filter_map(|name| name.rsplit_once('.')) {
        layers_of.entry(module).or_default().insert(layer);
    }
    let all = |module: &str| named.iter().filter(|(name, _)| name.ends_with(&format!(".{module}.weight"))).count();
    let listed = layers_of.iter().flat_map(|(module, layers)| {
        if layers.len() == all(module) {
            vec![(*module).to_owned()]
        } else {
            layers.iter().map(|layer| format!("{layer}.{module}")).collect()
        }
    });
    listed.collect()
}

fn number(alpha: f64) -> Value {
    if alpha.fract() == 0.0 && alpha.abs() < 1e15 { json!(alpha as i64) } else { json!(alpha) }
}

/// Returns the patterns of the modules whose rank or `alpha` differs from the adapter's.
fn own_settings(weights: &Weights, lora: LoraSettings) -> (Value, Value) {
    let is_router = |module: &str| lora.stacks.is_router(module, weights.names);
    let name = |module: String| if is_router(&module) { module + ".weight" } else { module };
    // The rank is the second size from the end, with or without experts before it.
    let rank = |adapter: &LinearAdapter| adapter.a.dims().iter().rev().nth(1).copied().unwrap_or(lora.r);
    let all: Vec<_> = weights.adapters().into_iter().map(|(module, adapter)| (name(module), adapter)).collect();
    let ranks: Vec<_> = all.iter().map(|(module, adapter)| (module.clone(), rank(adapter))).collect();
    let alphas: Vec<_> = all.iter().map(|(module, adapter)| (module.clone(), adapter.alpha)).collect();
    let ranks = patterns::written(&ranks, lora.r).into_iter().map(|(pattern, r)| (pattern, json!(r))).collect();
    let alphas = patterns::written(&alphas, lora.alpha).into_iter().map(|(pattern, alpha)| (pattern, number(alpha))).collect();
    (Value::Object(ranks), Value::Object(alphas))
}

/// Writes an adapter into the existing folder `to`, with `base` as its base model. For a value model, also writes its head, under the given
/// name.
pub(super) fn write(weights: &Weights, lora: LoraSettings, base: &Path, head: Option<(&str, &Tensor)>, to: &Path) -> Result<()> {
    let file = to.join(TENSORS);
    let named = weights.named().into_iter();
    let named = named.filter(|(name, _)| is_adapter_parameter(name) || weights.trains_with_adapter(name));
    let named = named.map(|(name, t)| match lora.stacks.renamed(&name, weights.names) {
        Some(file) => Ok((file, super::expert_adapters::flat(t, name.ends_with(".lora_B.weight"))?)),
        None if lora.trained_modules.has(&name, weights.names) => Ok((weights.names.in_adapter(&name).into_owned(), t.clone())),
        None => Ok((bias_in_file(&name, |module| weights.has_adapter(module)), t.clone())),
    });
    let named = named.chain(head.map(|(name, t)| Ok((name.to_owned(), t.clone()))));
    let prefixed = |(name, t): (String, Tensor)| (format!("{PREFIX}{name}"), t);
    let tensors: Vec<(String, Tensor)> = named.map(|named| named.map(prefixed)).collect::<Result<_>>()?;
    write_tensors(tensors, torch_metadata(), &file)?;
    let (ranks, alphas) = own_settings(weights, lora);
    let mut modules = lora.trained_modules.names(weights.names);
    modules.extend(head.map(|(name, _)| name.trim_end_matches(".weight").to_owned()));
    let config = json!({
        "peft_type": "LORA",
        "task_type": if head.is_some() { "SEQ_CLS" } else { "CAUSAL_LM" },
        "base_model_name_or_path": std::path::absolute(base).unwrap_or_else(|_| base.to_owned()).display().to_string(),
        "r": lora.r,
        "lora_alpha": number(lora.alpha),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "use_rslora": lora.use_rslora,
        "lora_dropout": lora.dropout,
        "target_modules": targets(weights),
        "target_parameters": Some(lora.stacks.listed(weights.names)).filter(|all| !all.is_empty()),
        "bias": lora.biases.name(),
        "lora_bias": lora.b_bias,
        "fan_in_fan_out": weights.names.in_files == FileForm::Turned,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": Some(modules).filter(|modules| !modules.is_empty()),
        "use_dora": lora.use_dora,
    });
    let path = to.join(CONFIG);
    std::fs::write(&path, format!("{config:#}\n")).map_err(|source| Error::Write { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_would_be_computed_otherwise_are_refused_by_name() {
        let with = |key: &str, value: Value| {
            let mut config = json!({
                "peft_type": "LORA", "base_model_name_or_path": "base", "r": 8, "lora_alpha": 16, "use_dora": false,
                "modules_to_save": null, "rank_pattern": {}, "bias": "none", "init_lora_weights": true, "revision": "x",
            });
            config[key] = value;
            parse(&config.to_string())
        };
        let (lora, modules, base) = with("use_rslora", json!(true)).unwrap();
        let want = LoraSettings { use_rslora: true, ..LoraSettings::new(8, 16.0) };
        assert_eq!((lora, modules, base.as_str()), (want, [vec![], vec![]], "base"));
        assert_eq!(with("modules_to_save", json!(["lm_head", "score"])).unwrap().1[0], ["lm_head"]);
        assert_eq!(with("target_parameters", json!(["down_proj"])).unwrap().1[1], ["down_proj"]);
        assert_eq!(lora.scale(), 16.0 / 8f32.sqrt());
        for (key, value) in [
            ("use_dora", json!("yes")),
            ("modules_to_save", json!("lm_head")),
            ("target_parameters", json!("down_proj")),
            ("rank_pattern", json!({ "q_proj": 0 })),
            ("alpha_pattern", json!({ "q_(proj": 4 })),
            ("layer_replication", json!([[0, 2]])),
            ("alora_invocation_tokens", json!([1])),
            ("use_bdlora", json!({ "nblocks": 2 })),
            ("bias", json!("some")),
            ("lora_bias", json!("yes")),
            ("trainable_token_indices", json!([-1])),
            ("init_lora_weights", json!("pissa")),
            ("peft_type", json!("IA3")),
            ("base_model_name_or_path", json!(null)),
            ("r", json!(0)),
            ("r", json!(1_000_000_000_000u64)),
            ("r", json!(-1)),
            ("lora_alpha", json!(1e300)),
            ("lora_alpha", json!("much")),
        ] {
            let refusal = with(key, value).unwrap_err();
            assert!(refusal.contains(key), "{key}: {refusal}");
        }
    }
}
