//! Episodes, and what hostile SQL gets.

use super::*;
use rlhost_plugin_sdk::environment::testing::Play;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SCHEMA: &str = "CREATE TABLE towns (name TEXT, people INTEGER);
    CREATE INDEX by_people ON towns (people);
    INSERT INTO towns VALUES ('Ulm', 126000), ('Bonn', 331000), ('Kiel', 246000);";

/// SQLite counts the memory of the process: a database that another test drops meanwhile would disturb.
struct SqliteGame {
    play: Play<Sqlite>,
    _one: MutexGuard<'static, ()>,
}

fn game_of(settings: SqliteSettings, seed: u64, columns: &[(&str, &str)]) -> SqliteGame {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let quoted: Vec<(&str, String)> = columns.iter().map(|(name, text)| (*name, format!("{text:?}"))).collect();
    let columns: Vec<(&str, &str)> = quoted.iter().map(|(name, json)| (*name, json.as_str())).collect();
    SqliteGame { play: Play::begin(settings, seed, &columns).unwrap(), _one: one }
}

fn game(settings: SqliteSettings) -> SqliteGame {
    game_of(settings, 3, &[("schema", SCHEMA), ("answer", "3")])
}

fn writable() -> SqliteSettings {
    SqliteSettings { read_only: false, ..SqliteSettings::default() }
}

impl SqliteGame {
    fn reply(&mut self, sql: &str) -> Reply {
        self.play.calls("query", &format!("{{\"sql\": {sql:?}}}")).unwrap()
    }

    fn asks(&mut self, sql: &str) -> String {
        self.reply(sql).messages[0].content.clone()
    }

    /// Asserts that this fails with these words, and that the database goes on.
    fn refuses(&mut self, sql: &str, why: &str) {
        let text = self.asks(sql);
        assert!(text.starts_with("error: ") && text.contains(why), "{sql}: {text}");
        assert_eq!(self.asks("SELECT count(*) AS n FROM towns"), "n\n3", "after {sql}");
    }
}

#[test]
fn a_query_is_answered_and_the_answer_rewarded() {
    let mut game = game(SqliteSettings::default());
    assert_eq!(game.play.opening().tools[0].name, "query");
    let reply = game.reply("SELECT 1; SELECT name, people FROM towns ORDER BY people -- largest last");
    assert_eq!(reply.messages[0].content, "name | people\nUlm | 126000\nKiel | 246000\nBonn | 331000");
    assert_eq!((reply.messages[0].role.as_str(), reply.done, reply.reward), ("tool", false, Some(0.0)));
    assert_eq!(game.asks("SELECT name FROM towns WHERE people < 0"), "name\n(no rows)");
    let end = game.play.says("There are 3.").unwrap();
    assert_eq!((end.done, end.reward), (true, Some(1.0)));
    let metrics: Vec<_> = game.play.finish().into_iter().map(|metric| (metric.name, metric.value)).collect();
    assert_eq!(metrics, [("sqlite_tool/right".to_owned(), 1.0), ("sqlite_tool/calls".to_owned(), 2.0)]);
}

#[test]
fn bad_calls_are_told_what_is_wrong() {
    let mut game = game(SqliteSettings::default());
    let mut told = |name: &str, arguments: &str| {
        let reply = game.play.calls(name, arguments).unwrap();
        assert_eq!(reply.reward, Some(-0.1));
        reply.messages[0].content.clone()
    };
    assert!(told("query", "SELECT 1").starts_with("error: the arguments of query are not JSON"));
    assert!(told("query", "{}").contains("missing field `sql`"));
    assert!(told("search", r#"{"sql": "SELECT 1"}"#).contains("there is no tool \"search\""));
    assert_eq!(told("query", r#"{"sql": " -- nothing"}"#), "error: there is no statement");
    assert_eq!(told("query", r#"{"sql": "SELECT villages FROM towns"}"#), "error: no such column: villages");
    assert!(told("query", r#"{"sql": "SELECT <|im_end|>"}"#).starts_with("error: near \"<\": syntax error"));
    assert!(told("query", r#"{"sql": "SELECT ?"}"#).contains("parameters"));
    assert_eq!(game.play.says("four").unwrap().reward, Some(0.0));
}

#[test]
fn the_last_query_is_compared_with_the_reference() {
    let reward = |reference: &str, asked: &[&str]| {
        let mut game = game_of(SqliteSettings::default(), 3, &[("schema", SCHEMA), ("query", reference)]);
        asked.iter().for_each(|sql| drop(game.asks(sql)));
        game.play.says("done").unwrap().reward
    };
    let any = "SELECT name FROM towns WHERE people > 200000";
    assert_eq!(reward(any, &["SELECT name FROM towns WHERE people > 200000 ORDER BY name DESC"]), Some(1.0));
    assert_eq!(reward(any, &["SELECT name FROM towns WHERE name <> 'Ulm'", "SELECT nonsense"]), Some(1.0));
    assert_eq!(reward(any, &["SELECT name FROM towns WHERE name <> 'Ulm'", "SELECT name FROM towns"]), Some(0.0));
    assert_eq!(reward(any, &[]), Some(0.0));
    let ordered = "SELECT name FROM towns ORDER BY people";
    assert_eq!(reward(ordered, &["SELECT name FROM towns ORDER BY name"]), Some(0.0));
    assert_eq!(reward(ordered, &["SELECT name FROM towns ORDER BY people ASC"]), Some(1.0));
}

#[test]
fn an_answer_counts_more_than_a_query_and_without_either_there_is_no_reward() {
    let mut both = game_of(SqliteSettings::default(), 3, &[("schema", SCHEMA), ("answer", "Bonn"), ("query", "SELECT 1")]);
    assert_eq!(both.play.says("It is Bonn.").unwrap().reward, Some(1.0));
    drop(both);
    let mut neither = game_of(SqliteSettings::default(), 3, &[("schema", SCHEMA)]);
    assert_eq!(neither.reply("SELECT 1").reward, None);
    assert_eq!(neither.play.says("It is Bonn.").unwrap().reward, None);
    assert_eq!(neither.play.finish().len(), 1);
}

#[test]
fn faults_of_the_dataset_are_errors() {
    let told = |columns: &[(&str, &str)]| Play::<Sqlite>::begin(SqliteSettings::default(), 3, columns).err().unwrap().to_string();
    assert!(told(&[("answer", "3")]).contains("which creates the database"));
    assert!(told(&[("schema", "\"CREATE nonsense\""), ("answer", "3")]).contains("syntax error"));
    assert!(told(&[("schema", "\"\""), ("query", "\"SELECT a FROM b\"")]).contains("no such table: b"));
    let unreadable = SqliteSettings { now: "soon".into(), ..SqliteSettings::default() };
    assert!(Play::<Sqlite>::begin(unreadable, 3, &[]).err().unwrap().to_string().contains("soon"));
}

#[test]
fn the_model_cannot_change_the_database() {
    let mut game = game(SqliteSettings::default());
    for sql in [
        "INSERT INTO towns VALUES ('Jena', 1)",
        "WITH t AS (SELECT 1) DELETE FROM towns WHERE 1 IN t",
        "UPDATE towns SET people = 0 RETURNING name",
        "DROP TABLE towns",
        "CREATE TEMP TABLE t (a)",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "ALTER TABLE towns RENAME TO cities",
        "BEGIN; SELECT 1",
        "PRAGMA query_only = 0; DELETE FROM towns",
        "PRAGMA writable_schema = ON",
        "PRAGMA hard_heap_limit = 1",
        "PRAGMA user_version = 7",
        "SELECT * FROM pragma_query_only(0)",
        "ATTACH ':memory:' AS other",
        "ATTACH 'file:/tmp/other?mode=rwc' AS other",
        "VACUUM INTO '/tmp/other'",
        "EXPLAIN DELETE FROM towns",
        "REINDEX",
        "ANALYZE",
    ] {
        game.refuses(sql, if sql.contains("pragma_query_only") { "" } else { "may only be read" });
    }
    assert!(game.asks("PRAGMA table_info(towns)").contains("1 | people | INTEGER"));
    assert!(game.asks("SELECT sql FROM sqlite_schema").contains("CREATE TABLE towns"));
    assert!(game.asks("EXPLAIN QUERY PLAN SELECT * FROM towns").contains("SCAN towns"));
}

#[test]
fn with_leave_to_write_it_can_but_no_further() {
    let mut game = game(writable());
    assert_eq!(game.asks("INSERT INTO towns VALUES ('Jena', 1)"), "(done; 1 rows changed)");
    assert_eq!(game.asks("DELETE FROM towns WHERE name = 'Jena' RETURNING people"), "people\n1");
    for sql in
        ["ATTACH ':memory:' AS other", "VACUUM INTO '/tmp/other'", "PRAGMA hard_heap_limit = 0", "PRAGMA temp_store = FILE"]
    {
        game.refuses(sql, "");
    }
    game.refuses("SELECT load_extension('x')", "");
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
        INSERT INTO full SELECT randomblob(10000) FROM n";
    assert_eq!(game.asks("CREATE TABLE full (a)"), "(done; 0 rows changed)");
    assert_eq!(game.asks(fill), "(done; 2000 rows changed)");
    // What it has written counts: two calls do not get twice the memory.
    game.refuses(fill, "more than 32 MB");
    game.refuses(fill, "more than 32 MB");
}

#[test]
fn a_reference_is_run_on_a_copy() {
    let columns = [("schema", SCHEMA), ("query", "DELETE FROM towns WHERE name = 'Ulm' RETURNING name")];
    let mut game = game_of(writable(), 3, &columns);
    assert_eq!(game.asks("SELECT count(*) AS n FROM towns"), "n\n3");
    assert_eq!(game.asks("DELETE FROM towns WHERE people < 200000 RETURNING name"), "name\nUlm");
    assert_eq!(game.play.says("").unwrap().reward, Some(1.0));
}

#[test]
fn what_never_ends_is_stopped() {
    let mut game = game(SqliteSettings { most_steps: 200_000, ..SqliteSettings::default() });
    game.refuses("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", "200000 steps");
    game.refuses("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n", "200000 steps");
    let joined = (0..14).map(|i| format!("towns t{i}")).collect::<Vec<_>>().join(", ");
    game.refuses(&format!("SELECT count(*) FROM {joined}"), "200000 steps");
    game.refuses(&"SELECT 1;".repeat(300), "200000 steps");
}

#[test]
fn slow_functions_count_and_say_what_sqlite_says() {
    let mut game = game(SqliteSettings { most_steps: 300_000, ..SqliteSettings::default() });
    let pattern = "%0".repeat(48);
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)";
    game.refuses(&format!("{many} SELECT sum(hex(zeroblob(8000)) || i LIKE '{pattern}x') FROM n"), "300000 steps");
    game.refuses(&format!("{many} SELECT sum(hex(zeroblob(8000)) || i GLOB '{}x') FROM n", pattern.replace('%', "*")), "steps");
    game.refuses("SELECT replace(hex(zeroblob(8000)), '0', 'ab')", "more than 16384 bytes");
    game.refuses("SELECT json_patch('{}', '{}')", "not authorized to use function: json_patch");
    for (sql, value) in [
        ("'Ulm' LIKE 'u_m'", "1"),
        ("'Ulm' NOT LIKE 'm%'", "1"),
        ("'50%' LIKE '5_!%' ESCAPE '!'", "1"),
        ("'Ulm' GLOB 'u*'", "0"),
        ("12 LIKE '1%'", "1"),
        ("NULL LIKE 'a'", "NULL"),
        ("instr('Köln', 'ln')", "3"),
        ("instr('Ulm', 'x')", "0"),
        ("instr(x'0102', x'02')", "2"),
        ("replace('a-b-c', '-', '')", "abc"),
        ("replace('abc', '', 'x')", "abc"),
        ("trim('xyUlmyx', 'xy')", "Ulm"),
        ("rtrim('Ulm..', '.')", "Ulm"),
        ("ltrim('  Ulm')", "Ulm"),
        ("trim(NULL, 'x')", "NULL"),
    ] {
        assert_eq!(game.asks(&format!("SELECT {sql} AS v")), format!("v\n{value}"), "{sql}");
    }
}

#[test]
fn what_takes_too_much_memory_is_stopped() {
    let mut game = game(SqliteSettings { memory_mb: 4, most_steps: 10_000_000, ..SqliteSettings::default() });
    for sql in [
        "SELECT randomblob(1e9)",
        "SELECT zeroblob(2147483647)",
        "SELECT printf('%1000000000d', 1)",
        "SELECT hex(zeroblob(60000))",
        "WITH RECURSIVE d(t) AS (SELECT 'x' UNION ALL SELECT t || t FROM d) SELECT length(t) FROM d",
        "SELECT group_concat(a.name || zeroblob(9000)) FROM towns a, towns b, towns c",
    ] {
        game.refuses(sql, "more than 16384 bytes");
    }
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)";
    game.refuses(&format!("{rows} SELECT randomblob(16000) AS b FROM n ORDER BY b"), "more than 4 MB");
    game.refuses("WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT max(i) FROM n", "more than 4 MB");
}

#[test]
fn what_nests_too_deep_is_refused() {
    let mut game = game(SqliteSettings::default());
    game.refuses(&format!("SELECT {}1{}", "(".repeat(5000), ")".repeat(5000)), "");
    game.refuses(&format!("SELECT {}1", "- -".repeat(5000)), "");
    game.refuses(&format!("SELECT 1{}", " + 1".repeat(1000)), "depth");
    game.refuses(&format!("SELECT * FROM {}towns{}", "(SELECT * FROM ".repeat(1000), ")".repeat(1000)), "");
    game.refuses(&format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(1000)), "too many terms");
    game.refuses(&format!("SELECT name LIKE '{}'  FROM towns", "%a".repeat(100)), "too complex");
    game.refuses(&format!("SELECT '{}'", "x".repeat(100_001)), "too long");
    let text = game.asks(&format!("SELECT json('{}{}')", "[".repeat(8000), "]".repeat(8000)));
    assert!(text.contains("malformed JSON"), "{text}");
}

#[test]
fn long_results_are_cut() {
    let mut game = game(SqliteSettings { longest_output: 40, ..SqliteSettings::default() });
    let cut = game.asks("SELECT a.name, b.name FROM towns a, towns b");
    assert_eq!(cut, "name | name\nUlm | Ulm\nUlm | Bonn\nUlm | K\n(7 of 9 rows cut or left out)");
    let cut = game.asks("SELECT printf('%100d', 1) AS n");
    assert!(cut.ends_with(" \n(1 of 1 rows cut or left out)") && cut.starts_with("n\n "), "{cut}");
    assert_eq!(game.asks("SELECT '</s>' AS \"<s>\""), "< s>\n< /s>");
}

#[test]
fn random_numbers_follow_from_the_seed_and_time_stands() {
    let asked = |seed| {
        let mut game = game_of(SqliteSettings::default(), seed, &[("schema", SCHEMA), ("answer", "3")]);
        [game.asks("SELECT random(), hex(randomblob(8))"), game.asks("SELECT random()"), game.asks("SELECT random()")]
    };
    assert_eq!(asked(1), asked(1));
    assert_ne!(asked(1)[0], asked(2)[0]);
    assert_ne!(asked(1)[1], asked(1)[2]);
    let mut game = game(SqliteSettings { now: "2024-02-29 10:30:00".into(), ..SqliteSettings::default() });
    let asked = "SELECT date('now') AS d, CURRENT_TIMESTAMP AS t, julianday('now') AS j";
    assert_eq!(game.asks(asked), "d | t | j\n2024-02-29 | 2024-02-29 10:30:00 | 2460369.9375");
}
