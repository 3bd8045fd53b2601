//! Advantages of turns: the return from a turn on, centred on the returns that it is compared with, then scaled.

use crate::advantage::STD_EPSILON;
use crate::settings::{GrpoSettings, ScaleRewards, TurnAdvantages};
use rlhost_plugin_sdk::Metric;
use rlhost_plugin_sdk::policy::{Advantages, Rollouts, Turns};
use rlhost_plugin_sdk::rows::rows;
use rlhost_plugin_sdk::scores::{self, all_alike, mean_and_std, scores};
use rlhost_plugin_sdk::turns::{ScoredTurn, returns};
use std::collections::BTreeMap;

/// Turns with the same key are compared: those of a prompt, or only those with the same number.
type TurnGroupKey = (u32, usize);

/// A turn with its return.
struct TurnReturn {
    key: TurnGroupKey,
    turn: ScoredTurn,
    discounted_return: f64,
}

/// Computes `A = (G - mean) / (deviation + 1e-4)` for each turn, where `G` is the sum of the scores from this turn on, discounted by
/// `turn_discount` per turn. Mean and deviation are those of the compared returns; the deviation may also be the batch's, or none.
pub(crate) fn estimate(s: &GrpoSettings, rollouts: &Rollouts, turns: &Turns) -> Advantages {
    let mut all: Vec<TurnReturn> = Vec::new();
    for (scored, &prompt) in turns.scored(rollouts).into_iter().zip(&rollouts.prompt_of) {
        let scored = scored.unwrap_or_default();
        let number = |turn: usize| if s.turn_advantages == TurnAdvantages::Turn { turn } else { 0 };
        let to_come = returns(&scored, s.turn_discount);
        let returned = scored.into_iter().zip(to_come).enumerate();
        all.extend(returned.map(|(i, (turn, to_come))| TurnReturn {
            key: (prompt, number(i)),
            turn,
            discounted_return: to_come,
        }));
    }
    let mut compared: BTreeMap<TurnGroupKey, Vec<f64>> = BTreeMap::new();
    all.iter().for_each(|turn| compared.entry(turn.key).or_default().push(turn.discounted_return));
    let of_key: BTreeMap<TurnGroupKey, (f64, f64)> =
        compared.iter().filter_map(|(key, returns)| Some((*key, mean_and_std(returns.iter().copied())?))).collect();
    let batch: Vec<f64> = all.iter().map(|turn| turn.discounted_return).collect();
    let batch_std = mean_and_std(batch.iter().copied()).map_or(0.0, |(_, std)| std);

    let mut advantages = vec![0.0; rollouts.mask.len()];
    let mut zero_std = Vec::new();
    for TurnReturn { key, turn, discounted_return: to_come } in all {
        let (mean, std) = of_key[&key];
        let deviation = match s.scale_rewards {
            ScaleRewards::None => 1.0,
            ScaleRewards::Group => std + STD_EPSILON,
            ScaleRewards::Batch => batch_std + STD_EPSILON,
        };
        advantages[turn.tokens].fill(((to_come - mean) / deviation) as f32);
        zero_std.push(if s.scale_rewards == ScaleRewards::Batch { all_alike(&batch) } else { all_alike(&compared[&key]) });
    }
    let mut mask = rollouts.mask.clone();
    for (row, tokens) in rows(&rollouts.offsets).enumerate() {
        if s.mask_truncated_completions && !rollouts.finished[row] {
            mask[tokens].fill(0);
        }
    }
    let mut metrics = scores::metrics(&scores(rollouts));
    metrics.extend(Metric::mean_of("frac_reward_zero_std", zero_std.iter().map(|&zero| f64::from(u8::from(zero)))));
    Advantages { advantages, returns: None, mask: Some(mask), metrics }
}
