//! `rlhost init`: configurations that run as they are written.

use rlhost_tests::{TestFolder, tiny};

const KINDS: [&str; 5] = ["gsm8k", "tldr", "sft", "dpo", "agent"];

#[test]
fn each_kind_runs_as_it_is_written() {
    let place = TestFolder::new();
    for kind in KINDS {
        let said = place.run(&["init", kind]).succeeded().stdout.clone();
        assert!(said.contains(&format!("rlhost --config {kind}.toml")), "{said}");
        let text = std::fs::read_to_string(place.path(&format!("{kind}.toml"))).unwrap();
        let (comments, keys): (Vec<&str>, Vec<&str>) =
            text.lines().filter(|line| !line.trim().is_empty()).partition(|line| line.starts_with('#'));
        assert!(keys.len() >= 12 && keys.len() <= 24 && comments.len() >= 8, "{kind}: {text}");
        // One short step of the built-in model, and otherwise as it is.
        let (config, run) = (format!("{kind}.toml"), format!("run-{kind}"));
        let few = ["--config", &config, "--max-steps", "1", "--max-completion-length", "8", "--output-dir", &run];
        place.run(&few).succeeded();
        assert!(place.path(&format!("{run}/checkpoint-1")).exists(), "{kind}");
    }
}

#[test]
fn nothing_is_overwritten_and_files_may_be_elsewhere() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("my files")).unwrap();
    let said = place.run(&["init", "sft", "my files/first.toml"]).succeeded().stdout.clone();
    assert!(said.contains("rlhost --config 'my files/first.toml'") && said.contains("8 sample rows"), "{said}");
    let text = std::fs::read_to_string(place.path("my files/first.toml")).unwrap();
    assert!(text.contains("dataset = \"my files/first.jsonl\""), "{text}");
    let few = ["--model", tiny(), "--max-steps", "1", "--output-dir", "run"];
    place.run(&[&["--config", "my files/first.toml"], &few[..]].concat()).succeeded();
    place.write("dpo.jsonl", "mine");
    for (arguments, words) in [
        (&["init", "sft", "my files/first.toml"][..], "my files/first.toml already exists"),
        (&["init", "dpo"], "dpo.jsonl already exists; name another file: rlhost init dpo FILE"),
        (&["init", "sft", "absent/a.toml"], "its folder does not exist"),
        (&["init", "sft", "a.jsonl"], "end it with .toml"),
        (&["init", "chat"], "gsm8k, tldr, sft, dpo, agent"),
        (&["init"], "name what to start from, as in: rlhost init gsm8k"),
    ] {
        let refused = place.run(arguments);
        assert!(refused.code == Some(2) && refused.error().contains(words), "{arguments:?}: {}", refused.stderr);
    }
    let listed = place.run(&["init"]).stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines.len() == KINDS.len() && lines.iter().zip(KINDS).all(|(line, kind)| line.starts_with(kind)), "{listed}");
    assert!(lines[2].ends_with("  Fine-tuning on given answers"), "{listed}");
    assert_eq!(place.entries(), ["dpo.jsonl", "my files", "run"]);
}
