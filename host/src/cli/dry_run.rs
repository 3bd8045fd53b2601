//! `--dry-run`: shows what a run would do. Its plan is logged as at any start; this module prints the prompts that the model would read,
//! and the scores of its rewards.

use super::config_sources::ConfigSources;
use super::failure::CommandFailure;
use super::introduction::introduce;
use crate::config::words::counted;
use crate::config::{RunConfig, printable};
use crate::dist::World;
use crate::train::{Purpose, Rehearsal, RehearsedCompletion, RehearsedPrompt, StartMode, set_up_for};
use std::rc::Rc;

/// Maximum length of a printed prompt, and of a printed completion, in bytes.
const LONGEST: (usize, usize) = (2000, 300);

/// Sets up a run, shows its first rollouts, and leaves nothing behind.
pub(super) fn run(given: &ConfigSources, world: &Rc<World>) -> Result<(), CommandFailure> {
    let beginning = StartMode::New;
    let config = RunConfig { hot_reload: false, ..given.resolve(&beginning, world)? };
    if world.is_first() {
        introduce(&config);
    }
    let folder = world.is_first().then(tempfile::tempdir).transpose().map_err(CommandFailure::from_error)?;
    let path = world.broadcast("a folder that is removed", || {
        anyhow::Ok(folder.as_ref().map(|folder| folder.path().join("run")).unwrap_or_default())
    });
    let purpose = Purpose::Rehearsal(path.map_err(CommandFailure::from_error)?);
    let trainer = set_up_for(config.clone(), &beginning, world.clone(), purpose).map_err(CommandFailure::from_error)?;
    let rehearsal = trainer.rehearse().map_err(CommandFailure::from_error)?;
    if world.is_first() {
        show(&rehearsal, &config);
    }
    Ok(())
}

fn show(rehearsal: &Rehearsal, config: &RunConfig) {
    for prompt in &rehearsal.prompts {
        show_prompt(prompt, rehearsal.rows);
    }
    show_scores(&rehearsal.scores);
    say!("\nend of turns: {}", end_of_turns(rehearsal, config));
    say!("\nnothing was trained or written; without --dry-run, the run begins");
}

fn show_prompt(RehearsedPrompt { row, text, tokens, answers }: &RehearsedPrompt, rows: usize) {
    let answers = match answers[..] {
        [] => String::new(),
        [one] => format!(", and {one} of its answer"),
        _ => format!(", and {} of its answers", answers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")),
    };
    say!("\nrow {row} of {rows}: {}{answers}", counted(*tokens as u64, "token"));
    let shown = text.lines().map(|line| format!("    {}", printable(line, LONGEST.0)));
    let mut bytes = 0;
    for line in shown {
        bytes += line.len();
        if bytes > LONGEST.0 {
            say!("    ...");
            break;
        }
        say!("{line}");
    }
}

fn show_scores(scores: &[RehearsedCompletion]) {
    for RehearsedCompletion { row, column, text, tokens, is_cut, scores } in scores {
        let what = column.map_or_else(|| "completion".to_owned(), |column| format!("column {column:?} as a completion"));
        let score = |(name, score): &(String, Option<f32>)| match score {
            Some(score) => format!("{name} {score:.3}"),
            None => format!("{name} none"),
        };
        let scores: Vec<String> = scores.iter().map(score).collect();
        let scores = if scores.is_empty() { String::new() } else { format!(": {}", scores.join(", ")) };
        let cut = if *is_cut { ", cut off here though not in a run" } else { "" };
        say!("\nrow {row}, {what}, {}{cut}{scores}", counted(*tokens as u64, "token"));
        say!("    {}", printable(text.trim(), LONGEST.1));
    }
}

/// Says whether a completion ends where the chat template ends a turn.
fn end_of_turns(Rehearsal { turn_end, ends, .. }: &Rehearsal, config: &RunConfig) -> String {
    let ends = match ends[..] {
        [] => "at max_completion_length only".to_owned(),
        _ => format!("with {}", ends.iter().map(|end| format!("{end:?}")).collect::<Vec<_>>().join(" or ")),
    };
    match turn_end {
        Some(end) if end.ends => format!("the chat template writes {:?}, and completions end there", end.text),
        Some(end) => {
            format!("the chat template writes {:?}, but completions end {ends}; --eos-token names another token", end.text)
        }
        None if config.chat_template_path.is_some() => format!("the chat template shows none; completions end {ends}"),
        None if !config.environment.is_empty() => {
            format!("there is no chat template: a turn ends with its line, and completions {ends}")
        }
        None => format!("there is no chat template; completions end {ends}"),
    }
}
