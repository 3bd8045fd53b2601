//! Runs on an NVIDIA device beside the same runs on the CPU. Needs a binary with the feature `cuda` and a device, a
//! real one or `tests/software-cuda/`.

#![allow(clippy::print_stdout)]

use rlhost_tests::{TestFolder, tiny};
use std::sync::OnceLock;

/// Whether runs can be on a device; otherwise says why not.
fn there_is_a_device() -> bool {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| {
        let outcome = run(&TestFolder::with_answers(), "sft", "try", "cuda", &["--max-steps", "1"]);
        (outcome.code != Some(0)).then(|| outcome.error().to_owned())
    });
    if let Some(reason) = missing {
        assert!(reason.contains("device cuda"), "{reason}");
        println!("skipped: {reason}");
    }
    missing.is_none()
}

/// A short run of an algorithm that learns from given answers, on a device.
fn run(place: &TestFolder, algorithm: &str, run: &str, device: &str, more: &[&str]) -> rlhost_tests::CommandOutcome {
    let mut arguments = match algorithm {
        "sft" => vec!["sft", "--dataset", "answers.jsonl"],
        other => vec!["--algorithm", other, "--dataset", "pairs.jsonl"],
    };
    arguments.extend(["--model", tiny(), "--output-dir", run, "--device", device, "--logging-steps", "1"]);
    arguments.extend(["--per-device-train-batch-size", "4", "--learning-rate", "1e-3"]);
    arguments.extend(more);
    place.run(&arguments)
}

/// The greatest difference between two runs' figures of these names, relative to the greatest figure of each.
fn apart(place: &TestFolder, a: &str, b: &str, names: &[&str]) -> f64 {
    let of = |name: &&str| {
        let (a, b) = (place.figure(a, name), place.figure(b, name));
        assert!(a.len() == b.len() && !a.is_empty());
        let size = a.iter().fold(1e-9f64, |m, x| m.max(x.abs()));
        a.iter().zip(&b).fold(0f64, |m, (a, b)| m.max((a - b).abs())) / size
    };
    names.iter().map(of).fold(0.0, f64::max)
}

#[test]
fn a_device_that_is_not_there_is_missed_in_one_line() {
    let place = TestFolder::with_answers();
    for device in ["cuda:99", "gpu"] {
        let outcome = run(&place, "sft", "run", device, &[]);
        let said = outcome.error();
        assert!(outcome.code == Some(2) && said.contains(device), "{said}");
        assert!(said.contains("cuda") && said.len() < 300, "{said}");
    }
    assert!(!place.entries().contains(&"run".to_owned()));
    let outcome = run(&place, "sft", "run", "cpu", &["--max-steps", "1", "--bf16"]);
    // Products in bf16, or in f32 with a word on it where the processor gains nothing by bf16.
    let device = place.events("run", "started")[0]["device"].to_string();
    assert!(outcome.succeeded().stderr.contains("computing in f32") != device.contains("bf16"), "{device}: {}", outcome.stderr);
}

/// A place with a driver, which is the device in software, and nothing of a toolkit; or none, with the reason on the terminal.
fn only_a_driver() -> Option<(TestFolder, std::path::PathBuf)> {
    let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let software = std::env::split_paths(&path).find(|folder| folder.join("libkernels.so").exists());
    let known =
        std::process::Command::new("ldconfig").arg("-p").output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let reason = match &software {
        None => "there is no device in software",
        Some(_) if std::path::Path::new("/usr/local/cuda/lib64").exists() => "there is a toolkit, where libraries are looked for",
        Some(_) if known.is_ok_and(|known| known.contains("libcublas.so")) => "the loader knows a libcublas",
        Some(software) => {
            let place = TestFolder::with_answers();
            for library in ["libcuda.so.1", "libkernels.so"] {
                std::os::unix::fs::symlink(software.join(library), place.path(library)).unwrap();
            }
            return Some((place, software.clone()));
        }
    };
    println!("skipped: {reason}");
    None
}

#[test]
fn a_library_that_is_not_there_is_named_and_one_beside_a_python_is_found() {
    let Some((place, software)) = only_a_driver() else { return };
    let (driver, bin) = (place.path("").display().to_string(), place.path("bin").display().to_string());
    let try_it = || {
        let arguments = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", "run", "--device", "cuda"];
        let variables =
            [("LD_LIBRARY_PATH", &*driver), ("PATH", &*bin), ("CUDA_HOME", ""), ("CUDA_PATH", ""), ("RUST_BACKTRACE", "1")];
        place.run_with(&[&arguments[..], &["--max-steps", "1"]].concat(), &variables)
    };
    let outcome = try_it();
    let said = outcome.error();
    assert!(said.contains("libcublas.so.13") && said.contains("LD_LIBRARY_PATH") && said.len() < 400, "{said}");
    assert_eq!(outcome.code, Some(2));
    assert!(!place.entries().contains(&"run".to_owned()));
    // As PyTorch has them.
    let packages = place.path("lib/python3.12/site-packages/nvidia/cu13/lib");
    std::fs::create_dir_all(&packages).unwrap();
    std::fs::create_dir_all(place.path("bin")).unwrap();
    for library in ["libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10"] {
        std::os::unix::fs::symlink(software.join(library), packages.join(library)).unwrap();
    }
    try_it().succeeded();
}

#[test]
fn a_run_gives_the_figures_that_it_gives_on_the_cpu() {
    if !there_is_a_device() {
        return;
    }
    let place = TestFolder::with_answers();
    for algorithm in ["sft", "dpo"] {
        let steps = ["--max-steps", "4"];
        let names = |way: &str| format!("{algorithm}-{way}");
        run(&place, algorithm, &names("cpu"), "cpu", &steps).succeeded();
        run(&place, algorithm, &names("f32"), "cuda:0", &[&steps[..], &["--bf16", "false"]].concat()).succeeded();
        run(&place, algorithm, &names("bf16"), "cuda", &steps).succeeded();
        let figures = ["loss", "grad_norm"];
        let exact = apart(&place, &names("cpu"), &names("f32"), &figures);
        assert!(exact < 1e-4, "{algorithm} in f32: {exact}");
        let rounded = apart(&place, &names("cpu"), &names("bf16"), &figures);
        assert!(rounded < 0.05, "{algorithm} in bf16: {rounded}");
        let started = &place.events(&names("bf16"), "started")[0];
        assert!(started["device"].as_str().unwrap().contains("bf16"), "{started}");
    }
}

#[test]
fn a_run_goes_on_to_the_bit_and_in_another_place() {
    if !there_is_a_device() {
        return;
    }
    let place = TestFolder::with_answers();
    let adapter = ["--lora-r", "4"];
    for (name, more) in [("whole", &[][..]), ("adapter", &adapter[..])] {
        let often = ["--max-steps", "4", "--save-steps", "1"];
        run(&place, "dpo", name, "cuda", &[&often[..], more].concat()).succeeded();
        let (again, elsewhere) = (format!("{name}-again"), format!("{name}-elsewhere"));
        for copy in [&again, &elsewhere] {
            place.copy(name, copy);
        }
        place.run(&["resume", &again, "--step", "2"]).succeeded();
        let weights = if name == "whole" { "model.safetensors" } else { "adapter_model.safetensors" };
        for file in [weights, "trainer/optimizer.safetensors"] {
            let of = |run: &str| place.tensors(&format!("{run}/checkpoint-4/{file}"));
            assert!(of(name) == of(&again), "{name}: {file}");
        }
        assert_eq!(
            place.lines_without_times(&format!("{name}/metrics.jsonl")),
            place.lines_without_times(&format!("{again}/metrics.jsonl"))
        );
        place.run(&["resume", &elsewhere, "--step", "2", "--set", "device=cpu"]).succeeded();
        let apart = apart(&place, name, &elsewhere, &["loss"]);
        assert!(apart < 0.05, "{name}: {apart}");
    }
}

#[test]
fn memory_that_does_not_suffice_is_one_line_after_a_checkpoint() {
    if !there_is_a_device() {
        return;
    }
    let place = TestFolder::with_answers();
    // The third step's texts are as long as the model's context.
    let text = |i: usize| format!("{{\"text\": \"{}\"}}\n", if i < 8 { "short".to_owned() } else { "long ".repeat(36) });
    place.write("answers.jsonl", (0..16).map(text).collect::<String>());
    let mut size = 2 << 20;
    for attempt in 0..12 {
        let (name, memory) = (format!("run-{attempt}"), size.to_string());
        let arguments =
            ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--shuffle-dataset", "false", "--device", "cuda"];
        let more = ["--per-device-train-batch-size", "4", "--max-steps", "4", "--output-dir", &name];
        let outcome = place.run_with(&[&arguments[..], &more].concat(), &[("SOFTWARE_CUDA_MEMORY", &memory)]);
        if outcome.code == Some(0) {
            // A real device has the memory that it has.
            assert!(attempt == 0, "{size} bytes were enough, and with less nothing was saved");
            return;
        }
        let said = outcome.error();
        assert!(said.contains("memory is full") && said.contains("per_device_train_batch_size"), "{said}");
        if place.entries().contains(&name) && place.checkpoints(&name) == [2] {
            return;
        }
        size += size / 4;
    }
    panic!("{size} bytes were not enough for the short texts");
}

/// A few steps of GRPO with a reference model, two updates a generation.
fn grpo(place: &TestFolder, run: &str, device: &str, more: &[&str]) {
    let steps =
        ["--max-steps", "4", "--steps-per-generation", "2", "--beta", "0.1", "--learning-rate", "0.002", "--save-steps", "2"];
    // A gradient that is next to nothing moves its weight by a step of rounding's choice otherwise.
    let calm = ["--adam-epsilon", "0.001"];
    let sampling = ["--top-p", "0.95", "--repetition-penalty", "1.1", "--log-completions", "all", "--device", device];
    place.train(run, &[&steps[..], &calm, &sampling, more].concat()).succeeded();
}

#[test]
fn a_run_that_generates_has_the_texts_and_figures_of_the_cpu() {
    if !there_is_a_device() {
        return;
    }
    let place = TestFolder::new();
    grpo(&place, "cpu", "cpu", &[]);
    grpo(&place, "cuda", "cuda", &["--bf16", "false"]);
    let texts = |run: &str| -> Vec<_> {
        place.lines(&format!("{run}/completions.jsonl")).iter().map(|line| line["completion"].clone()).collect()
    };
    assert_eq!(texts("cuda"), texts("cpu"));
    for (got, want) in place.figures("cuda").iter().zip(place.figures("cpu")) {
        assert_eq!(got.len(), want.len());
        for ((name, got), (of_cpu, want)) in got.iter().zip(want) {
            assert_eq!(*name, of_cpu);
            assert!((got - want).abs() <= 1e-4 * want.abs().max(0.1), "{name} is {got} and not {want}");
        }
    }
}

#[test]
fn a_run_that_generates_repeats_and_resumes_to_the_bit() {
    if !there_is_a_device() {
        return;
    }
    let place = TestFolder::new();
    for precision in ["true", "false"] {
        let run = |name: &str| format!("{name}-{precision}");
        for name in ["one", "other"] {
            grpo(&place, &run(name), "cuda", &["--bf16", precision]);
        }
        place.assert_same_end(&run("other"), &run("one"), 4, "model.safetensors");
        place.copy(&run("one"), &run("resumed"));
        place.run(&["resume", &run("resumed"), "--step", "2"]).succeeded();
        place.assert_same_end(&run("resumed"), &run("one"), 4, "model.safetensors");
    }
}

/// Whether several processes can have a device each, or one of software each; otherwise says why not.
fn ranks_meet(place: &TestFolder) -> bool {
    if std::process::Command::new("mpirun").arg("--version").stdout(std::process::Stdio::null()).status().is_err() {
        println!("skipped: there is no mpirun");
        return false;
    }
    let outcome = on_ranks(place, "try", 2, &["--max-steps", "1"]);
    if outcome.code == Some(0) {
        return true;
    }
    let reason = outcome.error();
    // One device is too few for NCCL, and a build may be without it.
    assert!(reason.contains("feature mpi") || reason.contains("NCCL can't"), "{reason}");
    println!("skipped: {reason}");
    false
}

/// DPO in f32 on the devices of so many processes, 4 pairs in all.
fn on_ranks(place: &TestFolder, run: &str, ranks: usize, more: &[&str]) -> rlhost_tests::CommandOutcome {
    let size = (4 / ranks).to_string();
    let common = ["--algorithm", "dpo", "--dataset", "pairs.jsonl", "--model", tiny(), "--output-dir", run, "--device", "cuda"];
    let settings = ["--bf16", "false", "--logging-steps", "1", "--learning-rate", "3e-4", "--per-device-train-batch-size", &size];
    let arguments = [&common[..], &settings, more].concat();
    if ranks == 1 { place.run(&arguments) } else { place.run_ranks(ranks, &arguments) }
}

#[test]
fn ranks_with_a_device_each_train_as_one_process() {
    let place = TestFolder::with_answers();
    if !there_is_a_device() || !ranks_meet(&place) {
        return;
    }
    let steps = ["--max-steps", "4"];
    on_ranks(&place, "one", 1, &steps).succeeded();
    let figures = ["loss", "grad_norm", "rewards/accuracies"];
    for (dtype, near) in [("float32", 1e-5), ("bfloat16", 1.0 / 64.0)] {
        on_ranks(&place, dtype, 2, &[&steps[..], &["--reduce-dtype", dtype]].concat()).succeeded();
        let apart = apart(&place, dtype, "one", &figures);
        assert!(apart < near, "{dtype}: {apart}");
    }
    assert_ne!(place.figure("float32", "grad_norm"), place.figure("bfloat16", "grad_norm"), "nothing was rounded");
}

#[test]
fn a_measurement_is_of_the_device_in_its_precision() {
    if !there_is_a_device() {
        return;
    }
    let place = TestFolder::new();
    let measured = |more: &[&str]| -> serde_json::Value {
        let sizes = ["--per-device-train-batch-size", "2", "--num-generations", "2", "--max-completion-length", "4"];
        let few = ["bench", "--json", "-q", "--model", tiny(), "--prompt-length", "20", "--steps", "1", "--device", "cuda"];
        serde_json::from_str(&place.run(&[&few[..], &sizes, more].concat()).succeeded().stdout).expect("a line of JSON")
    };
    let (bf16, f32) = (measured(&[]), measured(&["--bf16", "false"]));
    assert_eq!((bf16["model"]["dtype"].as_str(), f32["model"]["dtype"].as_str()), (Some("bf16"), Some("f32")));
    // Half the bytes a number; masters in f32 are not read for a token.
    let read = |said: &serde_json::Value| said["bounds"]["rollout"]["read_gb"].as_f64().expect("a number");
    assert!((read(&f32) / read(&bf16) - 2.0).abs() < 1e-9, "{bf16} {f32}");
    for said in [bf16, f32] {
        assert!(said["peak_device_memory_mb"].as_f64().expect("a number") > 1.0, "{said}");
    }
}
