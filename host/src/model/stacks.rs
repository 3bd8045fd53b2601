//! Adapters on the matrices of experts, which `peft` calls `target_parameters`: each expert has two matrices of its own.

use super::Architecture;
use super::dropped::Masked;
use super::families::{ExpertNames, Names};
use super::weights::{Adapter, Linear};
use crate::ops::experts::{self, Routes};
use crate::ops::low_rank::LowRank;
use crate::ops::{self, Precision};
use candle_core::Tensor;

/// The stacks of experts' matrices with an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// The gate and up projections.
    pub wide: bool,
    /// The down projections.
    pub down: bool,
    /// The routers, which are no stacks but parameters of experts all the same: `peft` lists them with the others.
    pub router: bool,
}

impl Stacks {
    /// Neither.
    pub const NONE: Self = Self { wide: false, down: false, router: false };

    /// Returns the parameters of a model that these names mean: as in `peft`, those whose names end with one.
    ///
    /// # Errors
    /// If the model has no experts, or a name means none of their matrices.
    pub fn of<'a>(given: impl IntoIterator<Item = &'a str>, a: &Architecture) -> Result<Self, String> {
        let mut stacks = Self::NONE;
        for name in given {
            let experts = a.family.described().names.experts.filter(|_| a.mixture.is_some());
            let experts = experts.ok_or_else(|| format!("{name:?} is for the matrices of experts, and this model has none"))?;
            let means = |own: &str| format!(".{own}").ends_with(&format!(".{name}"));
            let weight = format!("{}.weight", experts.router[0]);
            let (wide, down, router) = (means(experts.wide), means(experts.down), means(&weight));
            if !wide && !down && !router {
                return Err(format!(
                    "{name:?} is none of the parameters with adapters: {}, {}, {weight}",
                    experts.wide, experts.down
                ));
            }
            stacks = Self { wide: stacks.wide || wide, down: stacks.down || down, router: stacks.router || router };
        }
        Ok(stacks)
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Returns the names of the stacks.
    fn stacked(self, names: &Names) -> Vec<&'static str> {
        let each = |experts: &ExpertNames| [(self.wide, experts.wide), (self.down, experts.down)];
        let all = names.experts.into_iter().flat_map(each);
        all.filter_map(|(on, name)| on.then_some(name)).collect()
    }

    /// Returns the names of the matrices.
    pub(super) fn matrices(self, names: &Names) -> Vec<&'static str> {
        let router = names.experts.filter(|_| self.router).map(|experts| experts.router[0]);
        self.stacked(names).into_iter().chain(router).collect()
    }

    /// Returns whether a module of this name is a router with an adapter.
    pub(super) fn is_router(self, module: &str, names: &Names) -> bool {
        self.router && names.experts.is_some_and(|experts| module.ends_with(&format!(".{}", experts.router[0])))
    }

    /// Returns the names of the parameters as `peft` lists them.
    pub(super) fn listed(self, names: &Names) -> Vec<String> {
        let router = names.experts.filter(|_| self.router).map(|experts| format!("{}.weight", experts.router[0]));
        self.stacked(names).into_iter().map(str::to_owned).chain(router).collect()
    }

    /// Returns their names as a user lists them.
    pub fn names(self, a: &Architecture) -> Vec<String> {
        self.listed(a.family.described().names)
    }

    /// Returns the name of a stack's part in an adapter's file, given the layer's: `peft` wraps the experts once for each stack,
    /// the down projections last.
    pub(super) fn in_adapter(self, layer: &str, stack: &str, part: &str) -> String {
        let experts = stack.rsplit_once('.').map_or("", |(experts, _)| experts);
        let inner = if self.wide && self.down && !stack.ends_with(".down_proj") { ".base_layer" } else { "" };
        format!("{layer}.{experts}{inner}.{part}")
    }

    /// Returns the name in an adapter's file of a parameter that belongs to a stack's adapter.
    pub(super) fn renamed(self, parameter: &str, names: &Names) -> Option<String> {
        self.stacked(names).into_iter().find_map(|stack| {
            let (layer, part) = parameter.split_once(&format!(".{stack}."))?;
            Some(self.in_adapter(layer, stack, part))
        })
    }
}

/// Takes `B` of all experts from its form in `peft`'s files, `[out, r E]` with the experts next to each other, to `[E, out, r]`.
pub(super) fn stacked(b: &Tensor, experts: usize) -> candle_core::Result<Tensor> {
    let (d_out, all) = b.dims2()?;
    b.reshape((d_out, all / experts, experts))?.permute((2, 0, 1))?.contiguous()
}

/// Takes a stack's adapter's matrix to its form in `peft`'s files: `A` to `[E r, in]`, `B` to `[out, r E]`.
pub(super) fn flat(t: &Tensor, is_b: bool) -> candle_core::Result<Tensor> {
    let (experts, rows, columns) = t.dims3()?;
    if is_b {
        t.permute((1, 2, 0))?.contiguous()?.reshape((rows, columns * experts))
    } else {
        t.reshape((experts * rows, columns))
    }
}

impl Adapter {
    /// Returns a stack of weights `[E, out, in]` with each expert's adapter merged in.
    pub(super) fn merged_stack(&self, w: &Tensor) -> ops::Result<Tensor> {
        let each = (0..w.dims()[0]).map(|expert| {
            let (a, b) = (self.a.get(expert)?, self.b.get(expert)?);
            LowRank { a: &a, b: &b, scale: self.scale, precision: Precision::F32 }.merged(&w.get(expert)?)
        });
        Ok(Tensor::stack(&each.collect::<ops::Result<Vec<_>>>()?, 0)?)
    }
}

impl Masked<'_> {
    /// Adds the adapters' products of sorted rows to `y`.
    pub(super) fn add_grouped(&self, x: &Tensor, y: &Tensor, routes: &Routes) -> ops::Result<()> {
        let Some(Adapter { a, b, scale, .. }) = &self.linear.adapter else { return Ok(()) };
        let inner = experts::forward(x, a, routes, self.precision)?;
        ops::add_into(y, &ops::scaled(&experts::forward(&inner, b, routes, self.precision)?, *scale)?)
    }

    /// Returns the gradient of sorted rows, given that of their results.
    pub(super) fn grouped_input_backward(&self, dy: &Tensor, routes: &Routes) -> ops::Result<Tensor> {
        let dx = experts::backward_input(dy, &self.linear.weight, routes, self.precision)?;
        if let Some(Adapter { a, b, scale, .. }) = &self.linear.adapter {
            let d_inner = ops::scaled(&experts::backward_input(dy, b, routes, self.precision)?, *scale)?;
            ops::add_into(&dx, &experts::backward_input(&d_inner, a, routes, self.precision)?)?;
        }
        Ok(dx)
    }

    /// Adds the gradients of the trained matrices to `grad`. `x` returns the sorted rows, which only those need.
    pub(super) fn grouped_weight_backward(
        &self,
        x: impl FnOnce() -> ops::Result<Tensor>,
        dy: &Tensor,
        grad: &Linear<Option<Tensor>>,
        routes: &Routes,
    ) -> ops::Result<()> {
        if let Some(d_weight) = &grad.weight {
            return experts::backward_weight(&x()?, dy, d_weight, routes, self.precision);
        }
        let (Some(adapter), Some(of_adapter)) = (&self.linear.adapter, &grad.adapter) else { return Ok(()) };
        let (Some(d_a), Some(d_b)) = (&of_adapter.a, &of_adapter.b) else { return Ok(()) };
        let x = x()?;
        let inner = ops::scaled(&experts::forward(&x, &adapter.a, routes, self.precision)?, adapter.scale)?;
        experts::backward_weight(&inner, dy, d_b, routes, self.precision)?;
        let d_inner = ops::scaled(&experts::backward_input(dy, &adapter.b, routes, self.precision)?, adapter.scale)?;
        experts::backward_weight(&x, &d_inner, d_a, routes, self.precision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn matrices_are_laid_out_as_peft_reads_them() {
        // Two experts, three inputs and two outputs, rank two.
        let of = |n: usize, shape: &[usize]| Tensor::arange(0f32, n as f32, &Device::Cpu).unwrap().reshape(shape).unwrap();
        let (a, b) = (of(12, &[2, 2, 3]), of(8, &[2, 2, 2]));
        assert_eq!(flat(&a, false).unwrap().to_vec2::<f32>().unwrap()[3], [9.0, 10.0, 11.0]);
        // torch: B.reshape(out, r, E)[o, r, e].
        let file = flat(&b, true).unwrap();
        assert_eq!(file.to_vec2::<f32>().unwrap(), [[0.0, 4.0, 1.0, 5.0], [2.0, 6.0, 3.0, 7.0]]);
        assert_eq!(stacked(&file, 2).unwrap().to_vec3::<f32>().unwrap(), b.to_vec3::<f32>().unwrap());
    }

    #[test]
    fn names_are_those_of_pefts_wrappers() {
        let config = r#"{"model_type": "mixtral", "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 11, "num_local_experts": 5,
            "num_experts_per_tok": 2}"#;
        let a = Architecture::parse(config).unwrap();
        let names = a.family.described().names;
        let of = |given: &[&str]| Stacks::of(given.iter().copied(), &a).unwrap();
        let (both, down) = (of(&["mlp.experts.gate_up_proj", "down_proj"]), of(&["experts.down_proj"]));
        assert_eq!((both, down), (Stacks { wide: true, down: true, router: false }, Stacks { down: true, ..Stacks::NONE }));
        let router = of(&["gate.weight"]);
        assert_eq!((router, router.listed(names)), (Stacks { router: true, ..Stacks::NONE }, vec!["mlp.gate.weight".to_owned()]));
        assert_eq!(router.renamed("model.layers.1.mlp.gate.lora_B.weight", names), None);
        let own = |stack: &str| format!("model.layers.1.mlp.experts.{stack}.lora_B.weight");
        let file = |stacks: Stacks, stack: &str| stacks.renamed(&own(stack), names).unwrap();
        assert_eq!(file(both, "gate_up_proj"), "model.layers.1.mlp.experts.base_layer.lora_B.weight");
        assert_eq!(file(both, "down_proj"), "model.layers.1.mlp.experts.lora_B.weight");
        assert_eq!(file(down, "down_proj"), "model.layers.1.mlp.experts.lora_B.weight");
        assert_eq!(file(of(&["gate_up_proj"]), "gate_up_proj"), "model.layers.1.mlp.experts.lora_B.weight");
        assert_eq!(both.renamed("model.layers.1.self_attn.q_proj.lora_B.weight", names), None);
        for given in ["q_proj", "layers.0.mlp.experts.down_proj", ""] {
            let refusal = Stacks::of([given], &a).unwrap_err();
            assert!(refusal.contains("mlp.experts.gate_up_proj"), "{refusal}");
        }
    }
}
