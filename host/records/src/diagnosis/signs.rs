//! The signs: pure functions over a run's history. Each requires an effect that is large compared with the metric's noise, since a sign
//! that appears in healthy runs is worse than none.

use super::history::{DiagnosisHistory, MetricLevel};
use super::settings::{DiagnosedReward, DiagnosisSettings, metric_of};
use super::words::{change, figure, number, percent};
use super::{Finding, ROUNDING};
use crate::config::printable;
use crate::run::FindingFigure;

/// Looks for a finding in a history.
pub(super) type Sign = fn(&DiagnosisHistory, &DiagnosisSettings) -> Option<Finding>;

/// All signs.
pub(super) const SIGNS: [Sign; 11] = [
    rate_too_high,
    rate_too_low,
    completions_cut_off,
    answers_never_found,
    reward_constant,
    groups_without_spread,
    reward_dominates,
    divergence_runs_away,
    entropy_collapses,
    length_exploited,
    ratios_clipped,
];

const REWARD: [&str; 2] = ["reward", "objective/scores"];
const ENTROPY: [&str; 2] = ["entropy", "policy/entropy_avg"];
const LENGTH: &str = "completions/mean_length";
const CUT_OFF: &str = "completions/clipped_ratio";
const EQUAL: &str = "frac_reward_zero_std";

/// Multiples of the default learning rate: a rate above the first may be too high, and one below the second too low.
const HIGH_RATE: f64 = 3.0;
const LOW_RATE: f64 = 1.0 / 30.0;
/// Number of steps after which something should have changed, if no learning rate is typical.
const MANY_STEPS: u64 = 40;
/// Norm of a change of all weights that is too small to show in any model.
const SHORT_WAY: f64 = 0.02;
/// Multiple of the initial log-probability of preferred answers at which the policy counts as broken.
const BROKEN: f64 = 4.0;
/// High shares of cut-off completions, of groups with equal rewards, and of ratios outside the clipping range.
const MANY_CUT_OFF: f64 = 0.5;
const MANY_EQUAL: f64 = 0.8;
const MANY_CLIPPED: f64 = 0.4;
/// Share of the advantages above which a reward alone decides them, and above which a reward with a small weight decides most of them.
const DOMINANT: f64 = 0.98;
const MOST: f64 = 0.8;
/// Share of the groups in which an ineffective reward must differ to be reported.
const OFTEN: f64 = 0.15;
/// Divergence per token that is high if it keeps growing, and one that is high in any case.
const FAR: f64 = 1.0;
const VERY_FAR: f64 = 3.0;
/// Low entropy per token, absolute and as a fraction of the first.
const LITTLE_ENTROPY: f64 = 0.1;
const PART_OF_ENTROPY: f64 = 0.2;
/// Maximum length of a text, in bytes.
const LONGEST: usize = 400;

/// Creates a finding. Names come from the configuration, which may be from somebody else's folder.
fn finding(name: &'static str, sentence: String, figures: Vec<FindingFigure>, advice: &[&str]) -> Option<Finding> {
    let shown = |text: &str| printable(text, LONGEST);
    let figures = figures.iter().map(|figure| FindingFigure { name: shown(&figure.name), value: shown(&figure.value) }).collect();
    Some(Finding { name, sentence: shown(&sentence), figures, advice: advice.iter().map(|text| shown(text)).collect() })
}

fn mean_of(name: &str) -> String {
    metric_of(name, "mean")
}

fn std_of(name: &str) -> String {
    metric_of(name, "std")
}

fn varies_of(reward: &DiagnosedReward) -> String {
    metric_of(&reward.name, "varies")
}

fn alone_of(reward: &DiagnosedReward) -> String {
    metric_of(&reward.name, "alone")
}

fn share_of(reward: &DiagnosedReward) -> String {
    metric_of(&reward.name, "share")
}

/// Returns the rewards with a non-zero weight.
fn counted(settings: &DiagnosisSettings) -> impl Iterator<Item = &DiagnosedReward> {
    settings.rewards.iter().filter(|reward| reward.weight != 0.0)
}

/// Returns the initial spread of the rewards of completions.
fn first_spread(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<f64> {
    let of_all = || {
        let stds = counted(settings).filter_map(|r| Some(r.weight * history.first(&std_of(&r.name))?));
        stds.map(|std| std * std).sum::<f64>().sqrt()
    };
    let spread = history.first("reward_std").unwrap_or_else(of_all);
    (spread > 0.0).then_some(spread)
}

/// Returns the reward metric's name, first value and newest level.
fn reward(history: &DiagnosisHistory) -> Option<(&'static str, f64, MetricLevel)> {
    let (name, newest) = history.newest_of(&REWARD)?;
    Some((name, history.first(name)?, newest))
}

/// Returns whether the reward has risen by this fraction of its initial spread.
fn reward_rose(history: &DiagnosisHistory, settings: &DiagnosisSettings, part: f64) -> Option<FindingFigure> {
    let (name, first, newest) = reward(history)?;
    let least = part * first_spread(history, settings)?;
    (newest.mean - 3.0 * newest.error - first > least).then(|| change(name, first, newest.mean))
}

fn rate_figure(settings: &DiagnosisSettings) -> Option<FindingFigure> {
    let rate = number(settings.learning_rate?);
    let usual = settings.usual_learning_rate.map(|usual| format!("; usual for this model and algorithm: {}", number(usual)));
    Some(figure("learning_rate", rate + &usual.unwrap_or_default()))
}

fn usual_rate(settings: &DiagnosisSettings, otherwise: &str) -> String {
    settings.usual_learning_rate.map_or_else(|| otherwise.to_owned(), |usual| format!("--learning-rate {}", number(usual)))
}

/// The reward fell, or the loss rose, by more than the noise between completions or batches, at a rate above the default.
fn rate_too_high(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    // Where the default rate is unknown, the effect must be larger.
    let factor = match settings.rate_ratio() {
        Some(ratio) if ratio < HIGH_RATE => return None,
        Some(_) => 1.0,
        None => 2.0,
    };
    let symptom = if let Some((name, first, newest)) = reward(history) {
        let fall = first - newest.mean - 3.0 * newest.error;
        let fell = fall > factor * first_spread(history, settings)?;
        let equal = history.newest(EQUAL).filter(|newest| newest.mean >= MANY_EQUAL);
        let lost = equal.filter(|_| fall > 0.0 && factor < 2.0 && history.first(EQUAL).is_some_and(|first| first < 0.5));
        match lost {
            _ if fell => change(name, first, newest.mean),
            Some(equal) => change(EQUAL, history.first(EQUAL)?, equal.mean),
            None => return None,
        }
    } else {
        let (first, newest) = (history.first("loss")?, history.newest("loss")?);
        let rose = newest.mean - 3.0 * newest.error > first + factor * (0.2 * first.abs()).max(0.2);
        match broken(history).filter(|_| factor < 2.0) {
            Some(fall) if !rose => fall,
            _ => rose.then(|| change("loss", first, newest.mean))?,
        }
    };
    let sentence = format!("The learning rate seems too high: {} is {}.", symptom.name, symptom.value);
    let advice = usual_rate(settings, "a learning rate ten times lower");
    let figures = std::iter::once(symptom).chain(rate_figure(settings)).collect();
    finding("rate_too_high", sentence, figures, &[&advice, "more --warmup-steps", "a lower --max-grad-norm"])
}

/// The preferred answers became many times less likely. A loss that only compares answers may be constant in that case.
fn broken(history: &DiagnosisHistory) -> Option<FindingFigure> {
    let (first, newest) = (history.first("logps/chosen")?, history.newest("logps/chosen")?);
    (newest.mean + 3.0 * newest.error < BROKEN * first).then(|| change("logps/chosen", first, newest.mean))
}

/// Nothing has changed, at a rate far below the default or, where no rate is typical, after steps too small to change anything.
fn rate_too_low(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    if settings.steps_by_gradient {
        // The distance that the weights can have moved, if all steps had the same direction.
        let way = settings.learning_rate? * history.newest("grad_norm")?.mean * history.last_step() as f64;
        (way < SHORT_WAY && history.last_step() >= MANY_STEPS).then_some(())?;
    } else {
        settings.rate_ratio().filter(|ratio| *ratio <= LOW_RATE)?;
    }
    let generates = history.newest(LENGTH).is_some();
    let names: &[&'static str] =
        if generates { &["reward", "objective/scores", "entropy", "policy/entropy_avg", LENGTH] } else { &["loss"] };
    let levels = names.iter().filter_map(|name| Some((*name, history.early(name)?, history.newest(name)?)));
    let levels: Vec<(&str, MetricLevel, MetricLevel)> = levels.collect();
    let moved = |(_, early, newest): &(&str, MetricLevel, MetricLevel)| {
        (newest.mean - early.mean).abs() > 3.0 * (early.error.powi(2) + newest.error.powi(2)).sqrt().max(1e-9)
    };
    if levels.is_empty() || levels.iter().any(moved) {
        return None;
    }
    let sentence = "The learning rate seems too low: nothing has moved since the first steps.".to_owned();
    let figures = levels.iter().map(|(name, early, newest)| change(*name, early.mean, newest.mean));
    let higher = "a learning rate ten times higher";
    let usual = usual_rate(settings, higher);
    let advice: &[&str] = match settings.steps_by_gradient {
        true => &[higher, "another --optim: sgd's steps are as long as the gradient, so it needs far higher rates"],
        false => &[&usual],
    };
    finding("rate_too_low", sentence, figures.chain(rate_figure(settings)).collect(), advice)
}

/// Many completions end at the maximum length, and their share does not fall.
fn completions_cut_off(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    let cut = history.newest(CUT_OFF)?;
    let falling = cut.halves[1] < cut.halves[0] - 0.1;
    if cut.mean < MANY_CUT_OFF || falling {
        return None;
    }
    let sentence = format!(
        "{} of the completions are cut off at the maximum length, so their endings are neither generated nor learned.",
        percent(cut.mean)
    );
    let most = settings.max_completion_length.map(|most| figure("max_completion_length", most.to_string()));
    let ended = history.newest("completions/mean_terminated_length");
    let ended = ended.map(|ended| figure("completions/mean_terminated_length", number(ended.mean)));
    let figures = std::iter::once(figure(CUT_OFF, number(cut.mean))).chain(most).chain(ended).collect();
    let advice = [
        "a larger --max-completion-length",
        "overlong_reward.wasm, which makes long completions cost something",
        "a model or chat template whose completions end: look at the end tokens in completions.jsonl",
    ];
    finding("completions_cut_off", sentence, figures, &advice)
}

/// Returns the score of a reward that has given every completion the same one from the beginning.
fn is_constant(history: &DiagnosisHistory, reward: &DiagnosedReward) -> Option<f64> {
    let level = history.newest(&mean_of(&reward.name))?;
    let (_, widest) = history.extremes(&std_of(&reward.name))?;
    let (least, greatest) = history.extremes(&mean_of(&reward.name))?;
    let rounding = ROUNDING * level.mean.abs().max(1.0);
    (widest <= rounding && greatest - least <= rounding).then_some(level.mean)
}

/// Returns whether a reward that compares completions with a column has only ever given 0.
fn is_never_found(history: &DiagnosisHistory, reward: &DiagnosedReward) -> bool {
    reward.column.is_some() && is_constant(history, reward) == Some(0.0)
}

fn answers_never_found(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    let reward = counted(settings).find(|reward| is_never_found(history, reward))?;
    let (name, column) = (&reward.name, reward.column.as_deref().unwrap_or_default());
    let sentence = format!("{name} has not found the answer of the column {column:?} in any completion.");
    let figures = vec![figure(mean_of(name), "0 in every step"), figure("column", column)];
    let check = format!("compare {column:?} in the dataset with the answers in completions.jsonl");
    let advice = [
        check.as_str(),
        "a prompt or system message that says how to write the answer",
        "the reward's `extract` and `mode` settings",
        "easier prompts, or an SFT run first, if the model can't solve any",
    ];
    finding("answers_never_found", sentence, figures, &advice)
}

fn reward_constant(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    // An environment need not give rewards if other rewards exist.
    let alone = counted(settings).all(|reward| reward.of_environment);
    let given: Vec<&DiagnosedReward> = counted(settings).filter(|reward| alone || !reward.of_environment).collect();
    let constant = given.iter().filter(|reward| !is_never_found(history, reward));
    let constant: Vec<(&str, f64)> =
        constant.filter_map(|reward| Some((reward.name.as_str(), is_constant(history, reward)?))).collect();
    let names: Vec<&str> = constant.iter().map(|(name, _)| *name).collect();
    let advice = [
        "scoring some completions by hand, with `rlhost replay RUN --plugin REWARD`",
        "a reward that gives partial credit",
        "a --max-completion-length that is long enough for what is rewarded",
    ];
    if names.is_empty() {
        let reward = given.into_iter().find(|reward| is_constant_in_groups(history, reward))?;
        let sentence =
            format!("{} gives all completions of a prompt the same score, so nothing is learned from it.", reward.name);
        let level = history.newest(&std_of(&reward.name)).map(|level| figure(std_of(&reward.name), number(level.mean)));
        let figures = std::iter::once(figure(varies_of(reward), "0 in every step")).chain(level).collect();
        return finding("reward_constant", sentence, figures, &advice);
    }
    let sentence = format!("{} gives every completion the same score, so nothing is learned from it.", names.join(", "));
    let figures = constant.iter().map(|(name, v)| figure(mean_of(name), format!("{} in every step", number(*v)))).collect();
    finding("reward_constant", sentence, figures, &advice)
}

/// Returns whether a reward differs between prompts, but never between the completions of one prompt.
fn is_constant_in_groups(history: &DiagnosisHistory, reward: &DiagnosedReward) -> bool {
    history.newest(&varies_of(reward)).is_some()
        && history.extremes(&varies_of(reward)).is_some_and(|(_, most)| most == 0.0)
        && is_constant(history, reward).is_none()
}

fn groups_without_spread(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    let equal = history.newest(EQUAL).filter(|equal| equal.mean >= MANY_EQUAL)?;
    // If no reward ever varies, another sign reports that.
    let mut given = counted(settings).peekable();
    if given.peek().is_some() && given.all(|reward| is_constant(history, reward).is_some()) {
        return None;
    }
    let sentence =
        format!("In {} of the groups, all completions have the same reward, so they teach nothing.", percent(equal.mean));
    let level = reward(history).map(|(name, first, newest)| change(name, first, newest.mean));
    let figures = std::iter::once(figure(EQUAL, number(equal.mean))).chain(level).collect();
    let advice = [
        "easier prompts if nothing is solved, harder ones if everything is",
        "more --num-generations",
        "a higher --temperature",
        "a reward with more than two values",
    ];
    finding("groups_without_spread", sentence, figures, &advice)
}

/// One reward contributes nearly all of the advantages, although another also differs within groups or has a larger weight.
fn reward_dominates(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    // Where each reward is normalised first, its weighted scores don't show its effect.
    if settings.normalised {
        return None;
    }
    let shares = |level: fn(&DiagnosisHistory, &str) -> Option<MetricLevel>| {
        let share = |reward| Some((reward, level(history, &share_of(reward))?.mean));
        counted(settings).filter_map(share).collect::<Vec<(&DiagnosedReward, f64)>>()
    };
    let (early, newest) = (shares(|h, name| h.early(name)), shares(|h, name| h.newest(name)));
    let (largest, share) = newest.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let before = early.iter().find(|(reward, _)| reward.name == largest.name)?.1;
    let others = || newest.iter().filter(|(reward, _)| reward.name != largest.name);
    let at_least = |part| share >= part && before >= part;
    let drowned = |reward: &DiagnosedReward| varies(history, reward) >= OFTEN && is_undecided(history, reward);
    let drowned = others().find(|(reward, share)| *share <= 1.0 - DOMINANT && drowned(reward));
    if let Some((drowned, _)) = drowned.filter(|_| at_least(DOMINANT)) {
        return drowns(history, largest, drowned);
    }
    let heavier = |reward: &DiagnosedReward| reward.weight.abs() > largest.weight.abs() && is_left_to_learn(history, reward);
    let heavier = others().filter(|(reward, share)| *share <= 1.0 - MOST && heavier(reward));
    let (heaviest, _) = heavier.max_by(|a, b| a.0.weight.abs().total_cmp(&b.0.weight.abs())).filter(|_| at_least(MOST))?;
    let sentence = format!(
        "{} makes up {} of the advantages although its weight is smaller than that of {}, which differs in {} of the groups.",
        largest.name,
        percent(share),
        heaviest.name,
        percent(varies(history, heaviest))
    );
    let advice = [
        format!("prompts of which {} judges some completions higher than others: easier or harder ones", heaviest.name),
        "more --num-generations".to_owned(),
        format!(
            "no {0}, or one that gives the same score to all that is good enough: where only {0} differs in a group, its weight \
                 may not matter, since groups are normalised unless --scale-rewards says otherwise, with grpo",
            largest.name
        ),
    ];
    let advice: Vec<&str> = advice.iter().map(String::as_str).collect();
    finding("reward_dominates", sentence, in_groups(history, [largest, heaviest]), &advice)
}

/// Reports a reward that has no effect next to another.
fn drowns(history: &DiagnosisHistory, largest: &DiagnosedReward, drowned: &DiagnosedReward) -> Option<Finding> {
    let sentence = format!(
        "{} alone decides the advantages, and {} has no effect, although it differs in {} of the groups.",
        largest.name,
        drowned.name,
        percent(varies(history, drowned))
    );
    let weight = format!("a different weight, as in --set plugin.{}.weight=...", drowned.name);
    let advice = [weight.as_str(), "--multi-objective-aggregation normalize_then_sum, with grpo"];
    finding("reward_dominates", sentence, in_groups(history, [largest, drowned]), &advice)
}

/// Returns the figures of rewards in the groups that the algorithm compares.
fn in_groups(history: &DiagnosisHistory, rewards: [&DiagnosedReward; 2]) -> Vec<FindingFigure> {
    let percentage = |name: String, what: &str| {
        let level = history.newest(&name)?.mean;
        Some(figure(name, format!("{} {what}", percent(level))))
    };
    let of = |reward: &DiagnosedReward| {
        let share = percentage(share_of(reward), &format!("of the advantages, with a weight of {}", number(reward.weight)));
        let alone = percentage(alone_of(reward), "of the groups that teach, in which no other reward differs");
        share.into_iter().chain(alone).collect::<Vec<_>>()
    };
    rewards.into_iter().flat_map(of).collect()
}

/// Returns the share of groups in which a reward differs.
fn varies(history: &DiagnosisHistory, reward: &DiagnosedReward) -> f64 {
    history.newest(&varies_of(reward)).map_or(0.0, |level| level.mean)
}

/// Returns whether a reward is not nearly always given.
fn is_undecided(history: &DiagnosisHistory, reward: &DiagnosedReward) -> bool {
    let (mean, std) = mean_and_std(history, reward);
    std > ROUNDING && std > 0.1 * (mean.abs() + std)
}

/// Returns whether a reward still has something to teach: some completions lack a score that others get, or a penalty that others pay. A
/// reward that all but a fifth get, or a penalty that less than a fifth pay, has little left. The bounds are those of a score that is
/// either given or not.
fn is_left_to_learn(history: &DiagnosisHistory, reward: &DiagnosedReward) -> bool {
    let (mean, std) = mean_and_std(history, reward);
    let spread = std / mean.abs();
    std > ROUNDING && if reward.weight * mean > 0.0 { spread > 0.5 } else { spread < 2.0 }
}

fn mean_and_std(history: &DiagnosisHistory, reward: &DiagnosedReward) -> (f64, f64) {
    let level = |name: String| history.newest(&name).map_or(0.0, |level| level.mean);
    (level(mean_of(&reward.name)), level(std_of(&reward.name)))
}

fn divergence_runs_away(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    let per_completion = || Some((history.newest("objective/kl")?, history.newest(LENGTH)?.mean.max(1.0)));
    let (name, level, tokens) = match history.newest("kl").filter(|_| history.newest(LENGTH).is_some()) {
        Some(level) => ("kl", level, 1.0),
        None => per_completion().map(|(level, tokens)| ("objective/kl", level, tokens))?,
    };
    let (per_token, grows) = (level.mean / tokens, level.halves[1] > 1.2 * level.halves[0]);
    if per_token < FAR || per_token < VERY_FAR && !grows {
        return None;
    }
    let sentence = format!(
        "The policy is running away from the reference model: the divergence is {} nats per token{}.",
        number(per_token),
        if grows { " and grows" } else { "" }
    );
    let levels = figure(name, format!("{}, then {}", number(level.halves[0]), number(level.halves[1])));
    let beta = settings.beta.map(|beta| figure("beta", number(beta)));
    let figures = std::iter::once(levels).chain(beta).chain(rate_figure(settings)).collect();
    let advice =
        ["a larger --beta (--kl-coef for ppo)", "a lower --learning-rate", "what the rewarded completions look like now"];
    finding("divergence_runs_away", sentence, figures, &advice)
}

fn entropy_collapses(history: &DiagnosisHistory, _: &DiagnosisSettings) -> Option<Finding> {
    let (name, newest) = history.newest_of(&ENTROPY).filter(|_| history.newest(LENGTH).is_some())?;
    let first = history.first(name)?;
    if newest.mean > LITTLE_ENTROPY || newest.mean > PART_OF_ENTROPY * first {
        return None;
    }
    let sentence = format!(
        "The policy's entropy has collapsed from {} to {} nats per token: its completions are nearly always the same.",
        number(first),
        number(newest.mean)
    );
    let equal = history.newest(EQUAL).map(|equal| figure(EQUAL, number(equal.mean)));
    let figures = std::iter::once(change(name, first, newest.mean)).chain(equal).collect();
    let advice = [
        "a lower --learning-rate",
        "a higher --temperature",
        "--epsilon-high 0.28, or an --entropy-coef, with grpo",
        "a --beta above 0",
    ];
    finding("entropy_collapses", sentence, figures, &advice)
}

/// The reward rose while completions grew to the maximum length or shrank to a few tokens.
fn length_exploited(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    let (first, newest) = (history.first(LENGTH)?, history.newest(LENGTH)?);
    let cut = history.newest(CUT_OFF).map_or(0.0, |cut| cut.mean);
    let longer = newest.mean > 1.3 * first && cut >= MANY_CUT_OFF && history.first(CUT_OFF)? <= 0.3;
    let shorter = newest.mean < 0.25 * first && newest.mean <= 6.0;
    if !longer && !shorter {
        return None;
    }
    let rose = reward_rose(history, settings, 0.5)?;
    let sentence = format!(
        "The reward rises with {} completions alone: their mean length went from {} to {} tokens.",
        if longer { "longer" } else { "shorter" },
        number(first),
        number(newest.mean)
    );
    let figures = vec![change(LENGTH, first, newest.mean), rose, figure(CUT_OFF, number(cut))];
    let advice = [
        "read some completions: does the reward measure what it is meant to?",
        if longer {
            "overlong_reward.wasm, or a score per token"
        } else {
            "a reward for content, or a minimum length in the reward"
        },
        "a --beta above 0",
    ];
    finding("length_exploited", sentence, figures, &advice)
}

fn ratios_clipped(history: &DiagnosisHistory, settings: &DiagnosisSettings) -> Option<Finding> {
    let names = ["clip_ratio/region_mean", "policy/clipfrac_avg", "ppo_clip_ratio"];
    let (name, clipped) = history.newest_of(&names).filter(|(_, clipped)| clipped.mean >= MANY_CLIPPED)?;
    let sentence =
        format!("{} of the probability ratios are clipped, so their tokens are no longer learned.", percent(clipped.mean));
    let figures = std::iter::once(figure(name, number(clipped.mean))).chain(rate_figure(settings)).collect();
    let advice = ["fewer --num-iterations", "fewer --steps-per-generation", "a lower --learning-rate", "a larger --epsilon"];
    finding("ratios_clipped", sentence, figures, &advice)
}
