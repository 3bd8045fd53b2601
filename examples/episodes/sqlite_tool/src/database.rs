//! A database in memory, and what a model may do with it.

use crate::SqliteSettings;
use crate::functions::{out_of_steps, replace_all};
use crate::text::LimitedText;
use crate::truth::RowsFingerprint;
use crate::world::{SqliteGuard, lock_sqlite};
use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Batch, Connection, Error, ErrorCode, Statement};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Steps between two looks at how many are left. A statement counts as at least that many.
const STRIDE: i32 = 1000;

/// Pragmas that only say something.
const PRAGMAS: [&str; 10] = [
    "collation_list",
    "compile_options",
    "database_list",
    "foreign_key_list",
    "function_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
];

/// Functions whose time is the square of a text's length, and the one that loads code.
const NO_FUNCTIONS: [&str; 4] = ["json_patch", "jsonb_patch", "load_extension", "unhex"];

/// Limits of SQLite's on what the model runs. Deep nesting costs stack.
const LIMITS: [(Limit, i32); 7] = [
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
    (Limit::SQLITE_LIMIT_VDBE_OP, 100_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 20),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// What statements returned.
pub struct StatementOutcome {
    /// What the model reads.
    pub text: String,
    /// The rows of the last statement, if it returns any.
    pub rows: Option<RowsFingerprint>,
}

/// A database.
pub struct Database {
    connection: Connection,
    steps: Arc<AtomicI64>,
    /// What SQLite uses of its memory for this database, in bytes.
    memory: i64,
}

/// Limits of a database.
#[derive(Clone, Debug)]
pub struct DatabaseLimits {
    /// Virtual-machine steps of a call.
    pub steps: i64,
    /// Memory of a database and of a call to it, in bytes.
    pub memory: i64,
    /// Length of the text that the model reads, in bytes.
    pub output: usize,
    /// Length of a text or blob, in bytes.
    pub value: i32,
    /// Whether the database may not be changed.
    pub read_only: bool,
    /// The time, in milliseconds as SQLite counts them.
    pub now: i64,
}

impl DatabaseLimits {
    /// Takes them from settings.
    pub fn from_settings(settings: &SqliteSettings) -> Result<Self, String> {
        Ok(Self {
            steps: i64::from(settings.most_steps),
            memory: i64::from(settings.memory_mb) << 20,
            output: settings.longest_output,
            value: settings.longest_value,
            read_only: settings.read_only,
            now: milliseconds_of(&settings.now)?,
        })
    }
}

/// Returns a time as SQLite counts it: milliseconds since noon of the first day that it knows.
fn milliseconds_of(time: &str) -> Result<i64, String> {
    let alone = lock_sqlite();
    alone.set(0, 0);
    let asked = "SELECT CAST(round(julianday(?1) * 86400000.0) AS INTEGER)";
    let found = Connection::open_in_memory().and_then(|connection| connection.query_row(asked, [time], |row| row.get(0)));
    found.ok().flatten().ok_or_else(|| format!("now is {time:?}, which SQLite does not read as a time"))
}

fn may_read(action: AuthAction<'_>) -> bool {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => !NO_FUNCTIONS.contains(&function_name.to_ascii_lowercase().as_str()),
        AuthAction::Pragma { pragma_name, .. } => PRAGMAS.contains(&pragma_name.to_ascii_lowercase().as_str()),
        _ => false,
    }
}

fn may_write(action: AuthAction<'_>) -> bool {
    match action {
        AuthAction::Pragma { .. } | AuthAction::Function { .. } => may_read(action),
        AuthAction::Attach { .. } | AuthAction::Detach { .. } | AuthAction::Unknown { .. } => false,
        AuthAction::CreateVtable { .. } | AuthAction::DropVtable { .. } => false,
        _ => true,
    }
}

/// Uses SQLite for a database with its own limit of memory.
fn with_memory_limit<T>(limits: &DatabaseLimits, memory: &mut i64, seed: u64, work: impl FnOnce() -> T) -> T {
    struct MemoryLimitGuard<'a>(&'a SqliteGuard);
    impl Drop for MemoryLimitGuard<'_> {
        fn drop(&mut self) {
            self.0.limit_memory(0);
        }
    }
    let alone = lock_sqlite();
    alone.set(limits.now, seed);
    let before = alone.memory();
    // At least 1: no memory is no limit.
    alone.limit_memory((before - *memory + limits.memory).max(1));
    let limited = MemoryLimitGuard(&alone);
    let done = work();
    drop(limited);
    *memory += alone.memory() - before;
    done
}

impl Database {
    /// Creates a database of an SQL text.
    pub fn from_schema(schema: &str, limits: &DatabaseLimits) -> Result<Self, String> {
        let mut memory = 0;
        let opened = with_memory_limit(limits, &mut memory, 0, || {
            let mut connection = Connection::open_in_memory()?;
            // What SQLite does unless it is told otherwise, and this build of it does not.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
            connection.execute_batch("PRAGMA temp_store = MEMORY")?;
            connection.execute_batch(schema)?;
            let steps = Arc::new(AtomicI64::new(0));
            guard(&mut connection, &steps, limits)?;
            Ok((connection, steps))
        });
        match opened {
            Ok((connection, steps)) => Ok(Self { connection, steps, memory }),
            Err(error) => Err(error_message(&error, limits)),
        }
    }

    /// Runs the model's statements. The error is a sentence for it.
    pub fn run(&mut self, sql: &str, seed: u64, limits: &DatabaseLimits) -> Result<StatementOutcome, String> {
        self.steps.store(limits.steps, Relaxed);
        let (connection, steps) = (&self.connection, &self.steps);
        let outcome = with_memory_limit(limits, &mut self.memory, seed, || {
            let (mut batch, mut last) = (Batch::new(connection, sql), None);
            while let Some(mut statement) = batch.next()? {
                if steps.fetch_sub(i64::from(STRIDE), Relaxed) <= 0 {
                    return Err(out_of_steps());
                }
                last = Some(outcome_of(connection, &mut statement, limits)?);
            }
            Ok(last)
        });
        let outcome = outcome.map_err(|error| LimitedText::sanitize(&error_message(&error, limits), limits.output))?;
        outcome.ok_or_else(|| "there is no statement".into())
    }
}

/// Lets the model do no more than it may.
fn guard(connection: &mut Connection, steps: &Arc<AtomicI64>, limits: &DatabaseLimits) -> rusqlite::Result<()> {
    for (limit, most) in LIMITS {
        connection.set_limit(limit, most)?;
    }
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, limits.value)?;
    replace_all(connection, steps, usize::try_from(limits.value).unwrap_or(0))?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    let read_only = limits.read_only;
    connection.execute_batch(if read_only { "PRAGMA query_only = ON" } else { "" })?;
    let allowed = move |asked: AuthContext<'_>| match if read_only { may_read(asked.action) } else { may_write(asked.action) } {
        true => Authorization::Allow,
        false => Authorization::Deny,
    };
    connection.authorizer(Some(allowed))?;
    let steps = Arc::clone(steps);
    connection.progress_handler(STRIDE, Some(move || steps.fetch_sub(i64::from(STRIDE), Relaxed) <= 0))
}

/// Runs a statement to its end.
fn outcome_of(
    connection: &Connection,
    statement: &mut Statement<'_>,
    limits: &DatabaseLimits,
) -> rusqlite::Result<StatementOutcome> {
    let columns = statement.column_count();
    let mut text = LimitedText::new(limits.output);
    text.push_row(statement.column_names(), |text, name| text.push_line(name));
    let (before, mut found, mut whole) = (connection.total_changes(), RowsFingerprint::default(), 0);
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get_ref(column)).collect::<rusqlite::Result<Vec<_>>>()?;
        found.push(values.iter().copied());
        text.push_row(values.into_iter(), LimitedText::push_value);
        whole += u64::from(!text.is_cut());
    }
    if columns == 0 {
        let changed = connection.total_changes() - before;
        return Ok(StatementOutcome { text: format!("(done; {changed} rows changed)"), rows: None });
    }
    let (is_cut, count) = (text.is_cut(), found.count());
    let mut text = text.into_string();
    if count == 0 {
        text.push_str("\n(no rows)");
    } else if is_cut {
        text.push_str(&format!("\n({} of {count} rows cut or left out)", count - whole));
    }
    Ok(StatementOutcome { text, rows: Some(found) })
}

/// Says what went wrong, in a sentence.
fn error_message(error: &Error, limits: &DatabaseLimits) -> String {
    let said = match error {
        Error::SqlInputError { msg, .. } | Error::SqliteFailure(_, Some(msg)) => msg.clone(),
        other => other.to_string(),
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => format!("it was stopped after {} steps", limits.steps),
        Some(ErrorCode::OutOfMemory) => format!("it needs more than {} MB of memory", limits.memory >> 20),
        Some(ErrorCode::TooBig) => format!("it has a text or blob of more than {} bytes, or is itself too long", limits.value),
        Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly)
            if limits.read_only && !said.contains("to use function") =>
        {
            format!("the database may only be read ({said})")
        }
        _ => said.lines().next().unwrap_or("unknown").to_owned(),
    }
}
