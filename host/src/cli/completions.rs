//! `rlhost completions`: a script for the shell, which calls rlhost for the candidates at the cursor. This keeps the script short, and lets
//! it complete the settings of the selected algorithm, the values of keys, and files.

use super::failure::CommandFailure;
use super::flags::with_settings;
use super::flags::{self, command_at};
use super::training_commands::{takes_keys, training};
use super::{algorithm, output};
use crate::config::{self, PluginEntry, PluginLimits};
use crate::plugin::{PluginEngine, PluginSource, Role, Setting, embedded_of, settings_of};
use crate::run::RunFiles;
use anyhow::anyhow;
use clap::{Arg, Command};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Environment variable with the name of the shell that requests completions.
const SHELL_VARIABLE: &str = "RLHOST_COMPLETE";

/// The script for bash. Bash splits words at some characters that are ordinary in values, so the script joins them again.
const BASH: &str = include_str!("completions.bash");

/// Runs the completion in zsh the first time, when it has just loaded the script from a folder of functions.
const ZSH_LOADED: &str = "\n[[ $funcstack[1] == _rlhost ]] && _clap_dynamic_completer_rlhost \"$@\"\n";

/// The line of zsh's script that shows candidates other than folders, and its replacement, which adds no space after keys, whose values
/// follow.
const ZSH_SHOWN: [&str; 2] = [
    "[[ -n $other ]] && _describe -V 'values' other\n",
    "[[ $other[1] == *= ]] && _describe -V 'values' other -S '' || [[ -n $other ]] && _describe -V 'values' other\n",
];

/// Arguments of `completions`.
#[derive(clap::Args)]
#[command(after_help = "For bash:  rlhost completions bash > ~/.local/share/bash-completion/completions/rlhost\n\
                        For zsh:   rlhost completions zsh > \"${fpath[1]}/_rlhost\"\n\
                        For fish:  rlhost completions fish > ~/.config/fish/completions/rlhost.fish\n\n\
                        The script calls rlhost to complete flags, their values, and names of files and built-in plugins.")]
pub(super) struct Args {
    /// Shell to print completions for
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    output::bytes(&script(args.shell).map_err(CommandFailure::failed)?);
    Ok(())
}

/// Returns the script that a shell loads.
fn script(shell: Shell) -> anyhow::Result<Vec<u8>> {
    if shell == Shell::Bash {
        return Ok(BASH.replace("ASKED", SHELL_VARIABLE).into_bytes());
    }
    let name = shell.to_string();
    let completer = Shells::builtins();
    let completer = completer.completer(&name).ok_or_else(|| anyhow!("there are no completions for {name}"))?;
    let mut script = Vec::new();
    completer.write_registration(SHELL_VARIABLE, "rlhost", "rlhost", "rlhost", &mut script)?;
    if shell == Shell::Zsh {
        let [shown, with_keys] = ZSH_SHOWN;
        script = String::from_utf8(script)?.replace(shown, with_keys).into_bytes();
        script.extend_from_slice(ZSH_LOADED.as_bytes());
    }
    Ok(script)
}

/// Returns the shell whose script requests completions, if this call is such a request.
pub(super) fn requesting_shell(arguments: &[OsString]) -> Option<String> {
    let called = arguments.get(1).is_some_and(|argument| argument == "--");
    std::env::var(SHELL_VARIABLE).ok().filter(|shell| called && !shell.is_empty())
}

/// Prints the completions of the command line in the arguments of a script's call, for a program with these commands.
pub(super) fn complete(shell: &str, arguments: &[OsString], root: Command) -> Result<(), CommandFailure> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(shell)
        .ok_or_else(|| CommandFailure::mistake(anyhow!("{SHELL_VARIABLE}: {shell:?} is no known shell")))?;
    let words = arguments[2..].to_vec();
    let mut completions = Vec::new();
    let folder = std::env::current_dir().ok();
    let written = shell.write_complete(&mut completed_by(&words, root), words, folder.as_deref(), &mut completions);
    written.map_err(CommandFailure::failed)?;
    output::bytes(&completions);
    Ok(())
}

/// Builds the commands that complete these words, the first of which is rlhost.
fn completed_by(words: &[OsString], root: Command) -> Command {
    // Words without a command are arguments of `train`.
    let mut spelled = words.to_vec();
    let at = command_at(&mut spelled);
    let is_implied = spelled.len() > words.len();
    let root = if is_implied { flags::command("rlhost") } else { root };
    let named = if is_implied { Some(root.clone()) } else { words.get(at).and_then(|name| root.find_subcommand(name)).cloned() };
    let Some(named) = named.filter(|command| is_implied || takes_keys(command.get_name())) else {
        return with_values(root, &ShellCompletionContext::default());
    };
    let sets = training(named.get_name()).map_or(&[][..], |training| training.sets);
    // With `--help`, mistakes in the words so far are not errors.
    let rest = [&spelled[at + 1..], &["--help".into()]].concat();
    let settings = algorithm::early_config(&named, sets, &rest).map(|known| known.settings).unwrap_or_default();
    let known = ShellCompletionContext { entries: entries(&named, &rest), settings };
    let root = match is_implied {
        true => with_settings(root, &known.settings),
        false => root.mut_subcommand(named.get_name(), |command| with_settings(command, &known.settings)),
    };
    with_values(root, &known)
}

/// Settings and keys that the words so far select.
#[derive(Default)]
struct ShellCompletionContext {
    /// The algorithm's settings.
    settings: Vec<Setting>,
    /// Keys of the named plugins and environments, with their values if they are few.
    entries: Vec<(String, Vec<String>)>,
}

/// Returns the keys of the rewards and environments that the words name, once one of their keys is begun, because each has its own
/// settings.
fn entries(command: &Command, words: &[OsString]) -> Vec<(String, Vec<String>)> {
    const TABLES: [&str; 2] = ["plugin", "environment"];
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let is_begun = |word: &String| TABLES.iter().any(|table| word.trim_start_matches("--set=").starts_with(&format!("{table}.")));
    if !words.iter().any(is_begun) {
        return Vec::new();
    }
    let scanned = flags::scan(command, &words);
    let Ok(engine) = PluginEngine::new() else { return Vec::new() };
    let mut keys = Vec::new();
    for table in TABLES {
        for given in scanned.values(table) {
            let prefix = format!("{table}.{}", PluginEntry::new(given.clone()).name());
            keys.push((format!("{prefix}.weight"), Vec::new()));
            keys.push((format!("{prefix}.on_error"), ["fail", "unscorable", "previous"].map(str::to_owned).to_vec()));
            let settings = PluginSource::open(&given).and_then(|source| settings_of(&engine, &source, &PluginLimits::default()));
            let settings = settings.unwrap_or_default().into_iter();
            keys.extend(settings.map(|setting| (format!("{prefix}.config.{}", setting.name), setting.choices)));
        }
    }
    keys
}

/// Adds value completion to the arguments of all commands.
fn with_values(command: Command, known: &ShellCompletionContext) -> Command {
    let command = command.mut_args(|arg| with_value(arg, known));
    command.mut_subcommands(|below| with_values(below, known))
}

fn with_value(arg: Arg, known: &ShellCompletionContext) -> Arg {
    let settings = &known.settings;
    let id = arg.get_id().to_string();
    let paths = || Some(PathCompleter::any());
    let folders = || Some(PathCompleter::dir());
    // Folders of runs come before other folders, which may contain runs.
    let runs = || Some(PathCompleter::dir().filter(|path| RunFiles(path).exist()));
    let plugins = |role: Role, ending: &str| embedded_of(role).map(|name| name.trim_end_matches(ending).to_owned()).collect();
    let values = match id.as_str() {
        "set" => return arg.add(ArgValueCompleter::new(AssignmentCompleter::new(known))),
        "plugin" => WordCompleter { words: plugins(Role::Reward, ""), paths: paths() },
        "environment" => WordCompleter { words: plugins(Role::Environment, ".wasm"), paths: paths() },
        "algorithm" => WordCompleter { words: plugins(Role::Algorithm, ".wasm"), paths: paths() },
        "run" | "runs" => WordCompleter { words: Vec::new(), paths: runs() },
        "model" | "reward_model" | "value_model" | "ref_model" | "teacher_model" | "output_dir" => {
            WordCompleter { words: Vec::new(), paths: folders() }
        }
        "dataset" | "resume_from_checkpoint" => WordCompleter { words: Vec::new(), paths: paths() },
        id => match (config::shown(id), settings.iter().find(|setting| flags::setting_id(&setting.name) == id)) {
            (Some(key), _) => WordCompleter { words: key.examples.clone(), paths: paths().filter(|_| key.is_path) },
            (None, Some(setting)) => WordCompleter { words: setting.choices.clone(), paths: None },
            (None, None) => return arg,
        },
    };
    arg.add(ArgValueCompleter::new(values))
}

/// Completes words and paths.
struct WordCompleter {
    words: Vec<String>,
    paths: Option<PathCompleter>,
}

impl ValueCompleter for WordCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let begun = current.to_string_lossy();
        let words = self.words.iter().filter(|word| word.starts_with(&*begun)).map(CompletionCandidate::new);
        let paths = self.paths.iter().flat_map(|paths| paths.complete(current));
        // For an empty word, the current folder would come first, which is rarely meant unless it is a run's.
        let is_meant = |path: &CompletionCandidate| path.get_value() != "." || RunFiles(Path::new(".")).exist();
        words.chain(paths.filter(is_meant)).collect()
    }
}

/// Completes the argument of `--set`: a key and, after that, its value.
struct AssignmentCompleter(Vec<(String, Vec<String>)>);

impl AssignmentCompleter {
    fn new(known: &ShellCompletionContext) -> Self {
        let keys = config::keys().iter().filter(|key| key.table.is_none()).map(|key| {
            let examples = config::shown(&key.name).map(|shown| shown.examples.clone());
            (key.name.clone(), examples.unwrap_or_default())
        });
        let settings = known.settings.iter().map(|setting| (flags::setting_id(&setting.name), setting.choices.clone()));
        Self(keys.chain(settings).chain(known.entries.iter().cloned()).collect())
    }
}

impl ValueCompleter for AssignmentCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let begun = current.to_string_lossy();
        let of_key = |(key, values): &(String, Vec<String>)| match begun.split_once('=') {
            None => vec![format!("{key}=")],
            Some((named, _)) if named == key => values.iter().map(|value| format!("{key}={value}")).collect(),
            Some(_) => Vec::new(),
        };
        let fitting = self.0.iter().flat_map(of_key).filter(|whole| whole.starts_with(&*begun));
        fitting.map(CompletionCandidate::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::TRAINING;
    use super::*;

    fn completed(line: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = ["rlhost"].iter().chain(line).map(OsString::from).collect();
        let at = words.len() - 1;
        let found = clap_complete::engine::complete(&mut completed_by(&words, crate::cli::command()), words, at, None).unwrap();
        found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn scripts_are_short_whatever_there_is_to_complete() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let script = String::from_utf8(script(shell).unwrap()).unwrap();
            assert!(
                script.contains(SHELL_VARIABLE) && script.contains("rlhost") && script.lines().count() < 60,
                "{shell}: {script}"
            );
            assert!(shell != Shell::Zsh || script.contains(ZSH_SHOWN[1]), "{script}");
        }
    }

    #[test]
    fn commands_flags_and_settings_of_the_algorithm_are_completed() {
        assert_eq!(completed(&["chec"]), ["checkpoint"]);
        assert_eq!(completed(&["checkpoint", "ver"]), ["verify"]);
        assert_eq!(completed(&["--max-comp"]), ["--max-completion-length"]);
        assert_eq!(completed(&["-q", "train", "--num-gen"]), ["--num-generations", "--num-generations-eval"]);
        assert_eq!(completed(&["dpo", "--label-sm"]), ["--label-smoothing-factor", "--label-smoothing"]);
        assert_eq!(completed(&["train", "--algorithm", "dpo", "--loss-ty"]), ["--loss-type"]);
        assert!(completed(&["grpo", "--cpo-al"]).is_empty());
        // Names of TRL's options are completed if no key begins like them.
        assert_eq!(completed(&["grpo", "--max_comp"]), ["--max_completion_length"]);
    }

    #[test]
    fn values_are_completed_wherever_they_may_be_given() {
        assert_eq!(completed(&["train", "--lr-scheduler-type", "cosine_with"]), ["cosine_with_restarts", "cosine_with_min_lr"]);
        assert_eq!(completed(&["train", "--optim=adamw"]), ["--optim=adamw_torch", "--optim=adamw_8bit"]);
        assert_eq!(completed(&["--learn-from", ""]), ["generation", "dataset"]);
        assert_eq!(completed(&["--device", "cu"]), ["cuda"]);
        assert_eq!(completed(&["--algorithm", "reinf"]), ["reinforce_pp"]);
        assert_eq!(completed(&["--plugin", "tldr"]), ["tldr_length_reward.wasm"]);
        assert_eq!(completed(&["plugin", "check", "tldr"]), ["tldr_length_reward.wasm"]);
        assert_eq!(completed(&["train", "--set", "lr_scheduler_ty"]), ["lr_scheduler_type="]);
        assert_eq!(completed(&["train", "--set", "learn_from=ge"]), ["learn_from=generation"]);
        assert_eq!(completed(&["export", "a", "b", "--format", "g"]), ["gguf"]);
        let losses = completed(&["dpo", "--loss-type", "s"]);
        assert!(losses.contains(&"sigmoid".to_owned()), "{losses:?}");
        assert_eq!(completed(&["dpo", "--set", "loss.loss_type=hin"]), ["loss.loss_type=hinge"]);
    }

    #[test]
    fn settings_of_the_plugins_that_are_named_are_completed() {
        let of =
            |set: &str| completed(&["grpo", "--plugin", "answer_reward.wasm", "--plugin", "tldr_length_reward", "--set", set]);
        assert_eq!(of("plugin.tldr_length_reward.w"), ["plugin.tldr_length_reward.weight="]);
        assert_eq!(of("plugin.tldr_length_reward.config.ta"), ["plugin.tldr_length_reward.config.target="]);
        assert_eq!(of("plugin.answer_reward.on_error=pr"), ["plugin.answer_reward.on_error=previous"]);
        let modes = of("plugin.answer_reward.config.mode=");
        assert!(modes.contains(&"plugin.answer_reward.config.mode=formula".to_owned()), "{modes:?}");
        assert!(completed(&["grpo", "--set", "plugin."]).is_empty(), "no plugin is named");
    }

    #[test]
    fn numbers_are_not_completed_and_files_are_where_one_is_expected() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("lr.toml"), "").unwrap();
        let begun = format!("{}/", place.path().display());
        for number in [&["train", "--max-steps"][..], &["resume", "--step"], &["train", "--learning-rate"]] {
            assert!(completed(&[number, &[begun.as_str()]].concat()).is_empty(), "{number:?}");
        }
        let file = vec![format!("{begun}lr.toml")];
        for wanted in [&["sweep"][..], &["train", "--config"], &["train", "--dataset"], &["train", "--chat-template-path"]] {
            assert_eq!(completed(&[wanted, &[begun.as_str()]].concat()), file, "{wanted:?}");
        }
        // Otherwise bash would offer files wherever rlhost has no candidates.
        assert!(!BASH.contains("-o default") && !BASH.contains("bashdefault"));
    }

    #[test]
    fn runs_come_before_other_folders_and_this_folder_is_none() {
        let here = completed(&["resume", ""]);
        assert!(!here.is_empty() && !here.contains(&".".to_owned()), "{here:?}");
        assert!(!completed(&["train", "--model", ""]).contains(&".".to_owned()));
        let place = tempfile::tempdir().unwrap();
        let begun = format!("{}/", place.path().display());
        for name in ["a", "run"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        std::fs::write(RunFiles(&place.path().join("run")).config(), "").unwrap();
        std::fs::write(RunFiles(&place.path().join("run")).events(), "").unwrap();
        let folders = [format!("{begun}run/"), format!("{begun}a/")];
        for command in ["resume", "watch", "compare"] {
            assert_eq!(completed(&[command, &begun]), folders, "{command}");
        }
    }

    #[test]
    fn every_training_command_completes_its_flags() {
        for training in &TRAINING {
            assert_eq!(completed(&[training.name, "--output-d"]), ["--output-dir"], "{}", training.name);
        }
    }
}
