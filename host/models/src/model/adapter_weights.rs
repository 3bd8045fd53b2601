//! Adapters on a model's weights: adds, merges and removes them.

use super::layer_input_weights::{LayerEnd, LayerInputMaps, PROJECTION, STAGE_MAPS};
use super::lora::LoraSettings;
use super::lora::TrainedBiases;
use super::names::{ExpertNames, TensorNames};
use super::weights::{LatentWeights, LayerWeights, Linear, LinearAdapter, MlpProjections};
use super::{Architecture, Error, Result, Weights};
use crate::ops::low_rank::LowRankAdapter;
use crate::ops::magnitude::{self, Magnitude};
use crate::ops::{self, Precision, WeightMatrix};
use candle_core::DType;
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Distinguishes an adapter's random numbers from others with the same seed.
const STREAM: u64 = 0x10_4a;

impl LinearAdapter {
    pub(super) fn low_rank(&self) -> LowRankAdapter<'_> {
        LowRankAdapter { a: &self.a, b: &self.b, scale: self.scale, precision: Precision::F32 }
    }

    /// Returns the weight with the adapter merged in.
    pub(super) fn merged(&self, w: WeightMatrix<'_>) -> ops::Result<Tensor> {
        let merged = self.low_rank().merged(w)?;
        if let Some(values) = &self.magnitude {
            Magnitude { values, lengths: &magnitude::lengths(w, &self.low_rank())? }.scale_rows(&merged)?;
        }
        Ok(merged)
    }
}

impl Linear {
    /// Returns the bias of the map plus that of the adapter's `B`; `None` if it has neither.
    pub(super) fn added(&self) -> ops::Result<Option<Tensor>> {
        let Some((own, scale)) = self.adapter.as_ref().and_then(|adapter| Some((adapter.bias.as_ref()?, adapter.scale))) else {
            return Ok(self.bias.clone());
        };
        let sum = ops::scaled(own, scale)?;
        if let Some(bias) = &self.bias {
            ops::add_into(&sum, &ops::cast(bias, sum.dtype())?)?;
        }
        Ok(Some(sum))
    }

    /// Returns the weight with the adapter merged in.
    pub(super) fn merged(&self) -> ops::Result<Tensor> {
        match (&self.adapter, &self.scales) {
            (Some(adapter), _) if self.weight.dims().len() > 2 => adapter.merged_stack(&self.weight),
            (Some(adapter), _) => adapter.merged(self.matrix()),
            (None, None) => Ok(self.weight.clone()),
            (None, Some(_)) => self.matrix().in_f32(),
        }
    }
}

impl LayerWeights {
    /// Returns the experts' stacked matrices that an adapter can apply to.
    fn stacks(&mut self, names: &'static TensorNames) -> Vec<(&'static str, &mut Linear)> {
        let Some((experts, names)) = self.experts.as_mut().zip(names.experts) else { return Vec::new() };
        let router = (!names.adapts_router).then_some((names.router[0], &mut experts.router));
        [(names.wide, &mut experts.wide), (names.down, &mut experts.down)].into_iter().chain(router).collect()
    }

    /// Returns the linear maps that an adapter can apply to, except those of experts. A router counts if it is a linear layer for peft.
    fn linears(&mut self, names: &'static TensorNames) -> Vec<(&'static str, &mut Linear)> {
        let inputs = self.input_names(names);
        let Self { qkv, attention, o, unit, experts, recurrent, end, .. } = self;
        let (recurrent, (wide_names, down_name)) = (recurrent.is_some(), names.unit(experts.is_some()));
        let named = |names: &'static [&'static str]| names.iter().copied();
        let mut all: Vec<_> = named(inputs).zip(qkv).collect();
        if let Some((LatentWeights { maps, .. }, names)) = attention.latent.as_mut().zip(names.attention.latent) {
            all.extend(maps.queries.as_mut().map(|map| (names.second[0], map)));
            all.push((names.second[1], &mut maps.keys_and_values));
        }
        all.extend(names.outputs(recurrent).zip(o));
        if let Some(MlpProjections { wide, down, .. }) = unit {
            all.extend(named(wide_names).zip(wide));
            all.push((down_name, down));
        }
        if let Some(LayerInputMaps { gate, projection }) = end.as_mut().and_then(LayerEnd::maps_mut) {
            all.extend(STAGE_MAPS.into_iter().zip([gate, projection]));
        }
        if let Some((experts, names)) = experts.as_mut().zip(names.experts.filter(|names| names.adapts_router)) {
            all.push((names.router[0], &mut experts.router));
        }
        all
    }
}

impl Architecture {
    /// Returns the names of the linear maps of attention with compressed keys and values, if the model has that.
    fn latent_modules(&self) -> Option<Vec<&'static str>> {
        let (names, queries) = (self.family.description().names, self.latent?.query_rank.is_some());
        let second = names.attention.latent?.second.into_iter().skip(usize::from(!queries));
        Some(names.latent_inputs(queries).iter().copied().chain(second).chain([names.mixed(false)]).collect())
    }

    /// Returns the short names of the layers' linear maps that an adapter can apply to, in order.
    pub fn modules(&self) -> Vec<&'static str> {
        let names = self.family.description().names;
        // In some mixtures whose files store each expert separately, peft takes these names for the experts, even in a layer that has an MLP.
        let taken = self.mixture.is_some() && names.experts.is_some_and(ExpertNames::are_apart);
        let adapted = !taken && (0..self.layers).any(|layer| self.has_unit(layer));
        let of_unit = names.mlp.iter().chain([&names.down]).filter(|_| adapted);
        let mut all = Vec::new();
        let output =
            |recurrent: bool| Some(names.mixed(recurrent)).filter(|_| !recurrent || self.family.adapts_behind_recurrences());
        let of_kind = |recurrent: bool| names.inputs(recurrent).iter().copied().chain(output(recurrent));
        let has = |recurrent: &bool| (0..self.layers).any(|layer| self.mixes(layer) && self.is_recurrent(layer) == *recurrent);
        let mixers = [true, false].into_iter().filter(has).flat_map(of_kind);
        let mixers = self.latent_modules().unwrap_or_else(|| mixers.collect());
        let of_inputs = STAGE_MAPS.into_iter().chain([PROJECTION]).filter(|_| self.layer_input_width().is_some());
        let router = names.experts.filter(|names| names.adapts_router && self.mixture.is_some()).map(|names| names.router[0]);
        for name in mixers.into_iter().chain(of_unit.copied()).chain(of_inputs).chain(router) {
            let module = name.rsplit_once('.').map_or(name, |(_, module)| module);
            if !all.contains(&module) {
                all.push(module);
            }
        }
        all
    }
}

impl Weights {
    /// Returns the parameters with another adapter. Calls `part` with each linear layer and its name.
    pub(super) fn adapted(
        mut self,
        lora: LoraSettings,
        mut part: impl FnMut(&str, &Linear) -> Result<Option<LinearAdapter>>,
    ) -> Result<Self> {
        let names = self.names;
        for (l, layer) in self.layers.iter_mut().enumerate() {
            for (name, linear) in layer.linears(names) {
                linear.adapter = part(&format!("{}.{l}.{name}", names.layers), linear)?;
            }
            let adapted = lora.stacks.matrices(names);
            for (name, stack) in layer.stacks(names).into_iter().filter(|(name, _)| adapted.contains(name)) {
                stack.adapter = part(&format!("{}.{l}.{name}", names.layers), stack)?;
            }
        }
        if let Some(own) = &mut self.layer_inputs {
            own.projection.adapter = part(PROJECTION, &own.projection)?;
        }
        self.lora = Some(lora);
        Ok(self)
    }

    /// Returns the parameters with a new adapter on the linear layers of these names (`q_proj` and so on). The adapter has no effect until
    /// it is trained: `A` is uniform within the inverse square root of the inputs, as in `peft` (Kaiming with slope sqrt(5)), `B` is zero,
    /// and magnitudes are the lengths of the weight's rows.
    pub fn with_new_adapter(self, lora: LoraSettings, targets: &[String], seed: u64) -> Result<Self> {
        let lora = if self.is_value_model() { lora.for_value_model() } else { lora };
        let names = self.names;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(STREAM);
        let adapted = self.adapted(lora, |name, linear| {
            let experts = if let [experts, _, _] = *linear.weight.dims() { Some(experts) } else { None };
            let targeted = |target: &String| name == target || name.ends_with(&format!(".{target}"));
            if experts.is_none() && !lora.stacks.is_router(name, names) && !targets.iter().any(targeted) {
                return Ok(None);
            }
            let (rows, d_in) = linear.matrix().dims();
            let d_out = rows / experts.unwrap_or(1);
            let bound = (d_in as f32).sqrt().recip();
            // An f32 below one holds 24 bits.
            let mut drawn = || ((rng.next_u32() >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * bound;
            let shape = |sizes: [usize; 2]| experts.into_iter().chain(sizes).collect::<Vec<usize>>();
            let a: Vec<f32> = (0..experts.unwrap_or(1) * lora.r * d_in).map(|_| drawn()).collect();
            let a = Tensor::from_vec(a, shape([lora.r, d_in]), &Device::Cpu)?;
            let b = Tensor::zeros(shape([d_out, lora.r]), candle_core::DType::F32, &Device::Cpu)?;
            let bias = lora.b_bias.then(|| Tensor::zeros(d_out, candle_core::DType::F32, &Device::Cpu)).transpose()?;
            let mut adapter = LinearAdapter { a, b, bias, magnitude: None, alpha: lora.alpha, scale: lora.scale() };
            if lora.use_dora && experts.is_none() {
                adapter.magnitude = Some(magnitude::lengths(linear.matrix(), &adapter.low_rank())?);
            }
            Ok(Some(adapter))
        })?;
        adapted.with_trained_modules(lora, |_, _| Ok(None))
    }

    /// Returns the parameters without the adapter, in the same storage. Fully trained modules keep their trained values.
    pub fn without_adapter(&self) -> Self {
        let mut plain = Self { lora: None, ..self.clone() };
        for (_, linear) in plain.layers.iter_mut().flat_map(|layer| layer.linears(self.names)) {
            linear.adapter = None;
        }
        for (_, stack) in plain.layers.iter_mut().flat_map(|layer| layer.stacks(self.names)) {
            stack.adapter = None;
        }
        plain.layer_inputs.iter_mut().for_each(|own| own.projection.adapter = None);
        plain
    }

    /// Returns the model with its adapter merged into the weights.
    pub fn merged(&self) -> Result<Self> {
        let mut plain = Self { lora: None, ..self.clone() };
        let merge = |linear: &mut Linear, module: String| {
            if linear.bias.is_none() && linear.adapter.as_ref().is_some_and(|adapter| adapter.bias.is_some()) {
                return Err(Error::NoBias { module });
            }
            (linear.weight, linear.bias) = (linear.merged()?, linear.added()?);
            (linear.adapter, linear.scales) = (None, None);
            Ok(())
        };
        for (l, layer) in plain.layers.iter_mut().enumerate() {
            for (name, linear) in layer.linears(self.names) {
                merge(linear, format!("{}.{l}.{name}", self.names.layers))?;
            }
        }
        if let Some(own) = &mut plain.layer_inputs {
            merge(&mut own.projection, PROJECTION.to_owned())?;
        }
        for (_, stack) in plain.layers.iter_mut().flat_map(|layer| layer.stacks(self.names)) {
            stack.weight = stack.merged()?;
            stack.adapter = None;
        }
        Ok(plain)
    }
}

impl Weights {
    /// Copies the base model's trained parameters to separate f32 storage: with the values that `own` returns for a parameter's name and
    /// shape, or the model's. As in `peft`, an output matrix that was tied to the embedding becomes separate.
    pub(super) fn with_trained_modules(
        mut self,
        LoraSettings { trained_modules: whole, biases, .. }: LoraSettings,
        mut own: impl FnMut(&str, &[usize]) -> Result<Option<Tensor>>,
    ) -> Result<Self> {
        if whole.is_empty() && biases == TrainedBiases::None {
            return Ok(self);
        }
        if whole.unties() && self.head.is_none() && !self.is_value_model() {
            self.head = Some(self.embedding.clone());
        }
        self.map(|name, t| {
            if !self.trains_with_adapter(&name) {
                return Ok(t.clone());
            }
            Ok(match own(&name, t.dims())? {
                Some(own) => own,
                None => ops::copied(&ops::cast(t, DType::F32)?)?,
            })
        })
    }
}
