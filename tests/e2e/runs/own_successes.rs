//! Learning from one's own successes: the algorithm's plugin writes what its teacher reads.

use rlhost_tests::mpi::{possible, run, same_figures, same_weights};
use rlhost_tests::{KilledOnDrop, TestFolder, small};
use serde_json::json;
use std::time::Duration;

/// A place with prompts, some with feedback, and a reward that about half of the completions get.
fn place_of_prompts() -> TestFolder {
    let place = TestFolder::new();
    let row =
        |i: u32| json!({"prompt": format!("Say {i}"), "privileged_context": if i.is_multiple_of(3) { "Too long." } else { "" }});
    place.write("prompts.jsonl", (0..16).map(|i| format!("{}\n", row(i))).collect::<String>());
    place.write("even.py", "def even(completion):\n    return float(sum(c.isalpha() for c in completion) % 2 == 0)\n");
    place
}

/// The arguments of a run with groups of four completions.
fn sdpo<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["sdpo", "--plugin", "even.py", "--num-generations", "4", "--max-completion-length", "12", "--logging-steps", "1"];
    [&base[..], &["--output-dir", run, "--learning-rate", "0.003"], &small(), &["--dataset", "prompts.jsonl"], more].concat()
}

#[test]
fn a_completion_is_taught_by_a_success_or_by_feedback() {
    let place = place_of_prompts();
    let share = |run: &str, more: &[&str], name: &str| {
        place.run(&sdpo(run, &[&["--max-steps", "4"], more].concat())).succeeded();
        place.figure(run, &format!("self_distillation/{name}_fraction"))
    };
    let solved = share("solved", &[], "success_sample");
    assert!(solved.iter().any(|share| *share > 0.0), "{solved:?}");
    assert_eq!(place.figure("solved", "self_distillation/reprompt_sample_fraction"), solved);
    assert!(place.figure("solved", "divergence").iter().any(|divergence| *divergence != 0.0));
    let impossible = ["--success-reward-threshold", "2"];
    assert_eq!(share("impossible", &impossible, "reprompt_sample"), [0.0; 4]);
    assert_eq!(place.figure("impossible", "grad_norm"), [0.0; 4]);
    let fed_back = [&impossible[..], &["--include-environment-feedback", "true"]].concat();
    let used = share("fed-back", &fed_back, "feedback_used");
    assert_eq!(place.figure("fed-back", "self_distillation/reprompt_sample_fraction"), used);
    assert!(used.iter().any(|share| *share > 0.0), "{used:?}");
    // The teacher reads another question, and so teaches something else.
    let loss = |run: &str, more: &[&str]| {
        place.run(&sdpo(run, &[&["--max-steps", "1", "--distillation-mode", "full_logits"], more].concat())).succeeded();
        place.figure(run, "loss")[0]
    };
    let (usual, short) = (loss("usual", &[]), loss("short", &["--max-reprompt-len", "3"]));
    assert!(usual != short && usual > 0.0, "{usual} {short}");
    // At the first step, the average is the policy and the model that the run starts with.
    for kind in ["live", "base"] {
        assert_eq!(loss(kind, &["--teacher-model-kind", kind]), usual);
    }
    // Groups whose rewards don't differ are left out, and the others are taught.
    let filtered = share("filtered", &["--filter-groups", "true", "--max-num-gen-batches", "50"], "success_sample");
    assert!(filtered.iter().all(|share| *share > 0.0), "{filtered:?}");
    // Where nothing is different but the question, there is nothing to learn.
    let same = loss("same", &["--reprompt-template", "{prompt}", "--teacher-model-kind", "live"]);
    assert!(same.abs() < 1e-6, "{same}");
}

#[test]
fn what_the_teacher_reads_is_kept_until_it_is_learned_from() {
    let place = place_of_prompts();
    let steps = ["--max-steps", "6", "--save-steps", "1", "--include-environment-feedback", "true"];
    let later = ["--num-iterations", "2", "--steps-per-generation", "2"];
    let top = ["--distillation-mode", "topk_logits", "--distillation-topk", "9", "--distillation-weight", "0.5"];
    for (run, more) in
        [("sampled", &later[..]), ("top", &[&later[..], &top].concat()), ("adapter", &[&later[..], &["--lora-r", "4"]].concat())]
    {
        place.run(&sdpo(run, &[&steps[..], more].concat())).succeeded();
        let file = if run == "adapter" { "adapter_model.safetensors" } else { "model.safetensors" };
        // Within a generation, between its passes, and at its end.
        for step in [1, 2, 4] {
            place.assert_resumes(run, step, 6, file);
        }
    }
}

#[test]
fn a_conversations_last_question_is_replaced() {
    let place = place_of_prompts();
    let message = |role: &str, content: String| json!({"role": role, "content": content});
    let row = |i: u32, last: &str| json!({"prompt": [message("system", "Count.".into()), message(last, format!("Say {i}"))]});
    let template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}";
    let write = |last: &str| place.write("prompts.jsonl", (0..16).map(|i| format!("{}\n", row(i, last))).collect::<String>());
    place.write("template.jinja", template);
    write("user");
    let chat = ["--max-steps", "2", "--chat-template-path", "template.jinja"];
    place.run(&sdpo("chat", &chat)).succeeded();
    assert!(place.figure("chat", "self_distillation/reprompt_sample_fraction").iter().any(|share| *share > 0.0));
    write("assistant");
    let outcome = place.run(&sdpo("answered", &chat));
    assert!(outcome.code == Some(2) && outcome.error().contains("must end with a question of the user"), "{}", outcome.stderr);
}

#[test]
fn a_script_may_write_what_the_teacher_reads() {
    let place = place_of_prompts();
    place.write(
        "hindsight.py",
        "def teacher_prompts(questions, completions, rewards, privileged_context, log_metric):\n    \
             log_metric('hindsight/failed', sum(r == 0 for r in rewards))\n    \
             texts = zip(questions, completions, rewards, privileged_context)\n    \
             return [f'{q} Not {c!r}. {hint}' if r == 0 else None for q, c, r, hint in texts]\n\n\
         def loss(reverse_kl, has_teacher_prompt):\n    return reverse_kl * has_teacher_prompt\n",
    );
    let base = ["--algorithm", "hindsight.py", "--plugin", "even.py", "--num-generations", "4", "--max-completion-length", "12"];
    let run = |name: &str, more: &[&str]| {
        let common = ["--logging-steps", "1", "--learning-rate", "0.003", "--dataset", "prompts.jsonl", "--output-dir", name];
        let kind = ["--teacher-model-kind", "live", "--max-steps", "4"];
        place.run(&[&base[..], &common, &kind, more].concat()).succeeded();
    };
    run("corrected", &["--num-iterations", "2", "--steps-per-generation", "2", "--save-steps", "1"]);
    let failed = place.lines("corrected/metrics.jsonl").into_iter().filter_map(|row| row["hindsight/failed"].as_f64());
    assert!(failed.sum::<f64>() > 0.0);
    assert!(place.figure("corrected", "grad_norm").iter().all(|norm| *norm > 0.0));
    place.assert_resumes("corrected", 1, 4, "model.safetensors");
    // The same function without one of the texts that it needs, and one that returns something else.
    for (source, expected) in [
        ("def teacher_prompts(questions, hint):\n    return [None] * len(questions)\n", "takes hint, which is no column"),
        ("def teacher_prompts(questions):\n    return [None]\n", "returned 1 questions for"),
    ] {
        place.write("hindsight.py", format!("{source}\ndef loss(reverse_kl):\n    return reverse_kl\n"));
        let steps = ["--teacher-model-kind", "live", "--max-steps", "1", "--dataset", "prompts.jsonl", "--output-dir", "no"];
        let outcome = place.run(&[&base[..], &steps].concat());
        assert!(outcome.code == Some(2) && outcome.error().contains(expected), "{expected}: {}", outcome.stderr);
        assert!(!place.path("no").exists());
    }
}

#[test]
fn what_the_teacher_reads_can_be_changed_while_a_run_goes_on() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let place = place_of_prompts();
    let script = |body: &str| {
        let text = format!(
            "def teacher_prompts(questions, completions):\n    {body}\n\ndef loss(reverse_kl, has_teacher_prompt):\n    return reverse_kl * has_teacher_prompt\n"
        );
        place.write("hints.py", text);
    };
    script("return [q + ' Be short.' for q in questions]");
    let base = ["--algorithm", "hints.py", "--plugin", "even.py", "--num-generations", "4", "--max-completion-length", "12"];
    let more = ["--teacher-model-kind", "live", "--max-steps", "2000", "--dataset", "prompts.jsonl", "--output-dir", "run"];
    let mut run = KilledOnDrop(place.start(&[&base[..], &more].concat()));
    place.wait("run", PATIENCE, || place.steps("run") > 1);
    // What fails its trial changes nothing.
    script("return [None]");
    place.wait("run", PATIENCE, || !place.events("run", "plugin_refused").is_empty());
    let refused = place.events("run", "plugin_refused")[0].to_string();
    assert!(refused.contains("returned 1 questions for"), "{refused}");
    script("return [q + ' Be long.' for q in questions]");
    place.wait("run", PATIENCE, || !place.events("run", "plugin_swapped").is_empty());
    let swapped = place.steps("run");
    place.wait("run", PATIENCE, || place.steps("run") > swapped + 1);
    run.signal("TERM");
    assert_eq!(run.wait().unwrap().code(), Some(3));
}

#[test]
fn successes_of_all_ranks_are_found() {
    if !possible() {
        return;
    }
    let place = place_of_prompts();
    for (ranks, size) in [(1, "8"), (2, "4")] {
        let own = ["--algorithm", "sdpo", "--plugin", "even.py", "--dataset", "prompts.jsonl", "--max-completion-length", "12"];
        let own =
            [&own[..], &["--num-generations", "4", "--num-iterations", "2", "--max-steps", "3", "--learning-rate", "0.0003"]];
        let own = [&own.concat()[..], &["--per-device-train-batch-size", size]].concat();
        run(&place, &format!("on-{ranks}"), ranks, &own).succeeded();
    }
    same_figures(&place, "on-2", "on-1");
    same_weights(&place, "on-2", "on-1", 3);
}

#[test]
fn what_can_not_be_taught_is_refused_by_name() {
    let place = place_of_prompts();
    let refused = |more: &[&str], part: &str| {
        let outcome = place.run(&sdpo("no", &[&["--max-steps", "1"], more].concat()));
        assert!(outcome.code == Some(2) && outcome.error().contains(part), "{part}: {}", outcome.stderr);
        assert!(!place.path("no").exists());
    };
    refused(&["--distillation-mode", "topk_logits"], "distillation_topk must be set");
    refused(&["--reprompt-template", "{prompt} {hint}"], "reprompt_template has {hint}");
    refused(&["--distillation-weight", "1.5"], "distillation_weight");
    refused(&["--num-generations", "1"], "num_generations");
    refused(&["--environment", "calculator_tool"], "writes what a teacher reads");
    refused(&["--distillation-weight", "0", "--teacher-model-kind", "ema"], "teacher_model_kind: sdpo has no teacher");
    refused(&["--zero-stage", "3"], "zero_stage: is not possible with teacher_model_kind ema");
    refused(&["--lora-r", "4", "--use-dora", "true"], "this adapter trains more than that");
    place.run(&sdpo("policy", &["--max-steps", "2", "--distillation-weight", "0"])).succeeded();
    let unrewarded: Vec<&str> =
        sdpo("no", &[]).into_iter().filter(|argument| !["--plugin", "even.py"].contains(argument)).collect();
    let outcome = place.run(&unrewarded);
    assert!(outcome.code == Some(2) && outcome.error().contains("name at least one reward"), "{}", outcome.stderr);
}
