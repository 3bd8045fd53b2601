//! `rlhost bench`, and the figures of a run about its own speed. No time is held to a limit; what is
//! tested is that the figures are of one another.

use rlhost_tests::{TestFolder, tiny};
use serde_json::Value;

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("no number: {v}"))
}

fn assert_close(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= 1e-9 * want.abs(), "{what}: {got}, not {want}");
}

/// The line of JSON that a measurement prints.
fn measured(place: &TestFolder, arguments: &[&str]) -> Value {
    let outcome = place.run(&[&["bench", "--json", "-q"], arguments].concat());
    serde_json::from_str(&outcome.succeeded().stdout).expect("a line of JSON")
}

/// Asserts what must hold of any measurement: parts add up to the step, shares to one, and rates are
/// tokens over time.
fn assert_consistent(said: &Value) {
    let steps = number(&said["steps"]);
    let step = number(&said["step_time"]["mean"]);
    let sum = |what: &str| said[what].as_object().expect("an object").values().map(number).sum::<f64>();
    assert_close(sum("time"), step, "the sum of the parts");
    assert_close(sum("share"), 1.0, "the sum of the shares");
    for (part, share) in said["share"].as_object().expect("an object") {
        assert_close(number(share), number(&said["time"][part]) / step, part);
    }
    assert_close(number(&said["throughput"]) * step * steps, number(&said["tokens"]["trained"]), "tokens trained on");
    let (least, greatest) = (number(&said["step_time"]["least"]), number(&said["step_time"]["greatest"]));
    assert!(least <= step && step <= greatest && least > 0.0, "{said}");
    let training = &said["bounds"]["training"];
    assert_close(number(&training["took_s"]), number(&said["time"]["forward"]) + number(&said["time"]["backward"]), "training");
    let rate = number(&said["bounds"]["product_gflop_per_s"]);
    assert_close(number(&training["least_s"]), number(&training["gflop"]) / rate, "the bound of training");
    assert_close(number(&training["ratio"]), number(&training["took_s"]) / number(&training["least_s"]), "its ratio");
    let memory = said["memory_mb"].as_object().expect("an object");
    assert_close(memory.values().map(number).sum(), number(&said["peak_memory_mb"]), "the parts of the peak");
    // Training keeps something for each weight, and AdamW two moments.
    assert_close(number(&memory["moments"]), 2.0 * number(&memory["gradients"]), "the moments");
    assert!(number(&memory["activations"]) > 0.0 && number(&memory["weights"]) > 0.0, "{said}");
    assert!(number(&said["peak_memory_mb"]) > 1.0 && number(&said["snapshot_s"]) > 0.0 && rate > 0.0, "{said}");
}

#[test]
fn a_measurement_of_grpo_has_figures_that_fit_one_another() {
    let place = TestFolder::new();
    let sizes = ["--per-device-train-batch-size", "4", "--num-generations", "4", "--max-completion-length", "6"];
    let more = ["--prompt-length", "20", "--steps", "3", "--num-threads", "1", "--beta", "0.1"];
    let said = measured(&place, &[&["--model", tiny()], &sizes[..], &more].concat());
    assert_consistent(&said);
    assert_eq!((said["steps"].as_u64(), said["threads"].as_u64()), (Some(3), Some(1)));
    assert_eq!((said["model"]["family"].as_str(), said["model"]["device"].as_str()), (Some("Llama"), Some("cpu")));
    for part in ["rollout", "reward", "reference", "advantage", "forward", "loss", "backward", "optimizer"] {
        assert!(number(&said["time"][part]) > 0.0, "{part}: {said}");
    }
    let (tokens, steps) = (&said["tokens"], number(&said["steps"]));
    assert_close(
        number(&said["rollout_throughput"]) * number(&said["time"]["rollout"]) * steps,
        number(&tokens["generated"]),
        "tokens generated",
    );
    // A token for each byte of the prompt, and completions of one to six tokens.
    assert!((12.0..=72.0).contains(&number(&tokens["generated"])), "{said}");
    assert_eq!(number(&tokens["trained"]), number(&tokens["generated"]) + 3.0 * 4.0 * 20.0);
    assert_eq!(number(&tokens["packed"]), number(&tokens["generated"]) + 3.0 * 20.0);
    let rollout = &said["bounds"]["rollout"];
    assert!(number(&rollout["rounds"]) <= 5.0 && number(&rollout["took_s"]) == number(&said["time"]["rollout"]), "{said}");
    assert_close(number(&rollout["ratio"]), number(&rollout["took_s"]) / number(&rollout["least_s"]), "the ratio of generation");
    assert!(place.entries().is_empty(), "{:?}", place.entries());
    // The model and its reference; a generation lays out every matrix, and caches what it has read.
    let memory = &said["memory_mb"];
    assert_close(number(&memory["weights"]), 2.0 * number(&memory["gradients"]), "policy and reference");
    assert!(number(&memory["copies"]) > 0.0 && number(&memory["caches"]) > 0.0, "{said}");
}

#[test]
fn a_base_in_bf16_is_in_memory_once() {
    let place = TestFolder::new();
    place.run(&["export", tiny(), "half", "--dtype", "bf16"]).succeeded();
    let sizes = ["--per-device-train-batch-size", "4", "--num-generations", "4", "--max-completion-length", "6"];
    let more = ["--prompt-length", "20", "--steps", "1", "--beta", "0.1", "--lora-r", "2", "--model", "half", "--dtype"];
    let of = |dtype: &str| measured(&place, &[&sizes[..], &more, &[dtype]].concat());
    let (half, wide) = (of("auto"), of("float32"));
    let memory = |said: &Value, part: &str| number(&said["memory_mb"][part]);
    // The adapter and the norms are f32 in both, and only the adapter is laid out.
    let saved = memory(&wide, "weights") - memory(&half, "weights");
    assert!(saved > 0.4 * memory(&wide, "weights"), "{half}\n{wide}");
    assert!(memory(&half, "copies") < memory(&wide, "copies"), "{half}\n{wide}");
    assert_eq!(memory(&half, "moments"), memory(&wide, "moments"));
    assert_eq!(half["model"]["parameters"], wide["model"]["parameters"]);
}

#[test]
fn moments_in_8_bits_are_measured_as_such() {
    let place = TestFolder::new();
    let sizes = ["--per-device-train-batch-size", "4", "--num-generations", "4", "--max-completion-length", "6"];
    let more = ["--prompt-length", "20", "--steps", "1", "--model", tiny(), "--optim"];
    let moments = |optim| number(&measured(&place, &[&sizes[..], &more, &[optim]].concat())["memory_mb"]["moments"]) * 1e6;
    // Two layers of 64 by 64 twice and 160 by 64 three times, and the output matrix: in blocks of 256 of one byte each, with a scale.
    let (values, blocks) = (2.0 * (2.0 * 4096.0 + 3.0 * 10240.0) + 16448.0, 2.0 * (2.0 * 16.0 + 3.0 * 40.0) + 65.0);
    // The embeddings, four matrices of 32 by 64, and five norms.
    let others = 16448.0 + 4.0 * 2048.0 + 5.0 * 64.0;
    assert_close(moments("adamw_8bit"), 2.0 * (values + 4.0 * blocks) + 8.0 * others, "in 8 bits");
    assert_close(moments("adamw_torch"), 8.0 * (values + others), "in 32 bits");
}

#[test]
fn steps_are_whole_generations() {
    let place = TestFolder::new();
    let sizes = ["--per-device-train-batch-size", "2", "--num-generations", "4", "--max-completion-length", "4"];
    let more = ["--steps-per-generation", "2", "--num-iterations", "2", "--steps", "5", "--prompt-length", "10"];
    let said = measured(&place, &[&["--model", tiny()], &sizes[..], &more].concat());
    assert_consistent(&said);
    // A generation of four completions is trained on in four steps of two.
    assert_eq!((said["warm_up_steps"].as_u64(), said["steps"].as_u64()), (Some(4), Some(8)));
    let tokens = &said["tokens"];
    assert_eq!(number(&tokens["trained"]), 2.0 * number(&tokens["generated"]) + 8.0 * 2.0 * 10.0);
}

#[test]
fn sizes_with_random_weights_need_neither_weights_nor_tokenizer_nor_rows() {
    let place = TestFolder::new();
    let config = |vocabulary: usize| {
        serde_json::json!({
            "model_type": "qwen2", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": vocabulary, "max_position_embeddings": 128, "tie_word_embeddings": true,
        })
        .to_string()
    };
    place.write("config.json", config(300));
    place.write("small.json", config(100));
    let sizes = ["--max-completion-length", "8", "--steps", "1"];
    let said = measured(&place, &[&["--model-config", "config.json", "--random-weights"], &sizes[..]].concat());
    assert_consistent(&said);
    // The embedding, and two layers of attention with biases, gated unit and norms; and the last norm.
    let layer = 2 * 16 * 16 + 2 * 8 * 16 + 16 + 2 * 8 + 3 * 24 * 16 + 2 * 16;
    assert_eq!(said["model"]["parameters"].as_u64(), Some(300 * 16 + 2 * layer + 16));
    for (algorithm, from) in [("dpo", "generation"), ("sft", "dataset")] {
        let more = ["--algorithm", algorithm, "--learn-from", from, "--per-device-train-batch-size", "4", "--json", "-q"];
        let said = measured(&place, &[&["--model-config", "config.json"], &sizes[..], &more[..6]].concat());
        assert_consistent(&said);
        assert!(said.get("rollout_throughput").is_none() && said["bounds"].get("rollout").is_none(), "{said}");
        assert!(number(&said["time"]["loss"]) > 0.0, "{said}");
    }
    let with_a_tokenizer = measured(&place, &[&["--model-config", "config.json", "--tokenizer", tiny()], &sizes[..]].concat());
    assert_consistent(&with_a_tokenizer);
    let own_sizes = measured(&place, &[&["--model", tiny(), "--random-weights"], &sizes[..]].concat());
    assert_eq!(own_sizes["model"]["family"].as_str(), Some("Llama"));
    let small = place.run(&["bench", "--model-config", "small.json"]);
    assert!(small.code == Some(2) && small.error().contains("257") && small.error().contains("small.json"), "{}", small.stderr);
}

#[test]
fn the_table_says_what_was_measured() {
    let place = TestFolder::new();
    let sizes = ["--model", tiny(), "--max-completion-length", "4", "--prompt-length", "8", "--steps", "1"];
    let table = place.run(&[&["bench"], &sizes[..]].concat()).succeeded().stdout.clone();
    for part in
        ["Llama of 0.1 million parameters, f32 on cpu", "rollout", "backward", "tokens/s", "MB", "GB/s", "GFLOP/s", "times"]
    {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
}

#[test]
fn mistakes_are_explained() {
    let place = TestFolder::new();
    place.write("config.json", "{\"model_type\": \"gptj\"}");
    place.write("prompts.jsonl", "{\"prompt\": \"a\"}\n");
    let cases: &[(&[&str], &[&str])] = &[
        (&["--steps", "0"], &["--steps", "0"]),
        (&["--steps", "many"], &["--steps", "many"]),
        (&["--max-steps", "3"], &["--max-steps", "--steps"]),
        (&["--output-dir", "run"], &["--output-dir", "keeps no files"]),
        (&["--model-config", "nowhere.json"], &["nowhere.json"]),
        (&["--model-config", "config.json"], &["config.json", "gptj"]),
        (&["--model-config", "config.json", "--model", "x"], &["--model-config", "--model"]),
        (&["--random-weights"], &["--random-weights", "--model-config"]),
        (&["--model", tiny(), "--tokenizer", tiny()], &["--tokenizer", "--random-weights"]),
        (&["--model", tiny(), "--prompt-length", "8", "--dataset", "prompts.jsonl"], &["--prompt-length", "--dataset"]),
        (&["--model", tiny(), "--prompt-length", "190"], &["190", "64", "192"]),
        (&["--model", tiny(), "--max-completion-length", "200"], &["200", "192"]),
        (&["--model", tiny(), "--dataset", "prompts.jsonl"], &["1 prompt,", "2"]),
        (&["--lerning-rate", "1"], &["--lerning-rate", "learning-rate"]),
    ];
    for (arguments, expected) in cases {
        let outcome = place.run(&[&["bench"], *arguments].concat());
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        for part in *expected {
            assert!(outcome.error().contains(part), "{arguments:?} should mention {part:?}: {}", outcome.error());
        }
    }
    assert_eq!(place.entries(), ["config.json", "prompts.jsonl"]);
}

#[test]
fn a_runs_own_figures_of_speed_fit_one_another() {
    let place = TestFolder::with_answers();
    let often = ["--max-steps", "8", "--logging-steps", "8", "--steps-per-generation", "4", "--beta", "0.1", "--save-steps", "4"];
    place.train("grpo", &often).succeeded();
    let pairs = ["--model", tiny(), "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--max-steps", "2", "--logging-steps", "1"];
    place.run(&[&pairs[..], &["--output-dir", "dpo"]].concat()).succeeded();
    for run in ["grpo", "dpo"] {
        for line in place.lines(&format!("{run}/metrics.jsonl")) {
            let figures = line.as_object().expect("an object");
            let of_step = |name: &str| name.starts_with("time/") && name != "time/checkpoint";
            let parts: f64 = figures.iter().filter(|(name, _)| of_step(name)).map(|(_, v)| number(v)).sum();
            assert_close(parts, number(&line["step_time"]), &format!("{run}: the sum of the parts"));
            assert!(number(&line["perf/peak_memory_mb"]) > 1.0 && number(&line["perf/throughput"]) > 0.0, "{line}");
        }
    }
    let line = &place.lines("grpo/metrics.jsonl")[0];
    let trained = number(&line["perf/throughput"]) * 8.0 * number(&line["step_time"]);
    assert_close(trained, number(&line["num_tokens"]), "tokens trained on");
    let generated = number(&line["perf/rollout_throughput"]) * 8.0 * number(&line["time/rollout"]);
    let whole = 64.0 * number(&line["completions/mean_length"]);
    assert!((generated - whole).abs() < 1e-6 * whole, "{generated} tokens generated, not {whole}");
    assert!(number(&line["time/checkpoint"]) > 0.0 && number(&line["time/reference"]) > 0.0);
}
