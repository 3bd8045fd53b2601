//! What the teacher reads: the question, with a successful completion of the same prompt or with feedback.

use crate::settings::SdpoSettings;
use rlhost_plugin_sdk::algorithm::{TaughtGeneration, TeacherPrompts};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::scores::rows_by_prompt;

/// Column with feedback.
const FEEDBACK: &str = "privileged_context";

/// What begins and ends a completion's thoughts.
const THOUGHTS: [&str; 2] = ["<think>", "</think>"];

/// A text with names in braces, as Python's `str.format` reads it.
pub(crate) struct TextTemplate<'a> {
    parts: Vec<TextTemplatePart<'a>>,
}

enum TextTemplatePart<'a> {
    Text(&'a str),
    /// Index of a name.
    Name(usize),
}

impl<'a> TextTemplate<'a> {
    /// Parses a template with these names. The error is the end of a sentence about it.
    pub(crate) fn parse(text: &'a str, names: &[&str]) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            parts.push(TextTemplatePart::Text(before));
            if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
                parts.push(TextTemplatePart::Text(&from[..1]));
                rest = after;
                continue;
            }
            let known = names.join("}, {");
            let (name, after) = from
                .strip_prefix('{')
                .and_then(|from| from.split_once('}'))
                .ok_or_else(|| format!("has a brace that belongs to no name; write {{{{ or }}}} for one, or {{{known}}}"))?;
            let found = names.iter().position(|known| *known == name);
            parts.push(TextTemplatePart::Name(found.ok_or_else(|| format!("has {{{name}}}; known are {{{known}}}"))?));
            rest = after;
        }
        parts.push(TextTemplatePart::Text(rest));
        Ok(Self { parts })
    }

    /// Returns the text with these values of the names.
    fn fill(&self, values: &[&str]) -> String {
        let part = |part: &TextTemplatePart<'a>| match part {
            TextTemplatePart::Text(text) => (*text).to_owned(),
            TextTemplatePart::Name(index) => values.get(*index).copied().unwrap_or_default().to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

/// Writes what the teacher reads before each completion, and counts how many have something.
pub(crate) fn prompts(s: &SdpoSettings, generation: &TaughtGeneration) -> Result<TeacherPrompts, Error> {
    let template = |text, names| TextTemplate::parse(text, names).map_err(Error::Config);
    let asked = template(&s.reprompt_template, &["prompt", "solution", "feedback"])?;
    let (of_solution, of_feedback) =
        (template(&s.solution_template, &["successful_previous_attempt"])?, template(&s.feedback_template, &["feedback_raw"])?);
    let feedback = feedback(generation)?;
    let is_success = |row: usize| generation.rewards[row].is_some_and(|r| r >= s.success_reward_threshold as f32);
    let mut questions = vec![None; generation.completions.len()];
    let mut found = TaughtCounts::default();
    for rows in rows_by_prompt(&generation.prompt_of) {
        let successes: Vec<usize> = rows.iter().copied().filter(|&row| is_success(row)).collect();
        found.groups += 1.0;
        found.of_success += f64::from(u8::from(!successes.is_empty()));
        for row in rows {
            let prompt = generation.prompt_of[row] as usize;
            let shown = |other: &&usize| s.use_successful_as_teacher && !(s.dont_reprompt_on_self_success && **other == row);
            let solution = successes.iter().find(shown).map(|&other| demonstration(s, &generation.completions[other]));
            let said = feedback[prompt].as_deref();
            let is_wanted =
                s.include_environment_feedback && !(s.environment_feedback_only_without_solution && solution.is_some());
            let used = said.filter(|_| is_wanted);
            found.add([solution.is_some(), said.is_some(), used.is_some()]);
            if solution.is_none() && used.is_none() {
                continue;
            }
            let solution = solution.map_or_else(String::new, |text| of_solution.fill(&[&text]));
            let used = used.map_or_else(String::new, |text| of_feedback.fill(&[text]));
            questions[row] = Some(asked.fill(&[&generation.questions[prompt], &solution, &used]));
        }
    }
    found.reprompted = questions.iter().flatten().count() as f64;
    Ok(TeacherPrompts { questions, max_length: s.max_reprompt_len, metrics: found.metrics() })
}

/// Returns each prompt's feedback, unless it is blank.
fn feedback(generation: &TaughtGeneration) -> Result<Vec<Option<String>>, Error> {
    let Some(column) = generation.columns.iter().find(|column| column.name == FEEDBACK) else {
        return Ok(vec![None; generation.questions.len()]);
    };
    let parse = |value: &String| {
        let value: serde_json::Value =
            serde_json::from_str(value).map_err(|e| Error::Input(format!("column {FEEDBACK}: {e}")))?;
        Ok(value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned))
    };
    column.values.iter().map(parse).collect()
}

/// Returns a successful completion as the teacher reads it.
fn demonstration(s: &SdpoSettings, completion: &str) -> String {
    if !s.remove_thinking_from_demonstration {
        return completion.to_owned();
    }
    let [begin, end] = THOUGHTS;
    let (mut kept, mut rest) = (String::new(), completion);
    while let Some((before, thoughts)) = rest.split_once(begin) {
        let Some((_, after)) = thoughts.split_once(end) else { break };
        kept.push_str(before);
        rest = after;
    }
    kept.push_str(rest);
    kept.trim().to_owned()
}

/// Numbers of prompts and completions with something to teach.
#[derive(Default)]
struct TaughtCounts {
    groups: f64,
    /// Groups with a successful completion.
    of_success: f64,
    rows: f64,
    /// Completions with a successful other one, with feedback, and with feedback that is read.
    with: [f64; 3],
    reprompted: f64,
}

impl TaughtCounts {
    fn add(&mut self, has: [bool; 3]) {
        self.rows += 1.0;
        self.with.iter_mut().zip(has).for_each(|(count, has)| *count += f64::from(u8::from(has)));
    }

    fn metrics(&self) -> Vec<Metric> {
        let [solved, available, used] = self.with;
        let metric = |name: &str, count: f64, of: f64| Metric::ratio(format!("self_distillation/{name}_fraction"), count, of);
        vec![
            metric("success_group", self.of_success, self.groups),
            metric("success_sample", solved, self.rows),
            metric("feedback_available", available, self.rows),
            metric("feedback_used", used, self.rows),
            metric("reprompt_sample", self.reprompted, self.rows),
        ]
    }
}
