//! What a teacher reads before completions, as an algorithm writes it once they are scored.

use super::AlgorithmPlugin;
use super::interface::TeacherPromptsExport;
use crate::columns::HAS_TEACHER_PROMPT;
use crate::contract::teacher_prompts;
use crate::loaded_plugin::PluginCall;
use crate::{Metric, Result};

/// A scored generation as an algorithm sees it that writes what a teacher reads.
pub use crate::contract::teacher_prompts::Generation as TaughtGeneration;

/// A column of the dataset as such an algorithm sees it.
pub use crate::contract::teacher_prompts::Column as TaughtColumn;

/// Number of a question's last bytes that are kept. No model reads as many tokens.
const LONGEST_QUESTION: usize = 1 << 20;

/// The checked questions that a teacher reads.
#[derive(Clone, Debug, Default)]
pub struct TeacherQuestions {
    /// One entry per completion; none where the teacher reads the policy's prompt.
    pub questions: Vec<Option<String>>,
    /// Maximum number of tokens of a prompt with such a question, if there is one.
    pub max_length: Option<usize>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl AlgorithmPlugin {
    /// Returns whether the algorithm writes what a teacher reads: it exports the function, and needs the column that says where it did.
    pub fn writes_teacher_prompts(&self) -> bool {
        self.teacher_prompts_export().is_some()
    }

    fn teacher_prompts_export(&self) -> Option<TeacherPromptsExport> {
        let is_needed = self.plugin.loss_plugin().info().needs.has(HAS_TEACHER_PROMPT);
        self.with_loss().teacher_prompts().filter(|_| is_needed)
    }

    /// Returns what a teacher reads before the completions of a generation in place of their questions; `None` if the algorithm does not
    /// write it.
    ///
    /// # Errors
    /// If the call fails, or its answer does not fit the generation.
    pub fn teacher_questions(&mut self, mut generation: TaughtGeneration) -> Result<Option<TeacherQuestions>> {
        let Some(export) = self.teacher_prompts_export() else { return Ok(None) };
        let (at, of) = (PluginCall::with_step("write", generation.step), self.metrics_of());
        generation.seed = self.seed_of(generation.seed, generation.step);
        let ask = |store: &mut _, linked: &_| export.write(store, linked, &generation);
        let plugin = self.plugin.loss_plugin_mut();
        let given = plugin.call(at, ask)?;
        let same = |again: teacher_prompts::Prompts| again.questions == given.questions && again.max_length == given.max_length;
        if !plugin.answer_again(at, false, ask).is_none_or(same) {
            return Err(plugin.not_stateless(at, "the questions for the teacher differ"));
        }
        let metrics = plugin.checked_metrics(of, given.metrics).map_err(|detail| self.wrong(at, detail))?;
        check(&given.questions, generation.completions.len()).map_err(|detail| self.wrong(at, detail))?;
        let max_length = Some(given.max_length as usize).filter(|most| *most > 0);
        let questions = given.questions.into_iter().map(|question| question.map(shortened)).collect();
        Ok(Some(TeacherQuestions { questions, max_length, metrics }))
    }
}

/// Returns the end of a question.
fn shortened(question: String) -> String {
    let first = question.ceil_char_boundary(question.len().saturating_sub(LONGEST_QUESTION));
    if first == 0 { question } else { question[first..].to_owned() }
}

/// Rejects questions whose number is not that of the completions.
fn check(questions: &[Option<String>], completions: usize) -> std::result::Result<(), String> {
    if questions.len() != completions {
        return Err(format!("returned {} questions for {completions} completions", questions.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_do_not_fit_completions_are_refused() {
        let short = Some("2 + 2?".to_owned());
        assert_eq!(check(&[short.clone(), None], 2), Ok(()));
        assert!(check(std::slice::from_ref(&short), 2).unwrap_err().contains("1 questions for 2 completions"));
    }

    #[test]
    fn a_long_questions_end_is_kept() {
        assert_eq!(shortened("short".into()), "short");
        let long = format!("é{}", "?".repeat(LONGEST_QUESTION - 1));
        assert_eq!(shortened(long), "?".repeat(LONGEST_QUESTION - 1));
    }
}
