//! Replays a run's recorded episodes: the turns that the model wrote, with another environment.

use super::rescoring::{RescoringRow, RescoringScores};
use crate::config::PluginLimits;
use crate::data::{ChatMessage, TemplateVariables};
use crate::plugin::{EnvironmentPlugin, PluginEngine, PluginSource, RehearsedEpisode, Reply, Start, tool_calls};
use crate::run::{RecordedCompletion, RecordedEpisode};
use crate::train::start_of;
use anyhow::anyhow;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A turn of the model, and the environment's reply.
struct Exchange {
    text: String,
    /// Role and content of each message.
    replies: Vec<(String, String)>,
}

impl Exchange {
    /// Returns whether a reply equals the recorded one.
    fn matches(&self, reply: &Reply) -> bool {
        let said = reply.messages.iter().map(|m| (&m.role, &m.content));
        said.eq(self.replies.iter().map(|(role, content)| (role, content)))
    }
}

/// Returns the conversation of an episode and the template's variables, for a row with these columns.
pub(super) fn conversation(
    episode: &RecordedEpisode,
    columns: Option<&Map<String, Value>>,
) -> anyhow::Result<(Vec<ChatMessage>, TemplateVariables)> {
    let mut extras =
        columns.map(TemplateVariables::from_columns).transpose().map_err(|detail| anyhow!("{detail}"))?.unwrap_or_default();
    if !episode.tools.is_null() {
        extras.tools = episode.tools.clone();
    }
    Ok((said(episode)?, extras))
}

fn said(episode: &RecordedEpisode) -> anyhow::Result<Vec<ChatMessage>> {
    Vec::deserialize(&episode.messages).map_err(|e| anyhow!("the messages of an episode: {e}"))
}

/// Returns the turns of an episode, each with the replies to it.
fn exchanges(episode: &RecordedEpisode) -> anyhow::Result<Vec<Exchange>> {
    let said = said(episode)?;
    let own: Vec<usize> = (0..said.len()).filter(|&i| said[i].role == "assistant").collect();
    // The messages before the first turn are the prompt, which may have assistant messages too.
    let own = &own[own.len().saturating_sub(episode.turns.len())..];
    let end = |i: usize| own.get(i + 1).copied().unwrap_or(said.len());
    let heard = |i: usize| said[own[i] + 1..end(i)].iter().map(|m| (m.role.clone(), m.content.to_string())).collect();
    Ok((0..own.len()).map(|i| Exchange { text: said[own[i]].content.to_string(), replies: heard(i) }).collect())
}

/// Replays the recorded turns with an environment. Returns the sum of each episode's rewards.
///
/// # Errors
/// If the run has no episodes, or the environment fails.
pub(super) fn by_environment(
    (engine, source): (&PluginEngine, &PluginSource),
    settings: Map<String, Value>,
    seed: u64,
    recorded: &[RecordedCompletion],
    rows: &[RescoringRow],
) -> anyhow::Result<RescoringScores> {
    let plugin = EnvironmentPlugin::load(engine, source, &settings, &PluginLimits::default(), seed)?;
    let (mut scores, mut other, mut ended) = (Vec::with_capacity(recorded.len()), 0, 0);
    for generation in recorded.chunk_by(|a, b| a.step == b.step) {
        let spoken: Vec<&RecordedEpisode> = generation.iter().filter_map(|one| one.episode.as_ref()).collect();
        if spoken.len() != generation.len() {
            return Err(anyhow!("the run's completions are not episodes with recorded turns, which --environment needs"));
        }
        let exchanges = spoken.iter().map(|episode| exchanges(episode)).collect::<anyhow::Result<Vec<_>>>()?;
        let start = |(i, one): (usize, &RecordedCompletion)| {
            let row = rows.get(one.row).ok_or_else(|| anyhow!("the dataset has no row {}", one.row))?;
            Ok(start_of(&row.prompt.0, &row.columns, (i as u64, spoken[i].seed)))
        };
        let starts = generation.iter().enumerate().map(start).collect::<anyhow::Result<Vec<Start>>>()?;
        let says = |place: usize, number: usize, _: &[_]| {
            let (Exchange { text, .. }, written) = exchanges[place].iter().zip(&spoken[place].turns).nth(number)?;
            Some((text.clone(), tool_calls(number, &written.calls), written.finished))
        };
        let played = plugin.rehearse(&starts, says).map_err(|e| anyhow!("the new environment failed: {e}"))?;
        for (RehearsedEpisode { replies, .. }, exchanges) in played.iter().zip(&exchanges) {
            let rewards: Vec<f64> = replies.iter().filter_map(|reply| reply.reward).map(f64::from).collect();
            scores.push((!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() as f32));
            other += usize::from(!replies.iter().zip(exchanges).all(|(reply, exchange)| exchange.matches(reply)));
            ended += usize::from(replies.len() < exchanges.len());
        }
    }
    let all = recorded.len();
    say!(
        "{other} of {all} episodes get replies that differ from the recorded ones, which the later turns answer; {ended} end \
         earlier"
    );
    Ok((scores, format!("{} ({})", source.name(), &source.hash()[..12])))
}
