//! Parameters of a decoder under their Hugging Face names, and their gradients.

use super::Result;
use super::expert_weights::{ExpertParameters, Experts};
use super::layer_input_weights::{LayerEnd, LayerInputWeights, PROJECTED_NORM, PROJECTION, SCALAR, TABLE};
use super::lora::{LoraSettings, TrainedBiases};
use super::names::{LATENT_EXPERTS, TensorNames};
use super::pass_observer::ModelPart;
use super::recurrent_weights::RecurrentWeights;
use crate::ops::quantized::{QuantizationScheme, QuantizedWeight};
use crate::ops::{self, WeightMatrix};
use candle_core::{DType, Device, Tensor};
use std::convert::Infallible;

/// Names of a critic's head.
pub(super) const VALUE_WEIGHT: &str = "value_head.weight";
pub(super) const VALUE_BIAS: &str = "value_head.bias";

/// Name of the magnitudes of an adapter with DoRA.
pub(super) const MAGNITUDE: &str = "lora_magnitude_vector";

/// Suffix of the name of a weight's scales, as in bitsandbytes.
pub(super) const SCALES: &str = ".absmax";

/// A weight `[out, in]`, its bias and its adapter.
#[derive(Clone, Debug)]
pub struct Linear<T = Tensor> {
    /// Weight, `[out, in]`, or the codes of a quantized weight.
    pub weight: T,
    /// Present if the weight is quantized.
    pub scales: Option<QuantizationScales<T>>,
    /// Bias, `[out]`.
    pub bias: Option<T>,
    /// Present if an adapter applies to this layer.
    pub adapter: Option<LinearAdapter<T>>,
}

/// The scales of a quantized weight.
#[derive(Clone, Debug)]
pub struct QuantizationScales<T = Tensor> {
    /// Values of the scales, f32; see [`QuantizationScheme::shapes`].
    pub values: T,
    /// Scheme in which the weight is stored.
    pub scheme: QuantizationScheme,
}

/// A linear layer's adapter: `scale * b a` is added to the weight. With DoRA, rows then get separate magnitudes.
#[derive(Clone, Debug)]
pub struct LinearAdapter<T = Tensor> {
    /// `lora_A`, `[r, in]`.
    pub a: T,
    /// `lora_B`, `[out, r]`.
    pub b: T,
    /// `lora_B.bias`, `[out]`, if `B` has one.
    pub bias: Option<T>,
    /// `lora_magnitude_vector`, `[out]`, if the adapter uses DoRA.
    pub magnitude: Option<T>,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Result of [`LoraSettings::scale`] for this module.
    pub scale: f32,
}

/// A norm's parameters.
#[derive(Clone, Debug)]
pub struct NormWeights<T = Tensor> {
    /// Factor of each value.
    pub weight: T,
    /// Offset added to each value.
    pub bias: Option<T>,
}

/// Linear maps around an activation (an MLP).
#[derive(Clone, Debug)]
pub struct MlpProjections<L> {
    /// Gate and up projections, a joined projection, or the single one of an MLP without a gate.
    pub wide: Vec<L>,
    /// Down projection, back to the hidden size.
    pub down: L,
    /// Map from a token to the gate of the MLP's output, before the logistic function, `[1, D]`; for shared MLPs with such a gate.
    pub gate: Option<L>,
}

/// Parameters of a layer's attention, excluding its projections.
#[derive(Clone, Debug)]
pub struct AttentionWeights<T = Tensor> {
    /// Additional logit of each head's softmax, `[H]`, if attention has sinks.
    pub sinks: Option<T>,
    /// Norms of query heads and of key heads, each per head or over all together.
    pub qk_norm: Option<(T, T)>,
    /// Norm of query heads in a layer that reads another layer's keys and values.
    pub query_norm: Option<T>,
    /// The second projections, if keys and values are compressed.
    pub latent: Option<LatentWeights<T>>,
}

/// Parameters of attention with compressed keys and values, excluding the projections that compress.
#[derive(Clone, Debug)]
pub struct LatentWeights<T = Tensor> {
    /// Projections of compressed rows.
    pub maps: LatentProjections<Linear<T>>,
    /// Norm of compressed queries, if queries are compressed.
    pub query_norm: Option<T>,
    /// Norm of compressed keys and values.
    pub norm: T,
}

/// Linear maps from compressed rows to heads.
#[derive(Clone, Debug)]
pub struct LatentProjections<L> {
    /// Map from compressed queries to query heads, if queries are compressed.
    pub queries: Option<L>,
    /// Map from compressed keys and values to the heads of both.
    pub keys_and_values: L,
}

/// Parameters of one layer.
#[derive(Clone, Debug)]
pub struct LayerWeights<T = Tensor> {
    /// Query, key and value projections, or a joined one. In a recurrent layer, the projections of the recurrence's inputs. With a state space
    /// beside attention, that of its inputs comes last. None in a layer without either.
    pub qkv: Vec<Linear<T>>,
    /// Output projection of attention or the recurrence, or of both side by side. None in a layer without either.
    pub o: Vec<Linear<T>>,
    /// Further parameters of attention; none in a recurrent layer.
    pub attention: AttentionWeights<T>,
    /// Recurrence in the place of attention or beside it, if the layer has one.
    pub recurrent: Option<RecurrentWeights<T>>,
    /// The MLP that every token goes through, unless there are only experts, or neither.
    pub unit: Option<MlpProjections<Linear<T>>>,
    /// The experts, if the layer has a mixture of them. Their outputs are added to the MLP's.
    pub experts: Option<Experts<Linear<T>>>,
    /// Further parameters of the experts.
    pub routing: ExpertParameters<T>,
    /// Norm before attention.
    pub input_norm: Option<NormWeights<T>>,
    /// Norm of the attention's output.
    pub attended_norm: Option<NormWeights<T>>,
    /// Norm before the MLP.
    pub mlp_norm: Option<NormWeights<T>>,
    /// Norm of the MLP's output.
    pub added_norm: Option<NormWeights<T>>,
    /// What follows the MLP, if anything does.
    pub end: Option<LayerEnd<Linear<T>, T>>,
}

/// Parameters of a decoder, or a value for each of them.
#[derive(Clone, Debug)]
pub struct Weights<T = Tensor> {
    /// Token embedding, `[V, D]`.
    pub embedding: T,
    /// Learned positions, `[P, D]`, if the family has them.
    pub positions: Option<T>,
    /// Parameters of layers' own inputs, if they have some.
    pub layer_inputs: Option<LayerInputWeights<Linear<T>, T>>,
    /// Layers from first to last.
    pub layers: Vec<LayerWeights<T>>,
    /// Last norm.
    pub norm: NormWeights<T>,
    /// Output matrix, `[V, D]`, unless it is tied to the embedding.
    pub head: Option<T>,
    /// A critic's head on the last hidden states, `[1, hidden]` and `[1]`.
    pub value_head: Option<Linear<T>>,
    /// Settings of the adapter, if there is one. Then only the adapter, the modules that it lists and a critic's head are trained.
    pub lora: Option<LoraSettings>,
    /// Names of the parameters.
    pub(super) names: &'static TensorNames,
}

/// The gradient of each trained parameter.
pub struct Gradients(pub(super) Weights<Option<Tensor>>);

impl<T> Linear<T> {
    /// Creates a map without quantization and adapter.
    pub fn new(weight: T, bias: Option<T>) -> Self {
        Self { weight, scales: None, bias, adapter: None }
    }

    fn map<'a, U, E>(
        &'a self,
        weight: &str,
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<Linear<U>, E> {
        Ok(Linear {
            weight: f(format!("{weight}.weight"), &self.weight)?,
            scales: match &self.scales {
                None => None,
                Some(QuantizationScales { values, scheme }) => {
                    Some(QuantizationScales { values: f(format!("{weight}.weight{SCALES}"), values)?, scheme: *scheme })
                }
            },
            bias: self.bias.as_ref().map(|bias| f(format!("{weight}.bias"), bias)).transpose()?,
            adapter: match &self.adapter {
                None => None,
                Some(LinearAdapter { a, b, bias, magnitude, alpha, scale }) => Some(LinearAdapter {
                    a: f(format!("{weight}.lora_A.weight"), a)?,
                    b: f(format!("{weight}.lora_B.weight"), b)?,
                    bias: bias.as_ref().map(|bias| f(format!("{weight}.lora_B.bias"), bias)).transpose()?,
                    magnitude: magnitude.as_ref().map(|m| f(format!("{weight}.{MAGNITUDE}"), m)).transpose()?,
                    alpha: *alpha,
                    scale: *scale,
                }),
            },
        })
    }
}

impl Linear {
    /// Returns the weight without the adapter, as it is stored.
    pub(super) fn matrix(&self) -> WeightMatrix<'_> {
        match &self.scales {
            None => WeightMatrix::Plain(&self.weight),
            Some(QuantizationScales { values, scheme }) => {
                WeightMatrix::Quantized(QuantizedWeight { codes: &self.weight, scales: values, scheme: *scheme })
            }
        }
    }

    /// Returns the number of the weight's values.
    pub(super) fn elements(&self) -> usize {
        let (d_out, d_in) = self.matrix().dims();
        d_out * d_in
    }
}

impl<L> MlpProjections<L> {
    /// Borrows the maps.
    pub(super) fn each(&self) -> MlpProjections<&L> {
        MlpProjections { wide: self.wide.iter().collect(), down: &self.down, gate: self.gate.as_ref() }
    }

    /// Applies a function to each map.
    pub(super) fn map<U, E>(
        self,
        mut f: impl FnMut(L) -> std::result::Result<U, E>,
    ) -> std::result::Result<MlpProjections<U>, E> {
        let wide = self.wide.into_iter().map(&mut f).collect::<std::result::Result<_, E>>()?;
        Ok(MlpProjections { wide, down: f(self.down)?, gate: self.gate.map(f).transpose()? })
    }
}

impl<L> LatentProjections<L> {
    /// Borrows the maps.
    pub(super) fn each(&self) -> LatentProjections<&L> {
        LatentProjections { queries: self.queries.as_ref(), keys_and_values: &self.keys_and_values }
    }

    /// Applies a function to each map.
    pub(super) fn map<U, E>(
        self,
        mut f: impl FnMut(L) -> std::result::Result<U, E>,
    ) -> std::result::Result<LatentProjections<U>, E> {
        let queries = self.queries.map(&mut f).transpose()?;
        Ok(LatentProjections { queries, keys_and_values: f(self.keys_and_values)? })
    }

    /// Returns the maps in one list.
    pub(super) fn all(self) -> impl Iterator<Item = L> {
        self.queries.into_iter().chain([self.keys_and_values])
    }
}

impl<T> NormWeights<T> {
    fn map<'a, U, E>(
        &'a self,
        norm: &str,
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<NormWeights<U>, E> {
        let weight = f(format!("{norm}.weight"), &self.weight)?;
        Ok(NormWeights { weight, bias: self.bias.as_ref().map(|bias| f(format!("{norm}.bias"), bias)).transpose()? })
    }
}

impl<T> LatentWeights<T> {
    /// Returns the maps with their names.
    fn named_maps(&self, names: &'static TensorNames) -> Vec<(&'static str, &Linear<T>)> {
        let Some(second) = names.attention.latent.map(|names| names.second) else { return Vec::new() };
        let LatentProjections { queries, keys_and_values } = self.maps.each();
        queries.map(|map| (second[0], map)).into_iter().chain([(second[1], keys_and_values)]).collect()
    }

    fn map<'a, U, E>(
        &'a self,
        name: impl Fn(&str) -> String,
        (second, norms): ([&str; 2], [&str; 2]),
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<LatentWeights<U>, E> {
        let LatentProjections { queries, keys_and_values } = &self.maps;
        let queries = queries.as_ref().map(|map| map.map(&name(second[0]), f)).transpose()?;
        let keys_and_values = keys_and_values.map(&name(second[1]), f)?;
        let [of_queries, of_both] = norms.map(|norm| name(norm) + ".weight");
        Ok(LatentWeights {
            maps: LatentProjections { queries, keys_and_values },
            query_norm: self.query_norm.as_ref().map(|norm| f(of_queries, norm)).transpose()?,
            norm: f(of_both, &self.norm)?,
        })
    }
}

impl<T> AttentionWeights<T> {
    /// Returns the names of the projections that read a layer's input, if its keys and values are compressed.
    pub(super) fn input_names(&self, names: &'static TensorNames) -> Option<&'static [&'static str]> {
        self.latent.as_ref().map(|latent| names.latent_inputs(latent.maps.queries.is_some()))
    }
}

impl<T> LayerWeights<T> {
    /// Returns the names of the projections that read the layer's input.
    pub(super) fn input_names(&self, names: &'static TensorNames) -> &'static [&'static str] {
        let all = self.attention.input_names(names).unwrap_or_else(|| names.inputs(self.recurrent.is_some()));
        // A layer of a Gemma 4 may have only the first ones.
        &all[..all.len().min(self.qkv.len())]
    }

    /// Returns the layer's linear maps with their names.
    fn named_maps(&self, names: &'static TensorNames) -> Vec<(&'static str, &Linear<T>)> {
        let (inputs, outputs) = (self.input_names(names), names.outputs(self.recurrent.is_some()));
        let mut all: Vec<_> = inputs.iter().copied().zip(&self.qkv).chain(outputs.zip(&self.o)).collect();
        all.extend(self.attention.latent.iter().flat_map(|latent| latent.named_maps(names)));
        all.extend(self.end.iter().flat_map(LayerEnd::named_maps));
        if let Some(unit) = &self.unit {
            let (wide, down) = names.unit(self.experts.is_some());
            all.extend(wide.iter().copied().zip(&unit.wide).chain([(down, &unit.down)]));
        }
        if let Some((experts, names)) = self.experts.as_ref().zip(names.experts) {
            all.extend([(names.router[0], &experts.router), (names.wide, &experts.wide), (names.down, &experts.down)]);
        }
        all
    }

    fn map<'a, U, E>(
        &'a self,
        layer: &str,
        names: &'static TensorNames,
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<LayerWeights<U>, E> {
        let name = |part: &str| format!("{layer}.{part}");
        // Random weights are drawn in this order.
        let is_recurrent = self.recurrent.is_some();
        let inputs = self.qkv.iter().zip(self.input_names(names));
        let qkv = inputs.map(|(l, part)| l.map(&name(part), f)).collect::<std::result::Result<_, E>>()?;
        let outputs = self.o.iter().zip(names.outputs(is_recurrent));
        let o = outputs.map(|(l, part)| l.map(&name(part), f)).collect::<std::result::Result<_, E>>()?;
        let sinks = self.attention.sinks.as_ref().zip(names.attention.sinks).map(|(t, part)| f(name(part), t)).transpose()?;
        let latent = self.attention.latent.as_ref().zip(names.attention.latent);
        let latent = latent.map(|(own, second)| own.map(name, (second.second, names.attention.norms), f)).transpose()?;
        let recurrent = self.recurrent.as_ref().zip(names.recurrent);
        let recurrent = recurrent.map(|(own, names)| own.map(name, names, f)).transpose()?;
        let mut linear = |(l, part): (&'a Linear<T>, &str)| l.map(&name(part), f);
        let (wide, down) = names.unit(self.experts.is_some());
        let gate = names.shared().and_then(|shared| shared.gate);
        let of_unit = |unit: &'a MlpProjections<Linear<T>>| MlpProjections {
            wide: unit.wide.iter().zip(wide.iter().copied()).collect(),
            down: (&unit.down, down),
            gate: unit.gate.as_ref().zip(gate),
        };
        let unit = self.unit.as_ref().map(|unit| of_unit(unit).map(&mut linear)).transpose()?;
        let named = names.experts.map_or(["", "", ""], |names| [names.router[0], names.wide, names.down]);
        let of_experts = |experts: &'a Experts<Linear<T>>| Experts {
            router: (&experts.router, named[0]),
            wide: (&experts.wide, named[1]),
            down: (&experts.down, named[2]),
            latent: experts.latent.as_ref().map(|[first, last]| [(first, LATENT_EXPERTS[0]), (last, LATENT_EXPERTS[1])]),
        };
        let experts = self.experts.as_ref().map(|experts| of_experts(experts).map(&mut linear)).transpose()?;
        let routing = self.routing.map(name, names.experts, f)?;
        let qk_norm = match &self.attention.qk_norm {
            None => None,
            Some((q, k)) => {
                let [of_q, of_k] = names.attention.norms.map(|norm| name(norm) + ".weight");
                Some((f(of_q, q)?, f(of_k, k)?))
            }
        };
        let query_norm =
            self.attention.query_norm.as_ref().map(|t| f(name(names.attention.norms[0]) + ".weight", t)).transpose()?;
        let end = self.end.as_ref().map(|end| end.map(name, f, |map, part, f| map.map(part, f))).transpose()?;
        let mut norm = |of: &'a Option<NormWeights<T>>, part: &str| of.as_ref().map(|norm| norm.map(&name(part), f)).transpose();
        Ok(LayerWeights {
            qkv,
            o,
            attention: AttentionWeights { sinks, qk_norm, query_norm, latent },
            recurrent,
            unit,
            experts,
            routing,
            input_norm: norm(&self.input_norm, names.norms[0])?,
            attended_norm: norm(&self.attended_norm, names.norms[1])?,
            mlp_norm: norm(&self.mlp_norm, names.norms[2])?,
            added_norm: norm(&self.added_norm, names.norms[3])?,
            end,
        })
    }
}

impl<T> Weights<T> {
    /// Maps each parameter with `f`, which gets its name and value, in a fixed order.
    pub fn map<'a, U, E>(
        &'a self,
        mut f: impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<Weights<U>, E> {
        let names = self.names;
        let embedding = f(format!("{}.weight", names.embedding), &self.embedding)?;
        let table = self.positions.as_ref().zip(names.positions);
        let positions = table.map(|(table, name)| f(format!("{name}.weight"), table)).transpose()?;
        let layer_inputs = self.layer_inputs.as_ref().map(|own| own.map(&mut f, |map, name, f| map.map(name, f))).transpose()?;
        let layers = self.layers.iter().enumerate();
        let layers = layers.map(|(l, layer)| layer.map(&format!("{}.{l}", names.layers), names, &mut f));
        let layers = layers.collect::<std::result::Result<_, E>>()?;
        let norm = self.norm.map(names.norm, &mut f)?;
        let head = self.head.as_ref().map(|head| f(format!("{}.weight", names.head), head)).transpose()?;
        let value_head = self.value_head.as_ref().map(|head| head.map("value_head", &mut f)).transpose()?;
        Ok(Weights { embedding, positions, layer_inputs, layers, norm, head, value_head, lora: self.lora, names })
    }

    /// Returns every parameter with its name, in the order of [`Weights::map`].
    pub fn named(&self) -> Vec<(String, &T)> {
        let mut all = Vec::new();
        let Ok(_) = self.map(|name, t| {
            all.push((name, t));
            Ok::<(), Infallible>(())
        });
        all
    }

    /// Returns the part of the model that the parameter of this name belongs to.
    pub fn part_of(&self, name: &str) -> ModelPart {
        let names = self.names;
        let of_layer = name.strip_prefix(names.layers).and_then(|rest| rest.strip_prefix('.')?.split_once('.')?.0.parse().ok());
        let is_table = |table: &str| name.strip_suffix(".weight") == Some(table);
        // The projection may have an adapter.
        let of_inputs = is_table(TABLE) || is_table(PROJECTED_NORM) || name.starts_with(PROJECTION);
        match of_layer {
            Some(layer) => ModelPart::Layer(layer),
            None if of_inputs || is_table(names.embedding) || names.positions.is_some_and(is_table) => ModelPart::Bottom,
            None => ModelPart::Top,
        }
    }

    /// Returns whether the parameter of this name is trained.
    pub fn trains(&self, name: &str) -> bool {
        let correction = self.names.experts.and_then(|names| names.correction);
        let fixed = name.ends_with(SCALAR) || correction.is_some_and(|correction| name.ends_with(correction));
        let by_itself = self.lora.is_none() && !fixed;
        by_itself || self.trains_with_adapter(name) || is_adapter_parameter(name) || is_critic_parameter(name)
    }

    /// Returns whether the parameter of this name is one of the base model's that are trained with the adapter.
    pub(super) fn trains_with_adapter(&self, name: &str) -> bool {
        let Some(lora) = self.lora else { return false };
        let bias_of = || name.strip_suffix(".bias").filter(|_| !is_adapter_parameter(name) && !is_critic_parameter(name));
        lora.trained_modules.has(name, self.names)
            || match lora.biases {
                TrainedBiases::None => false,
                TrainedBiases::Adapted => bias_of().is_some_and(|module| self.has_adapter(module)),
                // As in peft, the name decides.
                TrainedBiases::All => bias_of().is_some() || name.ends_with(".dt_bias"),
            }
    }

    /// Returns whether the linear map of this name has an adapter.
    pub(super) fn has_adapter(&self, module: &str) -> bool {
        if module == PROJECTION {
            return self.layer_inputs.as_ref().is_some_and(|own| own.projection.adapter.is_some());
        }
        let in_layer = module.strip_prefix(self.names.layers).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
        let layer = in_layer.and_then(|(number, part)| Some((self.layers.get(number.parse::<usize>().ok()?)?, part)));
        layer.is_some_and(|(layer, part)| {
            layer.named_maps(self.names).iter().any(|(name, linear)| *name == part && linear.adapter.is_some())
        })
    }

    /// Returns each adapter with the name of its module.
    pub(super) fn adapters(&self) -> Vec<(String, &LinearAdapter<T>)> {
        let layers = self.layers.iter().enumerate();
        let maps = layers.flat_map(|(l, layer)| layer.named_maps(self.names).into_iter().map(move |(name, map)| (l, name, map)));
        let adapted =
            maps.filter_map(|(l, name, map)| Some((format!("{}.{l}.{name}", self.names.layers), map.adapter.as_ref()?)));
        let below = self.layer_inputs.iter().filter_map(|own| Some((PROJECTION.to_owned(), own.projection.adapter.as_ref()?)));
        adapted.chain(below).collect()
    }
}

/// Returns whether a parameter of this name belongs to an adapter.
pub(super) fn is_adapter_parameter(name: &str) -> bool {
    [".lora_A.weight", ".lora_B.weight", ".lora_B.bias", ".lora_magnitude_vector"].iter().any(|end| name.ends_with(end))
}

/// Returns whether a parameter of this name belongs to a critic's head.
pub fn is_critic_parameter(name: &str) -> bool {
    name == VALUE_WEIGHT || name == VALUE_BIAS
}

impl Weights {
    /// Returns the trained parameters with their names, in the order of [`Weights::map`].
    pub fn trained(&self) -> Vec<(String, &Tensor)> {
        self.named().into_iter().filter(|(name, _)| self.trains(name)).collect()
    }

    /// Returns the frozen parameters with their names.
    pub fn untrained(&self) -> Vec<(String, &Tensor)> {
        self.named().into_iter().filter(|(name, _)| !self.trains(name)).collect()
    }

    /// Returns the matrix from hidden states to logits, `[V, D]`.
    pub fn output(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Returns whether the output matrix is trained.
    pub fn trains_output(&self) -> bool {
        self.trains(&format!("{}.weight", if self.head.is_some() { self.names.head } else { self.names.embedding }))
    }

    /// Returns whether this is a value model: it has a value head, without a bias, instead of an output matrix.
    pub fn is_value_model(&self) -> bool {
        self.value_head.as_ref().is_some_and(|head| head.bias.is_none())
    }

    /// Returns the number of the model's values, excluding an adapter's.
    pub fn parameters(&self) -> usize {
        let stored: usize =
            self.named().iter().filter(|(name, _)| !is_adapter_parameter(name)).map(|(_, t)| t.elem_count()).sum();
        let coded =
            |l: &Linear| l.scales.as_ref().map(|scales| (l.elements(), l.weight.elem_count() + scales.values.elem_count()));
        let (values, codes) = self.linears().filter_map(coded).fold((0, 0), |(a, b), (values, codes)| (a + values, b + codes));
        stored + values - codes
    }

    /// Returns the linear maps of all layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &Linear> {
        let below = self.layer_inputs.iter().map(|own| &own.projection);
        self.layers.iter().flat_map(|layer| layer.maps().all()).chain(below)
    }

    /// Returns the bytes of all tensors that `which` selects by their names.
    pub fn bytes(&self, which: impl Fn(&str) -> bool) -> usize {
        let named = self.named().into_iter().filter(|(name, _)| which(name));
        named.map(|(_, t)| bytes(t)).sum()
    }

    /// Adds a critic's head whose values are initially zero.
    pub fn with_value_head(mut self, hidden_size: usize) -> Result<Self> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
        self.value_head = Some(Linear::new(zeros(&[1, hidden_size])?, Some(zeros(&[1])?)));
        Ok(self)
    }

    /// Returns zeroed f32 gradients of the trained parameters.
    pub fn zero_gradients(&self) -> Result<Gradients> {
        let zeros = |t: &Tensor| Tensor::zeros(t.shape(), DType::F32, t.device());
        Ok(Gradients(self.map(|name, t| self.trains(&name).then(|| zeros(t)).transpose())?))
    }

    /// Copies the weights so that training does not change the copy. Trained parameters get separate storage; the others share it.
    pub fn copied(&self) -> Result<Self> {
        self.map(|name, t| Ok(if self.trains(&name) { ops::copied(t)? } else { t.clone() }))
    }
}

impl Gradients {
    /// Returns the gradient of each trained parameter, in the order of [`Weights::trained`].
    pub fn named(&self) -> Vec<(String, &Tensor)> {
        self.0.named().into_iter().filter_map(|(name, gradient)| Some((name, gradient.as_ref()?))).collect()
    }
}

/// Returns the bytes of a tensor's values.
pub(super) fn bytes(t: &Tensor) -> usize {
    t.elem_count() * t.dtype().size_in_bytes()
}

/// Name of the head in files.
pub(super) const SCORE: &str = "score.weight";

/// Name of the head's bias in files.
pub(super) const SCORE_BIAS: &str = "score.bias";
