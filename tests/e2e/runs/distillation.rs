//! Distillation: a student that learns the predictions of a teacher, on its own completions or given ones.

use rlhost_tests::server::ServerProcess;
use rlhost_tests::{KilledOnDrop, STORIES, TestFolder, small, tiny};
use serde_json::json;
use std::fs;
use std::time::Duration;

/// A place with `teacher`, a model of the tokens of the tiny one, but of other sizes, that has learned some text, and `wide`, whose
/// vocabulary is larger.
pub(super) fn place_of_teachers() -> TestFolder {
    let place = TestFolder::with_answers();
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 96, "intermediate_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 257,
        "max_position_embeddings": 192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "torch_dtype": "float32",
    });
    place.write("teacher.json", config.to_string());
    let mut wide = config;
    wide["vocab_size"] = json!(300);
    place.write("wide.json", wide.to_string());
    for name in ["teacher", "wide"] {
        place.run(&["new-model", &format!("{name}-0"), "--config", &format!("{name}.json"), "--tokenizer", tiny()]).succeeded();
    }
    let sft = ["sft", "--model", "teacher-0", "--dataset", "answers.jsonl", "--max-steps", "30", "--learning-rate", "0.01"];
    place.run(&[&sft[..], &["--output-dir", "taught"]].concat()).succeeded();
    place
}

pub(super) fn distillation<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base =
        ["distillation", "--max-completion-length", "12", "--logging-steps", "1", "--learning-rate", "0.01", "--output-dir"];
    [&base[..], &[run], &small(), more].concat()
}

#[test]
fn a_student_comes_nearer_to_its_teacher_by_each_divergence() {
    let place = place_of_teachers();
    let teacher = ["--teacher-model", "taught/checkpoint-30", "--max-steps", "25", "--eval-dataset", STORIES];
    for beta in ["0", "0.5", "1"] {
        let run = format!("beta-{beta}");
        let evaluated = ["--beta", beta, "--eval-on-start", "--eval-steps", "25", "--eval-strategy", "steps"];
        let outcome = place.run(&distillation(&run, &[&teacher[..], &evaluated].concat()));
        assert!(!outcome.succeeded().stderr.contains("nothing to compare"), "{}", outcome.stderr);
        let rows = place.lines(&format!("{run}/metrics.jsonl"));
        let losses: Vec<f64> = rows.iter().filter_map(|row| row["eval_loss"].as_f64()).collect();
        assert!(losses.len() == 2 && losses[1] < 0.7 * losses[0] && losses[1] > 0.0, "beta {beta}: {losses:?}");
        let mut trained = rows.iter().filter(|row| row["loss"].is_number());
        assert!(trained.all(|row| row["entropy"].as_f64().is_some_and(|entropy| entropy > 0.0)), "beta {beta}");
    }
    let rows = place.lines("beta-1/completions.jsonl");
    assert!(rows.iter().all(|row| row["rewards"].as_object().is_none_or(serde_json::Map::is_empty)), "{}", rows[0]);
}

#[test]
fn a_teacher_that_is_the_student_has_nothing_to_teach() {
    let place = TestFolder::new();
    let own = ["--teacher-model", tiny(), "--max-steps", "1"];
    for (run, more) in [("own", &["--beta", "0.5"][..]), ("half", &["--loss-type", "policy_gradient"])] {
        place.run(&distillation(run, &[&own[..], more].concat())).succeeded();
        assert!(place.figure(run, "loss")[0].abs() < 1e-6 && place.figure(run, "grad_norm")[0] < 1e-4, "{run}");
    }
}

#[test]
fn runs_with_a_teacher_resume_to_the_bit_and_notice_another_one() {
    let place = place_of_teachers();
    fs::create_dir(place.path("t")).unwrap();
    place.run(&["export", "taught/checkpoint-30", "t/model"]).succeeded();
    let steps = ["--teacher-model", "t/model", "--max-steps", "4", "--save-steps", "1", "--beta", "0.3", "--lora-r", "4"];
    place.run(&distillation("run", &steps)).succeeded();
    for step in [1, 3] {
        place.assert_resumes("run", step, 4, "adapter_model.safetensors");
    }
    let gradient = ["--teacher-model", "t/model", "--max-steps", "4", "--save-steps", "1", "--loss-type", "policy_gradient"];
    place.run(&distillation("gradient", &[&gradient[..], &["--num-iterations", "2"]].concat())).succeeded();
    place.assert_resumes("gradient", 1, 4, "model.safetensors");
    assert!(place.figure("gradient", "teacher_kl").iter().all(|kl| kl.is_finite() && *kl != 0.0));

    fs::remove_dir_all(place.path("t/model")).unwrap();
    place.run(&["export", "teacher-0", "t/model"]).succeeded();
    let changed = place.run(&["resume", "run", "--max-steps", "5"]);
    assert!(changed.code == Some(2) && changed.error().contains("the teacher's weights have changed"), "{}", changed.stderr);
    place.run(&["resume", "run", "--max-steps", "5", "--allow-changed"]).succeeded();
}

#[test]
fn given_completions_are_learned_as_the_teacher_would_write_them() {
    let place = place_of_teachers();
    let given =
        ["distillation", "--model", tiny(), "--dataset", "answers.jsonl", "--learn-from", "dataset", "--learning-rate", "0.01"];
    let teacher = ["--teacher-model", "taught/checkpoint-30", "--logging-steps", "1", "--max-steps", "30", "--beta", "0"];
    place.run(&[&given[..], &teacher, &["--output-dir", "given"]].concat()).succeeded();
    let losses = place.figure("given", "loss");
    assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
    let of_samples = place.run(&[&given[..], &teacher, &["--output-dir", "no", "--loss-type", "policy_gradient"]].concat());
    assert!(of_samples.code == Some(2) && of_samples.error().contains("learn_from: is \"dataset\""), "{}", of_samples.stderr);
    assert!(!place.path("no").exists());
}

#[test]
fn a_teacher_can_be_held_in_fewer_bits_and_read_more_tokens() {
    let place = place_of_teachers();
    let first = |run: &str, more: &[&str]| {
        place.run(&distillation(run, &[&["--max-steps", "1", "--beta", "0"], more].concat())).succeeded();
        place.figure(run, "loss")[0]
    };
    let teacher = ["--teacher-model", "taught/checkpoint-30"];
    let whole = first("whole", &teacher);
    for bits in ["--teacher-load-in-8bit", "--teacher-load-in-4bit"] {
        let loss = first(&bits[2..], &[&teacher[..], &[bits]].concat());
        assert!(loss != whole && (loss - whole).abs() < 0.2 * whole, "{bits}: {loss} and {whole}");
    }
    assert!(first("wide-run", &["--teacher-model", "wide-0"]) > 0.0);
    let narrow = ["distillation", "--model", "wide-0", "--teacher-model", "teacher-0", "--dataset", STORIES];
    let refused = place.run(&[&narrow[..], &["--output-dir", "narrow"]].concat());
    assert!(
        refused.code == Some(2) && refused.error().contains("reads 257 tokens and the policy writes 300"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_teacher_adds_to_the_advantages_of_grpo() {
    let place = place_of_teachers();
    let grpo = |run: &'static str, more: &[&'static str]| {
        let base = [
            "grpo",
            "--plugin",
            "tldr_length_reward.wasm",
            "--max-steps",
            "2",
            "--max-completion-length",
            "12",
            "--output-dir",
            run,
        ];
        place.run(&[&base[..], &small(), &["--logging-steps", "1", "--num-generations", "4"], more].concat())
    };
    let teacher = ["--teacher-model", "taught/checkpoint-30", "--teacher-kl-coef", "0.5"];
    grpo("taught-by", &teacher).succeeded();
    assert!(place.figure("taught-by", "teacher_kl").iter().all(|kl| *kl > 0.0));
    grpo("alone", &[]).succeeded();
    assert_ne!(place.figure("taught-by", "grad_norm"), place.figure("alone", "grad_norm"));
    // Nothing reads what the teacher says.
    let idle = grpo("idle", &teacher[..2]);
    assert!(idle.code == Some(2) && idle.error().contains("grpo has no teacher with these settings"), "{}", idle.stderr);
}

#[test]
fn a_teacher_on_a_server_says_what_one_in_the_process_says() {
    let place = place_of_teachers();
    let server = ServerProcess::start(&place, &["--model", "taught/checkpoint-30"]);
    let url = format!("http://{}", server.address);
    let gradient = ["--max-steps", "4", "--save-steps", "2", "--loss-type", "policy_gradient"];
    place.run(&distillation("here", &[&gradient[..], &["--teacher-model", "taught/checkpoint-30"]].concat())).succeeded();
    let there = place.run(&distillation("there", &[&gradient[..], &["--teacher-server", &url]].concat()));
    let logged = ["--teacher-server", &url, "--rollout-log", "all"];
    place.run(&distillation("logged", &[&gradient[..], &logged].concat())).succeeded();
    assert!(there.succeeded().stderr.contains("teacher: rlhost serve with"), "{}", there.stderr);
    let near = |name: &str, run: &str| {
        let (got, want) = (place.figure(run, name), place.figure("here", name));
        let close = got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4 * b.abs().max(0.01));
        assert!(got.len() == want.len() && close && want.iter().all(|value| *value != 0.0), "{name}: {got:?} {want:?}");
    };
    for name in ["teacher_kl", "loss", "grad_norm"] {
        near(name, "there");
    }
    // The address need not be given again by a run that resumes.
    place.copy_as_after("there", 2, "half");
    place.run(&["resume", "half", "--max-steps", "4"]).succeeded();
    near("teacher_kl", "half");
    let divergence = place.run(&distillation("none", &["--teacher-server", &url]));
    assert!(divergence.code == Some(2) && divergence.stderr.contains("policy_gradient"), "{}", divergence.stderr);
    let warm = place.run(&distillation("none", &[&gradient[..], &["--teacher-server", &url, "--temperature", "0.7"]].concat()));
    assert!(warm.code == Some(2) && warm.stderr.contains("set temperature = 1"), "{}", warm.stderr);
    // What it said is recorded, so that a run which resumes, and a replay, learn from the same, whatever the server says by now.
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    drop(server);
    fs::remove_dir_all(place.path("taught/checkpoint-30")).unwrap();
    place.copy("teacher-0", "taught/checkpoint-30");
    let server = ServerProcess::start_at(&place, &port, &["--model", "taught/checkpoint-30"]);
    place.copy_as_after("there", 2, "again");
    place.run(&["resume", "again", "--max-steps", "4"]).succeeded();
    place.assert_same_end("again", "there", 4, "model.safetensors");
    place.copy_as_after("there", 2, "unrecorded");
    fs::remove_dir_all(place.path("unrecorded/answers")).unwrap();
    place.run(&["resume", "unrecorded", "--max-steps", "4"]).succeeded();
    let kl = |run: &str| place.figure(run, "teacher_kl");
    assert!(kl("unrecorded")[..2] == kl("there")[..2] && kl("unrecorded")[2..] != kl("there")[2..]);
    place.run(&["replay", "logged", "--train", "--output-dir", "replayed"]).succeeded();
    place.assert_same_end("replayed", "logged", 4, "model.safetensors");
    // A server that is gone ends the run with the reason, after the time that it has.
    drop(server);
    let gone = ["--teacher-server", &url, "--rollout-timeout-s", "0.5"];
    let gone = place.run(&distillation("gone", &[&gradient[..], &gone].concat()));
    assert!(gone.code != Some(0) && gone.stderr.contains("teacher_server"), "{}", gone.stderr);
}

#[test]
fn rows_name_the_teacher_that_scores_them() {
    let place = place_of_teachers();
    let prompts = ["Once there was", "A dog ran", "The sun set", "Two cats met"];
    let rows = |teachers: [&str; 2]| {
        let row = |i: usize| format!("{}\n", json!({"prompt": prompts[i], "teacher": teachers[i % 2]}));
        (0..4).map(row).collect::<String>()
    };
    place.write("both.jsonl", rows(["tales", "noise"]));
    place.write("wrong.jsonl", rows(["tales", "maths"]));
    let servers = ["taught/checkpoint-30", "teacher-0"].map(|model| ServerProcess::start(&place, &["--model", model]));
    let urls = servers.each_ref().map(|server| format!("http://{}", server.address));
    let named = |tales: usize, noise: usize| [format!("tales={}", urls[tales]), format!("noise={}", urls[noise])];
    let run = |name: &str, dataset: &str, teachers: &[String]| {
        let given: Vec<&str> = teachers.iter().flat_map(|teacher| ["--teacher-server", teacher]).collect();
        let base = ["distillation", "--loss-type", "policy_gradient", "--max-steps", "2", "--max-completion-length", "12"];
        let more = ["--per-device-train-batch-size", "4", "--logging-steps", "1", "--learning-rate", "0"];
        place.run(&[&base[..], &more, &["--model", tiny(), "--dataset", dataset, "--output-dir", name], &given].concat())
    };
    // Completions are the same, so what one teacher says of all rows and the other of all is what they say of their halves, both ways.
    let kl = [(0, 0), (1, 1), (0, 1), (1, 0)].map(|(tales, noise)| {
        let name = format!("run-{tales}{noise}");
        run(&name, "both.jsonl", &named(tales, noise)).succeeded();
        place.figure(&name, "teacher_kl")
    });
    for step in 0..2 {
        let [all_first, all_second, own, swapped] = kl.each_ref().map(|kl| kl[step]);
        assert!((all_first + all_second - own - swapped).abs() < 1e-5 * all_first.abs().max(1.0), "{kl:?}");
        assert!([all_first, all_second, swapped].iter().all(|other| (other - own).abs() > 1e-3), "{kl:?}");
    }
    let unnamed = run("wrong", "wrong.jsonl", &named(0, 1));
    assert!(unnamed.error().contains("row 1: its column \"teacher\" must be one of tales, noise"), "{}", unnamed.stderr);
    let nameless = run("nameless", "both.jsonl", &[named(0, 1)[0].clone(), urls[1].clone()]);
    assert!(nameless.error().contains("has no name, and there are several teachers"), "{}", nameless.stderr);
}

#[test]
fn rewards_only_watch_a_distillation() {
    let place = place_of_teachers();
    let teacher = ["--teacher-model", "taught/checkpoint-30", "--max-steps", "2"];
    place.run(&distillation("watched", &[&teacher[..], &["--plugin", "tldr_length_reward.wasm"]].concat())).succeeded();
    place.run(&distillation("plain", &teacher)).succeeded();
    assert_eq!(place.figure("watched", "rewards/tldr_length_reward/mean").len(), 2);
    assert_eq!(place.tensors("watched/checkpoint-2/model.safetensors"), place.tensors("plain/checkpoint-2/model.safetensors"));
}

#[test]
fn what_distillation_can_not_do_is_refused_before_it_begins() {
    let place = place_of_teachers();
    let teacher = ["--teacher-model", "taught/checkpoint-30"];
    for (more, expected) in [
        (&[][..], "name that model, as in --teacher-model"),
        (&["--teacher-model", ""], "teacher_model: is empty"),
        (&["--teacher-model", "nowhere"], "teacher_model: "),
        (&[teacher[0], teacher[1], "--beta", "1.5"], "beta"),
        (&[teacher[0], teacher[1], "--score-sampling-support", "--top-k", "5"], "a divergence compares whole distributions"),
        (&[teacher[0], teacher[1], "--filter-groups", "--num-generations", "2"], "this run has none; name one with --plugin"),
        (&[teacher[0], teacher[1], "--teacher-load-in-8bit", "--teacher-load-in-4bit"], "choose one"),
        (&[teacher[0], teacher[1], "--teacher-model-init-kwargs", "{\"dtype\": \"bfloat16\"}"], "--teacher-load-in-8bit"),
    ] {
        let refused = place.run(&distillation("refused", more));
        assert!(refused.code == Some(2) && refused.error().contains(expected), "{more:?}: {}", refused.stderr);
        assert!(!place.path("refused").exists(), "{more:?}");
    }
}

#[test]
fn settings_change_as_far_as_the_run_has_what_they_need() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let place = place_of_teachers();
    let teacher = ["--teacher-model", "taught/checkpoint-30", "--max-steps", "2000", "--beta", "0.5"];
    let mut run = KilledOnDrop(place.start(&distillation("live", &teacher)));
    place.wait("live", PATIENCE, || place.steps("live") > 1);
    let edit = |from: &str, to: &str| {
        let file = place.path("live/config.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from:?} is not in {text}");
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
    };
    edit("beta = 0.5", "beta = 0.25");
    place.wait("live", PATIENCE, || !place.events("live", "plugin_swapped").is_empty());
    edit("loss_type = \"divergence\"", "loss_type = \"policy_gradient\"");
    place.wait("live", PATIENCE, || !place.events("live", "settings_refused").is_empty());
    let reason = place.events("live", "settings_refused")[0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("a teacher's predictions that this run does not have"), "{reason}");
    run.signal("TERM");
    assert_eq!(run.wait().unwrap().code(), Some(3));
}

/// The arguments of a run of self-distillation, whose teacher reads the answer.
fn told<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["sdft", "--num-generations", "1", "--max-completion-length", "12", "--logging-steps", "1", "--output-dir", run];
    [&base[..], &small(), &["--dataset", "told.jsonl", "--learning-rate", "0.003"], more].concat()
}

/// A place with prompts, each with an answer that only a teacher reads.
fn place_of_told() -> TestFolder {
    let place = place_of_teachers();
    let row = |i: u32| json!({"prompt": format!("Say {i}"), "privileged_context": format!("It is {}.", i * 7 % 10)});
    place.write("told.jsonl", (0..16).map(|i| format!("{}\n", row(i))).collect::<String>());
    place
}

#[test]
fn a_model_learns_what_it_would_write_if_it_were_told_more() {
    let place = place_of_told();
    let steps = [
        "--max-steps",
        "30",
        "--eval-dataset",
        "told.jsonl",
        "--eval-on-start",
        "--eval-steps",
        "30",
        "--eval-strategy",
        "steps",
    ];
    for (mode, more) in [
        ("topk", &["--distillation-topk", "20"][..]),
        ("tail", &["--distillation-topk", "20", "--distillation-add-tail", "true", "--distillation-alpha", "1"]),
        ("full", &["--distillation-mode", "full_logits", "--distillation-alpha", "0"]),
        ("live", &["--distillation-mode", "full_logits", "--teacher-model-kind", "live"]),
    ] {
        place.run(&told(mode, &[&steps[..], more].concat())).succeeded();
        let rows = place.lines(&format!("{mode}/metrics.jsonl"));
        let losses: Vec<f64> = rows.iter().filter_map(|row| row["eval_loss"].as_f64()).collect();
        assert!(losses.len() == 2 && losses[1] < 0.7 * losses[0] && losses[1] > 0.0, "{mode}: {losses:?}");
    }
    // All tokens are the whole vocabulary.
    let first = |run: &str, more: &[&str]| {
        place.run(&told(run, &[&["--max-steps", "1"], more].concat())).succeeded();
        (place.figure(run, "loss")[0], place.figure(run, "grad_norm")[0])
    };
    let (whole, top) = (first("whole", &["--distillation-mode", "full_logits"]), first("top", &["--distillation-topk", "300"]));
    assert!((whole.0 - top.0).abs() < 1e-5 * whole.0 && (whole.1 - top.1).abs() < 1e-4 * whole.1, "{whole:?} {top:?}");
    // At the first step, the model that the run starts with is the policy.
    for kind in ["live", "ema"] {
        assert_eq!(first(&format!("before-{kind}"), &[]), first(&format!("as-{kind}"), &["--teacher-model-kind", kind]));
    }
    assert_ne!(first("untold", &["--teacher-prompt-template", "{prompt}\n\n"]).0, first("again", &[]).0);
    let by_tokens = ["--distillation-mode", "sampled_token", "--distillation-alpha", "1"];
    assert!(first("sampled", &by_tokens).1 > 0.0 && place.figure("sampled", "divergence")[0] != 0.0);
    // An average that takes all of the policy is the policy, and one that takes nothing the model that the run starts with.
    let losses = |run: &str, more: &[&str]| {
        place.run(&told(run, &[&["--max-steps", "4", "--learning-rate", "0.01"], more].concat())).succeeded();
        place.figure(run, "loss")
    };
    let average = |run: &str, rate: &str, more: &[&str]| {
        losses(run, &[&["--teacher-model-kind", "ema", "--teacher-update-rate", rate], more].concat())
    };
    let later = ["--num-iterations", "2", "--steps-per-generation", "2"];
    for (name, more) in [("wholly", &[][..]), ("by-tokens", &[&by_tokens[..], &later].concat()), ("over", &["--lora-r", "4"])] {
        let run = |kind: &str| losses(&format!("{name}-{kind}"), &[&["--teacher-model-kind", kind], more].concat());
        let (base, live) = (run("base"), run("live"));
        assert!(base != live, "{name}");
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs().max(1.0));
        let (all, none) = (average(&format!("{name}-all"), "1", more), average(&format!("{name}-none"), "0", more));
        assert!(close(&all, &live) && close(&none, &base), "{name}: {all:?} {live:?} {none:?} {base:?}");
        let each_third = average(&format!("{name}-third"), "1", &[more, &["--teacher-sync-steps", "3"]].concat());
        assert!(close(&each_third[..3], &base[..3]) && each_third[3] != base[3], "{name}: {each_third:?}");
    }
}

#[test]
fn files_and_checkpoints_say_who_teaches_before_the_command_does() {
    let place = place_of_told();
    let loss = |run: &str, more: &[&str]| {
        place.run(&told(run, &[&["--max-steps", "2", "--save-steps", "2"], more].concat())).succeeded();
        *place.figure(run, "loss").last().unwrap()
    };
    let live = ["--teacher-model-kind", "live", "--teacher-prompt-template", "{privileged_context} {prompt}"];
    place.write("live.toml", "teacher_model_kind = \"live\"\nteacher_prompt_template = \"{privileged_context} {prompt}\"\n");
    let (by_flags, by_file, by_default) = (loss("flags", &live), loss("file", &["--config", "live.toml"]), loss("plain", &[]));
    assert!(by_flags == by_file && by_flags != by_default, "{by_flags} {by_file} {by_default}");
    let onward = ["--max-steps", "3"];
    loss("inherited", &[&["--resume-from-checkpoint", "flags/checkpoint-2"], &onward[..]].concat());
    let config = |run: &str| fs::read_to_string(place.path(&format!("{run}/config.toml"))).unwrap();
    assert!(config("inherited").contains("teacher_model_kind = \"live\""), "{}", config("inherited"));
    // What a fork starts with is the checkpoint, and without the adapter if it has one.
    loss("fork", &[&["--resume-from-checkpoint", "plain/checkpoint-2"], &onward[..]].concat());
    assert!(config("fork").contains("plain/checkpoint-2\""), "{}", config("fork"));
    let adapter = ["--lora-r", "4", "--learning-rate", "0.1"];
    loss("adapter", &adapter);
    let over = |run: &str, kind: &str| {
        let arguments =
            ["sdft", "--num-generations", "1", "--max-completion-length", "12", "--logging-steps", "1", "--max-steps", "1"];
        let model = ["--model", "adapter/checkpoint-2", "--dataset", "told.jsonl", "--per-device-train-batch-size", "2"];
        place.run(&[&arguments[..], &model, &["--teacher-model-kind", kind, "--output-dir", run]].concat()).succeeded();
        place.figure(run, "loss")[0]
    };
    assert_ne!(over("over-base", "base"), over("over-live", "live"));
    let again = ["--num-iterations", "2", "--steps-per-generation", "2", "--learning-rate", "0.1"];
    let clipped =
        |run: &str, bound: &str| loss(run, &[&again[..], &["--distillation-is-clip", bound, "--max-steps", "4"]].concat());
    assert_ne!(clipped("one", "1"), clipped("none", "none"));
}

#[test]
fn self_distillation_resumes_to_the_bit_with_the_model_that_it_started_with() {
    let place = place_of_told();
    let steps = ["--max-steps", "4", "--save-steps", "1"];
    let twice = ["--num-iterations", "2", "--steps-per-generation", "2"];
    for (run, more) in [
        ("base", &twice[..]),
        ("live", &["--teacher-model-kind", "live"]),
        ("adapter", &["--lora-r", "4"]),
        ("sampled", &["--distillation-mode", "sampled_token", "--distillation-alpha", "1"]),
        ("average", &["--teacher-model-kind", "ema", "--teacher-update-rate", "0.5"]),
        ("averaged-adapter", &["--teacher-model-kind", "ema", "--teacher-update-rate", "0.5", "--lora-r", "4"]),
    ] {
        place.run(&told(run, &[&steps[..], more].concat())).succeeded();
        let file = if run.contains("adapter") { "adapter_model.safetensors" } else { "model.safetensors" };
        place.assert_resumes(run, 1, 4, file);
        place.assert_resumes(run, 3, 4, file);
    }
}

#[test]
fn what_a_teacher_can_not_be_told_is_refused_by_name() {
    let place = place_of_told();
    let refused = |more: &[&str], part: &str| {
        let outcome = place.run(&told("no", &[&["--max-steps", "1"], more].concat()));
        assert!(outcome.code == Some(2) && outcome.error().contains(part), "{part}: {}", outcome.stderr);
        assert!(!place.path("no").exists());
    };
    refused(&["--teacher-prompt-template", "{prompt} {hint}"], "there is no column \"hint\"");
    refused(&["--teacher-prompt-template", "{prompt"], "teacher_prompt_template");
    let base = ["--teacher-model-kind", "base", "--teacher-model", tiny()];
    refused(&base, "teacher_model_kind: is base, the model that the run starts with");
    refused(&["--distillation-mode", "sampled_token"], "distillation_alpha must be 1");
    refused(&["--distillation-topk", "0"], "distillation_topk");
    refused(&["--distillation-is-clip", "-1"], "distillation_is_clip");
    refused(&["--algorithm", "distillation"], "`rlhost sdft` trains with sdft");
    let live = ["--teacher-model-kind", "live"];
    refused(&[&live[..], &["--teacher-prompt-template", "{prompt}"]].concat(), "has nothing to teach");
    refused(&[&live[..], &["--shard-frozen", "true"]].concat(), "shard_frozen: is not possible with teacher_model_kind");
    let long = json!({"prompt": "Say 1", "privileged_context": "word ".repeat(100)});
    place.write("told.jsonl", format!("{long}\n"));
    refused(&[], "the teacher's prompt is");
    let unused = place.run(&["grpo", "--plugin", "tldr_length_reward", "--teacher-model-kind", "base", "--max-steps", "1"]);
    assert!(unused.code == Some(2) && unused.error().contains("teacher_model_kind: grpo has no teacher"), "{}", unused.stderr);
    let template = ["--teacher-prompt-template", "{prompt} {hint}", "--max-steps", "1"];
    let unused = place.run(&[&["grpo", "--plugin", "tldr_length_reward"], &template[..]].concat());
    assert!(
        unused.code == Some(2) && unused.error().contains("teacher_prompt_template: grpo has no teacher"),
        "{}",
        unused.stderr
    );
}
