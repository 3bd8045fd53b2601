//! Command that forks a run: it starts a new one from a checkpoint.

use super::app::PageApi;
use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::config::{self, KeyAssignment, Overrides, printable, shell_word};
use crate::run::{EffectiveConfig, RunFiles};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Maximum number of settings of a fork, and maximum length of a setting and of a folder, in bytes.
const MOST_SETTINGS: usize = 100;
const LONGEST: usize = 2000;

impl PageApi {
    /// Answers with the run's checkpoints, and the command that forks it from checkpoint `step` (default: the newest) into `folder` with
    /// the settings `set`, as in `set=loss.beta=0.1`. Reports errors in the settings.
    pub(super) fn fork(&self, query: &Query) -> Result<Value> {
        let run = self.path_of(query)?;
        let steps = RunFiles(&run).steps()?;
        let step = match query.number("step")? {
            Some(step) => steps.iter().copied().find(|own| *own as f64 == step),
            None => steps.last().copied(),
        };
        let sets: Vec<String> = query.all("set").filter(|set| !set.trim().is_empty()).map(str::to_owned).collect();
        let folder = query.get("folder").map_or_else(|| fork_folder(&run), PathBuf::from);
        if sets.len() > MOST_SETTINGS || sets.iter().map(String::len).chain([folder.as_os_str().len()]).any(|n| n > LONGEST) {
            return Err(ApiRefusal::invalid(format!("a fork has at most {MOST_SETTINGS} settings, of {LONGEST} bytes each")));
        }
        // Of the paths in a request, only siblings of the run's folder are checked for existence.
        let is_taken = folder.parent() == run.parent() && folder.file_name().is_some() && folder.exists();
        let problem = if is_taken { Some(format!("{} exists", folder.display())) } else { problem(&run, &sets) };
        let command = step.map(|step| {
            let from = format!("rlhost --resume-from-checkpoint {}", shell_word(&RunFiles(&run).checkpoint(step)));
            let sets = sets.iter().map(|set| format!("--set {}", word(set.trim())));
            let parts = [from, format!("--output-dir {}", shell_word(&folder))].into_iter().chain(sets);
            parts.collect::<Vec<_>>().join(" \\\n    ")
        });
        let problem = problem.map(|text| printable(&text, LONGEST));
        Ok(json!({ "checkpoints": steps, "step": step, "folder": shown(&folder), "command": command, "problem": problem }))
    }
}

/// Returns a sibling of the run's folder that does not exist yet.
fn fork_folder(run: &Path) -> PathBuf {
    let name = run.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let numbered = |i: u32| run.with_file_name(if i < 2 { format!("{name}-fork") } else { format!("{name}-fork-{i}") });
    (1..).map(numbered).find(|folder| !folder.exists()).unwrap_or_default()
}

/// Returns a path as the value of a text field.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy(), LONGEST)
}

/// Returns `KEY=VALUE` as a word of shell input.
fn word(set: &str) -> String {
    let is_plain = set.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:,+@%=".contains(c));
    if is_plain { set.to_owned() } else { shell_word(Path::new(set)) }
}

/// Returns what is wrong with settings when they are applied to the run's own.
fn problem(run: &Path, sets: &[String]) -> Option<String> {
    let read = || -> std::result::Result<(), String> {
        let sets = KeyAssignment::parse_all(sets).map_err(|error| error.to_string())?;
        let overrides = Overrides { sets, ..Overrides::default() };
        let path = EffectiveConfig::own_path(run).map_err(|error| error.to_string())?;
        config::read([path.as_path()], &overrides).map(drop).map_err(|error| error.to_string())
    };
    read().err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::EchoBackend;
    use std::fs;

    #[test]
    fn a_fork_is_one_command_and_its_settings_are_judged() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("a b");
        for step in [2, 10] {
            fs::create_dir_all(run.join(format!("checkpoint-{step}"))).unwrap();
        }
        fs::write(run.join("config.toml"), "learning_rate = 0.001\n").unwrap();
        let api = PageApi::new(root.path().to_owned(), Box::new(EchoBackend), false);
        let ask = |query: &str| api.fork(&Query::parse(&format!("run=a%20b&{query}")).unwrap()).unwrap();
        let answer = ask("set=learning_rate%3D0.1&set=run_name%3Dit%27s&set=");
        assert_eq!((&answer["checkpoints"], &answer["step"], &answer["problem"]), (&json!([2, 10]), &json!(10), &Value::Null));
        let place = root.path().display();
        let wanted = format!(
            "rlhost --resume-from-checkpoint '{place}/a b/checkpoint-10' \\\n    --output-dir '{place}/a b-fork' \\\n    \
             --set learning_rate=0.1 \\\n    --set 'run_name=it'\\''s'"
        );
        assert_eq!(answer["command"], wanted);
        assert!(ask("step=2&folder=x")["command"].as_str().unwrap().contains("checkpoint-2' \\\n    --output-dir x"));
        assert!(ask("set=learning_rat%3D0.1")["problem"].as_str().unwrap().contains("did you mean \"learning_rate\""));
        assert!(ask("set=learning_rate%3Dx")["problem"].as_str().unwrap().contains("learning_rate"));
        assert!(ask("set=nothing")["problem"].as_str().unwrap().contains("KEY=VALUE"));
        let exists = format!("folder={place}/a%20b");
        assert!(ask(&exists)["problem"].as_str().unwrap().ends_with("exists"));
        // The answer reveals nothing about other folders.
        for elsewhere in
            ["%2Fetc", "%2Fetc%2Fpasswd", &format!("{place}/a%20b/.."), &format!("{place}/a%20b/checkpoint-2"), "..", "."]
        {
            assert_eq!(ask(&format!("folder={elsewhere}"))["problem"], Value::Null, "{elsewhere}");
        }
        assert_eq!(ask("step=3")["command"], Value::Null);
        fs::create_dir(root.path().join("a b-fork")).unwrap();
        assert!(ask("")["folder"].as_str().unwrap().ends_with("a b-fork-2"));
    }
}
