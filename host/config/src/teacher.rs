//! The teacher of a configuration: a model, an inference server, or the policy itself with another prompt.

use super::entries::is_name;
use super::{Address, CompletionSource, PromptTemplate, RunConfig, TeacherModelKind, shortest};

/// A teacher on an inference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeacherServerEntry<'a> {
    /// Name by which rows choose it.
    pub name: Option<&'a str>,
    /// URL of the server.
    pub url: &'a str,
}

impl RunConfig {
    /// Returns the teachers on servers.
    pub fn teacher_servers(&self) -> impl Iterator<Item = TeacherServerEntry<'_>> {
        self.teacher_server.iter().map(|given| match given.split_once('=') {
            Some((name, url)) if is_name(name) => TeacherServerEntry { name: Some(name), url },
            _ => TeacherServerEntry { name: None, url: given },
        })
    }

    /// Checks that teachers' servers have addresses, and names if there are several.
    fn check_teachers(&self) -> Result<(), String> {
        let all: Vec<TeacherServerEntry<'_>> = self.teacher_servers().collect();
        for (at, TeacherServerEntry { name, url }) in all.iter().enumerate() {
            Address::parse(url)?;
            match name {
                None if all.len() > 1 => {
                    return Err(format!(
                        "{url} has no name, and there are several teachers: write NAME={url}, and name it in the rows' column teacher"
                    ));
                }
                Some(name) if all[..at].iter().any(|other| other.name == Some(name)) => {
                    return Err(format!("two teachers are named {name:?}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Records the name of the teacher that was found. The model that a run starts with has none, and remains the teacher if it resumes.
    pub fn name_teacher(&mut self, name: Option<String>) {
        if name.is_some() {
            (self.teacher_model, self.teacher_model_kind) = (name, TeacherModelKind::Named);
        }
    }

    /// Checks the keys of teachers. The error is the invalid key, and the valid values.
    pub(super) fn check_teacher(&self) -> Result<(), (&'static str, String)> {
        if self.teacher_model.as_deref() == Some("") {
            return Err(("teacher_model", "is empty; name a model, or leave it out".into()));
        }
        self.check_teacher_server()?;
        self.check_teacher_kind()?;
        self.check_teacher_average()?;
        self.check_teacher_prompt()?;
        if self.teacher_load_in_8bit && self.teacher_load_in_4bit {
            return Err(("teacher_load_in_8bit", "can't be combined with teacher_load_in_4bit; choose one".into()));
        }
        Ok(())
    }

    /// Checks that a teacher that is not named is not named.
    fn check_teacher_kind(&self) -> Result<(), (&'static str, String)> {
        let kind = match self.teacher_model_kind {
            TeacherModelKind::Named => return Ok(()),
            TeacherModelKind::Base => "base, the model that the run starts with",
            TeacherModelKind::Live => "live, the policy itself",
            TeacherModelKind::Ema => "ema, an average of the policy",
            TeacherModelKind::Dataset => "dataset, whose columns have what a teacher said",
        };
        let named = [("teacher_model", self.teacher_model.is_some()), ("teacher_server", !self.teacher_server.is_empty())];
        if let Some((key, _)) = named.into_iter().find(|(_, given)| *given) {
            return Err(("teacher_model_kind", format!("is {kind}, and {key} names another teacher; choose one")));
        }
        if self.teacher_model_kind == TeacherModelKind::Base {
            return Ok(());
        }
        let bits = [
            ("teacher_load_in_8bit", self.teacher_load_in_8bit),
            ("teacher_load_in_4bit", self.teacher_load_in_4bit),
            ("zero_stage", self.zero_stage >= 3),
            ("shard_frozen", self.shard_frozen == Some(true)),
        ];
        if let Some((key, _)) = bits.into_iter().find(|(_, given)| *given) {
            return Err((key, format!("is not possible with teacher_model_kind {kind}")));
        }
        if self.teacher_model_kind == TeacherModelKind::Dataset {
            return self.check_taught_dataset();
        }
        Ok(())
    }

    /// Checks that the completions about which a dataset's columns say what a teacher said are learned, each as a row.
    fn check_taught_dataset(&self) -> Result<(), (&'static str, String)> {
        const KIND: &str = "teacher_model_kind";
        if self.completion_source() != CompletionSource::Dataset {
            let detail = "is dataset, whose columns are about the dataset's completions; set learn_from = \"dataset\"";
            return Err((KIND, detail.into()));
        }
        if self.packing || self.packs_evaluations() {
            return Err((KIND, "is dataset, which is not possible with packing".into()));
        }
        if !self.completion_only_loss {
            return Err((KIND, "is dataset, whose columns are about completions; set completion_only_loss = true".into()));
        }
        if self.temperature != 1.0 {
            return Err((KIND, "is dataset, whose columns are at temperature 1; set temperature = 1".into()));
        }
        Ok(())
    }

    /// Returns whether a template builds another prompt for the teacher than the policy's.
    pub fn has_teacher_prompts(&self) -> bool {
        self.teacher_prompt_template.as_deref().is_some_and(|template| template.trim() != "{prompt}")
    }

    /// Checks how an average follows the policy.
    fn check_teacher_average(&self) -> Result<(), (&'static str, String)> {
        if !(0.0..=1.0).contains(&self.teacher_update_rate) {
            let detail = format!("is {}; it must be between 0 and 1", shortest(self.teacher_update_rate));
            return Err(("teacher_update_rate", detail));
        }
        if self.teacher_sync_steps == 0 {
            return Err(("teacher_sync_steps", "must be at least 1".into()));
        }
        Ok(())
    }

    /// Checks the prompt that a teacher reads.
    fn check_teacher_prompt(&self) -> Result<(), (&'static str, String)> {
        const KEY: &str = "teacher_prompt_template";
        let Some(template) = &self.teacher_prompt_template else { return Ok(()) };
        PromptTemplate::parse(template).map_err(|detail| (KEY, detail))?;
        if self.has_episodes() {
            return Err((
                KEY,
                "is not supported with an environment or an agent, whose conversations have more than a prompt".into(),
            ));
        }
        if self.completion_source() == CompletionSource::Dataset {
            return Err((KEY, "needs completions of the policy; set learn_from = \"generation\"".into()));
        }
        Ok(())
    }

    /// Checks the teachers' servers. The error is the invalid key, and the valid values.
    fn check_teacher_server(&self) -> Result<(), (&'static str, String)> {
        if self.teacher_server.is_empty() {
            return Ok(());
        }
        self.check_teachers().map_err(|detail| ("teacher_server", detail))?;
        if self.teacher_model.is_some() {
            return Err(("teacher_server", "can't be combined with teacher_model; choose one".into()));
        }
        if self.teacher_load_in_8bit || self.teacher_load_in_4bit {
            let key = if self.teacher_load_in_8bit { "teacher_load_in_8bit" } else { "teacher_load_in_4bit" };
            return Err((key, "is about a teacher in this process; a server holds its own".into()));
        }
        if !self.agent.is_empty() {
            let detail = "is not supported with an agent, whose calls may branch; name the teacher with teacher_model";
            return Err(("teacher_server", detail.into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_teachers_server_is_named_by_its_key() {
        type Case = (&'static str, &'static str, fn(&mut RunConfig));
        let cases: [Case; 6] = [
            ("teacher_server", "is not a URL", |c| c.teacher_server = vec!["node one".into()]),
            ("teacher_server", "http://b:1 has no name", |c| c.teacher_server = vec!["a=http://a:1".into(), "http://b:1".into()]),
            ("teacher_server", "two teachers are named \"a\"", |c| {
                c.teacher_server = ["1", "2"].map(|n| format!("a=http://a:{n}")).into();
            }),
            ("teacher_server", "can't be combined with teacher_model", |c| c.teacher_model = Some("teacher".into())),
            ("teacher_load_in_4bit", "a server holds its own", |c| c.teacher_load_in_4bit = true),
            ("teacher_server", "name the teacher with teacher_model", |c| {
                c.agent = vec![serde_json::from_value(serde_json::json!({"command": ["a"]})).unwrap()];
            }),
        ];
        for (key, expected, change) in cases {
            let mut config = RunConfig { teacher_server: vec!["http://node1:8000".into()], ..RunConfig::default() };
            assert_eq!(config.check_teacher_server(), Ok(()));
            change(&mut config);
            let (named, detail) = config.check_teacher_server().unwrap_err();
            assert!(named == key && detail.contains(expected), "{key} {expected}: {named} {detail}");
        }
    }

    #[test]
    fn a_teacher_that_is_not_named_needs_what_it_can_teach() {
        let told = || RunConfig { teacher_prompt_template: Some("{prompt} {privileged_context}".into()), ..RunConfig::default() };
        let base = || RunConfig { teacher_model_kind: TeacherModelKind::Base, ..RunConfig::default() };
        let live = || RunConfig { teacher_model_kind: TeacherModelKind::Live, ..told() };
        let ema = || RunConfig { teacher_model_kind: TeacherModelKind::Ema, ..RunConfig::default() };
        let dataset = || RunConfig {
            teacher_model_kind: TeacherModelKind::Dataset,
            learn_from: CompletionSource::Dataset,
            ..RunConfig::default()
        };
        for valid in [told(), base(), live(), ema(), dataset()] {
            assert_eq!(valid.check_teacher(), Ok(()));
        }
        let cases = [
            ("teacher_model_kind", "names another teacher", RunConfig { teacher_model: Some("other".into()), ..base() }),
            (
                "teacher_model_kind",
                "names another teacher",
                RunConfig { teacher_server: vec!["http://node1:80".into()], ..live() },
            ),
            ("teacher_load_in_4bit", "live, the policy itself", RunConfig { teacher_load_in_4bit: true, ..live() }),
            ("teacher_model_kind", "set learn_from", RunConfig { learn_from: CompletionSource::Generation, ..dataset() }),
            ("teacher_model_kind", "not possible with packing", RunConfig { packing: true, ..dataset() }),
            ("teacher_model_kind", "not possible with packing", RunConfig { eval_packing: Some(true), ..dataset() }),
            ("teacher_model_kind", "completion_only_loss = true", RunConfig { completion_only_loss: false, ..dataset() }),
            ("teacher_model_kind", "set temperature = 1", RunConfig { temperature: 0.5, ..dataset() }),
            ("teacher_load_in_8bit", "dataset, whose columns", RunConfig { teacher_load_in_8bit: true, ..dataset() }),
            ("teacher_model_kind", "names another teacher", RunConfig { teacher_model: Some("other".into()), ..dataset() }),
            ("zero_stage", "live, the policy itself", RunConfig { zero_stage: 3, ..live() }),
            ("zero_stage", "ema, an average of the policy", RunConfig { zero_stage: 3, ..ema() }),
            ("teacher_model_kind", "names another teacher", RunConfig { teacher_model: Some("other".into()), ..ema() }),
            ("teacher_update_rate", "between 0 and 1", RunConfig { teacher_update_rate: 1.5, ..ema() }),
            ("teacher_update_rate", "between 0 and 1", RunConfig { teacher_update_rate: f64::NAN, ..ema() }),
            ("teacher_sync_steps", "at least 1", RunConfig { teacher_sync_steps: 0, ..ema() }),
            ("teacher_prompt_template", "is not closed", RunConfig { teacher_prompt_template: Some("{prompt".into()), ..told() }),
            ("teacher_prompt_template", "names no column", RunConfig { teacher_prompt_template: Some("hint".into()), ..told() }),
            ("teacher_prompt_template", "learn_from", RunConfig { learn_from: CompletionSource::Dataset, ..told() }),
        ];
        for (key, expected, config) in cases {
            let (named, detail) = config.check_teacher().unwrap_err();
            assert!(named == key && detail.contains(expected), "{key} {expected}: {named} {detail}");
        }
    }
}
