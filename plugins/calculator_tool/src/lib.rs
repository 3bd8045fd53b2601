//! A calculator that the model calls as a tool, and a reward for the right answer.

mod arithmetic;

use rlhost_plugin_sdk::environment::{Environment, Message, Opening, Reply, Start, Tool, Turn};
use rlhost_plugin_sdk::prelude::*;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CalculatorSettings {
    /// Dataset column with the right answer, a number; without one, the game makes up problems.
    pub answer_column: String,
    /// Reward of the right answer.
    pub right: f32,
    /// Reward of a wrong answer, or of none.
    pub wrong: f32,
    /// Added for each call that returns a result.
    pub call_reward: f32,
    /// Added for each call that returns an error.
    pub bad_call: f32,
    /// Largest number in a made-up problem.
    pub largest: u64,
}

impl Default for CalculatorSettings {
    fn default() -> Self {
        Self { answer_column: "answer".into(), right: 1.0, wrong: 0.0, call_reward: 0.0, bad_call: -0.1, largest: 999 }
    }
}

/// Arguments of the tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalculatorArguments {
    /// What to compute, as in (12 + 3.5) * -4
    pub expression: String,
}

/// The environment.
pub struct Calculator(CalculatorSettings);

/// An episode.
pub struct CalculatorEpisode {
    answer: f64,
    calls: u32,
    right: bool,
}

/// Returns the last number in a text.
fn number_in(text: &str) -> Option<f64> {
    let part = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | ',');
    let mut numbers = text.split(|c: char| !part(c)).filter(|word| word.contains(|c: char| c.is_ascii_digit()));
    let plain = numbers.next_back()?.trim_matches(|c| matches!(c, '.' | ',')).replace(',', "");
    let plain = plain.rsplit_once('-').map_or(plain.as_str(), |(before, _)| &plain[before.len()..]);
    plain.parse().ok()
}

impl Calculator {
    /// Returns the answer of a row, which may be text.
    fn answer_of(&self, start: &Start) -> Result<Option<f64>, Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum AnswerField {
            Number(f64),
            Text(String),
        }
        let column = &self.0.answer_column;
        match start.column_as::<AnswerField>(column)? {
            None => Ok(None),
            Some(AnswerField::Number(number)) => Ok(Some(number)),
            Some(AnswerField::Text(text)) => number_in(&text)
                .map(Some)
                .ok_or_else(|| Error::Input(format!("the dataset's column {column:?} contains {text:?}, which has no number"))),
        }
    }
}

impl Environment for Calculator {
    type Config = CalculatorSettings;
    type Episode = CalculatorEpisode;

    fn new(settings: CalculatorSettings) -> Result<Self, Error> {
        if settings.largest == 0 || settings.largest > 1_000_000 {
            return Err(Error::Config(format!("largest is {}; it must be between 1 and 1000000", settings.largest)));
        }
        Ok(Self(settings))
    }

    fn begin(&self, start: &Start) -> Result<(CalculatorEpisode, Opening), Error> {
        let given = self.answer_of(start)?;
        let (answer, opening) = match given {
            Some(answer) => (answer, Opening::plain()),
            None => {
                let (mut random, most) = (start.random(), self.0.largest);
                let (a, b) = (1 + random.below(most), 1 + random.below(most));
                let question = format!("What is {a} * {b}?");
                ((a * b) as f64, Opening::with_prompt(vec![Message::user(question)]))
            }
        };
        let tool = Tool::new::<CalculatorArguments>("calculator", "Computes an arithmetic expression.");
        Ok((CalculatorEpisode { answer, calls: 0, right: false }, opening.with_tools(vec![tool])))
    }

    fn step(&self, problem: &mut CalculatorEpisode, turn: &Turn) -> Result<Reply, Error> {
        if turn.calls.is_empty() {
            let said = number_in(&turn.text);
            let near = |said: f64| (said - problem.answer).abs() <= 1e-6 * problem.answer.abs().max(1.0);
            problem.right = said.is_some_and(near);
            return Ok(Reply::end(if problem.right { self.0.right } else { self.0.wrong }));
        }
        let (mut messages, mut reward) = (Vec::with_capacity(turn.calls.len()), 0.0);
        for call in &turn.calls {
            problem.calls += 1;
            let result = if call.name == "calculator" {
                call.arguments_as::<CalculatorArguments>().and_then(|a| arithmetic::value_of(&a.expression))
            } else {
                Err(format!("there is no tool {:?}; there is calculator", call.name))
            };
            let (text, of_call) = match result {
                Ok(value) => (value.to_string(), self.0.call_reward),
                Err(told) => (format!("error: {told}"), self.0.bad_call),
            };
            messages.push(Message::tool(call, text));
            reward += of_call;
        }
        Ok(Reply::say(messages).with_reward(reward))
    }

    fn finish(&self, problem: CalculatorEpisode) -> Vec<Metric> {
        vec![
            Metric::mean("calculator_tool/right", f64::from(u8::from(problem.right)), 1.0),
            Metric::mean("calculator_tool/calls", f64::from(problem.calls), 1.0),
        ]
    }
}

environment_plugin!(Calculator);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::environment::testing::Play;

    fn play(columns: &[(&str, &str)]) -> Play<Calculator> {
        Play::begin(CalculatorSettings::default(), 3, columns).unwrap()
    }

    #[test]
    fn a_call_is_answered_and_the_answer_rewarded() {
        let mut play = play(&[("answer", "35")]);
        assert_eq!(play.opening().tools[0].name, "calculator");
        assert!(play.opening().tools[0].parameters.contains("expression"));
        let reply = play.calls("calculator", r#"{"expression": "5 * (3 + 4)"}"#).unwrap();
        assert_eq!((reply.messages[0].role.as_str(), reply.messages[0].content.as_str()), ("tool", "35"));
        assert!(play.says("It is 35.").unwrap().done);
        assert_eq!(play.reward(), Some(1.0));
    }

    #[test]
    fn bad_calls_are_told_what_is_wrong() {
        let mut play = play(&[("answer", "\"#### 1,234\"")]);
        let told = |reply: Reply| (reply.messages[0].content.clone(), reply.reward);
        let (text, reward) = told(play.calls("calculator", "5 + 5").unwrap());
        assert!(text.starts_with("error: the arguments of calculator are not JSON"), "{text}");
        assert_eq!(reward, Some(-0.1));
        assert!(told(play.calls("search", "{}").unwrap()).0.contains("no tool"));
        assert!(told(play.calls("calculator", r#"{"expression": "1 / 0"}"#).unwrap()).0.contains("zero"));
        assert!((play.says("so 1234").unwrap().reward.unwrap() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn problems_of_its_own_follow_from_the_seed() {
        let question =
            |seed| Play::<Calculator>::begin(CalculatorSettings::default(), seed, &[]).unwrap().prompt()[0].content.clone();
        assert_eq!(question(1), question(1));
        assert_ne!(question(1), question(2));
    }

    #[test]
    fn the_last_number_of_a_text_is_the_answer() {
        assert_eq!(number_in("3 + 4 = 7."), Some(7.0));
        assert_eq!(number_in("1,234.50!"), Some(1234.5));
        assert_eq!(number_in("minus: -4"), Some(-4.0));
        assert_eq!(number_in("10-3"), Some(-3.0));
        assert_eq!(number_in("none"), None);
    }
}
