//! Parameters of the ends of layers: an embedding for each layer, which gates a part of its output, and a factor (Gemma 4). Maps and other
//! parameters have separate types, since maps may be quantized and have adapters.

/// Names of the parameters that all layers share, without `.weight`: the table, the projection of the first layer's input, and the norm of
/// its results.
pub(super) const TABLE: &str = "model.embed_tokens_per_layer";
pub(super) const PROJECTION: &str = "model.per_layer_model_projection";
pub(super) const PROJECTED_NORM: &str = "model.per_layer_projection_norm";

/// Names within a layer: of both maps without `.weight`, of the norm, and of the factor of its output, which is not trained.
pub(super) const STAGE_MAPS: [&str; 2] = ["per_layer_input_gate", "per_layer_projection"];
pub(super) const STAGE_NORM: &str = "post_per_layer_input_norm";
pub(super) const SCALAR: &str = "layer_scalar";

/// Parameters that give each layer an input of its own for each token.
#[derive(Clone, Debug)]
pub struct LayerInputWeights<L, T> {
    /// All layers' embeddings of a token, `[V, L * P]`.
    pub table: T,
    /// Projection of the first layer's input, `[L * P, D]`.
    pub projection: L,
    /// Norm of each layer's part of the projection's results, `[P]`.
    pub norm: T,
}

/// Parameters at the end of a layer.
#[derive(Clone, Debug)]
pub struct LayerEnd<L, T> {
    /// The stage that reads the layer's own input, if it has one.
    pub stage: Option<LayerInputStage<L, T>>,
    /// Factor of the layer's output, `[1]`. It is not trained.
    pub scalar: T,
}

/// Parameters of the stage that reads a layer's own input.
#[derive(Clone, Debug)]
pub struct LayerInputStage<L, T> {
    /// The linear maps.
    pub maps: LayerInputMaps<L>,
    /// Norm of the stage's result, `[D]`.
    pub norm: T,
}

/// Linear maps of the stage that reads a layer's own input.
#[derive(Clone, Debug)]
pub struct LayerInputMaps<L> {
    /// Map to the gates of the input, `[P, D]`.
    pub gate: L,
    /// Map back to the hidden size, `[D, P]`.
    pub projection: L,
}

impl<L> LayerInputMaps<L> {
    /// Borrows the maps.
    pub(super) fn each(&self) -> LayerInputMaps<&L> {
        LayerInputMaps { gate: &self.gate, projection: &self.projection }
    }

    /// Returns the maps in order.
    pub(super) fn all(self) -> [L; 2] {
        [self.gate, self.projection]
    }

    /// Applies a function to each map.
    pub(super) fn map<U, E>(self, mut f: impl FnMut(L) -> Result<U, E>) -> Result<LayerInputMaps<U>, E> {
        Ok(LayerInputMaps { gate: f(self.gate)?, projection: f(self.projection)? })
    }
}

impl<L, T> LayerInputWeights<L, T> {
    /// Maps each parameter with `f`, which gets its name, and each map with `linear`.
    pub(super) fn map<'a, M, U, E, F: FnMut(String, &'a T) -> Result<U, E>>(
        &'a self,
        f: &mut F,
        linear: impl Fn(&'a L, &str, &mut F) -> Result<M, E>,
    ) -> Result<LayerInputWeights<M, U>, E> {
        Ok(LayerInputWeights {
            table: f(format!("{TABLE}.weight"), &self.table)?,
            projection: linear(&self.projection, PROJECTION, f)?,
            norm: f(format!("{PROJECTED_NORM}.weight"), &self.norm)?,
        })
    }
}

impl<L, T> LayerEnd<L, T> {
    /// Returns the linear maps.
    pub(super) fn maps(&self) -> Option<LayerInputMaps<&L>> {
        self.stage.as_ref().map(|stage| stage.maps.each())
    }

    /// Returns the linear maps, to be changed.
    pub(super) fn maps_mut(&mut self) -> Option<LayerInputMaps<&mut L>> {
        self.stage.as_mut().map(|stage| LayerInputMaps { gate: &mut stage.maps.gate, projection: &mut stage.maps.projection })
    }

    /// Returns the linear maps with their names.
    pub(super) fn named_maps(&self) -> impl Iterator<Item = (&'static str, &L)> {
        self.maps().into_iter().flat_map(|maps| STAGE_MAPS.into_iter().zip(maps.all()))
    }

    /// Maps each parameter with `f`, which gets its name, and each map with `linear`.
    pub(super) fn map<'a, M, U, E, F: FnMut(String, &'a T) -> Result<U, E>>(
        &'a self,
        name: impl Fn(&str) -> String,
        f: &mut F,
        linear: impl Fn(&'a L, &str, &mut F) -> Result<M, E>,
    ) -> Result<LayerEnd<M, U>, E> {
        let [gate, projection] = STAGE_MAPS.map(&name);
        let stage = |stage: &'a LayerInputStage<L, T>, f: &mut F| {
            let LayerInputMaps { gate: own, projection: back } = &stage.maps;
            let maps = LayerInputMaps { gate: linear(own, &gate, f)?, projection: linear(back, &projection, f)? };
            Ok(LayerInputStage { maps, norm: f(name(STAGE_NORM) + ".weight", &stage.norm)? })
        };
        let stage = self.stage.as_ref().map(|own| stage(own, f)).transpose()?;
        Ok(LayerEnd { stage, scalar: f(name(SCALAR), &self.scalar)? })
    }
}
