//! Parameters of a mixture of experts.

use super::names::ExpertNames;
use candle_core::Tensor;

/// Linear maps of a mixture of experts.
#[derive(Clone, Debug)]
pub struct Experts<L> {
    /// Map from a token to a value for each expert, `[E, D]`.
    pub router: L,
    /// Each expert's gate and up projection, joined: `[E, 2 I, D]`.
    pub wide: L,
    /// Each expert's down projection, `[E, D, I]`.
    pub down: L,
    /// Maps from the hidden size to what experts read, and back from what they write, if that has another width. The sizes `D` of experts are
    /// that width then.
    pub latent: Option<[L; 2]>,
}

/// Parameters of a layer's experts, excluding their linear maps.
#[derive(Clone, Debug)]
pub struct ExpertParameters<T> {
    /// Correction added to the scores when choosing experts, `[E]`. It is not trained.
    pub correction: Option<T>,
    /// Norms of experts beside an MLP, if the layer has those.
    pub norms: Option<ExpertNorms<T>>,
}

/// Norms of a layer whose experts and MLP read separately normalised rows and have separately normalised outputs (Gemma 4), each `[D]`.
#[derive(Clone, Debug)]
pub struct ExpertNorms<T> {
    /// Weight of the norm that the router reads.
    pub router: T,
    /// Factor of each expert's weights, `[E]`.
    pub factors: T,
    /// Norm before the experts.
    pub input: T,
    /// Norm of the experts' output.
    pub output: T,
    /// Norm of the MLP's output.
    pub unit: T,
}

/// What a layer's experts and their router read, or the gradients of it.
pub(super) struct ExpertInputs {
    /// Rows that experts read.
    pub experts: Tensor,
    /// Rows that the router reads, if they are others.
    pub router: Option<Tensor>,
}

/// Names of the parameters in [`ExpertNorms`] within a layer, in that order.
const NORMS: [&str; 5] = [
    "router.scale",
    "router.per_expert_scale",
    "pre_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm_1.weight",
];

impl<L> Experts<L> {
    /// Borrows the maps.
    pub(super) fn each(&self) -> Experts<&L> {
        Experts {
            router: &self.router,
            wide: &self.wide,
            down: &self.down,
            latent: self.latent.as_ref().map(|maps| maps.each_ref()),
        }
    }

    /// Applies a function to each map.
    pub(super) fn map<U, E>(self, mut f: impl FnMut(L) -> std::result::Result<U, E>) -> std::result::Result<Experts<U>, E> {
        let (router, wide, down) = (f(self.router)?, f(self.wide)?, f(self.down)?);
        let latent = self.latent.map(|[first, last]| Ok::<_, E>([f(first)?, f(last)?])).transpose()?;
        Ok(Experts { router, wide, down, latent })
    }
}

impl<T> ExpertParameters<T> {
    /// Maps each parameter with `f`, which gets its name.
    pub(super) fn map<'a, U, E>(
        &'a self,
        name: impl Fn(&str) -> String,
        names: Option<&ExpertNames>,
        f: &mut impl FnMut(String, &'a T) -> std::result::Result<U, E>,
    ) -> std::result::Result<ExpertParameters<U>, E> {
        let correction = self.correction.as_ref().zip(names.and_then(|names| names.correction));
        let correction = correction.map(|(t, part)| f(name(part), t)).transpose()?;
        let [of_router, of_factors, of_input, of_output, of_unit] = NORMS.map(name);
        let norms = match &self.norms {
            None => None,
            Some(ExpertNorms { router, factors, input, output, unit }) => Some(ExpertNorms {
                router: f(of_router, router)?,
                factors: f(of_factors, factors)?,
                input: f(of_input, input)?,
                output: f(of_output, output)?,
                unit: f(of_unit, unit)?,
            }),
        };
        Ok(ExpertParameters { correction, norms })
    }
}
