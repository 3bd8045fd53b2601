use super::crafted_plugins::{self, CraftedAlgorithm};
use super::*;
use crate::{Metric, Reduction, RewardBatch, RewardPlugin};

/// A generation of two prompts with two completions each, and no environment.
fn batch() -> Batch {
    Batch {
        step: 3,
        seed: 0,
        groups: vec![0, 2, 4],
        tokens: vec![0, 1, 3, 3, 4],
        prompt_tokens: vec![0, 1, 2],
        turns: Vec::new(),
        mask: vec![1, 0, 1, 1],
        columns: vec![
            token("logp", [-1.0; 4]),
            token("old_logp", [-2.0; 4]),
            token("entropy", [0.5; 4]),
            token("advantage", [1.0; 4]),
            Column::new("prompt_logp", Unit::PromptToken, vec![-1.0; 2]),
            Column::new("reward/length", Unit::Sequence, vec![1.0; 4]),
        ],
        scale: Scale { items: 4, tokens: 3, prompt_tokens: 0, max_completion_length: 2 },
    }
}

fn generation() -> ScoredGeneration {
    ScoredGeneration { batch: batch(), rewards: vec![WeightedReward { name: "length".into(), weight: 1.0 }] }
}

fn token(name: &str, values: [f32; 4]) -> Column {
    Column::new(name, Unit::Token, values.to_vec())
}

/// Returns answers without errors.
fn good() -> CraftedAlgorithm {
    let estimates = ["advantage", "mask"].map(str::to_owned).to_vec();
    CraftedAlgorithm {
        needs: vec!["logp", "advantage"],
        stateless: true,
        data: Data { source: DataSource::Either, shape: Shape::Completions, estimates },
        exports: (true, true),
        estimates: vec![token("advantage", [1.0, 0.0, -1.0, 0.5]), token("mask", [1.0, 0.0, 0.0, 1.0])],
        pairs: vec![Pair { chosen: 0, rejected: 1 }, Pair { chosen: 3, rejected: 2 }],
        loss: 0.25,
        derivatives: vec![token("logp", [1.0, 0.0, 0.5, -1.0])],
        metrics: vec![Metric { name: "clip".into(), value: 0.5, weight: 2.0, reduction: Reduction::Max }],
        before_loss: "",
    }
}

fn load(answers: &CraftedAlgorithm) -> Result<AlgorithmPlugin> {
    AlgorithmPlugin::load(&PluginEngine::new().unwrap(), &answers.source(), &Map::new(), &PluginLimits::default(), 7)
}

/// Returns the error with which an algorithm with these answers is rejected.
fn refused(answers: &CraftedAlgorithm) -> String {
    load(answers).err().unwrap().to_string()
}

#[test]
fn an_algorithm_of_1_0_says_what_it_learns_from_and_answers() {
    let mut plugin = load(&good()).unwrap();
    assert_eq!(plugin.data(), &good().data);
    assert_eq!(plugin.info().needs.names().collect::<Vec<_>>(), ["advantage", "logp"]);
    let estimates = plugin.estimate(&generation()).unwrap();
    assert_eq!((estimates.columns, estimates.mask), (good().estimates[..1].to_vec(), vec![1, 0, 0, 1]));
    assert_eq!(estimates.metrics, good().metrics);
    assert_eq!(plugin.choose(&generation()).unwrap().pairs, good().pairs);
    let gradient = plugin.loss(&batch()).unwrap();
    assert_eq!((gradient.loss, gradient.by("logp")), (0.25, Some(&[1.0, 0.0, 0.5, -1.0][..])));
    assert_eq!((gradient.by("entropy"), &gradient.metrics), (None, &good().metrics));
}

#[test]
fn only_the_columns_that_it_needs_are_sent() {
    // The loss is the number of columns, and 10 for each group whose prompt's tokens are sent.
    let before_loss = "(f64.store (local.get $loss) (f64.convert_i32_u (i32.add
        (i32.load offset=60 (local.get $batch))
        (i32.mul (i32.const 10) (i32.load offset=36 (local.get $batch))))))";
    for (needs, count) in [
        (vec!["logp"], 1.0),
        (vec!["logp", "old_logp", "advantage"], 3.0),
        (vec!["logp", "ref_logp"], 1.0),
        (vec!["logp", "prompt_logp"], 32.0),
    ] {
        let mut plugin = load(&CraftedAlgorithm { needs: needs.clone(), before_loss, ..good() }).unwrap();
        assert_eq!(plugin.loss(&batch()).unwrap().loss, count, "{needs:?}");
    }
}

#[test]
fn a_seed_differs_by_step_and_follows_from_the_runs() {
    let before_loss = "(f64.store (local.get $loss) (f64.convert_i32_u (i32.load offset=8 (local.get $batch))))";
    let mut plugin = load(&CraftedAlgorithm { before_loss, ..good() }).unwrap();
    let mut seed = |step: u64, seed: u64| plugin.loss(&Batch { step, seed, ..batch() }).unwrap().loss;
    let all = [seed(3, 0), seed(4, 0), seed(3, 1)];
    assert_eq!(seed(3, 0), all[0]);
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{all:?}");
}

#[test]
fn needs_and_data_that_can_not_be_met_are_refused_at_the_start() {
    let unknown = refused(&CraftedAlgorithm { needs: vec!["logp", "old_lopg"], ..good() });
    assert!(unknown.contains("plugin crafted: it needs \"old_lopg\", which is no column"), "{unknown}");
    assert!(unknown.ends_with("did you mean \"old_logp\"?"), "{unknown}");
    let of_rewards = refused(&CraftedAlgorithm { needs: vec!["token_ids"], ..good() });
    assert!(of_rewards.contains("\"token_ids\", which is no column"), "{of_rewards}");
    let silent = refused(&CraftedAlgorithm { exports: (false, true), ..good() });
    assert!(silent.contains("that the policy generates, but does not export estimator"), "{silent}");
    let taken = Data { estimates: vec!["logp".into()], ..good().data };
    assert!(refused(&CraftedAlgorithm { data: taken, ..good() }).contains("a column of the host's"));
    let turns = load(&CraftedAlgorithm { needs: vec!["turn_reward"], ..good() }).unwrap().estimate(&generation()).unwrap_err();
    assert!(turns.is_mistake() && turns.to_string().contains("only episodes have; set environment"), "{turns}");
}

#[test]
fn wrong_answers_are_refused_with_the_call_that_gave_them() {
    let estimate = |estimates: Vec<Column>| load(&CraftedAlgorithm { estimates, ..good() }).unwrap().estimate(&generation());
    let said = estimate(vec![token("advantage", [f32::NAN; 4])]).unwrap_err().to_string();
    assert_eq!(said, "plugin crafted, estimate in step 4: returned NaN in values of advantage at token 0");
    for (column, wrong) in [
        (Column::new("advantage", Unit::Token, vec![0.0; 3]), "3 values of advantage for 4 tokens"),
        (token("surprise", [0.0; 4]), "surprise, which is none of the estimates that it lists"),
        (Column { missing: vec![1, 0], ..token("advantage", [0.0; 4]) }, "must be ascending"),
        (Column { missing: vec![9], ..token("advantage", [0.0; 4]) }, "the missing entry 9"),
        (token("mask", [1.0; 4]), "mask 1 for token 1"),
    ] {
        let said = estimate(vec![column]).unwrap_err().to_string();
        assert!(said.contains(wrong), "{said}");
    }

    let choose = |chosen, rejected| {
        let pairs = vec![Pair { chosen, rejected }];
        load(&CraftedAlgorithm { pairs, ..good() }).unwrap().choose(&generation()).unwrap_err().to_string()
    };
    assert!(choose(0, 2).contains("plugin crafted, choose in step 4: returned a pair of rows 0 and 2"));
    assert!(choose(u32::MAX, 0).contains("4294967295"));

    let loss = |answers: CraftedAlgorithm| load(&answers).unwrap().loss(&batch()).unwrap_err().to_string();
    assert!(
        loss(CraftedAlgorithm { loss: f64::NAN, ..good() }).contains("plugin crafted, loss in step 4: returned a loss of NaN")
    );
    assert!(loss(CraftedAlgorithm { loss: 1e300, ..good() }).contains("a loss of 1e300; the limit is"));
    for (column, wrong) in [
        (Column::new("logp", Unit::Token, vec![0.0; 5]), "5 d_logp for 4 tokens"),
        (token("logp", [0.0, 1.0, 0.0, 0.0]), "1 in d_logp at token 1, whose mask is 0"),
        (token("entropy", [0.0; 4]), "derivatives of entropy, which it does not need"),
        (token("old_logp", [0.0; 4]), "derivatives of old_logp; a loss has derivatives of"),
    ] {
        let said = loss(CraftedAlgorithm { derivatives: vec![column], ..good() });
        assert!(said.contains(wrong), "{said}");
    }
    let metrics = vec![Metric { name: "loss".into(), ..good().metrics[0].clone() }];
    assert!(loss(CraftedAlgorithm { metrics, ..good() }).contains("\"loss\" is reserved"));
}

#[test]
fn an_algorithm_that_says_it_is_stateless_and_is_not_is_found_out() {
    // The loss is the number of the call.
    let before_loss = "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (f64.store (local.get $loss) (f64.convert_i32_u (global.get $calls)))";
    let mut plugin = load(&CraftedAlgorithm { before_loss, ..good() }).unwrap();
    let said = (0..4).find_map(|_| plugin.loss(&batch()).err()).unwrap().to_string();
    assert!(
        said.contains("it declares stateless: true") && said.ends_with("declare stateless: false and export the state"),
        "{said}"
    );
    assert!(said.contains("the loss differs"), "{said}");
    let mut honest = load(&CraftedAlgorithm { before_loss, stateless: false, ..good() }).unwrap();
    assert_eq!((0..4).map(|_| honest.loss(&batch()).unwrap().loss).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_reward_of_1_0_needs_texts_and_ids() {
    let load = |needs: &[&str]| {
        RewardPlugin::load(
            &PluginEngine::new().unwrap(),
            &crafted_plugins::reward(needs),
            &Map::new(),
            &PluginLimits::default(),
            0,
        )
    };
    let batch = RewardBatch {
        step: 1,
        seed: 0,
        prompts: vec!["p".to_owned()],
        columns: Vec::new(),
        prompt_of: vec![0, 0],
        completions: vec![String::new(); 2],
        finished: vec![true, true],
        offsets: vec![0, 0, 0],
        token_ids: Vec::new(),
    };
    let mut plugin = load(&["completion_text", "token_ids"]).unwrap();
    assert_eq!(plugin.score(&batch).unwrap().rewards, [None, None]);
    assert!(plugin.info().needs.has(columns::TOKEN_IDS) && !plugin.info().needs.has(columns::PROMPT_TEXT));
    let refused = load(&["completion_txt"]).err().unwrap().to_string();
    assert!(refused.contains("no input") && refused.ends_with("did you mean \"completion_text\"?"), "{refused}");
    let as_algorithm = AlgorithmPlugin::load(
        &PluginEngine::new().unwrap(),
        &crafted_plugins::reward(&[]),
        &Map::new(),
        &PluginLimits::default(),
        0,
    );
    let refused = as_algorithm.err().unwrap().to_string();
    assert!(
        refused.contains("can't serve as an algorithm: it is a reward; it does not export rlhost:plugin/algorithm@1.0.0"),
        "{refused}"
    );
}
