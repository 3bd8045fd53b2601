//! The columns that the host can compute: their names, their units, and which calls see them.

use super::contract::types::{Column, Unit};

/// Texts of the prompts; an input of rewards.
pub const PROMPT_TEXT: &str = "prompt_text";
/// Texts of the completions.
pub const COMPLETION_TEXT: &str = "completion_text";
/// Token ids of the completions.
pub const TOKEN_IDS: &str = "token_ids";
/// The dataset's other columns.
pub const DATASET_COLUMNS: &str = "dataset_columns";

/// Inputs that rewards may need.
pub(super) const REWARD_INPUTS: [&str; 4] = [PROMPT_TEXT, COMPLETION_TEXT, TOKEN_IDS, DATASET_COLUMNS];

/// Current log-probabilities of the policy.
pub const LOGP: &str = "logp";
/// Log-probabilities of the policy that generated the sequences, the denominators of ratios.
pub const OLD_LOGP: &str = "old_logp";
/// Log-probabilities of the reference model.
pub const REF_LOGP: &str = "ref_logp";
/// Log-probabilities of the teacher.
pub const TEACHER_LOGP: &str = "teacher_logp";
/// Whether the teacher reads a question of its own before a sequence: 1 or 0.
pub const HAS_TEACHER_PROMPT: &str = "has_teacher_prompt";
/// Divergences of the policy's distributions from the teacher's. A suffix says which: `teacher_divergence/0` is the forward divergence,
/// `/1` the reverse one, and numbers between them the generalised Jensen-Shannon divergences. `/top100` after that compares the policy's 100
/// likeliest tokens, `/teacher_top100` the teacher's, and `/top100+rest` all others together as one more.
pub const TEACHER_DIVERGENCE: &str = "teacher_divergence";
/// Log-probabilities as the sampler computed them.
pub const SAMPLING_LOGP: &str = "sampling_logp";
/// Entropies of the policy's distributions.
pub const ENTROPY: &str = "entropy";
/// Mean of the raw logits over the vocabulary.
pub const MEAN_LOGITS: &str = "mean_logits";
/// Logarithm of the sum of squared probabilities over the vocabulary.
pub const LOG_SUM_SQUARES: &str = "log_sum_squares";
/// Current log-probabilities of the prompts' tokens.
pub const PROMPT_LOGP: &str = "prompt_logp";
/// Current values of the critic.
pub const VALUE: &str = "value";
/// Values of the critic when the sequences were generated.
pub const OLD_VALUE: &str = "old_value";
/// Value that a reward model assigns to a sequence.
pub const SEQUENCE_VALUE: &str = "sequence_value";
/// Whether a sequence is desirable: 1 or 0.
pub const LABEL: &str = "label";
/// Margin by which a pair's chosen sequence is better, if the dataset has one.
pub const MARGIN: &str = "margin";
/// Whether a sequence ended on its own rather than at a length limit: 1 or 0.
pub const FINISHED: &str = "finished";
/// Column `label` of all sequences of the micro-batch.
pub const MICRO_BATCH_LABEL: &str = "micro_batch/label";
/// Current log-probabilities of the micro-batch's prompts, each with another sequence's completion.
pub const MISMATCHED_LOGP: &str = "micro_batch/mismatched_logp";
/// Log-probabilities under the reference model of the micro-batch's prompts, each with another sequence's completion.
pub const MISMATCHED_REF_LOGP: &str = "micro_batch/mismatched_ref_logp";
/// Name by which a plugin requests turn rewards, which are columns `turn_reward/NAME`, one for each environment.
pub const TURN_REWARD: &str = "turn_reward";
/// The column in which an estimator returns a mask.
pub const MASK: &str = "mask";
/// Usual name of an estimator's advantages.
pub const ADVANTAGE: &str = "advantage";
/// Usual name of an estimator's returns.
pub const RETURN: &str = "return";

/// Returns the name of the column with a reward's scores.
pub fn reward(name: &str) -> String {
    format!("reward/{name}")
}

/// Returns the name of the column with the rewards of an environment's turns.
pub fn turn_reward(name: &str) -> String {
    format!("{TURN_REWARD}/{name}")
}

/// Maximum number of likeliest tokens that a divergence compares.
const MOST_TOP: usize = 1 << 14;

/// A divergence of the policy's distributions from the teacher's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DivergenceColumn {
    /// Which divergence, from 0 to 1.
    pub beta: f64,
    /// The likeliest tokens that are compared, if not all are.
    pub top: Option<TopColumn>,
}

/// The likeliest tokens, which a divergence compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopColumn {
    /// Number of tokens.
    pub count: usize,
    /// Whether they are the teacher's; otherwise they are the policy's.
    pub of_teacher: bool,
    /// Whether all other tokens together count as one more.
    pub with_rest: bool,
}

/// Parses the divergence of a column named after [`TEACHER_DIVERGENCE`]. Returns `None` for other columns.
pub fn divergence_of(name: &str) -> Option<DivergenceColumn> {
    let suffix = name.strip_prefix(TEACHER_DIVERGENCE)?.strip_prefix('/')?;
    let (beta, top) = suffix.split_once('/').map_or((suffix, None), |(beta, top)| (beta, Some(top)));
    let beta = beta.parse().ok().filter(|beta| (0.0..=1.0).contains(beta))?;
    let Some(top) = top else { return Some(DivergenceColumn { beta, top: None }) };
    let (count, with_rest) = top.strip_suffix("+rest").map_or((top, false), |count| (count, true));
    let (count, of_teacher) = count.strip_prefix("teacher_").map_or((count, false), |count| (count, true));
    let count = count.strip_prefix("top")?.parse().ok().filter(|count| (1..=MOST_TOP).contains(count))?;
    Some(DivergenceColumn { beta, top: Some(TopColumn { count, of_teacher, with_rest }) })
}

/// A column that the host can compute.
#[derive(Debug)]
pub struct HostColumn {
    /// Name of the column.
    pub name: &'static str,
    /// Unit that an entry belongs to, such as a token or a sequence.
    pub unit: Unit,
    /// Whether an estimator and a pairing see the column, before training on a generation.
    pub in_generation: bool,
    /// Whether a loss sees the column.
    pub in_loss: bool,
    /// Whether a loss may return derivatives with respect to it.
    pub has_derivative: bool,
}

const fn host_column(name: &'static str, unit: Unit) -> HostColumn {
    HostColumn { name, unit, in_generation: false, in_loss: true, has_derivative: false }
}

/// All columns that the host can compute, except those with a reward's name in theirs.
pub const HOST_COLUMNS: [HostColumn; 21] = [
    HostColumn { has_derivative: true, ..host_column(LOGP, Unit::Token) },
    HostColumn { in_generation: true, ..host_column(OLD_LOGP, Unit::Token) },
    HostColumn { in_generation: true, ..host_column(REF_LOGP, Unit::Token) },
    HostColumn { in_generation: true, ..host_column(TEACHER_LOGP, Unit::Token) },
    HostColumn { in_generation: true, ..host_column(HAS_TEACHER_PROMPT, Unit::Sequence) },
    HostColumn { has_derivative: true, ..host_column(TEACHER_DIVERGENCE, Unit::Token) },
    HostColumn { in_generation: true, ..host_column(SAMPLING_LOGP, Unit::Token) },
    HostColumn { has_derivative: true, ..host_column(ENTROPY, Unit::Token) },
    host_column(MEAN_LOGITS, Unit::Token),
    host_column(LOG_SUM_SQUARES, Unit::Token),
    HostColumn { has_derivative: true, ..host_column(PROMPT_LOGP, Unit::PromptToken) },
    HostColumn { has_derivative: true, ..host_column(VALUE, Unit::Token) },
    HostColumn { in_generation: true, ..host_column(OLD_VALUE, Unit::Token) },
    HostColumn { has_derivative: true, ..host_column(SEQUENCE_VALUE, Unit::Sequence) },
    host_column(LABEL, Unit::Sequence),
    host_column(MARGIN, Unit::Group),
    HostColumn { in_generation: true, ..host_column(FINISHED, Unit::Sequence) },
    host_column(MICRO_BATCH_LABEL, Unit::MicroBatch),
    host_column(MISMATCHED_LOGP, Unit::MicroBatch),
    host_column(MISMATCHED_REF_LOGP, Unit::MicroBatch),
    HostColumn { in_generation: true, in_loss: false, ..host_column(TURN_REWARD, Unit::Turn) },
];

impl HostColumn {
    /// Returns the host's column of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        HOST_COLUMNS.iter().find(|known| match known.name {
            TEACHER_DIVERGENCE => divergence_of(name).is_some(),
            own => own == name,
        })
    }
}

impl Unit {
    /// Returns the noun for the unit.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::PromptToken => "prompt token",
            Self::Turn => "turn",
            Self::Sequence => "sequence",
            Self::Group => "group",
            Self::MicroBatch => "sequence of the micro-batch",
        }
    }
}

impl Column {
    /// Creates a column with a value for each entry.
    pub fn new(name: impl Into<String>, unit: Unit, values: Vec<f32>) -> Self {
        Self { name: name.into(), unit, values, missing: Vec::new() }
    }

    /// Creates a column whose entries may lack a value.
    pub fn sparse(name: impl Into<String>, unit: Unit, entries: impl IntoIterator<Item = Option<f32>>) -> Self {
        let mut column = Self::new(name, unit, Vec::new());
        for (entry, value) in entries.into_iter().enumerate() {
            column.values.push(value.unwrap_or(0.0));
            if value.is_none() {
                column.missing.push(entry as u32);
            }
        }
        column
    }

    /// Returns the entries; `None` where there is no value.
    pub fn entries(&self) -> impl Iterator<Item = Option<f32>> + '_ {
        let mut missing = self.missing.iter().copied().peekable();
        self.values.iter().enumerate().map(move |(entry, value)| {
            let is_missing = missing.next_if_eq(&(entry as u32)).is_some();
            (!is_missing).then_some(*value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divergence_is_named_by_its_number() {
        let top = |count, with_rest| Some(TopColumn { count, of_teacher: false, with_rest });
        let of_teacher = |count, with_rest| Some(TopColumn { count, of_teacher: true, with_rest });
        for (name, beta, top) in [
            ("teacher_divergence/0", 0.0, None),
            ("teacher_divergence/0.5", 0.5, None),
            ("teacher_divergence/1", 1.0, None),
            ("teacher_divergence/0.5/top100", 0.5, top(100, false)),
            ("teacher_divergence/1/top20+rest", 1.0, top(20, true)),
            ("teacher_divergence/0/teacher_top8", 0.0, of_teacher(8, false)),
            ("teacher_divergence/0.5/teacher_top1+rest", 0.5, of_teacher(1, true)),
        ] {
            assert_eq!(divergence_of(name), Some(DivergenceColumn { beta, top }), "{name}");
            assert_eq!(HostColumn::find(name).map(|known| known.name), Some(TEACHER_DIVERGENCE));
        }
        for name in [
            "teacher_divergence",
            "teacher_divergence/",
            "teacher_divergence/1.5",
            "teacher_divergence/NaN",
            "teacher_divergence0.5",
            "teacher_divergence/0.5/",
            "teacher_divergence/0.5/top",
            "teacher_divergence/0.5/top0",
            "teacher_divergence/0.5/top100000",
            "teacher_divergence/0.5/100",
            "teacher_divergence/0.5/top9+all",
            "teacher_divergence/0.5/teacher_9",
            "teacher_divergence/0.5/teachers_top9",
        ] {
            assert!(divergence_of(name).is_none() && HostColumn::find(name).is_none(), "{name}");
        }
    }

    #[test]
    fn the_contract_lists_every_known_column_as_it_is() {
        let contract = include_str!("../../../plugin-sdk/wit/rlhost-plugin.wit");
        let text = contract.lines().map(|line| line.trim().trim_start_matches("///").trim()).collect::<Vec<_>>().join(" ");
        for known in &HOST_COLUMNS {
            let unit = match known.unit {
                Unit::Token => "token",
                Unit::PromptToken => "prompt-token",
                Unit::Turn => "turn",
                Unit::Sequence => "sequence",
                Unit::Group => "group",
                Unit::MicroBatch => "micro-batch",
            };
            let seen = match (known.in_loss, known.in_generation) {
                (true, true) => "both",
                (true, false) => "loss",
                (false, _) => "generation",
            };
            let derivative = if known.has_derivative { ", d" } else { "" };
            let entry = format!("`{}` ({unit}, {seen}{derivative})", known.name);
            assert!(text.contains(&entry), "{entry}");
        }
    }
}
