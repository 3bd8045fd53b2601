//! `rlhost generate`: continues a prompt, or answers it in a conversation.

use super::failure::CommandFailure;
use super::output;
use crate::config::{self, Overrides};
use crate::data::{ChatMessage, StopStrings, TemplateVariables, Tokenizer, TokenizerOverrides};
use crate::model::{FrozenModel, IncrementalDecoder, ModelFolder, WeightStorage, builtin};
use crate::rollout::{Generator, PromptRequest, Sampler};
use crate::run::CheckpointFiles;
use crate::train;
use anyhow::{anyhow, ensure};
use jiff::civil::DateTime;
use serde_json::{Map, Value};
use std::io::IsTerminal;
use std::ops::RangeInclusive;
use std::path::Path;

/// Maximum number of continuations.
const MOST_SAMPLES: usize = 1 << 20;

/// Ranges of temperatures and penalties that keep logits finite.
const SENSIBLE: RangeInclusive<f32> = 0.0001..=10_000.0;

/// Arguments of `generate`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Hugging Face model folder, name on the hub, or run folder, which means its newest checkpoint [default: the built-in model]
    #[arg(long, short)]
    model: Option<String>,
    /// Prompt to continue or, with --chat, to answer
    #[arg(long, short)]
    prompt: String,
    #[command(flatten)]
    chat: ChatPromptArgs,
    /// Maximum number of tokens to generate
    #[arg(
        long,
        alias = "max_new_tokens",
        alias = "max-completion-length",
        alias = "max_completion_length",
        default_value_t = 128
    )]
    max_new_tokens: usize,
    /// Sampling temperature; 0 for greedy decoding
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Cumulative probability of the most likely tokens to sample from
    #[arg(long, alias = "top_p", default_value_t = 1.0)]
    top_p: f32,
    /// Number of most likely tokens to sample from; 0 for all
    #[arg(long, alias = "top_k", default_value_t = 0)]
    top_k: usize,
    /// Minimum probability of a token, relative to the most likely token's
    #[arg(long, alias = "min_p", default_value_t = 0.0)]
    min_p: f32,
    /// Penalty on tokens that already occurred: divides their logits if positive, multiplies them if negative
    #[arg(long, alias = "repetition_penalty", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// String that ends the text; may be repeated
    #[arg(long)]
    stop: Vec<String>,
    /// Number of continuations to generate
    #[arg(long, short = 'n', alias = "num_generations", alias = "num-generations", default_value_t = 1)]
    samples: usize,
    /// Random seed for sampling
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

/// How the prompt becomes a conversation.
#[derive(clap::Args)]
struct ChatPromptArgs {
    /// Render the prompt as a conversation, with the model's chat template, and print only the answer
    #[arg(long)]
    chat: bool,
    /// System message before the prompt; implies --chat
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// More variables for the chat template, as in '{"enable_thinking": false}' [default: those of the run, for a checkpoint]
    #[arg(long, alias = "chat_template_kwargs", value_name = "JSON", value_parser = object)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Date that strftime_now gives in the chat template, as in 2024-07-26 [default: that of the run, for a checkpoint]
    #[arg(long, alias = "strftime_now", value_name = "DATE", value_parser = TokenizerOverrides::read_time)]
    strftime_now: Option<DateTime>,
}

pub(super) fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("expected a JSON object: {e}"))
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    super::threads::start_threads().map_err(CommandFailure::from_error)?;
    let (model, tokenizer, tokens) = prepare(args).map_err(CommandFailure::from_error)?;
    let stops = StopStrings::new(args.stop.clone());
    let generator = Generator {
        model: &model,
        sampling: Sampler {
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            min_p: args.min_p,
            repetition_penalty: args.repetition_penalty,
        },
        logp_temperature: 1.0,
        keep_support: false,
        max_new_tokens: args.max_new_tokens,
        max_num_seqs: 256,
        seed: args.seed,
        generation: 0,
        end_tokens: &tokenizer.eos_ids(&model.architecture().eos_token_ids),
        stops: &|tokens| stops.end(tokens, &tokenizer),
        reply_provider: None,
    };
    let requests = [PromptRequest { tokens: tokens.clone(), row: 0, first: 0, samples: args.samples }];
    let rollouts = generator.run(&requests).map_err(CommandFailure::from_error)?;
    let terminal = std::io::stdout().is_terminal();
    for rollout in rollouts {
        let asked: &[u32] = if args.is_chat() { &[] } else { &tokens };
        let whole: Vec<u32> = asked.iter().chain(&rollout.tokens).copied().collect();
        let text = tokenizer.decode(&whole).map_err(CommandFailure::from_error)?;
        // A terminal would interpret escape sequences from a model; a file gets the text unchanged.
        if terminal {
            say!("{text}");
        } else {
            output::bytes(format!("{text}\n").as_bytes());
        }
    }
    Ok(())
}

fn prepare(args: &Args) -> anyhow::Result<(IncrementalDecoder, Tokenizer, Vec<u32>)> {
    ensure!(
        args.temperature == 0.0 || SENSIBLE.contains(&args.temperature),
        "--temperature {} must be 0 or between {} and {}",
        args.temperature,
        SENSIBLE.start(),
        SENSIBLE.end()
    );
    ensure!(args.top_p > 0.0 && args.top_p <= 1.0, "--top-p {} must be above 0 and at most 1", args.top_p);
    ensure!((0.0..=1.0).contains(&args.min_p), "--min-p {} must be between 0 and 1", args.min_p);
    ensure!(
        SENSIBLE.contains(&args.repetition_penalty),
        "--repetition-penalty {} must be between {} and {}",
        args.repetition_penalty,
        SENSIBLE.start(),
        SENSIBLE.end()
    );
    ensure!((1..=MOST_SAMPLES).contains(&args.samples), "-n {} must be between 1 and {MOST_SAMPLES}", args.samples);
    ensure!(args.max_new_tokens > 0, "--max-new-tokens must be at least 1");
    ensure!(!args.stop.iter().any(String::is_empty), "--stop must not be empty");
    let temporary = tempfile::tempdir()?;
    let folder = match &args.model {
        Some(named) => ModelFolder::open(train::model_of(named)?.0)?,
        None => {
            builtin::write(temporary.path())?;
            ModelFolder::open(temporary.path())?
        }
    };
    let tokenizer = Tokenizer::open_with(folder.tokenizer(), &args.wording(folder.path())?);
    let tokenizer = tokenizer.map_err(|error| error.without_built_in_folder(temporary.path()))?;
    let tokens = args.tokens(&tokenizer)?;
    let (context, vocabulary) = (folder.architecture().max_positions, folder.architecture().vocab_size);
    if let Some(unknown) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
        return Err(anyhow!(
            "the prompt has token {unknown}, but the model has only {vocabulary} tokens; the tokenizer does not belong to this model"
        ));
    }
    ensure!(!tokens.is_empty(), "the prompt has no tokens, and this model has no beginning-of-sequence token");
    if tokens.len() >= context {
        return Err(anyhow!(
            "the prompt is {} tokens long; the model's context, including the continuation, is {context}",
            tokens.len()
        ));
    }
    Ok((FrozenModel::new(folder.with_weight_storage(WeightStorage::AS_STORED).decoder()?).decoding()?, tokenizer, tokens))
}

impl Args {
    fn is_chat(&self) -> bool {
        self.chat.chat || self.chat.system.is_some()
    }

    /// Returns the chat template's variables and date: those of the run, if the folder is a run's checkpoint.
    fn wording(&self, folder: &Path) -> anyhow::Result<TokenizerOverrides> {
        let file = CheckpointFiles::find(folder).config();
        let mut wording = TokenizerOverrides::default();
        if self.is_chat() && CheckpointFiles::find(folder).summary().is_file() && file.is_file() {
            let config = config::read([file.as_path()], &Overrides::default())?;
            let now = config.strftime_now.as_deref().map(TokenizerOverrides::read_time).transpose();
            wording.now = now.map_err(|detail| anyhow!("{}: strftime_now: {detail}", file.display()))?;
            wording.kwargs = config.chat_template_kwargs;
        }
        wording.kwargs.extend(self.chat.chat_template_kwargs.clone().unwrap_or_default());
        wording.now = self.chat.strftime_now.or(wording.now);
        Ok(wording)
    }

    /// Returns the prompt's tokens.
    fn tokens(&self, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
        if !self.is_chat() {
            return Ok(tokenizer.encode(&self.prompt, true)?);
        }
        let flag = if self.chat.chat { "--chat" } else { "--system" };
        ensure!(tokenizer.has_chat(), "{flag}: this model's tokenizer has no chat template; leave {flag} out to continue a text");
        let said = |role: &str, content: &String| ChatMessage {
            role: role.into(),
            content: content.as_str().into(),
            ..ChatMessage::default()
        };
        let system = self.chat.system.iter().map(|text| said("system", text));
        let messages: Vec<ChatMessage> = system.chain([said("user", &self.prompt)]).collect();
        Ok(tokenizer.encode(&tokenizer.render_chat(&messages, true, &TemplateVariables::default())?, false)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_chat_templates_date_is_the_one_that_is_given() {
        let read = |more: &[&str]| Program::try_parse_from([&["generate", "--prompt", "hi", "--chat"][..], more].concat());
        let now = |more: &[&str]| read(more).unwrap().args.wording(Path::new("nowhere")).unwrap().now;
        assert_eq!(now(&[]), None);
        for flag in ["--strftime-now", "--strftime_now"] {
            assert_eq!(now(&[flag, "2024-07-26"]), "2024-07-26T00:00:00".parse().ok());
        }
        let error = read(&["--strftime-now", "tomorrow"]).err().unwrap().to_string();
        assert!(error.contains("--strftime-now") && error.contains("write it as 2024-07-26"), "{error}");
    }
}
