use super::*;
use crate::algorithm::{AlgorithmPlugin, Batch, Column, Scale, ScoredGeneration, TurnSpan, Unit};
use crate::config::PluginLimits;
use crate::loaded_plugin::PluginCall;
use crate::{EnvironmentPlugin, Error, Message, PluginEngine, PluginSource, RewardBatch, RewardPlugin, Start};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, json};
use std::path::Path;

/// Loads a component that was compiled for contract version 0.1 or 0.2.
fn fixture(name: &str) -> PluginSource {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/contract");
    PluginSource::open(&folder.join(name).with_extension("wasm").display().to_string()).unwrap()
}

fn load(name: &str, settings: Value) -> AlgorithmPlugin {
    let settings: Map<String, Value> = serde_json::from_value(settings).unwrap();
    AlgorithmPlugin::load(&PluginEngine::new().unwrap(), &fixture(name), &settings, &PluginLimits::default(), 0).unwrap()
}

/// Calls the plugin through the interface of its own version.
fn by_hand<R>(
    algorithm: &mut AlgorithmPlugin,
    function: &'static str,
    ask: impl FnOnce(&OldAlgorithm, &mut Store<Sandbox>, &Linked) -> CallResult<R>,
) -> R {
    let loaded = algorithm.shared();
    algorithm.call(PluginCall::with_step(function, 3), |store, linked| ask(loaded.exports.old()?, store, linked)).unwrap()
}

/// Offsets of the sequences of [`batch`], which has two groups of two.
const OFFSETS: [u32; 5] = [0, 2, 5, 6, 9];
const MASK: [u8; 9] = [1, 1, 1, 0, 1, 1, 1, 1, 1];
const SCALE: Scale = Scale { items: 8, tokens: 16, prompt_tokens: 10, max_completion_length: 4 };
const OLD_SCALE: types::Scale = types::Scale { rows: 8, tokens: 16, max_completion_length: 4 };

/// Returns an oscillating column, with a frequency that depends on `kind`.
fn wave(count: usize, kind: f32) -> Vec<f32> {
    (0..count).map(|i| -1.2 + 0.4 * ((i + 1) as f32 * (1.0 + 0.7 * kind)).sin()).collect()
}

fn per_token(kind: f32) -> Vec<f32> {
    wave(MASK.len(), kind)
}

/// Columns per token, each with a `kind`.
const PER_TOKEN: [(&str, f32); 11] = [
    (columns::LOGP, 1.0),
    (columns::OLD_LOGP, 2.0),
    (columns::REF_LOGP, 3.0),
    (columns::SAMPLING_LOGP, 4.0),
    (columns::ENTROPY, 5.0),
    (columns::MEAN_LOGITS, 6.0),
    (columns::VALUE, 7.0),
    (columns::OLD_VALUE, 8.0),
    (columns::ADVANTAGE, 9.0),
    (columns::RETURN, 10.0),
    (columns::LOG_SUM_SQUARES, 11.0),
];

/// Returns a batch with all columns, of which a plugin needs some.
fn batch() -> Batch {
    let mut batch = Batch {
        step: 3,
        seed: 0,
        groups: vec![0, 2, 4],
        tokens: OFFSETS.to_vec(),
        prompt_tokens: vec![0, 2, 5],
        turns: Vec::new(),
        mask: MASK.to_vec(),
        columns: PER_TOKEN.iter().map(|(name, kind)| Column::new(*name, Unit::Token, per_token(*kind))).collect(),
        scale: SCALE,
    };
    batch.columns.extend([
        Column::new(columns::PROMPT_LOGP, Unit::PromptToken, wave(5, 1.5)),
        Column::new(columns::SEQUENCE_VALUE, Unit::Sequence, wave(4, 2.5)),
        Column::new(columns::LABEL, Unit::Sequence, vec![1.0, 0.0, 0.0, 1.0]),
        Column::new(columns::FINISHED, Unit::Sequence, vec![1.0, 0.0, 1.0, 1.0]),
        Column::new(columns::MARGIN, Unit::Group, vec![0.5, 1.0]),
        Column::new(columns::MICRO_BATCH_LABEL, Unit::MicroBatch, vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        Column::new(columns::MISMATCHED_LOGP, Unit::MicroBatch, wave(6, 3.5)),
        Column::new(columns::MISMATCHED_REF_LOGP, Unit::MicroBatch, wave(6, 4.5)),
    ]);
    batch
}

const SCORES: [Option<f32>; 4] = [Some(1.0), Some(-0.5), None, Some(0.25)];

fn generation() -> ScoredGeneration {
    let mut batch = batch();
    batch.columns.push(Column::sparse(columns::reward("length"), Unit::Sequence, SCORES));
    batch.columns.push(Column::new(columns::reward("game"), Unit::Sequence, vec![0.5, 2.0, 0.0, 1.0]));
    let reward = |name: &str, weight| WeightedReward { name: name.to_owned(), weight };
    ScoredGeneration { batch, rewards: vec![reward("length", 0.5), reward("game", 1.0)] }
}

fn rollouts(needs: &NeededInputs) -> types::Rollouts {
    let reward = |name: &str, weight, values: [Option<f32>; 4]| types::OldRewardColumn {
        name: name.to_owned(),
        weight,
        values: values.to_vec(),
    };
    types::Rollouts {
        step: 3,
        rewards: vec![reward("length", 0.5, SCORES), reward("game", 1.0, [Some(0.5), Some(2.0), Some(0.0), Some(1.0)])],
        prompt_of: vec![0, 0, 1, 1],
        finished: vec![true, false, true, true],
        offsets: OFFSETS.to_vec(),
        mask: MASK.to_vec(),
        logp: per_token(2.0),
        ref_logp: needs.has(columns::REF_LOGP).then(|| per_token(3.0)),
        values: needs.has(columns::OLD_VALUE).then(|| per_token(8.0)),
        entropy: None,
    }
}

fn tokens(needs: &NeededInputs) -> policy::Tokens {
    let needed = |name: &str, kind| needs.has(name).then(|| per_token(kind));
    policy::Tokens {
        step: 3,
        offsets: OFFSETS.to_vec(),
        mask: MASK.to_vec(),
        advantages: per_token(9.0),
        logp: per_token(1.0),
        old_logp: per_token(2.0),
        ref_logp: needed(columns::REF_LOGP, 3.0),
        sampling_logp: needed(columns::SAMPLING_LOGP, 4.0),
        entropy: needed(columns::ENTROPY, 5.0),
        values: needed(columns::VALUE, 7.0),
        old_values: needed(columns::OLD_VALUE, 8.0),
        returns: needed(columns::RETURN, 10.0),
        scale: OLD_SCALE,
    }
}

/// Returns one side of a column: the chosen sequences have the tokens 0, 1 and 5, the rejected ones 2 to 4 and 6 to 8.
fn sides(column: &[f32]) -> [Vec<f32>; 2] {
    [[&column[..2], &column[5..6]].concat(), [&column[2..5], &column[6..]].concat()]
}

fn pairs(needs: &NeededInputs) -> preference::Pairs {
    let of_side = |kind, side: usize| sides(&per_token(kind))[side].clone();
    let side = |side: usize, offsets: [u32; 3]| preference::Side {
        offsets: offsets.to_vec(),
        logp: of_side(1.0, side),
        ref_logp: needs.has(columns::REF_LOGP).then(|| of_side(3.0, side)),
        mean_logits: needs.has(columns::MEAN_LOGITS).then(|| of_side(6.0, side)),
    };
    preference::Pairs { step: 3, chosen: side(0, [0, 2, 3]), rejected: side(1, [0, 3, 6]), scale: OLD_SCALE }
}

#[test]
fn losses_of_completions_are_those_of_their_own_version() {
    for (name, settings) in [
        ("grpo", json!({"beta": 0.1})),
        ("grpo", json!({"vllm_importance_sampling_correction": true, "top_entropy_quantile": 0.5})),
        ("rloo", json!({})),
        ("ppo", json!({})),
        ("sft", json!({})),
    ] {
        let mut plugin = load(name, settings.clone());
        let data = plugin.data();
        assert_eq!((data.source, data.shape), (DataSource::Either, Shape::Completions), "{name}");
        let needs = plugin.info().needs.clone();
        let want = by_hand(&mut plugin, "loss", |old, store, linked| old.call_policy(store, linked, &tokens(&needs)));
        let given = plugin.loss(&batch()).unwrap();
        assert_eq!(given.loss.to_bits(), want.loss.to_bits(), "{name} {settings}");
        assert_eq!(given.by(columns::LOGP), Some(&want.d_logp[..]), "{name} {settings}");
        assert_eq!(given.by(columns::ENTROPY), want.d_entropy.as_deref(), "{name} {settings}");
        assert_eq!(given.by(columns::VALUE), want.d_values.as_deref(), "{name} {settings}");
        assert_eq!(given.metrics, want.metrics, "{name} {settings}");
        assert!(given.loss != 0.0 && want.d_logp.iter().any(|d| *d != 0.0), "{name} {settings}");
    }
    assert!(load("ppo", json!({})).info().needs.has(columns::VALUE));
}

#[test]
fn a_datasets_completions_count_the_same_and_were_not_sampled() {
    let mut plugin = load("grpo", json!({}));
    let mut given = batch();
    given.columns.retain(|column| column.name == columns::LOGP);
    let gradient = plugin.loss(&given).unwrap();
    let alike = policy::Tokens { advantages: vec![1.0; 9], old_logp: per_token(1.0), ..tokens(&NeededInputs::default()) };
    let want = by_hand(&mut plugin, "loss", |old, store, linked| old.call_policy(store, linked, &alike));
    assert_eq!((gradient.loss, gradient.by(columns::LOGP)), (want.loss, Some(&want.d_logp[..])));
}

#[test]
fn advantages_are_those_of_their_own_version() {
    for (name, settings) in [
        ("grpo", json!({})),
        ("grpo", json!({"mask_truncated_completions": true})),
        ("rloo", json!({"beta": 0.1})),
        ("ppo", json!({})),
    ] {
        let mut plugin = load(name, settings.clone());
        let needs = plugin.info().needs.clone();
        let ask = rollouts(&needs);
        // PPO counts episodes.
        let mut other = load(name, settings.clone());
        let want = by_hand(&mut other, "estimate", |old, store, linked| old.call_estimate(store, linked, &ask, None));
        let given = plugin.estimate(&generation()).unwrap();
        let column = |name: &str| given.columns.iter().find(|column| column.name == name).map(|column| column.values.clone());
        assert_eq!(column(columns::ADVANTAGE), Some(want.advantages), "{name} {settings}");
        assert_eq!(column(columns::RETURN), want.returns, "{name} {settings}");
        assert_eq!(given.mask, want.mask.unwrap_or_else(|| MASK.to_vec()), "{name} {settings}");
        assert_eq!(given.metrics, want.metrics, "{name} {settings}");
    }
}

#[test]
fn advantages_by_turn_are_those_of_their_own_version() {
    let mut plugin = load("grpo", json!({"turn_advantages": "turn", "scale_rewards": "none"}));
    assert!(plugin.info().needs.has(columns::TURN_REWARD));
    let refused = plugin.estimate(&generation()).unwrap_err();
    assert!(refused.is_mistake() && refused.to_string().contains("rewards of turns, which only episodes have"), "{refused}");

    let mut given = generation();
    let turn = |(sequence, start, end): (u32, u32, u32)| TurnSpan { sequence, start, end };
    given.batch.turns = [(0, 0, 2), (1, 2, 3), (1, 3, 5), (2, 5, 6), (3, 6, 7), (3, 7, 9)].map(turn).to_vec();
    // The second environment played all but the third episode, which failed.
    let of_game = [Some(0.5), Some(1.5), Some(0.5), None, None, Some(1.0)];
    given.batch.columns.push(Column::sparse(columns::turn_reward("length"), Unit::Turn, [None; 6]));
    given.batch.columns.push(Column::sparse(columns::turn_reward("game"), Unit::Turn, of_game));
    let turns = turn_policy::Turns {
        offsets: vec![0, 1, 3, 4, 6],
        ends: vec![2, 3, 5, 6, 7, 9],
        rewards: of_game.to_vec(),
        columns: vec![1, 1, 0, 1],
    };
    let sent = |generation: &ScoredGeneration| {
        let batch = &generation.batch;
        v0_2::turns(&SentBatch::new(batch, 0, |_| true), &generation.rewards).unwrap()
    };
    assert_eq!(sent(&given), turns);

    let ask = rollouts(&plugin.info().needs.clone());
    let want = by_hand(&mut plugin, "estimate", |old, store, linked| old.call_estimate(store, linked, &ask, Some(&turns)));
    let answered = plugin.estimate(&given).unwrap();
    assert_eq!(answered.columns[0].values, want.advantages);
    assert!(want.advantages[2] != want.advantages[4], "{want:?}");
}

#[test]
fn losses_of_pairs_are_those_of_their_own_version() {
    let squares = json!({"use_weighting": true});
    let settings = [("dpo", json!({})), ("dpo", squares), ("orpo", json!({})), ("online_dpo", json!({}))];
    for (name, settings) in settings {
        let mut plugin = load(name, settings.clone());
        let origin = if name == "online_dpo" { DataSource::Policy } else { DataSource::Dataset };
        assert_eq!((plugin.data().source, plugin.data().shape), (origin, Shape::Pairs), "{name}");
        let needs = plugin.info().needs.clone();
        let beside = if needs.has(columns::LOG_SUM_SQUARES) {
            let [chosen, rejected] = sides(&per_token(11.0));
            PreferenceExtra::Squares(weighted_preference::LogSumSquares { chosen, rejected })
        } else if needs.has(columns::PROMPT_LOGP) {
            PreferenceExtra::Prompts(prompted_preference::Prompts { offsets: vec![0, 2, 5], logp: wave(5, 1.5), tokens: 10 })
        } else {
            PreferenceExtra::Nothing
        };
        let (want, d_prompts) =
            by_hand(&mut plugin, "loss", |old, store, linked| old.call_preference(store, linked, &pairs(&needs), &beside));
        let given = plugin.loss(&batch()).unwrap();
        assert_eq!(given.loss.to_bits(), want.loss.to_bits(), "{name} {settings}");
        assert_eq!(sides(given.by(columns::LOGP).unwrap()), [want.d_chosen, want.d_rejected], "{name} {settings}");
        assert_eq!(given.by(columns::PROMPT_LOGP), d_prompts.as_deref(), "{name} {settings}");
        assert_eq!(given.metrics, want.metrics, "{name} {settings}");
    }
    let needs = |name, settings| load(name, settings).info().needs.clone();
    assert!(needs("dpo", json!({"use_weighting": true})).has(columns::LOG_SUM_SQUARES));
    assert!(!needs("dpo", json!({})).has(columns::LOG_SUM_SQUARES));
    assert!(needs("orpo", json!({})).has(columns::PROMPT_LOGP));
}

#[test]
fn pairs_are_chosen_as_in_their_own_version() {
    let mut plugin = load("online_dpo", json!({}));
    let ask = rollouts(&plugin.info().needs.clone());
    let want = by_hand(&mut plugin, "choose", |old, store, linked| old.call_choose(store, linked, &ask));
    let given = plugin.choose(&generation()).unwrap();
    let given: Vec<(u32, u32)> = given.pairs.iter().map(|pair| (pair.chosen, pair.rejected)).collect();
    assert_eq!(given, want.pairs.iter().map(|pair| (pair.chosen, pair.rejected)).collect::<Vec<_>>());
    assert!(!want.pairs.is_empty());
}

#[test]
fn losses_of_labelled_completions_are_those_of_their_own_version() {
    let mut plugin = load("kto", json!({}));
    assert_eq!((plugin.data().source, plugin.data().shape), (DataSource::Dataset, Shape::Completions));
    let needs = plugin.info().needs.clone();
    assert!(needs.has(columns::MISMATCHED_LOGP) && needs.has(columns::MISMATCHED_REF_LOGP));
    let examples = labelled::Examples {
        step: 3,
        labels: vec![true, false, false, true],
        desirable: 4,
        undesirable: 2,
        offsets: OFFSETS.to_vec(),
        logp: per_token(1.0),
        ref_logp: needs.has(columns::REF_LOGP).then(|| per_token(3.0)),
        mean_logits: needs.has(columns::MEAN_LOGITS).then(|| per_token(6.0)),
        mismatched: Some(labelled::Mismatched { logp: wave(6, 3.5), ref_logp: wave(6, 4.5) }),
        scale: OLD_SCALE,
    };
    let want = by_hand(&mut plugin, "loss", |old, store, linked| old.call_labelled(store, linked, &examples));
    let given = plugin.loss(&batch()).unwrap();
    assert_eq!((given.loss.to_bits(), given.by(columns::LOGP)), (want.loss.to_bits(), Some(&want.d_logp[..])));
}

#[test]
fn losses_of_reward_models_are_those_of_their_own_version() {
    let mut plugin = load("reward_model", json!({}));
    assert_eq!((plugin.data().source, plugin.data().shape), (DataSource::Dataset, Shape::Pairs));
    let values = wave(4, 2.5);
    for margin in [Some(vec![0.5, 1.0]), None] {
        let side = |first: usize| vec![values[first], values[first + 2]];
        let pairs = reward_model::Pairs { step: 3, chosen: side(0), rejected: side(1), margin: margin.clone(), scale: OLD_SCALE };
        let want = by_hand(&mut plugin, "loss", |old, store, linked| old.call_reward_model(store, linked, &pairs));
        let mut batch = batch();
        if margin.is_none() {
            // A dataset in which one pair lacks a margin.
            let column = batch.columns.iter_mut().find(|column| column.name == columns::MARGIN).unwrap();
            *column = Column::sparse(columns::MARGIN, Unit::Group, [Some(0.5), None]);
        }
        let given = plugin.loss(&batch).unwrap();
        assert_eq!(given.loss.to_bits(), want.loss.to_bits());
        let in_turn = [want.d_chosen[0], want.d_rejected[0], want.d_chosen[1], want.d_rejected[1]];
        assert_eq!(given.by(columns::SEQUENCE_VALUE), Some(&in_turn[..]));
    }
}

#[test]
fn a_batch_that_lacks_what_an_old_interface_always_has_is_refused() {
    let without = |name: &str| {
        let mut batch = batch();
        batch.columns.retain(|column| column.name != name);
        batch
    };
    let refused = load("dpo", json!({})).loss(&without(columns::LOGP)).unwrap_err();
    assert!(refused.to_string().contains("it asks for logp, which this batch does not have"), "{refused}");
    let refused = load("kto", json!({})).loss(&without(columns::LABEL)).unwrap_err();
    assert!(refused.to_string().contains("it asks for label"), "{refused}");
    let three = Batch { groups: vec![0, 3, 4], ..batch() };
    let refused = load("dpo", json!({})).loss(&three).unwrap_err();
    assert!(refused.to_string().contains("group 0 of the batch has 3 sequences; it learns from pairs"), "{refused}");
}

#[test]
fn old_rewards_and_environments_are_called_as_before() {
    let (none, limits) = (Map::new(), PluginLimits::default());
    let mut reward =
        RewardPlugin::load(&PluginEngine::new().unwrap(), &fixture("tldr_length_reward"), &none, &limits, 0).unwrap();
    let texts = ["short", "a text that is somewhat longer than the other"].map(str::to_owned).to_vec();
    let batch = RewardBatch {
        step: 1,
        seed: 0,
        prompts: vec!["p".to_owned()],
        columns: Vec::new(),
        prompt_of: vec![0, 0],
        finished: vec![true, true],
        offsets: vec![0, 1, 3],
        token_ids: vec![1, 2, 3],
        completions: texts,
    };
    let scores = reward.score(&batch).unwrap().rewards;
    assert!(scores.len() == 2 && scores[0] != scores[1], "{scores:?}");

    let environment =
        EnvironmentPlugin::load(&PluginEngine::new().unwrap(), &fixture("calculator_tool"), &none, &limits, 0).unwrap();
    let message = Message { role: "user".into(), content: "2 + 3?".into(), name: None, tool_call_id: None };
    let columns = vec![("answer".to_owned(), "5".to_owned())];
    let start = Start { episode: 7, seed: 1, prompt: vec![message], columns };
    let played = environment.rehearse(&[start], |_, turn, _| (turn == 0).then(|| ("5".to_owned(), Vec::new(), true))).unwrap();
    assert_eq!(played[0].replies.len(), 1);
    assert_eq!(played[0].opening.tools.len(), 1);

    let refused = RewardPlugin::load(&PluginEngine::new().unwrap(), &fixture("judge_reward"), &none, &limits, 0).err().unwrap();
    assert!(matches!(refused, Error::NotGranted { interface: "rlhost:plugin/http@0.2.0", .. }), "{refused}");
}

#[test]
fn columns_of_pairs_come_back_in_the_order_of_their_sequences() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..200 {
        let count = random.random_range(0..6);
        let mut offsets = vec![0u32];
        (0..2 * count).for_each(|_| offsets.push(offsets[offsets.len() - 1] + random.random_range(0..4)));
        let tokens = offsets[offsets.len() - 1] as usize;
        let column: Vec<f32> = (0..tokens).map(|_| random.random_range(-1.0..1.0)).collect();
        let batch = Batch {
            groups: (0..=count).map(|group| 2 * group).collect(),
            tokens: offsets,
            mask: vec![1; tokens],
            columns: vec![Column::new(columns::LOGP, Unit::Token, column.clone())],
            ..batch()
        };
        let sent = SentBatch::new(&batch, 0, |_| true);
        let preference::Pairs { chosen, rejected, .. } = v0_1::pairs(&sent).unwrap();
        assert_eq!(chosen.logp.len() + rejected.logp.len(), tokens);
        assert_eq!(*chosen.offsets.last().unwrap() as usize, chosen.logp.len());
        assert_eq!((chosen.offsets.len(), rejected.offsets.len()), (count as usize + 1, count as usize + 1));
        let gradient = |d_chosen, d_rejected| preference::Gradient { loss: 1.0, d_chosen, d_rejected, metrics: Vec::new() };
        let back = v0_1::pair_gradient(gradient(chosen.logp.clone(), rejected.logp.clone()), &sent).unwrap();
        assert_eq!(back.derivatives[0].values, column);
        let longer = [&chosen.logp[..], &[0.0]].concat();
        assert!(v0_1::pair_gradient(gradient(longer, rejected.logp), &sent).unwrap_err().contains("d_chosen for"));
    }
}

#[test]
fn flags_and_hints_become_names_of_columns() {
    let names = |kind, flags: Flags, schema: Value| {
        needs(kind, flags, &schema.to_string()).map(|needs| needs.names().map(str::to_owned).collect::<Vec<_>>())
    };
    let named = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let none = || json!({});
    assert_eq!(names(OldAlgorithmKind::Policy, Flags::empty(), none()), named(&["advantage", "finished", "logp", "old_logp"]));
    assert_eq!(
        names(OldAlgorithmKind::Policy, Flags::VALUES | Flags::MEAN_LOGITS | Flags::PROMPT_TEXT, none()),
        named(&["advantage", "finished", "logp", "old_logp", "old_value", "return", "value"])
    );
    let hints = json!({"x-rlhost": {"turn_rewards": true, "log_sum_squares": true, "mismatched": false, "framed": true}});
    assert_eq!(
        names(OldAlgorithmKind::Policy, Flags::empty(), hints),
        named(&["advantage", "finished", "logp", "old_logp", "turn_reward"])
    );
    let squares = json!({"x-rlhost": {"log_sum_squares": true}});
    assert_eq!(
        names(OldAlgorithmKind::Preference, Flags::REF_LOGP | Flags::ENTROPY, squares),
        named(&["log_sum_squares", "logp", "ref_logp"])
    );
    assert_eq!(names(OldAlgorithmKind::OnlinePreference, Flags::empty(), none()), named(&["finished", "logp", "old_logp"]));
    assert_eq!(names(OldAlgorithmKind::RewardModel, Flags::REF_LOGP, none()), named(&["margin", "sequence_value"]));
    let mismatched = json!({"x-rlhost": {"mismatched": true}});
    let all =
        ["label", "logp", "micro_batch/label", "micro_batch/mismatched_logp", "micro_batch/mismatched_ref_logp", "ref_logp"];
    assert_eq!(names(OldAlgorithmKind::Labelled, Flags::REF_LOGP, mismatched.clone()), named(&all));

    let wrong = names(OldAlgorithmKind::Labelled, Flags::empty(), mismatched).unwrap_err();
    assert!(wrong.contains("not for ref-logp itself"), "{wrong}");
    let both = json!({"x-rlhost": {"prompt_logp": true, "log_sum_squares": true}});
    assert!(names(OldAlgorithmKind::Preference, Flags::empty(), both).unwrap_err().contains("only one"));
    let text = json!({"x-rlhost": {"prompt_logp": "yes"}});
    assert!(
        names(OldAlgorithmKind::Preference, Flags::empty(), text)
            .unwrap_err()
            .contains("prompt_logp \"yes\"; it must be true or false")
    );
    let texts: Vec<String> =
        needs_of_texts(Flags::PROMPT_TEXT | Flags::TOKEN_IDS | Flags::ENTROPY).names().map(str::to_owned).collect();
    assert_eq!(texts, ["prompt_text", "token_ids"]);
}
