//! Checks that episodes with an environment or an agent can be played.

use super::opened_model::OpenedModel;
use super::plugins::LoadedPlugins;
use crate::config::{PluginEntry, RunConfig, printable};
use crate::data::{self, ChatMessage, TemplateVariables};
use crate::dataset::{Prompt, PromptSet};
use crate::model::ComputeBackend;
use crate::{Error, Result};

/// Refuses an environment if the chat template can't continue a turn, or if the model may call tools in its episodes and such calls can't be
/// read.
pub(super) fn check(config: &RunConfig, (plugins, prompts): (&LoadedPlugins, &PromptSet), opened: &OpenedModel) -> Result<()> {
    let Some(entry) = config.environment.first() else { return Ok(()) };
    let refused = |name: &str, error: data::Error| Error::setting("environment", format!("{name} can't be used: {error}"));
    let message = |content: &str| ChatMessage { role: "user".into(), content: content.into(), ..ChatMessage::default() };
    let tried = opened.tokenizer.encode_following(&[message("a")], &[], &[message("b")], &TemplateVariables::default());
    tried.map_err(|e| refused(entry.name(), e))?;
    match opened.tokenizer.check_calls() {
        Ok(()) => Ok(()),
        Err(error) => plugins.environment_with_tools(config, prompts)?.map_or(Ok(()), |name| Err(refused(name, error))),
    }
}

/// Refuses agents if the engine behind its server does not support the model.
pub(super) fn check_agent(config: &RunConfig, opened: &OpenedModel, backend: &ComputeBackend, ranks: usize) -> Result<()> {
    // A replay does not use the agent.
    if config.agent.is_empty() || config.replay_rollouts.is_some() {
        return Ok(());
    }
    if config.agent.iter().any(|agent| agent.listen.is_some()) && ranks > 1 {
        let detail = "listens at one address, but the run has several processes; start it as one, or name a command";
        return Err(Error::setting("agent", detail));
    }
    if !opened.tokenizer.has_chat() {
        tracing::warn!(
            "the model has no chat template, so that its agent can ask /v1/completions only; chat_template_path names one"
        );
    }
    if !backend.device().is_cpu() {
        return Err(Error::setting("agent", "needs the CPU: set device = \"cpu\"; on a GPU, episodes need an environment"));
    }
    Ok(())
}

/// Refuses rows that don't name one of several environments, agents or teachers. The first dataset is that of training.
pub(super) fn check_rows<'a>(config: &RunConfig, datasets: impl Iterator<Item = &'a PromptSet>) -> Result<()> {
    if !config.chooses_by_row() {
        return Ok(());
    }
    let environments: Vec<&str> = config.environment.iter().map(PluginEntry::name).collect();
    let agents: Vec<&str> = config.agent.iter().map(|agent| agent.name.as_str()).collect();
    let teachers: Vec<&str> = config.teacher_servers().filter_map(|teacher| teacher.name).collect();
    type Choice<'n> = (&'static str, &'n [&'n str], &'n dyn Fn(&Prompt) -> Option<usize>);
    let choices: [Choice<'_>; 3] = [
        ("environment", &environments, &|prompt| prompt.acts_in(&config.environment)),
        ("agent", &agents, &|prompt| prompt.played_by(&config.agent)),
        ("teacher", &teachers, &|prompt| prompt.taught_by(&teachers)),
    ];
    for (at, prompts) in datasets.enumerate() {
        for (column, names, chosen) in choices.iter().filter(|(_, names, _)| names.len() > 1) {
            let Some(prompt) = prompts.all()?.iter().find(|prompt| chosen(prompt).is_none()) else { continue };
            let found =
                prompt.columns.get(*column).map_or_else(|| "missing".to_owned(), |value| printable(&value.to_string(), 80));
            let (names, row) = (names.join(", "), prompt.row);
            let detail =
                format!("row {row}: its column {column:?} must be one of {names}, as the run has several; it is {found}");
            return Err(Error::setting(if at == 0 { "dataset" } else { "eval_dataset" }, detail));
        }
    }
    Ok(())
}
