//! Creates low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685; with magnitudes, DoRA, Liu et al. 2024, arXiv 2402.09353),
//! removes them, and merges them into the weights.

use super::stacks::ExpertStacks;
use super::trained_modules::TrainedModules;

/// Biases of the base model that are trained with an adapter; `bias` in `peft`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrainedBiases {
    /// No biases.
    #[default]
    None,
    /// Biases of the linear layers that have an adapter.
    Adapted,
    /// All biases, including those of norms.
    All,
}

impl TrainedBiases {
    const ALL: [Self; 3] = [Self::None, Self::Adapted, Self::All];

    /// Returns the name in `peft`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Adapted => "lora_only",
            Self::All => "all",
        }
    }

    /// Parses a name of `peft`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|biases| biases.name() == name)
    }
}

/// Settings of an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraSettings {
    /// Rank, at least 1. Individual modules may have another.
    pub r: usize,
    /// Numerator of the adapter's scale. Individual modules may have another.
    pub alpha: f64,
    /// Whether the denominator is the square root of the rank (rsLoRA, arXiv 2312.03732) instead of the rank.
    pub use_rslora: bool,
    /// Whether each output has its own magnitude (DoRA).
    pub use_dora: bool,
    /// Dropout probability of the adapter's input in training.
    pub dropout: f64,
    /// Modules that are fully trained with the adapter.
    pub trained_modules: TrainedModules,
    /// Matrices of experts that the adapter applies to.
    pub stacks: ExpertStacks,
    /// Biases that are trained with the adapter.
    pub biases: TrainedBiases,
    /// Whether `B` has a bias.
    pub b_bias: bool,
    /// Another setting of the adapter's folder that is applied but can't be trained.
    pub fixed: Option<&'static str>,
}

impl LoraSettings {
    /// Creates settings of a plain adapter.
    pub const fn new(r: usize, alpha: f64) -> Self {
        Self {
            r,
            alpha,
            use_rslora: false,
            use_dora: false,
            dropout: 0.0,
            trained_modules: TrainedModules::NONE,
            stacks: ExpertStacks::NONE,
            biases: TrainedBiases::None,
            b_bias: false,
            fixed: None,
        }
    }

    /// Returns whether another adapter's matrices have the same meaning as this one's.
    pub fn fits(&self, other: &Self) -> bool {
        let plain = |lora: &Self| Self { dropout: 0.0, fixed: None, ..*lora };
        plain(self) == plain(other)
    }

    /// Returns the settings for a value model, which has no output matrix.
    #[must_use]
    pub fn for_value_model(self) -> Self {
        Self { trained_modules: self.trained_modules.without_head(), ..self }
    }

    /// Returns the scale of `B A`.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (self.alpha / if self.use_rslora { r.sqrt() } else { r }) as f32
    }
}
