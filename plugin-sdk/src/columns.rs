//! Names of the columns that the host provides or reads. The README lists their units, and when they are available.

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
/// Divergences of the policy's distributions from the teacher's. [`teacher_divergence`] returns the name of such a column.
pub const TEACHER_DIVERGENCE: &str = "teacher_divergence";
/// Log-probabilities as the sampler computed them.
pub const SAMPLING_LOGP: &str = "sampling_logp";
/// Entropies of the policy's distributions.
pub const ENTROPY: &str = "entropy";
/// Means over the vocabulary of the raw logits.
pub const MEAN_LOGITS: &str = "mean_logits";
/// Logarithms of the sums over the vocabulary of the squared probabilities.
pub const LOG_SUM_SQUARES: &str = "log_sum_squares";
/// Current log-probabilities of prompts' tokens.
pub const PROMPT_LOGP: &str = "prompt_logp";
/// Current values of the critic.
pub const VALUE: &str = "value";
/// Values of the critic when the sequences were generated.
pub const OLD_VALUE: &str = "old_value";
/// The value that a reward model assigns to a whole sequence.
pub const SEQUENCE_VALUE: &str = "sequence_value";
/// Whether a sequence is desirable: 1 or 0.
pub const LABEL: &str = "label";
/// By how much a pair's chosen sequence is better, if the dataset says so.
pub const MARGIN: &str = "margin";
/// Whether a sequence ended by itself rather than at a limit, of tokens or of turns: 1 or 0.
pub const FINISHED: &str = "finished";
/// `label` of each sequence of the whole micro-batch.
pub const MICRO_BATCH_LABEL: &str = "micro_batch/label";
/// Current log-probability of each prompt of the whole micro-batch with another sequence's completion.
pub const MISMATCHED_LOGP: &str = "micro_batch/mismatched_logp";
/// Log-probability under the reference model of each prompt of the whole micro-batch with another sequence's completion.
pub const MISMATCHED_REF_LOGP: &str = "micro_batch/mismatched_ref_logp";
/// The need for rewards of turns, which are columns `turn_reward/NAME` for each environment.
pub const TURN_REWARD: &str = "turn_reward";
/// The usual name of an estimator's column of advantages.
pub const ADVANTAGE: &str = "advantage";
/// The usual name of an estimator's column of returns, the critic's targets.
pub const RETURN: &str = "return";
/// The column in which an estimator returns a mask.
pub const MASK: &str = "mask";

/// Returns the name of the column with the divergence that `beta` selects: 0 is the forward divergence, `KL(teacher || policy)`, 1 the
/// reverse one, and a number between them the generalised Jensen-Shannon divergence.
#[must_use]
pub fn teacher_divergence(beta: f64) -> String {
    format!("{TEACHER_DIVERGENCE}/{beta}")
}

/// Returns the name of the column with the divergence that `beta` selects over the policy's `count` likeliest tokens. `with_rest` says whether
/// all other tokens together count as one more; otherwise the likely tokens' probabilities are divided by their sum.
#[must_use]
pub fn teacher_divergence_of_top(beta: f64, count: usize, with_rest: bool) -> String {
    format!("{TEACHER_DIVERGENCE}/{beta}/top{count}{}", if with_rest { "+rest" } else { "" })
}

/// Returns the name of the column with the divergence that `beta` selects over the teacher's `count` likeliest tokens; see
/// [`teacher_divergence_of_top`]. A teacher on a server, or in a dataset, says no more than these.
#[must_use]
pub fn teacher_divergence_of_teacher_top(beta: f64, count: usize, with_rest: bool) -> String {
    format!("{TEACHER_DIVERGENCE}/{beta}/teacher_top{count}{}", if with_rest { "+rest" } else { "" })
}

/// Returns the name of the column with a reward's scores.
#[must_use]
pub fn reward(name: &str) -> String {
    format!("reward/{name}")
}

/// Returns the name of the column with the rewards of an environment's turns.
#[must_use]
pub fn turn_reward(name: &str) -> String {
    format!("{TURN_REWARD}/{name}")
}
