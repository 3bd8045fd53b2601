//! Chooses the files of a dataset's split: by its card, or by the naming conventions of the `datasets` library.

use super::card::{CardConfig, DatasetCard};
use super::patterns::{folders, last, matching};
use crate::config::files::{ABOUT_DATASETS, is_about_data};
use std::collections::{BTreeMap, BTreeSet};

/// Formats of data files, each with its extensions. Files of one format are read together.
const FORMATS: [&[&str]; 4] = [&["parquet"], &["jsonl", "json", "ndjson"], &["csv", "tsv"], &["txt"]];

/// Index of the format that is read from local folders only; on the hub, the conversion to Parquet is used for these tables.
const LOCAL: usize = 2;

/// Extensions in order of preference, where several have equally many files.
const PREFERRED: [&str; 7] = ["parquet", "jsonl", "json", "csv", "txt", "tsv", "ndjson"];

/// Configuration of a model, which is not data.
const MODEL: &str = "config.json";

/// Words that name splits, in the order of `datasets`.
const WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Pattern of the numbered files of a split in the folder `data`.
const SHARDED: &str = "data/*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";

/// Files of a split, and what else the dataset has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SplitChoice {
    pub(super) split: String,
    /// Files in reading order.
    pub(super) files: Vec<String>,
    /// Names of the other splits.
    pub(super) others: Vec<String>,
    /// Data files that are in no split.
    pub(super) ignored: Vec<String>,
    /// Note on the card's settings for the subset that have no effect, if there are any.
    pub(super) unused: Option<String>,
}

/// Function from a word to its file patterns, and function from a path to the splits that it names.
type SplitNameMatcher = (fn(&str) -> Vec<String>, fn(&str) -> BTreeSet<&'static str>);

/// Files by split.
type Splits = Vec<(String, Vec<String>)>;

/// Returns the files of a split in a repository on the hub.
///
/// # Errors
/// If there is no readable file, no such split, or several subsets have it.
pub(super) fn choose(files: &[String], card: &DatasetCard, subset: Option<&str>, split: &str) -> Result<SplitChoice, String> {
    let data: Vec<&str> = files.iter().map(String::as_str).filter(|file| format_of(file).is_some()).collect();
    let unreadable = || {
        let some = files.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        format!("has no .parquet, .jsonl, .json or .txt files; it has {some}")
    };
    if data.is_empty() {
        return Err(unreadable());
    }
    let config = card.config(subset)?;
    let said = config.and_then(|config| config.files(&all(files)));
    let within = config.map_or("", |config| config.folder.as_str());
    let subset = subset.filter(|_| config.is_none());
    let splits = match said {
        Some(splits) => splits,
        None => match converted(&data) {
            Some(splits) => of_subset(splits, subset)?,
            None => of_subset(by_names(&data, within)?, subset)?,
        },
    };
    let mut choice = pick(splits, &data, split)?;
    choice.unused = config.and_then(CardConfig::unused);
    config.map_or(Ok(()), |config| config.check(&choice.split, &all(files)))?;
    if config.is_none() && subset.is_none() {
        main_subset(&mut choice)?;
    }
    match of_one_format(&mut choice) {
        None | Some(LOCAL) => Err(unreadable()),
        Some(_) => Ok(choice),
    }
}

/// Returns the files of a split in a local folder with these files. If the split was not `chosen` and there is only one, that one is used,
/// unless it is a test or validation split and the training split is wanted.
///
/// # Errors
/// In the cases of [`choose`], and if a shard is missing.
pub(super) fn choose_local(
    files: &[String],
    card: &DatasetCard,
    subset: Option<&str>,
    (split, chosen): (&str, bool),
) -> Result<SplitChoice, String> {
    let data: Vec<&str> = files.iter().map(String::as_str).filter(|file| format_of(file).is_some()).collect();
    let config = card.config(subset)?;
    let said = config.and_then(|config| config.files(&all(files)));
    let splits = said.map_or_else(|| by_names(&data, config.map_or("", |config| config.folder.as_str())), Ok)?;
    let mut choice = match splits.as_slice() {
        // Test splits are not trained on unless they are named.
        [(only, _)] if !chosen && (split != "train" || !["test", "validation"].contains(&only.as_str())) => {
            let only = only.clone();
            pick(splits, &data, &only)?
        }
        _ => pick(splits, &data, split)?,
    };
    choice.unused = config.and_then(CardConfig::unused);
    config.map_or(Ok(()), |config| config.check(&choice.split, &all(files)))?;
    of_one_format(&mut choice);
    if choice.files.is_empty() {
        return Err(format!(
            "has no files of the split {:?} that can be read: .jsonl, .json, .parquet, .csv, .tsv or .txt",
            choice.split
        ));
    }
    refuse_gaps(&choice.files).map(|()| choice)
}

fn all(files: &[String]) -> Vec<&str> {
    files.iter().map(String::as_str).collect()
}

/// Returns the data files below the folder `within` by split, according to their paths: the numbered files in the folder `data`, else the
/// files in folders named after splits, else the files named after splits. If no path names a split, all files are training data.
///
/// # Errors
/// If a path names several splits.
fn by_names(files: &[&str], within: &str) -> Result<Splits, String> {
    let own: Vec<&str> = files.iter().filter_map(|file| file.strip_prefix(within)).collect();
    let whole = |splits: Splits| -> Splits {
        let whole = |files: Vec<String>| files.into_iter().map(|file| format!("{within}{file}")).collect();
        splits.into_iter().map(|(split, files)| (split, whole(files))).collect()
    };
    if let Some(splits) = numbered(&own) {
        return Ok(whole(splits));
    }
    let stages: [SplitNameMatcher; 2] = [(by_folder, of_folder), (by_file, of_file)];
    for stage in stages {
        let splits = by_words(&own, stage)?;
        if !splits.is_empty() {
            return Ok(whole(splits));
        }
    }
    let mut own: Vec<String> = matching("**", &own).into_iter().map(str::to_owned).collect();
    own.sort_unstable();
    if own.is_empty() { Ok(Vec::new()) } else { Ok(whole(vec![("train".to_owned(), own)])) }
}

/// Returns numbered files such as `data/train-00000-of-00002.parquet` by split, if there are any.
fn numbered(files: &[&str]) -> Option<Splits> {
    let mut splits: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in matching(SHARDED, files) {
        let (begin, ..) = shard(file)?;
        splits.entry(last(begin)).or_default().push(file.to_owned());
    }
    let usable = !splits.is_empty() && splits.keys().all(|split| super::card::is_split(split));
    usable.then(|| splits.into_iter().map(|(split, files)| (split.to_owned(), files)).collect())
}

/// Returns the patterns of files in a folder whose name contains a word.
fn by_folder(word: &str) -> Vec<String> {
    let sep = "[-._ 0-9]";
    vec![
        format!("**/{word}/**"),
        format!("**/{word}{sep}*/**"),
        format!("**/*{sep}{word}/**"),
        format!("**/*{sep}{word}{sep}*/**"),
    ]
}

/// Returns the patterns of files whose name contains a word.
fn by_file(word: &str) -> Vec<String> {
    let sep = "[-._ 0-9]";
    vec![format!("**/{word}{sep}*"), format!("**/*{sep}{word}{sep}*")]
}

/// Returns the files whose paths match the patterns of the splits' words, ignoring case. `nearest` resolves paths that name several splits.
///
/// # Errors
/// If a path names several splits and `nearest` can't decide between them.
fn by_words(files: &[&str], (patterns, nearest): SplitNameMatcher) -> Result<Splits, String> {
    let lower: BTreeMap<String, &str> = files.iter().map(|file| (file.to_lowercase(), *file)).collect();
    let names: Vec<&str> = lower.keys().map(String::as_str).collect();
    let mut splits: Splits = Vec::new();
    for (split, words) in WORDS {
        let (mut own, mut seen): (Vec<String>, BTreeSet<&str>) = (Vec::new(), BTreeSet::new());
        for file in words.iter().flat_map(|word| patterns(word)).flat_map(|pattern| matching(&pattern, &names)) {
            let file = lower[file];
            if !seen.insert(file) {
                continue;
            }
            let named = nearest(file);
            if named.len() > 1 {
                let splits = named.into_iter().collect::<Vec<_>>().join(" and ");
                return Err(format!(
                    "has the file {file:?}, whose path names the splits {splits}; name a file to read only that"
                ));
            }
            if named.contains(split) {
                own.push(file.to_owned());
            }
        }
        if !own.is_empty() {
            splits.push((split.to_owned(), own));
        }
    }
    Ok(splits)
}

/// Returns the split of the innermost folder that names one; if that folder names several, those of them that the file's name contains.
fn of_folder(file: &str) -> BTreeSet<&'static str> {
    let parts: Vec<BTreeSet<&str>> = folders(file).map(named).collect();
    let nearest = parts.into_iter().rev().find(|named| !named.is_empty()).unwrap_or_default();
    let own: BTreeSet<&str> = of_file(file).intersection(&nearest).copied().collect();
    if nearest.len() > 1 && !own.is_empty() { own } else { nearest }
}

/// Returns the splits that a file's name contains.
fn of_file(file: &str) -> BTreeSet<&'static str> {
    named(last(file).rsplit_once('.').map_or("", |(stem, _)| stem))
}

/// Returns the splits whose words occur in a name.
fn named(name: &str) -> BTreeSet<&'static str> {
    let name = name.to_lowercase();
    let words: Vec<&str> = name.split(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.' | '_' | ' ')).collect();
    WORDS.iter().filter(|(_, of)| of.iter().any(|word| words.contains(word))).map(|(split, _)| *split).collect()
}

/// Returns files by split if all are named `SUBSET/SPLIT/0000.parquet`, as on the branch of the hub's conversions.
fn converted(files: &[&str]) -> Option<Splits> {
    let mut splits: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let parts: Vec<&str> = file.split('/').collect();
        let [_, split, name] = parts.as_slice() else { return None };
        let (stem, _) = name.split_once('.')?;
        if stem.len() != 4 || !stem.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let split = split.strip_prefix("partial-").unwrap_or(split);
        splits.entry(split.to_owned()).or_default().push((*file).to_owned());
    }
    Some(splits.into_iter().collect())
}

/// Returns the subset of a file: its folders, without those that name a split.
fn subset_of(file: &str) -> String {
    if converted(&[file]).is_some() {
        return file.split('/').next().unwrap_or_default().to_owned();
    }
    folders(file).filter(|part| *part != "data" && named(part).is_empty()).collect::<Vec<_>>().join("/")
}

/// Returns only the files of a subset, if one is named.
fn of_subset(splits: Splits, subset: Option<&str>) -> Result<Splits, String> {
    let Some(subset) = subset else { return Ok(splits) };
    let subsets: BTreeSet<String> = splits.iter().flat_map(|(_, files)| files.iter().map(|file| subset_of(file))).collect();
    let own = |(split, mut files): (String, Vec<String>)| {
        files.retain(|file| subset_of(file) == subset);
        (!files.is_empty()).then_some((split, files))
    };
    let own: Splits = splits.into_iter().filter_map(own).collect();
    if own.is_empty() {
        return Err(format!("has no subset {subset:?}; it has {}", listed(subsets.iter().map(String::as_str))));
    }
    Ok(own)
}

/// Keeps only the files of the main subset if there are several.
fn main_subset(choice: &mut SplitChoice) -> Result<(), String> {
    let subsets: BTreeSet<String> = choice.files.iter().map(|file| subset_of(file)).collect();
    if subsets.len() < 2 {
        return Ok(());
    }
    let Some(main) = ["", "default"].into_iter().find(|main| subsets.contains(*main)) else {
        let some = listed(subsets.iter().map(String::as_str));
        return Err(format!("has several subsets, {some}; name one, as in OWNER/NAME/{}", subsets.first().map_or("", |s| s)));
    };
    let (own, others) = std::mem::take(&mut choice.files).into_iter().partition(|file| subset_of(file) == main);
    choice.files = own;
    choice.ignored.extend::<Vec<String>>(others);
    Ok(())
}

/// Selects the files of a split from all data files.
fn pick(splits: Splits, data: &[&str], split: &str) -> Result<SplitChoice, String> {
    let has = |name: &str| splits.iter().any(|(split, _)| split == name);
    let wanted = if has(split) { split } else { spelled(split) };
    if !has(wanted) {
        let names: BTreeSet<&str> = splits.iter().map(|(split, _)| split.as_str()).collect();
        let some = if names.is_empty() { "no data files".to_owned() } else { listed(names) };
        return Err(format!("has no split {split:?}; it has {some}"));
    }
    let used: BTreeSet<&String> = splits.iter().flat_map(|(_, files)| files).collect();
    let ignored = data.iter().filter(|file| !used.contains(&(**file).to_owned())).map(|file| (*file).to_owned()).collect();
    let others = splits.iter().filter(|(name, _)| name != wanted).map(|(name, _)| name.clone()).collect();
    let files = splits.iter().find(|(name, _)| name == wanted).map(|(_, files)| files.clone()).unwrap_or_default();
    Ok(SplitChoice { split: wanted.to_owned(), files, others, ignored, unused: None })
}

/// Keeps the files of the most common format, since the same rows may exist in several. Returns the format.
fn of_one_format(choice: &mut SplitChoice) -> Option<usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for file in &choice.files {
        if let Some(ending) = ending(file) {
            *counts.entry(ending).or_default() += 1;
        }
    }
    let place = |ending: &str| PREFERRED.iter().position(|other| *other == ending);
    let most = counts.into_iter().max_by_key(|&(ending, count)| (count, std::cmp::Reverse(place(ending))));
    let format = most.and_then(|(ending, _)| FORMATS.iter().position(|endings| endings.contains(&ending)))?;
    let (own, others) = std::mem::take(&mut choice.files).into_iter().partition(|file| format_of(file) == Some(format));
    choice.files = own;
    choice.ignored.extend::<Vec<String>>(others);
    Some(format)
}

/// Returns the extension of a data file, without that of its compression.
fn ending(file: &str) -> Option<&'static str> {
    let name = last(file);
    if name == MODEL || ABOUT_DATASETS.contains(&name) || name.starts_with('.') {
        return None;
    }
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let (_, ending) = plain.rsplit_once('.')?;
    PREFERRED.into_iter().find(|known| ending.eq_ignore_ascii_case(known))
}

fn format_of(file: &str) -> Option<usize> {
    let ending = ending(file)?;
    FORMATS.iter().position(|endings| endings.contains(&ending))
}

/// Returns whether any of these local files is a data file.
pub(super) fn has_data(files: &[String]) -> bool {
    files.iter().any(|file| format_of(file).is_some())
}

/// Returns the files that are neither data nor metadata.
pub(super) fn not_data(files: &[String]) -> impl Iterator<Item = &String> {
    files.iter().filter(|file| format_of(file).is_none() && last(file) != MODEL && !is_about_data(last(file)))
}

/// Rejects local files if shards are missing, as after an interrupted download.
fn refuse_gaps(files: &[String]) -> Result<(), String> {
    let mut missing = missing(files);
    let Some((begin, at, of)) = missing.next() else { return Ok(()) };
    let more = match missing.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(format!("lacks the shard {begin}-{at:05}-of-{of:05}{more}; get what is missing, or name a file to read only that"))
}

/// Returns the canonical name of a split with this spelling.
fn spelled(split: &str) -> &str {
    WORDS.iter().find(|(_, words)| words.contains(&split)).map_or(split, |(name, _)| name)
}

/// Returns whether no shard is missing, according to the numbers in the files' names.
pub(super) fn whole(files: &[String]) -> bool {
    missing(files).next().is_none()
}

/// Returns the missing shards, as parsed by [`shard`], according to the numbers in the files' names.
fn missing(files: &[String]) -> impl Iterator<Item = (&str, usize, usize)> {
    let mut seen: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for (begin, at, of) in files.iter().filter_map(|file| shard(file)) {
        seen.entry((begin, of)).or_default().insert(at);
    }
    seen.into_iter().filter(|((_, of), shards)| shards.len() < *of).flat_map(|((begin, of), shards)| {
        // Some writers number shards from 1.
        let first = usize::from(shards.contains(&of));
        (first..of + first).filter(move |at| !shards.contains(at)).map(move |at| (begin, at, of))
    })
}

/// Parses a name of the form `BEGIN-00001-of-00005...`.
fn shard(file: &str) -> Option<(&str, usize, usize)> {
    let (begin, rest) = file.rsplit_once("-of-")?;
    let (begin, at) = begin.rsplit_once('-')?;
    let of: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (at.len() == 5 && of.len() == 5).then_some(())?;
    Some((begin, at.parse().ok()?, of.parse().ok()?))
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| if name.is_empty() { "(the main one)" } else { name }).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
