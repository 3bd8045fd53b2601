//! Which files of a dataset's repository are a split's, by the names that the hub's own libraries
//! go by.

use std::collections::{BTreeMap, BTreeSet};

/// Kinds of data that can be read; each may be packed.
const KINDS: [&str; 5] = ["parquet", "jsonl", "ndjson", "json", "txt"];

/// Further kinds that are read from local folders; on the hub, tables are taken from its own conversion.
const LOCAL: [&str; 2] = ["csv", "tsv"];

/// What lies beside data and is none.
const ABOUT: [&str; 5] = ["config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

/// Words for splits.
const WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// What a file's path says of it.
struct Said<'a> {
    file: &'a str,
    kind: &'static str,
    split: Option<&'a str>,
    subset: String,
}

/// The files of a split, in the order of their names.
///
/// # Errors
/// If there is no file that can be read, none of this split, or if several subsets have one.
pub(super) fn choose(files: &[String], subset: Option<&str>, split: &str) -> Result<Vec<String>, String> {
    choose_among(files.iter().filter_map(|file| read(file)).collect(), files, subset, split)
}

fn choose_among(mut said: Vec<Said<'_>>, files: &[String], subset: Option<&str>, split: &str) -> Result<Vec<String>, String> {
    if said.is_empty() {
        let some = files.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        return Err(format!("has no .parquet, .jsonl, .json or .txt files; it has {some}"));
    }
    // Where no file says its split, all are there to train on; and where some do, the others are
    // something else.
    if said.iter().any(|s| s.split.is_some()) {
        said.retain(|s| s.split.is_some());
    } else {
        said.iter_mut().for_each(|s| s.split = Some("train"));
    }
    if let Some(subset) = subset {
        let subsets: BTreeSet<String> = said.iter().map(|s| s.subset.clone()).collect();
        said.retain(|s| s.subset == subset);
        if said.is_empty() {
            return Err(format!("has no subset {subset:?}; it has {}", listed(subsets.iter().map(String::as_str))));
        }
    }
    let splits: BTreeSet<&str> = said.iter().filter_map(|s| s.split).collect();
    let wanted = if splits.contains(split) { split } else { spelled(split) };
    said.retain(|s| s.split == Some(wanted));
    if said.is_empty() {
        return Err(format!("has no split {split:?}; it has {}", listed(splits)));
    }
    let subsets: BTreeSet<String> = said.iter().map(|s| s.subset.clone()).collect();
    if subsets.len() > 1 {
        let Some(main) = ["", "default"].into_iter().find(|main| subsets.contains(*main)) else {
            let some = listed(subsets.iter().map(String::as_str));
            return Err(format!("has several subsets, {some}; name one, as in OWNER/NAME/{}", subsets.first().map_or("", |s| s)));
        };
        said.retain(|s| s.subset == main);
    }
    // The same rows may lie there in several forms.
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    said.iter().for_each(|s| *kinds.entry(s.kind).or_default() += 1);
    let place = |kind: &str| KINDS.iter().chain(&LOCAL).position(|k| *k == kind);
    let kind = kinds.into_iter().max_by_key(|&(kind, count)| (count, std::cmp::Reverse(place(kind)))).map(|(kind, _)| kind);
    let mut chosen: Vec<String> = said.iter().filter(|s| Some(s.kind) == kind).map(|s| s.file.to_owned()).collect();
    chosen.sort_unstable();
    Ok(chosen)
}

/// Returns the files of a split of a local folder, which holds these files; none if all of its own files are shards of what was asked
/// for. A split that was not `chosen` may be another one, if there is only one.
///
/// # Errors
/// As [`choose`], and if a shard is missing.
pub(super) fn choose_local(files: &[String], split: &str, chosen: bool) -> Result<Option<Vec<String>>, String> {
    let said: Vec<Said<'_>> = files.iter().filter_map(|file| read_local(file)).collect();
    let splits_of =
        |own: &dyn Fn(&&Said<'_>) -> bool| -> BTreeSet<&str> { said.iter().filter(own).filter_map(|said| said.split).collect() };
    let is_own = |said: &&Said<'_>| !said.file.contains('/');
    let own = splits_of(&is_own);
    let fits = !chosen || own.is_empty() || own.contains(spelled(split));
    if said.iter().any(|said| is_own(&said)) && own.len() < 2 && fits {
        let own: Vec<String> = said.iter().filter(is_own).map(|said| said.file.to_owned()).collect();
        return refuse_gaps(&own).map(|()| None);
    }
    let all = splits_of(&|_| true);
    let split = match all.iter().next() {
        Some(only) if all.len() == 1 && !chosen => *only,
        _ => split,
    };
    let chosen = choose_among(said, files, None, split)?;
    refuse_gaps(&chosen).map(|()| Some(chosen))
}

/// Refuses local files that lack some of their shards, as after an interrupted download.
fn refuse_gaps(files: &[String]) -> Result<(), String> {
    let mut missing = missing(files);
    let Some((begin, at, of)) = missing.next() else { return Ok(()) };
    let more = match missing.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(format!("lacks the shard {begin}-{at:05}-of-{of:05}{more}; get what is missing, or name a file to read only that"))
}

/// Returns whether any of these local files can be read.
pub(super) fn has_data(files: &[String]) -> bool {
    files.iter().any(|file| read_local(file).is_some())
}

/// Returns the name of a split of which this may be another spelling.
fn spelled(split: &str) -> &str {
    WORDS.iter().find(|(_, words)| words.contains(&split)).map_or(split, |(name, _)| name)
}

/// Whether no shard is missing, of files that say how many they are.
pub(super) fn whole(files: &[String]) -> bool {
    missing(files).next().is_none()
}

/// The shards that are missing, of files that say how many they are, as [`shard`] takes names apart.
fn missing(files: &[String]) -> impl Iterator<Item = (&str, usize, usize)> {
    let mut seen: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for (begin, at, of) in files.iter().filter_map(|file| shard(file)) {
        seen.entry((begin, of)).or_default().insert(at);
    }
    seen.into_iter().filter(|((_, of), shards)| shards.len() < *of).flat_map(|((begin, of), shards)| {
        // Some number them from 1.
        let first = usize::from(shards.contains(&of));
        (first..of + first).filter(move |at| !shards.contains(at)).map(move |at| (begin, at, of))
    })
}

/// `BEGIN-00001-of-00005...`, taken apart.
fn shard(file: &str) -> Option<(&str, usize, usize)> {
    let (begin, rest) = file.rsplit_once("-of-")?;
    let (begin, at) = begin.rsplit_once('-')?;
    let of: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (at.len() == 5 && of.len() == 5).then_some(())?;
    Some((begin, at.parse().ok()?, of.parse().ok()?))
}

fn read(file: &str) -> Option<Said<'_>> {
    read_as(file, &KINDS)
}

fn read_local(file: &str) -> Option<Said<'_>> {
    read_as(file, &KINDS).or_else(|| read_as(file, &LOCAL))
}

fn read_as<'a>(file: &'a str, kinds: &[&'static str]) -> Option<Said<'a>> {
    let parts: Vec<&str> = file.split('/').collect();
    let (name, folders) = parts.split_last()?;
    if ABOUT.contains(name) || parts.iter().any(|part| part.starts_with(['.', '_'])) {
        return None;
    }
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let (stem, ending) = plain.rsplit_once('.')?;
    let kind = kinds.iter().copied().find(|kind| ending.eq_ignore_ascii_case(kind))?;
    let data = folders.last() == Some(&"data");
    let sharded = shard(stem).map(|(begin, ..)| begin).filter(|_| data);
    // On the branch of the hub's own conversions: SUBSET/SPLIT/0000.parquet.
    let converted = (folders.len() == 2 && stem.len() == 4 && stem.bytes().all(|b| b.is_ascii_digit())).then(|| folders[1]);
    let exact = sharded.or(converted.map(|split| split.strip_prefix("partial-").unwrap_or(split)));
    let split = exact.or_else(|| folders.iter().find_map(|part| word(part))).or_else(|| word(stem));
    let left = |part: &&&str| **part != "data" && word(part).is_none();
    let subset = match converted {
        Some(_) => folders[0].to_owned(),
        None => folders.iter().filter(left).copied().collect::<Vec<_>>().join("/"),
    };
    Some(Said { file, kind, split, subset })
}

/// The split that a word in a name stands for.
fn word(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let words: Vec<&str> = name.split(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.' | '_' | ' ')).collect();
    WORDS.iter().find(|(_, words_for)| words_for.iter().any(|w| words.contains(w))).map(|(split, _)| *split)
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| if name.is_empty() { "(the main one)" } else { name }).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], subset: Option<&str>, split: &str) -> Result<Vec<String>, String> {
        choose(&files.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>(), subset, split)
    }

    #[test]
    fn a_split_is_found_by_the_hubs_conventions() {
        let tldr = [
            "README.md",
            "data/test-00000-of-00001.parquet",
            "data/train-00001-of-00002.parquet",
            "data/train-00000-of-00002.parquet",
        ];
        assert_eq!(
            chosen(&tldr, None, "train").unwrap(),
            ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
        );
        assert_eq!(chosen(&tldr, None, "eval").unwrap(), ["data/test-00000-of-00001.parquet"]);
        let feedback = ["data/train_prefs-00000-of-00001.parquet", "data/train_sft-00000-of-00001.parquet"];
        assert_eq!(chosen(&feedback, None, "train_prefs").unwrap(), ["data/train_prefs-00000-of-00001.parquet"]);
        assert_eq!(chosen(&feedback, None, "train").unwrap_err(), "has no split \"train\"; it has train_prefs, train_sft");
        for (files, expected) in [
            (&["train.jsonl", "test.jsonl", "dataset_infos.json"][..], "train.jsonl"),
            (&["my_train_set.json.gz", "my-dev.json.gz"], "my_train_set.json.gz"),
            (&["train/part.txt", "val/part.txt"], "train/part.txt"),
            (&["all.jsonl", ".gitattributes"], "all.jsonl"),
            (&["train.jsonl", "train.parquet"], "train.parquet"),
            (&["default/train/0000.parquet", "default/test/0000.parquet"], "default/train/0000.parquet"),
            (&["default/partial-train/0000.parquet"], "default/partial-train/0000.parquet"),
            (&["train.jsonl", "extra/train.jsonl"], "train.jsonl"),
        ] {
            assert_eq!(chosen(files, None, "train").unwrap(), [expected], "{files:?}");
        }
    }

    #[test]
    fn what_is_not_there_or_not_clear_is_named() {
        assert!(chosen(&["README.md", "a.csv"], None, "train").unwrap_err().ends_with("it has README.md, a.csv"));
        assert!(chosen(&["data.jsonl"], None, "test").unwrap_err().ends_with("it has train"));
        let maths =
            ["main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"];
        let error = chosen(&maths, None, "train").unwrap_err();
        assert_eq!(error, "has several subsets, main, socratic; name one, as in OWNER/NAME/main");
        assert_eq!(chosen(&maths, Some("socratic"), "train").unwrap(), ["socratic/train-00000-of-00001.parquet"]);
        assert!(chosen(&maths, Some("other"), "train").unwrap_err().ends_with("it has main, socratic"));
    }

    #[test]
    fn a_local_folder_has_the_splits_that_it_would_have_on_the_hub() {
        let local = |files: &[&str], split: &str, chosen: bool| {
            choose_local(&files.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>(), split, chosen)
        };
        let data = ["README.md", "data/test-00000-of-00001.jsonl", "data/train-00000-of-00001.jsonl"];
        assert_eq!(local(&data, "train", false).unwrap().unwrap(), ["data/train-00000-of-00001.jsonl"]);
        assert_eq!(local(&data, "test", false).unwrap().unwrap(), ["data/test-00000-of-00001.jsonl"]);
        let flat = ["train.jsonl", "test.jsonl"];
        assert_eq!(local(&flat, "train", false).unwrap().unwrap(), ["train.jsonl"]);
        assert_eq!(local(&flat, "validation", true).unwrap_err(), "has no split \"validation\"; it has test, train");
        // Shards of one dataset, whatever split their names say; unless another is asked for.
        for shards in [&["part-0.jsonl", "part-1.jsonl"][..], &["train-0.csv", "train-1.csv", "x/y.jsonl"]] {
            assert_eq!((local(shards, "test", false), local(shards, "train", true)), (Ok(None), Ok(None)), "{shards:?}");
        }
        assert_eq!(local(&["train-0.csv"], "test", true).unwrap_err(), "has no split \"test\"; it has train");
        assert_eq!(local(&["dev/a.json"], "test", false).unwrap().unwrap(), ["dev/a.json"]);
    }

    #[test]
    fn a_missing_shard_is_noticed() {
        let files = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert!(whole(&files(&["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "x.json"])));
        assert!(!whole(&files(&["data/train-00001-of-00002-ab12.parquet"])));
        assert!(whole(&files(&["train-00001-of-00002.jsonl", "train-00002-of-00002.jsonl"])));
        let refused = |names: &[&str]| choose_local(&files(names), "train", false).unwrap_err();
        let said =
            refused(&["data/train-00000-of-00003.jsonl", "data/train-00001-of-00003.jsonl", "data/test-00000-of-00001.jsonl"]);
        assert!(said.starts_with("lacks the shard data/train-00002-of-00003; "), "{said}");
        // Where the folder's own files are the shards.
        let said = refused(&["train-00002-of-00004.jsonl", "train-00004-of-00004.jsonl", "README.md"]);
        assert!(said.starts_with("lacks the shard train-00001-of-00004 and 1 more; "), "{said}");
        // Other splits may be incomplete.
        let others = files(&["data/train-00000-of-00001.jsonl", "data/test-00000-of-00009.jsonl"]);
        assert_eq!(choose_local(&others, "train", false).unwrap().unwrap(), ["data/train-00000-of-00001.jsonl"]);
    }
}
