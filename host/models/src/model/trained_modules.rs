//! Modules that are fully trained with an adapter (`modules_to_save` in `peft`): embeddings, the output matrix and norms.

use super::Architecture;
use super::layer_input_weights::{PROJECTED_NORM, PROJECTION, STAGE_MAPS, STAGE_NORM};
use super::names::TensorNames;
use super::switches::HeadNorms;
use std::borrow::Cow;

/// Set of module kinds, as indices into [`TensorNames::modules`]. A kind covers a module of every layer, or one of the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainedModules(u16);

const EMBEDDING: usize = 0;
const HEAD: usize = 3;

/// Index of the first kind that every layer has.
const OF_LAYERS: usize = 4;

/// Name of the output matrix in transformers, whatever its name in files.
pub(super) const HEAD_MODULE: &str = "lm_head";

impl TensorNames {
    /// Returns the name of a parameter in an adapter's files, which use the names of transformers' modules.
    pub(super) fn in_adapter<'a>(&self, parameter: &'a str) -> Cow<'a, str> {
        match parameter.strip_prefix(self.head) {
            Some(rest) if self.head != HEAD_MODULE => format!("{HEAD_MODULE}{rest}").into(),
            _ => parameter.into(),
        }
    }

    /// Returns the names of the modules that can be fully trained, empty for those that the family lacks. From [`OF_LAYERS`] on, the names
    /// follow a layer's number.
    fn modules(&self) -> [&'static str; 10] {
        let [input, attended, mlp, added] = self.norms;
        let of_heads = self.attention.norms;
        let positions = self.positions.unwrap_or("");
        [self.embedding, positions, self.norm, HEAD_MODULE, input, attended, mlp, added, of_heads[0], of_heads[1]]
    }

    /// Returns the name that matches only this kind in `peft`, which takes all modules whose names end with it.
    fn short(&self, kind: usize) -> &'static str {
        let name = self.modules()[kind];
        let last = name.rsplit('.').next().unwrap_or(name);
        let others = self.modules();
        let alone = others.iter().filter(|other| other.ends_with(last)).count() == 1;
        if alone { last } else { name }
    }
}

impl Architecture {
    /// Returns the kinds of modules that this model has and that can be fully trained.
    fn kinds(&self) -> impl Iterator<Item = usize> {
        let modules = self.family.description().names.modules();
        let with_head_norms = !matches!(self.head_norms, HeadNorms::None | HeadNorms::Unweighted);
        // With compressed keys and values, the names are those of the compressed rows' norms.
        let of_heads = self.latent.map_or([with_head_norms; 2], |latent| [latent.query_rank.is_some(), true]);
        (0..modules.len()).filter(move |&kind| !modules[kind].is_empty() && (kind < 8 || of_heads[kind - 8]))
    }
}

/// Returns the name of the norm in a layer's gated delta network or state space, if the model has such layers.
fn norm_of_networks(a: &Architecture) -> Option<&'static str> {
    let names = a.family.description().names.recurrent.filter(|_| a.has_recurrent_layers())?;
    names.network.as_ref()?.norm.strip_suffix(".weight")
}

impl TrainedModules {
    /// No modules.
    pub const NONE: Self = Self(0);

    /// Returns the modules of a model that these names match. As in `peft`, a name matches all modules that end with it.
    ///
    /// # Errors
    /// If a name matches no module, only some layers', or also a module that can't be fully trained.
    pub fn from_names<'a>(given: impl IntoIterator<Item = &'a str>, a: &Architecture) -> std::result::Result<Self, String> {
        let names = a.family.description().names;
        let modules = names.modules();
        let mut whole = Self::NONE;
        for name in given {
            let mixers = [false, true].into_iter().flat_map(|kind| names.inputs(kind).iter().copied().chain([names.mixed(kind)]));
            let latent = names.attention.latent.into_iter().flat_map(|names| names.plain.iter().copied().chain(names.second));
            let latent = latent.chain(STAGE_MAPS.into_iter().chain([PROJECTION]).filter(|_| a.layer_input_width().is_some()));
            let mut others = mixers.chain(latent).chain(names.mlp.iter().copied()).chain([names.down]);
            let other = others.find(|other| other.ends_with(name));
            let meant: Vec<usize> = a.kinds().filter(|&kind| modules[kind].ends_with(name)).collect();
            if let Some(other) = other.filter(|_| !name.is_empty()) {
                return Err(format!("{name:?} means {other} too, which has an adapter instead"));
            }
            let of_inputs = [STAGE_NORM, PROJECTED_NORM].into_iter().filter(|_| a.layer_input_width().is_some());
            if let Some(norm) =
                norm_of_networks(a).into_iter().chain(of_inputs).find(|norm| !name.is_empty() && norm.ends_with(name))
            {
                return Err(format!("{name:?} means {norm} too, which can't be trained whole"));
            }
            if meant.is_empty() || name.is_empty() {
                let all: Vec<&str> = a.kinds().map(|kind| names.short(kind)).collect();
                return Err(format!("{name:?} is none of the modules that can be trained whole: {}", all.join(", ")));
            }
            meant.into_iter().for_each(|kind| whole.0 |= 1 << kind);
        }
        Ok(whole)
    }

    fn holds(self, kind: usize) -> bool {
        self.0 & (1 << kind) != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Returns whether the output matrix is in the set.
    pub fn has_head(self) -> bool {
        self.holds(HEAD)
    }

    /// Returns the set without the output matrix, which a value model does not have.
    #[must_use]
    pub fn without_head(self) -> Self {
        Self(self.0 & !(1 << HEAD))
    }

    /// Returns whether training these modules unties the output matrix from the embedding.
    pub(crate) fn unties(self) -> bool {
        self.holds(EMBEDDING) || self.has_head()
    }

    /// Returns the modules' names as `peft` lists them.
    pub fn listed(self, a: &Architecture) -> Vec<String> {
        self.names(a.family.description().names)
    }

    pub(super) fn names(self, names: &TensorNames) -> Vec<String> {
        (0..names.modules().len()).filter(|&kind| self.holds(kind)).map(|kind| names.short(kind).to_owned()).collect()
    }

    /// Returns whether the parameter of this name belongs to a module of the set.
    pub(super) fn has(self, parameter: &str, names: &TensorNames) -> bool {
        let Some(module) = parameter.strip_suffix(".weight").or_else(|| parameter.strip_suffix(".bias")) else { return false };
        let in_layer = module.strip_prefix(names.layers).and_then(|rest| Some(rest.strip_prefix('.')?.split_once('.')?.1));
        let mut modules = names.modules();
        modules[HEAD] = names.head;
        (0..modules.len()).filter(|&kind| self.holds(kind)).any(|kind| match in_layer {
            Some(part) => kind >= OF_LAYERS && part == modules[kind],
            None => kind < OF_LAYERS && module == modules[kind],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture(kind: &str, tied: bool) -> Architecture {
        let config = serde_json::json!({
            "model_type": kind, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 11, "tie_word_embeddings": tied,
        });
        Architecture::parse(&config.to_string()).unwrap()
    }

    /// Returns the names of these modules' parameters in a model with a separate output matrix.
    fn parameters(kind: &str, given: &[&str]) -> Vec<String> {
        let a = architecture(kind, false);
        let whole = TrainedModules::from_names(given.iter().copied(), &a).unwrap();
        let all = a.parameters().into_iter().map(|(name, _)| name);
        all.filter(|name| whole.has(name, a.family.description().names)).collect()
    }

    #[test]
    fn a_name_means_all_modules_that_end_with_it_as_in_peft() {
        assert_eq!(parameters("qwen3", &["lm_head", "embed_tokens"]), ["model.embed_tokens.weight", "lm_head.weight"]);
        assert_eq!(parameters("qwen3", &["model.norm"]), ["model.norm.weight"]);
        let of_layers = ["input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm"];
        let mut all: Vec<String> =
            (0..2).flat_map(|l| of_layers.iter().map(move |norm| format!("model.layers.{l}.{norm}.weight"))).collect();
        all.push("model.norm.weight".into());
        let mut got = parameters("qwen3", &["norm"]);
        all.sort();
        got.sort();
        assert_eq!(got, all);
        assert_eq!(parameters("qwen3", &["k_norm"]).len(), 2);
        assert_eq!(
            parameters("gpt_neox", &["final_layer_norm"]),
            ["gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias"]
        );
    }

    #[test]
    fn an_output_matrix_of_another_name_is_the_one_of_transformers_in_adapters() {
        assert_eq!(parameters("gpt_neox", &["lm_head"]), ["embed_out.weight"]);
        let names = |kind| architecture(kind, false).family.description().names;
        assert_eq!(names("gpt_neox").in_adapter("embed_out.weight"), "lm_head.weight");
        assert_eq!(names("llama").in_adapter("lm_head.weight"), "lm_head.weight");
        assert_eq!(names("gpt_neox").in_adapter("gpt_neox.embed_in.weight"), "gpt_neox.embed_in.weight");
    }

    #[test]
    fn the_names_of_each_kind_mean_it_alone() {
        for kind in ["llama", "qwen3", "gemma3_text", "olmo2", "gpt_neox", "phi3", "starcoder2"] {
            let a = architecture(kind, true);
            for number in a.kinds() {
                let one = TrainedModules(1 << number);
                let listed = one.listed(&a);
                assert_eq!(TrainedModules::from_names(listed.iter().map(String::as_str), &a), Ok(one), "{kind}: {listed:?}");
            }
        }
    }

    #[test]
    fn other_modules_are_refused_by_name() {
        let a = architecture("llama", false);
        for (given, said) in [
            ("q_norm", "none of the modules"),
            ("layers.0.input_layernorm", "none of the modules"),
            ("mlp", "none of the modules"),
            ("", "none of the modules"),
            ("q_proj", "self_attn.q_proj too"),
        ] {
            let refusal = TrainedModules::from_names([given], &a).unwrap_err();
            assert!(refusal.contains(said) && refusal.contains(given), "{refusal}");
        }
    }
}
