//! Advice on how to continue a run after it ended, for whatever reason.

use crate::config::words::counted;
use crate::config::{PluginEntry, RunConfig, ScriptPath, printable_path, shell_word};
use crate::run::RunFiles;
use crate::train::{self, RunOutcome};
use std::path::{Path, PathBuf};

/// The run that the advice is about.
pub(super) struct ResumeAdvice<'a> {
    pub folder: &'a Path,
    /// The configuration that the run was started with.
    pub config: &'a RunConfig,
}

impl ResumeAdvice<'_> {
    /// Returns the command that resumes the run.
    fn resume(&self) -> String {
        format!("rlhost resume {}", shell_word(self.folder))
    }

    /// Returns how to continue after an error.
    pub(super) fn after_error(&self, error: &train::Error) -> String {
        let saved = RunFiles(self.folder).steps().ok().and_then(|steps| steps.last().copied());
        let first = self.prerequisite(error).map_or_else(String::new, |first| format!("{first}, then "));
        if let Some(how) = self.after_replay(error, saved) {
            return format!("{first}{how}");
        }
        match saved {
            None => {
                format!("nothing was saved; {first}start the run over: give its command again, with --resume-from-checkpoint")
            }
            Some(step) if self.config.save_only_model => format!("step {step} is saved; {first}{}", self.with_model(step)),
            Some(step) => format!("step {step} is saved; {first}resume with: {}{}", self.resume(), settings(error)),
        }
    }

    /// Returns how to continue a replay that can't simply be resumed, because it has no more completions, or nothing was saved.
    fn after_replay(&self, error: &train::Error, saved: Option<u64>) -> Option<String> {
        self.config.replay_rollouts.as_ref()?;
        match (saved, error) {
            (None, _) => {
                Some("nothing was saved; remove its folder and give the command again, or another --output-dir".to_owned())
            }
            (Some(step), train::Error::ReplayEnds(_)) => {
                let checkpoint = shell_word(&RunFiles(self.folder).checkpoint(step));
                let fork = format!("rlhost train --resume-from-checkpoint {checkpoint} --output-dir FOLDER");
                Some(format!("step {step} is saved; to go on with completions of its own: {fork}"))
            }
            _ => None,
        }
    }

    /// Returns how to continue after an error of a plugin that failed before the first step.
    pub(super) fn before_first_step(&self, error: &train::Error) -> Option<String> {
        // The error of a reward model that can't be opened already says what is wrong.
        error.plugin_at_fault().filter(|_| !matches!(error, train::Error::RewardModel { .. }))?;
        self.prerequisite(error).map(|first| format!("{first}, then start again"))
    }

    /// Returns what to do before the run can continue.
    fn prerequisite(&self, error: &train::Error) -> Option<String> {
        if let train::Error::Write { .. } | train::Error::Checkpoint(_) = error {
            return Some("see that its folder can be written".to_owned());
        }
        if let train::Error::Unscored { .. } = error {
            return Some("check the rewards".to_owned());
        }
        let name = error.plugin_at_fault()?;
        let algorithm = PluginEntry::new(self.config.algorithm.clone());
        let mut entries = self.config.plugin.iter().chain(&self.config.environment).chain(std::iter::once(&algorithm));
        let of_entry = |entry: &PluginEntry| {
            let script = ScriptPath::parse(&entry.path).map(|script| script.file);
            PathBuf::from(script.unwrap_or(&entry.path))
        };
        let file = entries.find(|entry| entry.name() == name).map(of_entry).or_else(|| self.only_script());
        let file = file.filter(|path| path.is_file());
        Some(file.map_or_else(|| format!("fix what makes {name} fail"), |file| format!("fix {}", printable_path(&file))))
    }

    /// Returns the script whose functions are all plugins, each under its own name, if there is only one such script.
    fn only_script(&self) -> Option<PathBuf> {
        let scripts = self.config.plugin.iter().filter_map(|entry| ScriptPath::parse(&entry.path));
        let mut whole = scripts.filter(|script| script.function.is_none()).map(|script| PathBuf::from(script.file));
        whole.next().filter(|_| whole.next().is_none())
    }

    /// Returns how to continue from a checkpoint that has only the model.
    fn with_model(&self, step: u64) -> String {
        let checkpoint = RunFiles(self.folder).checkpoint(step);
        format!("save_only_model keeps no state to resume from; start another run with --model {}", shell_word(&checkpoint))
    }

    /// Returns how to continue a run that was stopped.
    pub(super) fn after_stop(&self, steps: u64) -> String {
        if steps == 0 {
            let over = "to start over, give its command again, with --resume-from-checkpoint";
            return format!("stopped before the first step; nothing was trained or saved; {over}");
        }
        let how = if self.config.save_only_model { self.with_model(steps) } else { format!("resume with: {}", self.resume()) };
        format!("stopped after {}; {how}", counted(steps, "step"))
    }

    /// Returns the command that continues training after the last step; `None` if there is no state to resume from.
    pub(super) fn more(&self, finished: &RunOutcome, max_steps: u64) -> Option<String> {
        let more = match finished.steps < max_steps {
            true => "--set early_stopping_patience=NUMBER --allow-changed".to_owned(),
            false => format!("--max-steps {}", max_steps.saturating_mul(2)),
        };
        (!self.config.save_only_model).then(|| format!("{} {more}", self.resume()))
    }
}

/// Returns the settings that a diverged run should be resumed with.
fn settings(error: &train::Error) -> &'static str {
    match error {
        train::Error::NotFinite { .. } | train::Error::Overflow { .. } => " --set learning_rate=LOWER --allow-changed",
        _ => "",
    }
}

/// Describes what is lost if a run ends at once, after this many steps.
pub(super) fn lost(folder: &Path, steps: u64) -> String {
    let saved = RunFiles(folder).steps().ok().and_then(|saved| saved.into_iter().rfind(|step| *step <= steps)).unwrap_or(0);
    let resume = format!("resume with: rlhost resume {}", shell_word(folder));
    let over = || {
        let folder = shell_word(folder);
        format!("{folder} has no checkpoint; remove it, or start over: give the command again, with --resume-from-checkpoint")
    };
    match (saved, steps - saved) {
        (0, 0) => format!("nothing was trained or saved; {}", over()),
        (0, _) => format!("{} lost, as nothing was saved yet; {}", steps_as_subject(1, steps), over()),
        (saved, 0) => format!("step {saved} is saved, and the step that was under way is lost; {resume}"),
        (saved, _) => format!("{} lost; step {saved} is saved, {resume}", steps_as_subject(saved + 1, steps)),
    }
}

/// Formats steps as the subject of a sentence.
fn steps_as_subject(first: u64, last: u64) -> String {
    if first == last { format!("step {first} is") } else { format!("steps {first} to {last} are") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin;
    use std::fs;

    #[test]
    fn a_plugin_that_fails_before_the_first_step_is_to_be_fixed() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("rw.py");
        fs::write(&file, "").unwrap();
        let named = |location: String| RunConfig { plugin: vec![PluginEntry::new(location)], ..RunConfig::default() };
        let advice = |config: &RunConfig, name: &str| {
            let (detail, name) = ("no\nTraceback".to_owned(), name.to_owned());
            let error = train::Error::DryRun(plugin::Error::Call { name, function: "score", step: None, detail });
            ResumeAdvice { folder: place.path(), config }.before_first_step(&error)
        };
        let fix = Some(format!("fix {}, then start again", file.display()));
        assert_eq!(advice(&named(file.display().to_string()), "rw"), fix);
        assert_eq!(advice(&named(format!("{}:long", file.display())), "long"), fix);
        assert_eq!(advice(&named(file.display().to_string()), "one_of_its_functions"), fix);
        let built_in = advice(&named("answer_reward.wasm".to_owned()), "answer_reward");
        assert_eq!(built_in.as_deref(), Some("fix what makes answer_reward fail, then start again"));
        let other = train::Error::Setting { key: "temperature", detail: "is too high".into() };
        assert_eq!(ResumeAdvice { folder: place.path(), config: &RunConfig::default() }.before_first_step(&other), None);
    }

    #[test]
    fn what_is_lost_is_said_by_step() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path();
        let over = format!(
            "{} has no checkpoint; remove it, or start over: give the command again, with --resume-from-checkpoint",
            shell_word(run)
        );
        assert_eq!(lost(run, 0), format!("nothing was trained or saved; {over}"));
        assert_eq!(lost(run, 1), format!("step 1 is lost, as nothing was saved yet; {over}"));
        fs::create_dir(RunFiles(run).checkpoint(4)).unwrap();
        // A checkpoint that the resumed run has not reached yet.
        fs::create_dir(RunFiles(run).checkpoint(90)).unwrap();
        assert!(
            lost(run, 4).starts_with("step 4 is saved, and the step that was under way is lost; resume with: rlhost resume ")
        );
        assert!(lost(run, 5).starts_with("step 5 is lost; step 4 is saved, resume with: "));
        assert!(lost(run, 7).starts_with("steps 5 to 7 are lost; step 4 is saved, resume with: "));
    }
}
