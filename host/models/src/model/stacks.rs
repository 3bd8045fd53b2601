//! Adapters on the matrices of experts (`target_parameters` in `peft`). Each expert has its own two matrices.

use super::Architecture;
use super::names::{ExpertNames, TensorNames};

/// The stacks of experts' matrices with an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertStacks {
    /// The gate and up projections.
    pub wide: bool,
    /// The down projections.
    pub down: bool,
    /// The routers. They are not stacks, but `peft` lists them with the experts' parameters.
    pub router: bool,
}

impl ExpertStacks {
    /// No stacks.
    pub const NONE: Self = Self { wide: false, down: false, router: false };

    /// Returns the parameters of a model that these names match. As in `peft`, a name matches all parameters that end with it.
    ///
    /// # Errors
    /// If the model has no experts, or a name matches none of their matrices.
    pub fn from_names<'a>(given: impl IntoIterator<Item = &'a str>, a: &Architecture) -> Result<Self, String> {
        let mut stacks = Self::NONE;
        for name in given {
            let experts = a.family.description().names.experts.filter(|_| a.mixture.is_some());
            let experts = experts.ok_or_else(|| format!("{name:?} is for the matrices of experts, and this model has none"))?;
            if experts.are_crossed() {
                let model_type = a.family.description().model_type;
                return Err(format!(
                    "{name:?} is for the matrices of experts, which can't have adapters in a model of type {model_type}"
                ));
            }
            let means = |own: &str| format!(".{own}").ends_with(&format!(".{name}"));
            let weight = format!("{}.weight", experts.router[0]);
            let router = !experts.adapts_router && means(&weight);
            let (wide, down) = (means(experts.wide), means(experts.down));
            if !wide && !down && !router {
                let all = [experts.wide, experts.down].into_iter().chain((!experts.adapts_router).then_some(weight.as_str()));
                let all = all.collect::<Vec<_>>().join(", ");
                return Err(format!("{name:?} is none of the parameters with adapters: {all}"));
            }
            stacks = Self { wide: stacks.wide || wide, down: stacks.down || down, router: stacks.router || router };
        }
        Ok(stacks)
    }

    /// Returns whether no stack has an adapter.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Returns the names of the stacks.
    fn stacked(self, names: &TensorNames) -> Vec<&'static str> {
        let each = |experts: &ExpertNames| [(self.wide, experts.wide), (self.down, experts.down)];
        let all = names.experts.into_iter().flat_map(each);
        all.filter_map(|(on, name)| on.then_some(name)).collect()
    }

    /// Returns the names of the matrices.
    pub(super) fn matrices(self, names: &TensorNames) -> Vec<&'static str> {
        let router = names.experts.filter(|_| self.router).map(|experts| experts.router[0]);
        self.stacked(names).into_iter().chain(router).collect()
    }

    /// Returns whether a module of this name is a router with an adapter.
    pub(super) fn is_router(self, module: &str, names: &TensorNames) -> bool {
        self.router && names.experts.is_some_and(|experts| module.ends_with(&format!(".{}", experts.router[0])))
    }

    /// Returns the names of the parameters as `peft` lists them.
    pub(super) fn listed(self, names: &TensorNames) -> Vec<String> {
        let router = names.experts.filter(|_| self.router).map(|experts| format!("{}.weight", experts.router[0]));
        self.stacked(names).into_iter().map(str::to_owned).chain(router).collect()
    }

    /// Returns the names of the parameters as a user lists them.
    pub fn names(self, a: &Architecture) -> Vec<String> {
        self.listed(a.family.description().names)
    }

    /// Returns the name of a stack's part in an adapter's file, given the layer's name. `peft` wraps the experts once for each stack, with
    /// the down projections last.
    pub(super) fn in_adapter(self, layer: &str, stack: &str, part: &str) -> String {
        let experts = stack.rsplit_once('.').map_or("", |(experts, _)| experts);
        let inner = if self.wide && self.down && !stack.ends_with(".down_proj") { ".base_layer" } else { "" };
        format!("{layer}.{experts}{inner}.{part}")
    }

    /// Returns the name in an adapter's file of a parameter that belongs to a stack's adapter.
    pub(super) fn renamed(self, parameter: &str, names: &TensorNames) -> Option<String> {
        self.stacked(names).into_iter().find_map(|stack| {
            let (layer, part) = parameter.split_once(&format!(".{stack}."))?;
            Some(self.in_adapter(layer, stack, part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_pefts_wrappers() {
        let config = r#"{"model_type": "mixtral", "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 11, "num_local_experts": 5,
            "num_experts_per_tok": 2}"#;
        let a = Architecture::parse(config).unwrap();
        let names = a.family.description().names;
        let of = |given: &[&str]| ExpertStacks::from_names(given.iter().copied(), &a).unwrap();
        let (both, down) = (of(&["mlp.experts.gate_up_proj", "down_proj"]), of(&["experts.down_proj"]));
        assert_eq!(
            (both, down),
            (ExpertStacks { wide: true, down: true, router: false }, ExpertStacks { down: true, ..ExpertStacks::NONE })
        );
        let router = of(&["gate.weight"]);
        assert_eq!(
            (router, router.listed(names)),
            (ExpertStacks { router: true, ..ExpertStacks::NONE }, vec!["mlp.gate.weight".to_owned()])
        );
        assert_eq!(router.renamed("model.layers.1.mlp.gate.lora_B.weight", names), None);
        let own = |stack: &str| format!("model.layers.1.mlp.experts.{stack}.lora_B.weight");
        let file = |stacks: ExpertStacks, stack: &str| stacks.renamed(&own(stack), names).unwrap();
        assert_eq!(file(both, "gate_up_proj"), "model.layers.1.mlp.experts.base_layer.lora_B.weight");
        assert_eq!(file(both, "down_proj"), "model.layers.1.mlp.experts.lora_B.weight");
        assert_eq!(file(down, "down_proj"), "model.layers.1.mlp.experts.lora_B.weight");
        assert_eq!(file(of(&["gate_up_proj"]), "gate_up_proj"), "model.layers.1.mlp.experts.lora_B.weight");
        assert_eq!(both.renamed("model.layers.1.self_attn.q_proj.lora_B.weight", names), None);
        for given in ["q_proj", "layers.0.mlp.experts.down_proj", ""] {
            let refusal = ExpertStacks::from_names([given], &a).unwrap_err();
            assert!(refusal.contains("mlp.experts.gate_up_proj"), "{refusal}");
        }
    }
}
