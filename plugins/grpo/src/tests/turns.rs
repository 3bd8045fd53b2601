use super::*;

/// Returns rollouts of episodes, each given by its prompt and the rewards of its turns. A turn has two tokens, and a reply of one token
/// separates two turns. Another reward gives each row `extra`, with a weight of 0.5.
fn played(episodes: &[(u32, &[Option<f32>])], extra: &[Option<f32>]) -> Rollouts {
    let (mut offsets, mut mask, mut ends, mut turn_offsets) = (vec![0], Vec::new(), Vec::new(), vec![0]);
    for (_, turns) in episodes {
        for turn in 0..turns.len() {
            mask.extend(if turn == 0 { vec![1, 1] } else { vec![0, 1, 1] });
            ends.push(mask.len() as u32);
        }
        offsets.push(mask.len() as u32);
        turn_offsets.push(ends.len() as u32);
    }
    let sum = |turns: &[Option<f32>]| turns.iter().flatten().copied().reduce(|a, b| a + b);
    let column = |name: &str, weight: f32, values: Vec<Option<f32>>| RewardColumn { name: name.into(), weight, values };
    let rewards = episodes.iter().flat_map(|(_, turns)| turns.iter().copied()).collect();
    let turns = Turns { offsets: turn_offsets, ends, rewards, columns: vec![Some(1); episodes.len()] };
    Rollouts {
        rewards: vec![
            column("judge", 0.5, extra.to_vec()),
            column("game", 2.0, episodes.iter().map(|(_, turns)| sum(turns)).collect()),
        ],
        prompt_of: episodes.iter().map(|(prompt, _)| *prompt).collect(),
        finished: vec![true; episodes.len()],
        logp: vec![-1.0; mask.len()],
        offsets,
        mask,
        turns: Some(turns),
        ..Rollouts::default()
    }
}

/// Returns the estimates with the advantage of each turn, which all its tokens must have.
fn by_turn(settings: GrpoSettings, rollouts: &Rollouts) -> (Vec<f32>, Advantages) {
    let given = Grpo::new(settings).unwrap().estimate(rollouts).unwrap();
    let ends = &rollouts.turns.as_ref().unwrap().ends;
    let last_tokens = ends.iter().map(|end| *end as usize - 2..*end as usize);
    let of_turn = |tokens: std::ops::Range<usize>| {
        assert_eq!(given.advantages[tokens.start], given.advantages[tokens.end - 1]);
        given.advantages[tokens.start]
    };
    (last_tokens.map(of_turn).collect(), given)
}

fn settings(turn_advantages: TurnAdvantages, scale_rewards: ScaleRewards) -> GrpoSettings {
    GrpoSettings { turn_advantages, scale_rewards, turn_discount: 0.5, ..GrpoSettings::default() }
}

#[test]
fn a_turn_is_compared_with_the_same_turn_of_its_prompts_episodes() {
    // Scores of turns are twice the rewards: [2, 0, 4], [0, 2], [4] and, of another prompt, [2], each with its return below.
    let episodes: [(u32, &[Option<f32>]); 5] = [
        (0, &[Some(1.0), None, Some(2.0)]),
        (0, &[Some(0.0), Some(1.0)]),
        (0, &[Some(2.0)]),
        (1, &[Some(1.0)]),
        (1, &[Some(3.0)]),
    ];
    let rollouts = played(&episodes, &[None; 5]);
    let (got, _) = by_turn(settings(TurnAdvantages::Turn, ScaleRewards::None), &rollouts);
    // Returns: 3, 2, 4; 1, 2; 4; 2; 6. No other episode has a third turn.
    let first = (3.0 + 1.0 + 4.0) / 3.0;
    close("centred", &got, &[3.0 - first, 0.0, 0.0, 1.0 - first, 0.0, 4.0 - first, -2.0, 2.0]);
    let (got, _) = by_turn(settings(TurnAdvantages::Turn, ScaleRewards::Group), &rollouts);
    let std = (((3.0 - first).powi(2) + (1.0 - first).powi(2) + (4.0 - first).powi(2)) / 2.0f64).sqrt() + 1e-4;
    let two = 8.0f64.sqrt() + 1e-4;
    let want = [(3.0 - first) / std, 0.0, 0.0, (1.0 - first) / std, 0.0, (4.0 - first) / std, -2.0 / two, 2.0 / two];
    close("scaled", &got, &want);
}

#[test]
fn or_with_all_turns_of_its_prompts_episodes() {
    let alike: (u32, &[Option<f32>]) = (2, &[Some(5.0)]);
    let episodes: [(u32, &[Option<f32>]); 4] = [(0, &[Some(1.0), Some(2.0)]), (0, &[Some(0.0)]), alike, alike];
    let rollouts = played(&episodes, &[None; 4]);
    // Returns: 4, 4; 0; and 10; 10.
    let (got, given) = by_turn(settings(TurnAdvantages::Group, ScaleRewards::None), &rollouts);
    let mean = 8.0 / 3.0;
    close("centred", &got, &[4.0 - mean, 4.0 - mean, -mean, 0.0, 0.0]);
    assert_eq!(find_metric(&given.metrics, "frac_reward_zero_std"), Some((0.4, 5.0)));
    let (got, _) = by_turn(settings(TurnAdvantages::Group, ScaleRewards::Batch), &rollouts);
    let batch = [4.0, 4.0, 0.0, 10.0, 10.0f64].map(|g| (g - 5.6).powi(2)).iter().sum::<f64>() / 4.0;
    let std = batch.sqrt() + 1e-4;
    close("scaled", &got, &[(4.0 - mean) / std, (4.0 - mean) / std, -mean / std, 0.0, 0.0]);
}

#[test]
fn what_is_said_of_the_whole_episode_counts_from_its_last_turn_back() {
    let episodes: [(u32, &[Option<f32>]); 2] = [(0, &[Some(0.0), Some(0.0)]), (0, &[Some(0.0), Some(0.0)])];
    let rollouts = played(&episodes, &[Some(8.0), Some(0.0)]);
    let (got, _) = by_turn(settings(TurnAdvantages::Turn, ScaleRewards::None), &rollouts);
    assert_eq!(got, [1.0, 2.0, -1.0, -2.0]);
}

#[test]
fn with_one_turn_each_they_are_the_episodes_advantages() {
    let episodes: [(u32, &[Option<f32>]); 4] = [(0, &[Some(1.0)]), (0, &[Some(-0.5)]), (1, &[None]), (1, &[Some(3.0)])];
    let rollouts = played(&episodes, &[Some(1.0), None, None, Some(0.25)]);
    for scale_rewards in [ScaleRewards::None, ScaleRewards::Group, ScaleRewards::Batch] {
        let whole = GrpoSettings { scale_rewards, ..GrpoSettings::default() };
        let want = Grpo::new(whole).unwrap().estimate(&Rollouts { turns: None, ..rollouts.clone() }).unwrap();
        for turn_advantages in [TurnAdvantages::Turn, TurnAdvantages::Group] {
            let (_, got) = by_turn(settings(turn_advantages, scale_rewards), &rollouts);
            assert_eq!((got.advantages, got.mask), (want.advantages.clone(), want.mask.clone()));
        }
    }
}

#[test]
fn episodes_without_a_score_are_in_no_comparison_and_truncated_ones_leave_the_loss() {
    let episodes: [(u32, &[Option<f32>]); 3] = [(0, &[Some(1.0)]), (0, &[None, None]), (0, &[Some(0.0), Some(0.0)])];
    let mut rollouts = played(&episodes, &[None; 3]);
    rollouts.finished[2] = false;
    let kept = GrpoSettings { mask_truncated_completions: true, ..settings(TurnAdvantages::Turn, ScaleRewards::None) };
    let (got, given) = by_turn(kept, &rollouts);
    assert_eq!(got, [1.0, 0.0, 0.0, -1.0, 0.0]);
    assert_eq!(given.mask.unwrap(), [1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn only_runs_that_ask_for_them_see_turns_and_rewards_normalised_one_by_one_have_none() {
    assert!(!Grpo::needs(&GrpoSettings::default()).has("turn_reward"));
    let by_turn = GrpoSettings { turn_advantages: TurnAdvantages::Turn, ..GrpoSettings::default() };
    assert!(Grpo::needs(&by_turn).has("turn_reward"));
    let aggregation = MultiObjectiveAggregation::NormalizeThenSum;
    let refused = Grpo::new(GrpoSettings { multi_objective_aggregation: aggregation, ..by_turn }).err();
    assert!(matches!(&refused, Some(Error::Config(text)) if text.contains("turn_advantages")), "{refused:?}");
}
