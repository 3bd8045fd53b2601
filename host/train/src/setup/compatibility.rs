//! Refuses settings that don't fit the algorithm or its data.

use super::plugins::LoadedPlugins;
use crate::config::{CompletionSource, RolloutDtype, RunConfig};
use crate::flow::Flow;
use crate::plugin::columns::MISMATCHED_LOGP;
use crate::{Error, Result};

/// Refuses settings that the algorithm does not support.
///
/// # Errors
/// Names the first of them.
pub(super) fn check(config: &RunConfig, plugins: &LoadedPlugins, ranks: usize) -> Result<()> {
    let about = plugins.info();
    if about.hints.compares && config.group_size() < 2 {
        let detail = format!(
            "{} compares completions of a prompt with each other, but this prompt has only one; set num_generations to 2 or more",
            plugins.algorithm_source.name()
        );
        return Err(Error::setting("num_generations", detail));
    }
    if plugins.flow.generates && config.completion_source() == CompletionSource::Dataset {
        let (key, value) = if config.lmbda == 0.0 { ("lmbda", "0") } else { ("learn_from", "\"dataset\"") };
        let detail = format!(
            "is {value}, but with these settings {} learns from what the policy generates; leave it out",
            config.algorithm
        );
        return Err(Error::setting(key, detail));
    }
    if config.mixes_completions() && !plugins.flow.mixes {
        let detail = format!(
            "mixes completions of the policy with the dataset's, and with these settings {} learns from one of them only; leave it out",
            config.algorithm
        );
        return Err(Error::setting("lmbda", detail));
    }
    if config.has_episodes() && plugins.writes_teacher_prompts() {
        let detail = format!(
            "{} writes what a teacher reads, for completions of a prompt; leave environments and agents out",
            config.algorithm
        );
        return Err(Error::setting("algorithm", detail));
    }
    check_flow(config, plugins.flow, about.hints.smoothed)?;
    let (key, detail) = if !about.needs.has(MISMATCHED_LOGP) {
        return Ok(());
    } else if config.precompute_ref_log_probs && config.shuffle_dataset == Some(true) {
        let detail = "this algorithm's baseline comes from the completions of each batch, which shuffle_dataset changes with \
                      every epoch";
        ("precompute_ref_log_probs", detail)
    } else if config.batches(ranks).micro_batch == 1 {
        let detail = "this algorithm pairs each completion with another row's prompt, so a batch needs at least 2 rows";
        ("per_device_train_batch_size", detail)
    } else {
        return Ok(());
    };
    Err(Error::setting(key, detail))
}

/// Refuses settings without meaning for the run's data; `smoothed` says whether the algorithm supports smoothed targets.
fn check_flow(config: &RunConfig, flow: Flow, smoothed: bool) -> Result<()> {
    let (generates, imitates) = (flow.generates, flow.imitates());
    let given = [
        ("filter_groups", config.filter_groups, "this algorithm learns from given answers, which have no rewards"),
        ("skip_groups", config.skip_groups > 0.0, "this algorithm learns from given answers, which have no rewards"),
        (
            "num_mini_batches",
            config.num_mini_batches.is_some(),
            "this algorithm learns from given answers; gradient_accumulation_steps sets the size of an update",
        ),
        (
            "rollout_dtype",
            config.rollout_dtype != RolloutDtype::Auto,
            "is for algorithms that generate completions; leave it out",
        ),
    ];
    let generated = [
        (
            "precompute_ref_log_probs",
            config.precompute_ref_log_probs,
            "this algorithm generates its completions; they are not known before training",
        ),
        (
            "neftune_noise_alpha",
            config.neftune_alpha() > 0.0,
            "is for texts of a dataset; this algorithm generates its own, and noise would change their probabilities; leave it out",
        ),
    ];
    let not_imitated = [
        ("assistant_only_loss", config.assistant_only_loss, "only for algorithms that learn from given completions"),
        ("packing", config.packing, "only for algorithms that learn from given completions"),
        ("eval_packing", config.packs_evaluations(), "only for algorithms that learn from given completions"),
    ];
    let of_source = if generates { generated.as_slice() } else { given.as_slice() };
    let of_targets = if imitates { [].as_slice() } else { not_imitated.as_slice() };
    if let Some((key, _, detail)) = of_source.iter().chain(of_targets).find(|(_, is_set, _)| *is_set) {
        return Err(Error::setting(key, *detail));
    }
    let share = config.label_smoothing_factor;
    if share > 0.0 && !(imitates && smoothed) {
        let detail = format!(
            "is {share}, but with these settings {} has no cross-entropy loss on given tokens to smooth; leave it out",
            config.algorithm
        );
        return Err(Error::setting("label_smoothing_factor", detail));
    }
    Ok(())
}
