//! Layers of one part (Nemotron-H): attention, a state space, an MLP or experts, each with one norm.

use super::bounds::MOST_LAYERS;
use super::family::Family;
use super::json::ConfigObject;
use crate::config::printable;

/// Keys that list the layers' parts by name. transformers writes the first.
const LISTS: [&str; 2] = ["layers_block_type", "layer_types"];

/// The key that lists them by letter.
const PATTERN: &str = "hybrid_override_pattern";

/// The only part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerBlock {
    /// Attention.
    Attention,
    /// A recurrence.
    Recurrence,
    /// An MLP.
    Mlp,
    /// A mixture of experts.
    Experts,
}

impl LayerBlock {
    /// Returns the part of this name; transformers reads both names of the mixers.
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "full_attention" | "attention" => Some(Self::Attention),
            "linear_attention" | "mamba" => Some(Self::Recurrence),
            "mlp" => Some(Self::Mlp),
            "moe" => Some(Self::Experts),
            _ => None,
        }
    }

    fn from_letter(letter: char) -> Option<Self> {
        match letter {
            '*' => Some(Self::Attention),
            'M' => Some(Self::Recurrence),
            '-' => Some(Self::Mlp),
            'E' => Some(Self::Experts),
            _ => None,
        }
    }

    /// Reads the parts of all layers; `None` if the family's layers have two.
    ///
    /// # Errors
    /// If a part is not known, or the keys contradict each other.
    pub(super) fn read(config: &ConfigObject, family: Family) -> Result<Option<Vec<Self>>, String> {
        if family != Family::NemotronH {
            return Ok(None);
        }
        let (mut found, mut by) = (None, LISTS[0]);
        for (key, blocks) in LISTS.map(|key| (key, listed(config, key))).into_iter().chain([(PATTERN, spelt(config))]) {
            match (&found, blocks?) {
                (Some(first), Some(blocks)) if *first != blocks => {
                    return Err(format!("{key} and {by} contradict each other; remove {key}"));
                }
                (None, Some(blocks)) => (found, by) = (Some(blocks), key),
                _ => {}
            }
        }
        let blocks = found.unwrap_or_else(|| vec![Self::Recurrence, Self::Experts, Self::Attention, Self::Mlp]);
        match config.size("num_hidden_layers", MOST_LAYERS)? {
            Some(layers) if layers != blocks.len() => {
                Err(format!("num_hidden_layers is {layers}, but {by} has {}, which transformers uses", blocks.len()))
            }
            _ => Ok(Some(blocks)),
        }
    }
}

/// Reads the parts of all layers from a list of names.
fn listed(config: &ConfigObject, key: &str) -> Result<Option<Vec<LayerBlock>>, String> {
    let Some(given) = config.get(key) else { return Ok(None) };
    let wrong = || {
        format!(
            "{key} is {}; it must be a list of linear_attention, full_attention, mlp or moe",
            printable(&given.to_string(), 80)
        )
    };
    let all = given.as_array().filter(|all| (1..=MOST_LAYERS).contains(&all.len())).ok_or_else(wrong)?;
    let blocks = all.iter().map(|name| name.as_str().and_then(LayerBlock::from_name)).collect::<Option<Vec<_>>>();
    blocks.ok_or_else(wrong).map(Some)
}

/// Reads the parts of all layers from a text of letters.
fn spelt(config: &ConfigObject) -> Result<Option<Vec<LayerBlock>>, String> {
    let Some(given) = config.text(PATTERN)? else { return Ok(None) };
    let blocks = given.chars().map(LayerBlock::from_letter).collect::<Option<Vec<_>>>();
    let blocks = blocks.filter(|blocks| (1..=MOST_LAYERS).contains(&blocks.len()));
    let wrong = || format!("{PATTERN} is {:?}; it must be letters M, *, - or E", printable(given, 80));
    blocks.ok_or_else(wrong).map(Some)
}
