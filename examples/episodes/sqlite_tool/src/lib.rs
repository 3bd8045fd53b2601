//! An environment in which the model queries a SQLite database with the tool `query`, and ends with an answer or with the right query.

mod database;
mod functions;
#[cfg(test)]
mod tests;
mod text;
mod truth;
mod world;

use database::{Database, DatabaseLimits};
use rlhost_plugin_sdk::environment::{Call, Environment, Message, Opening, Random, Reply, Start, Tool, Turn};
use rlhost_plugin_sdk::prelude::*;
use text::LimitedText;
use truth::{RowReference, RowsFingerprint};

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("x-rlhost" = {"isolated_rows": true}))]
pub struct SqliteSettings {
    /// Dataset column with the SQL text that creates and fills the tables.
    pub schema_column: String,
    /// Dataset column with the right answer: a text or a number.
    pub answer_column: String,
    /// Dataset column with a reference query. In rows without an answer, the model's last query is right if it gives the same rows.
    pub query_column: String,
    /// Reward of the right answer or query.
    pub right: f32,
    /// Reward of a wrong answer or query, or of none.
    pub wrong: f32,
    /// Added for each call that returns a result.
    pub call_reward: f32,
    /// Added for each call that returns an error.
    pub bad_call: f32,
    /// Whether the database may not be changed.
    pub read_only: bool,
    /// Longest result, in bytes; the rest is left out.
    #[schemars(range(min = 10, max = 50_000))]
    pub longest_output: usize,
    /// Longest text or blob in a query or its result, in bytes.
    #[schemars(range(min = 1000, max = 10_000_000))]
    pub longest_value: i32,
    /// Limit of a call, in steps of SQLite's virtual machine.
    #[schemars(range(min = 1000, max = 2_000_000_000))]
    pub most_steps: u32,
    /// Memory limit of a database and the calls to it.
    #[schemars(range(min = 1, max = 2048))]
    pub memory_mb: u32,
    /// The time in the database, as in date('now').
    pub now: String,
}

impl Default for SqliteSettings {
    fn default() -> Self {
        Self {
            schema_column: "schema".into(),
            answer_column: "answer".into(),
            query_column: "query".into(),
            right: 1.0,
            wrong: 0.0,
            call_reward: 0.0,
            bad_call: -0.1,
            read_only: true,
            longest_output: 2000,
            longest_value: 16_384,
            most_steps: 2_000_000,
            memory_mb: 32,
            now: "2026-01-01 12:00:00".into(),
        }
    }
}

/// Arguments of the tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryArguments {
    /// One or more SQL statements.
    pub sql: String,
}

/// The environment.
pub struct Sqlite {
    settings: SqliteSettings,
    limits: DatabaseLimits,
}

/// What is right in an episode.
enum Truth {
    Answer(String),
    Rows { wanted: RowsFingerprint, ordered: bool },
    Unknown,
}

/// An episode.
pub struct SqliteEpisode {
    database: Database,
    random: Random,
    truth: Truth,
    /// The rows of the last query that returned any.
    found: Option<RowsFingerprint>,
    calls: u32,
    right: bool,
}

impl Sqlite {
    fn schema_of(&self, start: &Start, given: &RowReference) -> Result<String, Error> {
        let column = &self.settings.schema_column;
        match (start.column_as(column)?, given) {
            (Some(schema), _) => Ok(schema),
            // A row that says nothing at all is no row of a dataset.
            (None, RowReference::Nothing) => Ok(String::new()),
            (None, _) => Err(Error::Input(format!("the row has no column {column:?}, which creates the database"))),
        }
    }

    fn truth_of(&self, given: RowReference, database: &mut Database) -> Result<Truth, Error> {
        let sql = match given {
            RowReference::Answer(answer) => return Ok(Truth::Answer(answer)),
            RowReference::Nothing => return Ok(Truth::Unknown),
            RowReference::Query(sql) => sql,
        };
        let column = &self.settings.query_column;
        let wrong = |told: String| Error::Input(format!("the query in the dataset's column {column:?} fails: {told}"));
        let found = database.run(&sql, 0, &self.limits).map_err(wrong)?;
        let wanted = found.rows.ok_or_else(|| wrong("it returns no rows".into()))?;
        Ok(Truth::Rows { wanted, ordered: truth::is_ordered(&sql) })
    }

    fn answer(&self, session: &mut SqliteEpisode, call: &Call) -> Result<String, String> {
        if call.name != "query" {
            return Err(format!("there is no tool {:?}; there is query", call.name));
        }
        let sql = call.arguments_as::<QueryArguments>()?.sql;
        let outcome = session.database.run(&sql, session.random.bits(), &self.limits)?;
        session.found = outcome.rows.or(session.found);
        Ok(outcome.text)
    }

    fn end(&self, session: &mut SqliteEpisode, said: &str) -> Reply {
        session.right = match &session.truth {
            Truth::Answer(answer) => truth::is_right(said, answer),
            Truth::Rows { wanted, ordered } => session.found.is_some_and(|found| found.matches(wanted, *ordered)),
            Truth::Unknown => return Reply { done: true, ..Reply::say(Vec::new()) },
        };
        Reply::end(if session.right { self.settings.right } else { self.settings.wrong })
    }
}

impl Environment for Sqlite {
    type Config = SqliteSettings;
    type Episode = SqliteEpisode;

    fn new(settings: SqliteSettings) -> Result<Self, Error> {
        let limits = DatabaseLimits::from_settings(&settings).map_err(Error::Config)?;
        Ok(Self { settings, limits })
    }

    fn begin(&self, start: &Start) -> Result<(SqliteEpisode, Opening), Error> {
        let given = RowReference::from_row(&self.settings, start)?;
        let schema = self.schema_of(start, &given)?;
        let column = &self.settings.schema_column;
        let open = || Database::from_schema(&schema, &self.limits);
        let open = || open().map_err(|told| Error::Input(format!("the SQL in the dataset's column {column:?} fails: {told}")));
        let mut database = open()?;
        let truth = self.truth_of(given, &mut database)?;
        if !self.settings.read_only && matches!(truth, Truth::Rows { .. }) {
            // The reference may have changed the first.
            database = open()?;
        }
        let tool =
            Tool::new::<QueryArguments>("query", "Runs SQL on a SQLite database and returns the rows of the last statement.");
        let session = SqliteEpisode { database, random: start.random(), truth, found: None, calls: 0, right: false };
        Ok((session, Opening::plain().with_tools(vec![tool])))
    }

    fn step(&self, session: &mut SqliteEpisode, turn: &Turn) -> Result<Reply, Error> {
        if turn.calls.is_empty() {
            return Ok(self.end(session, &turn.text));
        }
        let (mut messages, mut reward) = (Vec::with_capacity(turn.calls.len()), 0.0);
        for call in &turn.calls {
            session.calls += 1;
            let (text, of_call) = match self.answer(session, call) {
                Ok(text) => (text, self.settings.call_reward),
                Err(message) => {
                    (format!("error: {}", LimitedText::sanitize(&message, self.settings.longest_output)), self.settings.bad_call)
                }
            };
            messages.push(Message::tool(call, text));
            reward += of_call;
        }
        let unknown = matches!(session.truth, Truth::Unknown) && reward == 0.0;
        let reply = Reply::say(messages);
        Ok(if unknown { reply } else { reply.with_reward(reward) })
    }

    fn finish(&self, session: SqliteEpisode) -> Vec<Metric> {
        let right = (!matches!(session.truth, Truth::Unknown))
            .then(|| Metric::mean("sqlite_tool/right", f64::from(u8::from(session.right)), 1.0));
        right.into_iter().chain([Metric::mean("sqlite_tool/calls", f64::from(session.calls), 1.0)]).collect()
    }
}

environment_plugin!(Sqlite);
