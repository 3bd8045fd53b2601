//! The result of an agent's episode: its calls as a rollout, and what is logged about it.

use super::super::episode_store::FinishedEpisode;
use super::program::{OUTPUT_TAIL_BYTES, ProgramOutcome};
use super::report::{AgentReport, OWN};
use crate::config::printable;
use crate::data::{ChatMessage, TemplateVariables, Tokenizer};
use crate::dataset::Prompt;
use crate::episode::EpisodeOutcome;
use crate::plugin::{Metric, Reduction};
use crate::rollout::{Rollout, Trajectory};
use crate::run::TurnRow;
use rlhost_serve::session::{RecordedCall, SessionRecord};
use serde_json::json;

/// Maximum length of the output in a failure's reason, in bytes.
const SHOWN: usize = 300;

/// Maximum length of the output in an episode's record, in bytes.
const RECORDED: usize = 4096;

/// Number of calls of an episode, none of which extends another, of which a warning tells.
const BROKEN_CALLS: usize = 3;

/// Number of bytes of the longest UTF-8 character.
const LONGEST_CHARACTER: usize = 4;

/// An episode that has been played.
#[derive(Default)]
pub(super) struct PlayedEpisode {
    pub record: SessionRecord,
    pub report: AgentReport,
    /// The reward of each call.
    pub rewards: Vec<Option<f32>>,
    pub seed: u64,
    /// The end of the program's output.
    pub output: String,
    pub failed: Option<String>,
    /// Tree of the episode's calls.
    pub trajectory: Trajectory,
}

/// Warnings that a run has given already: each is given once.
#[derive(Default)]
pub(super) struct AgentWarnings {
    sampling: bool,
    rewritten: bool,
    refused: bool,
    differing: bool,
}

impl AgentWarnings {
    /// Warns of behaviour that the author of the agent with this name may want to know about.
    pub(super) fn warn_of(&mut self, played: &mut PlayedEpisode, name: &str) {
        if played.record.overrode_sampling && !std::mem::replace(&mut self.sampling, true) {
            tracing::warn!(
                "{name}: the agent asks for sampling parameters of its own; the run's temperature, top_p, top_k, min_p and repetition_penalty are used"
            );
        }
        if let Some(refused) = played.record.refused.as_ref().filter(|_| played.failed.is_none())
            && !std::mem::replace(&mut self.refused, true)
        {
            tracing::warn!("{name}: a call of the agent was refused, and its episode counts all the same: {refused}");
        }
        let (calls, (branches, _)) = (played.trajectory.calls(), played.trajectory.branches());
        if let Some((was, is)) = played.record.differing.take().filter(|_| calls >= BROKEN_CALLS && branches + 1 >= calls)
            && played.record.rewritten.is_none()
            && !std::mem::replace(&mut self.differing, true)
        {
            tracing::warn!(
                "{name}: none of the {calls} calls of an episode extends an earlier one, so that all of the text before is read again: a message \
                 was {was:?} and came back as {is:?}"
            );
        }
        if let Some((written, sent)) = played.record.rewritten.take()
            && !std::mem::replace(&mut self.rewritten, true)
        {
            tracing::warn!(
                "{name}: the agent changes the model's turns before it sends them back, so that its calls do not extend one another and all of the \
                 text before is read again: it was {written:?} and came back as {sent:?}"
            );
        }
    }
}

impl PlayedEpisode {
    /// Creates an episode that could not begin.
    pub(super) fn unstarted() -> Self {
        Self { failed: Some("the system has no random numbers for a key".into()), ..Self::default() }
    }

    /// Creates an episode from its session and the outcome of its program or driver.
    pub(super) fn new(record: SessionRecord, outcome: ProgramOutcome, seed: u64) -> Self {
        let ProgramOutcome { output, errors, failed, .. } = outcome;
        // A report may have begun before the part of the output that is left.
        let is_cut = output.len() + LONGEST_CHARACTER > OUTPUT_TAIL_BYTES && !output.trim_end().contains('\n');
        let parsed = if is_cut {
            Err(format!("the agent's last line is longer than {OUTPUT_TAIL_BYTES} bytes"))
        } else {
            AgentReport::parse(&output)
        };
        let (report, unreadable) = match parsed {
            Ok(report) => (report, None),
            Err(detail) => (AgentReport::default(), Some(detail)),
        };
        let of_program = failed.map(|reason| {
            let refused = record.refused.as_ref().map(|refused| format!("; a call was refused: {refused}")).unwrap_or_default();
            let last = if errors.trim().is_empty() { &output } else { &errors };
            let said = if last.trim().is_empty() { String::new() } else { format!(": {}", shortened(last)) };
            format!("the agent {reason}{refused}{said}")
        });
        let silent = || {
            record.refused.clone().map_or_else(
                || "the agent ended without a call".to_owned(),
                |refused| format!("no call of the agent was answered: {refused}"),
            )
        };
        let rewards = report.of_calls(record.calls.len());
        let unfit = rewards.as_ref().err().map(|detail| format!("the agent's last line {detail}"));
        let failed = of_program.or(unreadable).or_else(|| record.calls.is_empty().then(silent)).or(unfit);
        let output = [output, errors].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
        let mut trajectory = Trajectory::default();
        record.calls.iter().for_each(|call| trajectory.add(&call.call));
        Self { record, report, rewards: rewards.unwrap_or_default(), seed, output, failed, trajectory }
    }

    /// Returns what the run records of the episode; `filler` is the token of an episode without calls.
    pub(super) fn into_finished(self, name: &str, tokenizer: &Tokenizer, prompt: &Prompt, filler: u32) -> FinishedEpisode {
        let metrics = metrics_of(name, &self);
        let Self { record, rewards, seed, output, failed, trajectory, .. } = self;
        let (mut rollout, mut episode) = placeholder(prompt, filler);
        if let (Some(first), Some(last)) = (record.calls.first(), record.calls.last()) {
            let (opening, tree) = trajectory.into_rollout();
            rollout = Rollout { opening: (opening != prompt.tokens).then_some(opening), ..tree };
            let (messages, extras) = conversation(tokenizer, last);
            // The tokens are the tokenizer's own.
            episode.prompt = tokenizer.decode_marked(&first.call.prompt).unwrap_or_default();
            episode.messages = json!(messages).to_string();
            episode.extras = serde_json::to_string(&extras).unwrap_or_default();
            episode.turns = record.calls.iter().map(|call| turn(tokenizer, call)).collect();
        }
        episode.rewards = rewards;
        episode.rewards.resize(episode.turns.len(), None);
        let episode = EpisodeOutcome { seed, output: Some(end_of(&output, RECORDED).to_owned()), failed, ..episode };
        FinishedEpisode { rollout, episode, metrics }
    }
}

/// Returns the rollout and outcome of an episode for which nothing was sampled, with a placeholder token that is not trained on.
fn placeholder(prompt: &Prompt, filler: u32) -> (Rollout, EpisodeOutcome) {
    let rollout = Rollout { tokens: vec![filler], logp: vec![0.0], replies: vec![(0, 1)], ..Rollout::default() };
    (rollout, EpisodeOutcome { prompt: prompt.text.clone(), messages: "[]".into(), ..EpisodeOutcome::default() })
}

/// Returns the end of a text as one line.
fn shortened(text: &str) -> String {
    printable(end_of(text.trim(), SHOWN), 2 * SHOWN)
}

/// Returns at most the last `most` bytes of a text, cut at a character boundary.
fn end_of(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// Returns the conversation that a call ended, with the model's turn.
fn conversation(tokenizer: &Tokenizer, call: &RecordedCall) -> (Vec<ChatMessage>, TemplateVariables) {
    let of_text = || {
        let text = tokenizer.decode(&call.call.prompt).unwrap_or_default();
        (
            vec![ChatMessage { role: "user".into(), content: text.as_str().into(), ..ChatMessage::default() }],
            TemplateVariables::default(),
        )
    };
    let own = call.conversation.as_ref().map(|own| (own.messages.clone(), own.extras.clone()));
    let (mut messages, extras) = own.unwrap_or_else(of_text);
    messages.push(ChatMessage { role: "assistant".into(), content: call.text.as_str().into(), ..ChatMessage::default() });
    (messages, extras)
}

fn turn(tokenizer: &Tokenizer, call: &RecordedCall) -> TurnRow {
    // Its tokens were decoded during sampling.
    let calls = call.text_and_calls(tokenizer).map(|(_, calls)| calls).unwrap_or_default();
    TurnRow { finished: call.call.finished, calls }
}

/// Returns the metrics of an episode: those that its agent reports, and the shape of its tree of calls.
fn metrics_of(name: &str, played: &PlayedEpisode) -> Vec<Metric> {
    let metric =
        |part: &str, value: f64| Metric { name: format!("{name}/{part}"), value, weight: 1.0, reduction: Reduction::Mean };
    let (branches, read_again) = played.trajectory.branches();
    let own = [played.trajectory.calls(), branches, read_again].map(|count| count as f64);
    let own = OWN.into_iter().zip(own).map(|(part, value)| metric(part, value));
    own.chain(played.report.metrics.iter().map(|(part, value)| metric(part, *value))).collect()
}
