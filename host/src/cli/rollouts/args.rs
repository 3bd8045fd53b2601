//! Arguments of `rlhost rollouts`.

use std::path::PathBuf;

/// Arguments of `rollouts`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
                        rlhost rollouts run                              the newest step\n  \
                        rlhost rollouts run --step 100..120 --row 7      what a prompt's completions became\n  \
                        rlhost rollouts run --top 5 --by length_reward   the best of the whole run by a reward\n  \
                        rlhost rollouts run --reward 'answer>=1' --search sorry\n  \
                        rlhost rollouts run --version answer=3fa9 --json | jq .completion\n\n\
                        A step is the number of steps taken before its completions were generated. Conditions are met together. On a \
                        terminal, long texts are shortened, and output longer than the screen goes through $PAGER or less.")]
pub(in crate::cli) struct Args {
    /// Folder of the run, which may still be running
    pub(super) run: PathBuf,
    #[command(flatten)]
    pub(super) conditions: RolloutConditions,
    /// Show the N completions with the greatest values, greatest first
    #[arg(long, value_name = "N")]
    pub(super) top: Option<usize>,
    /// Show the N completions with the least values, least first
    #[arg(long, value_name = "N")]
    pub(super) bottom: Option<usize>,
    /// Value that --top and --bottom go by [default: reward, the weighted sum]
    #[arg(long, value_name = "NAME")]
    pub(super) by: Option<String>,
    /// Show at most N completions
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,
    /// Show long texts as a whole
    #[arg(long)]
    pub(super) full: bool,
    /// Print completions as they are in completions.jsonl, one per line
    #[arg(long)]
    pub(super) json: bool,
    /// Don't start a pager
    #[arg(long, alias = "no_pager")]
    pub(super) no_pager: bool,
}

/// Which completions are shown.
#[derive(clap::Args)]
pub(super) struct RolloutConditions {
    /// Steps to show: 120, 100..120, 100.., ..120, `..` for all, or last [default: last; all if there is another condition]
    #[arg(long, alias = "steps", value_name = "STEPS", allow_hyphen_values = true)]
    pub(super) step: Option<String>,
    /// Show completions of this row of the dataset
    #[arg(long)]
    pub(super) row: Option<u64>,
    /// Show completions of prompts that contain this text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,
    /// Show completions that contain this text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) search: Option<String>,
    /// Show completions by a value, as in 'NAME>=0.5', 'NAME<0', NAME=1 or NAME=0.2..0.8; NAME is a reward, advantage, tokens, or
    /// reward for the weighted sum, which needs no name: '>0.5'; may be repeated
    #[arg(long, value_name = "CONDITION", allow_hyphen_values = true)]
    pub(super) reward: Vec<String>,
    /// Show completions that this version of a plugin scored: the beginning of its hash, HASH+DIGEST with that of its settings, or NAME=HASH
    #[arg(long, value_name = "HASH")]
    pub(super) version: Option<String>,
    /// Show completions that a limit cut off
    #[arg(long, alias = "cut_off")]
    pub(super) cut_off: bool,
}
