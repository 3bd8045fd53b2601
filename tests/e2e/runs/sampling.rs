//! How sampled tokens are scored: among those that could be drawn, by sampling or by the training's forward pass, and corrected for
//! the difference.

use rlhost_tests::TestFolder;

/// Each generation is trained on twice, in two steps each.
const LATER: [&str; 10] =
    ["--max-steps", "6", "--save-steps", "1", "--steps-per-generation", "2", "--num-iterations", "2", "--learning-rate", "1e-3"];

const DIFFERENCES: [&str; 2] = ["sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"];

/// A figure of the steps that have it.
fn known(place: &TestFolder, run: &str, name: &str) -> Vec<f64> {
    place.lines(&format!("{run}/metrics.jsonl")).iter().filter_map(|line| line[name].as_f64()).collect()
}

fn resumes(place: &TestFolder, run: &str, from: u64) {
    let name = format!("{run}-from-{from}");
    place.copy_as_after(run, from, &name);
    place.run(&["resume", &name]).succeeded();
    place.assert_same_end(&name, run, 6, "model.safetensors");
}

#[test]
fn tokens_are_scored_among_those_that_could_be_drawn_and_a_run_resumes_so() {
    let place = TestFolder::new();
    for (run, sampling) in [
        ("two", &["--top-k", "2"][..]),
        ("many", &["--top-p", "0.9", "--min-p", "0.001", "--repetition-penalty", "1.3", "--temperature", "0.8"]),
    ] {
        place.train(run, &[&LATER[..], sampling, &["--beta", "0.1"]].concat()).succeeded();
        // In the first step of a generation, when the weights are those that sampled.
        for figure in DIFFERENCES {
            let off = known(&place, run, figure);
            assert!(off.len() == 2 && off.iter().all(|off| *off < 1e-3), "{figure}: {off:?}");
        }
        assert!(place.figure(run, "kl")[0].abs() < 1e-6, "the reference is scored alike");
        resumes(&place, run, 1);
        resumes(&place, run, 3);
    }
    // Of two tokens, a draw has one bit at most.
    assert!(place.figure("two", "entropy").iter().all(|nats| *nats <= std::f64::consts::LN_2 + 1e-6));
    place.train("whole", &[&LATER[..], &["--top-k", "2", "--score-sampling-support", "false"]].concat()).succeeded();
    assert!(place.figure("whole", "entropy").iter().all(|nats| *nats > 1.0), "TRL's is that of the vocabulary");
    let completions = |run: &str| place.lines(&format!("{run}/completions.jsonl"))[0]["completion_ids"].clone();
    assert_eq!(completions("two"), completions("whole"), "sampling is the same");
}

#[test]
fn evaluations_may_sample_otherwise() {
    let place = TestFolder::new();
    let greedy = ["--eval-dataset", rlhost_tests::STORIES, "--eval-temperature", "0", "--eval-steps", "2", "--max-steps", "2"];
    place.train("run", &[&greedy[..], &["--top-k", "3", "--beta", "0.1"]].concat()).succeeded();
    assert_eq!(known(&place, "run", "eval_loss").len(), 1);
}

#[test]
fn rollouts_of_rounded_weights_are_recomputed_and_corrected_for_and_resume_exactly() {
    let place = TestFolder::new();
    let beyond_rounding = |run: &str, figure: &str| {
        let off = known(&place, run, figure);
        assert!(off.len() == 6 && off.iter().all(|off| *off > 1e-6 && *off < 0.2), "{run} {figure}: {off:?}");
        off.iter().sum::<f64>()
    };
    let mut off = Vec::new();
    for dtype in ["bfloat16", "int8"] {
        place.train(dtype, &[&LATER[..], &["--rollout-dtype", dtype, "--beta", "0.1"]].concat()).succeeded();
        off.push(beyond_rounding(dtype, DIFFERENCES[0]));
        // The first update of a generation compares the policy with itself.
        assert!(place.figure(dtype, "clip_ratio/region_mean")[0] == 0.0);
        assert!(place.figure(dtype, "kl")[0].abs() < 1e-6, "the reference and the policy are one model");
        resumes(&place, dtype, 1);
        resumes(&place, dtype, 3);
    }
    assert!(off[1] > off[0], "8 bits round more than 16: {off:?}");
    let corrected = ["--rollout-dtype", "int8", "--importance-sampling-correction", "true"];
    place.train("corrected", &[&LATER[..], &corrected].concat()).succeeded();
    assert_ne!(place.figure("corrected", "loss"), place.figure("int8", "loss"));
    place.write("texts.jsonl", "{\"text\": \"a text\"}\n".repeat(8));
    let sft = ["sft", "--dataset", "texts.jsonl", "--rollout-dtype", "int8", "--output-dir", "sft", "--max-steps", "1"];
    let refused = place.run(&sft);
    assert!(refused.code == Some(2) && refused.error().contains("rollout_dtype"), "{}", refused.stderr);
}

#[test]
fn recomputed_log_probabilities_are_those_of_sampling_up_to_rounding() {
    let place = TestFolder::new();
    place.train("sampled", &LATER).succeeded();
    place.train("recomputed", &[&LATER[..], &["--old-logp", "recompute"]].concat()).succeeded();
    let (sampled, recomputed) = (place.figure("sampled", "loss"), place.figure("recomputed", "loss"));
    for (a, b) in sampled.iter().zip(&recomputed) {
        assert!((a - b).abs() < 1e-4, "{sampled:?} {recomputed:?}");
    }
    // In every step, where the whole generation is scored; otherwise in the first, where it is known.
    let count = |run: &str, figure: &str| known(&place, run, figure).len();
    for figure in DIFFERENCES {
        assert_eq!((count("recomputed", figure), count("sampled", figure)), (6, 2), "{figure}");
        assert!(place.figure("recomputed", figure).iter().all(|off| (0.0..1e-3).contains(off)));
    }
    for which in ["min", "mean", "max"] {
        let ratios = place.figure("recomputed", &format!("sampling/importance_sampling_ratio/{which}"));
        assert!(ratios.len() == 6 && ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-3), "{which}: {ratios:?}");
    }
    resumes(&place, "recomputed", 1);
    resumes(&place, "recomputed", 4);
    place.train("once", &["--max-steps", "2"]).succeeded();
    assert_eq!(count("once", DIFFERENCES[0]), 0, "nothing is compared where nothing is used later");
}

#[test]
fn a_correction_multiplies_by_the_ratios_under_either_name() {
    let place = TestFolder::new();
    let recompute = [&LATER[..], &["--old-logp", "recompute"]].concat();
    let own = ["--importance-sampling-correction", "--importance_sampling_mode", "token_truncate"];
    let capped = ["--importance-sampling-clip-max", "0.5"];
    place.train("own", &[&recompute[..], &own, &capped].concat()).succeeded();
    let trl = ["--vllm_importance_sampling_correction", "true", "--vllm_importance_sampling_mode", "token_truncate"];
    place.train("trl", &[&recompute[..], &trl, &["--vllm_importance_sampling_cap", "0.5"]].concat()).succeeded();
    place.assert_same_end("own", "trl", 6, "model.safetensors");
    assert!(place.figure("own", "sampling/importance_sampling_ratio/max").iter().all(|ratio| *ratio == 0.5));
    resumes(&place, "own", 3);
    place.write("run.yaml", "vllm_importance_sampling_correction: true\nvllm_importance_sampling_clip_max: none\n");
    place.train("file", &[&recompute[..], &["--config", "run.yaml"]].concat()).succeeded();
    let wrong = place.train("wrong", &[&own[..], &["--importance-sampling-clip-min", "4"]].concat());
    assert!(wrong.code == Some(2) && wrong.error().contains("clip_min"), "{}", wrong.stderr);
}

#[test]
fn a_generation_for_several_updates_is_shuffled_in_whole_groups() {
    let place = TestFolder::new();
    let prompts: String = (0..16).map(|i| format!("{{\"prompt\": \"Text {i:02} of several\"}}\n")).collect();
    place.write("prompts.jsonl", prompts);
    let run = |name: &str, more: &[&str]| {
        let rows = ["--dataset", "prompts.jsonl", "--shuffle-dataset", "false", "--max-steps", "8", "--log-completions", "all"];
        place
            .train(name, &[&rows[..], &["--num-generations", "2", "--per-device-train-batch-size", "4"], more].concat())
            .succeeded();
        let lines = place.lines(&format!("{name}/completions.jsonl"));
        lines.iter().map(|line| line["prompt"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let plain = run("plain", &[]);
    assert!(plain.is_sorted(), "{plain:?}");
    let shuffled = run("shuffled", &["--steps-per-generation", "4", "--save-steps", "3"]);
    assert_eq!(shuffled.len(), 32);
    assert!(shuffled.chunks(2).all(|group| group[0] == group[1]), "{shuffled:?}");
    for generation in shuffled.chunks(16) {
        assert!(!generation.is_sorted(), "{generation:?}");
    }
    let mut sorted = shuffled;
    sorted.sort();
    assert_eq!(sorted[..16], plain[..16], "the rows of each generation are the dataset's next");
}
