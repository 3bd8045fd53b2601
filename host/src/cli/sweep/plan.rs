//! The runs defined by a sweep's file.

use crate::cli::TRAINING;
use crate::config::{ConfigFile, did_you_mean, printable, shell_word};
use anyhow::anyhow;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Maximum number of runs of a sweep.
const MOST_RUNS: usize = 10_000;

/// Maximum length of a run's name, in bytes; longer ones end with a part of their hash.
const LONGEST_NAME: usize = 120;

/// Maximum length of a printed key or value, in bytes.
const SHOWN: usize = 120;

/// Keys of a sweep's file.
const KEYS: [&str; 9] = ["command", "config", "output_dir", "settings", "grid", "seeds", "metric", "last", "jobs"];

/// Keys that the sweep itself sets for its runs.
const OWN: [&str; 3] = ["output_dir", "resume_from_checkpoint", "overwrite_output_dir"];

/// A sweep.
#[derive(Debug)]
pub(super) struct SweepPlan {
    /// Folder of the runs.
    pub folder: PathBuf,
    /// Training command of the runs.
    pub command: String,
    /// Metrics of the table; the default ones if empty.
    pub metrics: Vec<String>,
    /// Number of a run's last values that are averaged.
    pub last: usize,
    /// Number of simultaneous runs.
    pub jobs: usize,
    /// Keys of the grid.
    pub keys: Vec<String>,
    /// All combinations with the first seed, then with the second, and so on.
    pub runs: Vec<SweepRun>,
}

/// A run of a sweep.
#[derive(Debug)]
pub(super) struct SweepRun {
    /// Name of the run's folder.
    pub name: String,
    /// Number of the run's combination, which is the same for all seeds.
    pub combination: usize,
    /// The run's values of the grid's keys, as text.
    pub values: Vec<String>,
    /// The run's settings, including its seed.
    pub settings: Table,
    /// Settings within tables, in the form of `--set`.
    pub sets: Vec<String>,
}

impl SweepRun {
    /// Returns the contents of the run's settings file, with its command in a comment.
    pub(super) fn file(&self, command: &str) -> String {
        let sets: String = self.sets.iter().map(|set| format!(" --set {}", shell_word(Path::new(set)))).collect();
        format!("# rlhost {command} --config THIS{sets}\n{}", self.settings)
    }
}

impl SweepPlan {
    /// Reads a sweep's file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = ConfigFile::read_file_or_pipe(path)?;
        let table = file.table()?;
        // The message includes the position in the file.
        let plan = Self::from_table(path, table).map_err(|error| anyhow!("{}: {error:#}", path.display()))?;
        Ok(plan)
    }

    fn from_table(path: &Path, mut table: Table) -> anyhow::Result<Self> {
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let advice = match did_you_mean(unknown, KEYS) {
                near if near.is_empty() => {
                    "; settings of the runs belong into the table [settings], lists of values into [grid]".to_owned()
                }
                near => near,
            };
            return Err(anyhow!("unknown key {:?}{advice}", printable(unknown, SHOWN)));
        }
        let command = text(&mut table, "command")?.unwrap_or_else(|| "train".to_owned());
        let names = || TRAINING.iter().map(|training| training.name);
        if !names().any(|name| name == command) {
            let near = did_you_mean(&command, names());
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(anyhow!("command {:?} does not train; those that do are {known}{near}", printable(&command, SHOWN)));
        }
        let metrics = match table.remove("metric") {
            None => Vec::new(),
            Some(Value::Array(names)) => names.into_iter().map(|name| string("metric", name)).collect::<anyhow::Result<_>>()?,
            Some(name) => vec![string("metric", name)?],
        };
        let (last, jobs) = (count(&mut table, "last")?, count(&mut table, "jobs")?);
        let folder = match text(&mut table, "output_dir")? {
            Some(folder) if folder.is_empty() => return Err(anyhow!("output_dir is empty; leave it out for the default")),
            Some(folder) => PathBuf::from(folder),
            None => Path::new("runs").join(path.file_stem().unwrap_or("sweep".as_ref())),
        };
        let base = text(&mut table, "config")?.map(|base| ConfigFile::read(Path::new(&base))?.table()).transpose()?;
        let mut settings = base.unwrap_or_default();
        merge(&mut settings, self::table(&mut table, "settings")?);
        let grid = self::table(&mut table, "grid")?;
        let seeds = seeds(&mut table)?;
        check_keys(&settings, &grid, seeds.is_some())?;
        let keys: Vec<String> = grid.keys().cloned().collect();
        let runs = runs(&settings, &grid, seeds.as_deref())?;
        Ok(Self { folder, command, metrics, last, jobs, keys, runs })
    }
}

/// Removes a text from a table.
fn text(table: &mut Table, key: &str) -> anyhow::Result<Option<String>> {
    table.remove(key).map(|value| string(key, value)).transpose()
}

fn string(key: &str, value: Value) -> anyhow::Result<String> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(anyhow!("{key}: expected a text in quotation marks, not {}", shown(&other))),
    }
}

/// Removes a positive number from a table; returns 1 if there is none.
fn count(table: &mut Table, key: &str) -> anyhow::Result<usize> {
    match table.remove(key) {
        None => Ok(1),
        Some(value) => {
            let number = value.as_integer().and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0);
            number.ok_or_else(|| anyhow!("{key}: expected a whole number from 1, not {}", shown(&value)))
        }
    }
}

/// Removes a table from a table; returns an empty one if there is none.
fn table(table: &mut Table, key: &str) -> anyhow::Result<Table> {
    match table.remove(key) {
        None => Ok(Table::new()),
        Some(Value::Table(inner)) => Ok(inner),
        Some(other) => Err(anyhow!("{key}: expected a table, as in [{key}], not {}", shown(&other))),
    }
}

fn seeds(table: &mut Table) -> anyhow::Result<Option<Vec<i64>>> {
    let wrong = |value: &Value| anyhow!("seeds: expected a list of whole numbers, as in seeds = [1, 2, 3], not {}", shown(value));
    let Some(value) = table.remove("seeds") else { return Ok(None) };
    let Some(list) = value.as_array().filter(|list| !list.is_empty()) else { return Err(wrong(&value)) };
    let seeds: Option<Vec<i64>> = list.iter().map(|seed| seed.as_integer().filter(|seed| *seed >= 0)).collect();
    let seeds = seeds.ok_or_else(|| wrong(&value))?;
    let mut known = BTreeSet::new();
    match seeds.iter().find(|seed| !known.insert(**seed)) {
        Some(twice) => Err(anyhow!("seeds has {twice} twice")),
        None => Ok(Some(seeds)),
    }
}

/// Refuses keys that the sweep sets itself or that are given twice.
fn check_keys(settings: &Table, grid: &Table, has_seeds: bool) -> anyhow::Result<()> {
    let plain = |key: &String| key.replace('-', "_");
    for (table, keys) in [("settings", settings), ("grid", grid)] {
        if let Some(own) = keys.keys().find(|key| OWN.contains(&plain(key).as_str())) {
            return Err(anyhow!(
                "[{table}] has {own}, which the sweep sets for each run; its own output_dir is at the top of the file"
            ));
        }
        if has_seeds && keys.keys().any(|key| plain(key) == "seed") {
            return Err(anyhow!("[{table}] has a seed beside seeds; keep one of the two"));
        }
    }
    for (key, value) in grid {
        match value.as_array() {
            Some(list) if list.is_empty() => return Err(anyhow!("[grid] {}: the list is empty", printable(key, SHOWN))),
            Some(_) => {}
            None if value.is_table() => {
                let advice = format!("for a key within a table, write \"{key}.KEY\" = [...]");
                return Err(anyhow!("[grid] {}: expected a list of values, not a table; {advice}", printable(key, SHOWN)));
            }
            None => {
                let advice = format!("a single value belongs into [settings], or write [{}]", shown(value));
                return Err(anyhow!(
                    "[grid] {}: expected a list of values, not {}; {advice}",
                    printable(key, SHOWN),
                    shown(value)
                ));
            }
        }
    }
    Ok(())
}

/// Returns all combinations of the grid's values, with each seed.
fn runs(settings: &Table, grid: &Table, seeds: Option<&[i64]>) -> anyhow::Result<Vec<SweepRun>> {
    let lists: Vec<(&String, &Vec<Value>)> = grid.iter().filter_map(|(key, value)| Some((key, value.as_array()?))).collect();
    let combinations = lists.iter().try_fold(1_usize, |count, (_, list)| count.checked_mul(list.len()));
    let total = combinations.and_then(|count| count.checked_mul(seeds.map_or(1, <[i64]>::len)));
    let (Some(combinations), Some(_)) = (combinations, total.filter(|total| *total <= MOST_RUNS)) else {
        return Err(anyhow!("the grid and the seeds make more than {MOST_RUNS} runs"));
    };
    let (mut runs, mut names) = (Vec::new(), BTreeSet::new());
    let seeds: Vec<Option<i64>> = seeds.map_or(vec![None], |seeds| seeds.iter().copied().map(Some).collect());
    for seed in seeds {
        for combination in 0..combinations {
            let mut rest = combination;
            // The last key varies fastest.
            let mut chosen: Vec<(&String, &Value)> = Vec::new();
            for (key, list) in lists.iter().rev() {
                chosen.push((key, &list[rest % list.len()]));
                rest /= list.len();
            }
            chosen.reverse();
            let run = run(settings, &chosen, (combination, seed));
            if !names.insert(run.name.clone()) {
                let twice = chosen.iter().map(|(key, value)| format!("{key} = {}", shown(value))).collect::<Vec<_>>().join(", ");
                return Err(anyhow!("[grid] has the same values twice: {twice}"));
            }
            runs.push(run);
        }
    }
    Ok(runs)
}

fn run(settings: &Table, chosen: &[(&String, &Value)], (combination, seed): (usize, Option<i64>)) -> SweepRun {
    let (mut settings, mut sets) = (settings.clone(), Vec::new());
    for (key, value) in chosen {
        if key.contains('.') {
            sets.push(format!("{key}={value}"));
        } else {
            settings.insert((*key).clone(), (*value).clone());
        }
    }
    if let Some(seed) = seed {
        settings.insert("seed".to_owned(), Value::Integer(seed));
    }
    let values: Vec<String> = chosen.iter().map(|(_, value)| shown(value)).collect();
    let parts = chosen.iter().zip(&values).map(|((key, _), value)| format!("{key}={value}"));
    let parts: Vec<String> = parts.chain(seed.map(|seed| format!("seed={seed}"))).collect();
    SweepRun { name: folder_name(&parts.join(",")), combination, values, settings, sets }
}

/// Returns a value as text, strings without quotation marks.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text, SHOWN),
        // `1e-6` rather than `0.000001`.
        Value::Float(number) if *number != 0.0 && number.abs() < 1e-3 => format!("{number:e}"),
        other => printable(&other.to_string(), SHOWN),
    }
}

/// Makes a folder's name. A name that is too long, or in which characters were replaced, gets a hash.
fn folder_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.,+=".contains(c);
    let mut name: String = text.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    if name.is_empty() {
        return "run".to_owned();
    }
    if name != text || name.len() > LONGEST_NAME {
        let hash: String = Sha256::digest(text.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        name.truncate(LONGEST_NAME - hash.len() - 1);
        name = format!("{name}-{hash}");
    }
    name
}

/// Overwrites the values of a table with those of another.
fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(inner)) => merge(below, inner),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> anyhow::Result<SweepPlan> {
        SweepPlan::from_table(Path::new("lr.toml"), text.parse().unwrap())
    }

    #[test]
    fn a_grid_has_every_combination_with_every_seed() {
        let text = "command = \"grpo\"\nseeds = [1, 2]\nmetric = \"reward\"\n[settings]\nmax_steps = 3\nloss = { beta = 0.1 }\n\
                    [grid]\nlearning_rate = [1e-5, 0.01]\n\"loss.beta\" = [0.0, 0.04]\nmodel = [\"a/b\"]\n";
        let plan = plan(text).unwrap();
        assert_eq!((plan.folder.as_path(), plan.runs.len(), plan.keys.len()), (Path::new("runs/lr"), 8, 3));
        let first = &plan.runs[0];
        assert!(first.name.starts_with("learning_rate=1e-5,loss.beta=0.0,model=a_b,seed=1-"), "{}", first.name);
        assert_eq!((first.settings["seed"].as_integer(), first.settings["learning_rate"].as_float()), (Some(1), Some(1e-5)));
        assert_eq!(first.sets, ["loss.beta=0.0"]);
        let combinations: Vec<usize> = plan.runs.iter().map(|run| run.combination).collect();
        assert_eq!(combinations, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(plan.runs[5].values, ["1e-5", "0.04", "a/b"]);
        let file = first.file("grpo");
        assert!(file.starts_with("# rlhost grpo --config THIS --set 'loss.beta=0.0'\n") || file.contains("--set "), "{file}");
        assert_eq!(file.parse::<Table>().unwrap(), first.settings);
        let plain = self::plan("").unwrap();
        assert_eq!((plain.runs.len(), plain.runs[0].name.as_str(), plain.jobs, plain.last), (1, "run", 1, 1));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        let cases = [
            ("seed = 1", "did you mean \"seeds\""),
            ("learning_rate = [1]", "[settings], lists of values into [grid]"),
            ("seeds = 3", "expected a list of whole numbers"),
            ("seeds = []", "expected a list"),
            ("seeds = [1, 1]", "1 twice"),
            ("seeds = [-1]", "whole numbers"),
            ("command = \"grp\"", "did you mean \"grpo\""),
            ("command = 1", "quotation marks"),
            ("grid = [1]", "expected a table, as in [grid]"),
            ("[grid]\nlr = 1", "single value belongs into [settings]"),
            ("[grid]\nlr = []", "list is empty"),
            ("[grid.loss]\nbeta = [1]", "write \"loss.KEY\" = [...]"),
            ("[grid]\nlr = [1, 1]", "same values twice: lr = 1"),
            ("[settings]\noutput-dir = \"x\"", "output_dir is at the top"),
            ("seeds = [1]\n[settings]\nseed = 1", "beside seeds"),
            ("last = 0", "from 1"),
            ("jobs = \"2\"", "from 1"),
            ("output_dir = \"\"", "is empty"),
        ];
        for (text, expected) in cases {
            let error = plan(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many: String = (0..6).map(|i| format!("k{i} = [1, 2, 3, 4, 5, 6, 7]\n")).collect();
        assert!(plan(&format!("[grid]\n{many}")).unwrap_err().to_string().contains("more than 10000 runs"));
    }

    #[test]
    fn long_names_differ() {
        let names: BTreeSet<String> = (0..3).map(|i| folder_name(&format!("{}{i}", "x".repeat(500)))).collect();
        assert!(names.len() == 3 && names.iter().all(|name| name.len() <= LONGEST_NAME));
        assert_ne!(folder_name("a/b"), folder_name("a b"));
    }
}
