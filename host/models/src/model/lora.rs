//! Creates low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685; with magnitudes, DoRA, Liu et al. 2024, arXiv 2402.09353),
//! removes them, and merges them into the weights.

use super::stacks::ExpertStacks;
use super::trained_modules::TrainedModules;

/// Which biases of the base model are trained beside an adapter; `bias` in `peft`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrainedBiases {
    /// None of them.
    #[default]
    None,
    /// Those of the linear layers that have an adapter.
    Adapted,
    /// All of them, norms' too.
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

    /// Returns what a name of `peft` stands for.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|biases| biases.name() == name)
    }
}

/// Settings of an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraSettings {
    /// Rank, at least 1; single modules may have another.
    pub r: usize,
    /// Numerator of the adapter's scale; single modules may have another.
    pub alpha: f64,
    /// Whether the denominator is the square root of the rank (rsLoRA, arXiv 2312.03732) instead of the rank.
    pub use_rslora: bool,
    /// Whether each output has a magnitude of its own (DoRA).
    pub use_dora: bool,
    /// Dropout probability of the adapter's input in training.
    pub dropout: f64,
    /// The modules that are trained whole beside it.
    pub trained_modules: TrainedModules,
    /// The matrices of experts that it applies to.
    pub stacks: ExpertStacks,
    /// The biases that are trained beside it.
    pub biases: TrainedBiases,
    /// Whether `B` has a bias.
    pub b_bias: bool,
    /// What else the adapter's folder has, which is applied but can't be trained.
    pub fixed: Option<&'static str>,
}

impl LoraSettings {
    /// Creates plain settings.
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

    /// Returns the same settings for a value model, which has no output matrix.
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
