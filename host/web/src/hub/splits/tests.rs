use super::*;

fn owned(files: &[&str]) -> Vec<String> {
    files.iter().map(|file| (*file).to_owned()).collect()
}

/// Returns the choice in a local folder without a card.
fn local(files: &[&str], split: &str, chosen: bool) -> Result<Vec<String>, String> {
    choose_local(&owned(files), &DatasetCard::default(), None, (split, chosen)).map(|choice| choice.files)
}

fn chosen(files: &[&str], subset: Option<&str>, split: &str) -> Result<Vec<String>, String> {
    choose(&owned(files), &DatasetCard::default(), subset, split).map(|choice| choice.files)
}

#[test]
fn a_split_is_found_by_the_hubs_conventions() {
    let tldr = [
        "README.md",
        "data/test-00000-of-00001.parquet",
        "data/train-00001-of-00002.parquet",
        "data/train-00000-of-00002.parquet",
    ];
    assert_eq!(chosen(&tldr, None, "train").unwrap(), ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]);
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
    let data = ["README.md", "data/test-00000-of-00001.jsonl", "data/train-00000-of-00001.jsonl"];
    assert_eq!(local(&data, "train", false).unwrap(), ["data/train-00000-of-00001.jsonl"]);
    assert_eq!(local(&data, "test", false).unwrap(), ["data/test-00000-of-00001.jsonl"]);
    let flat = ["train.jsonl", "test.jsonl"];
    assert_eq!(local(&flat, "train", false).unwrap(), ["train.jsonl"]);
    assert_eq!(local(&flat, "validation", true).unwrap_err(), "has no split \"validation\"; it has test, train");
    // All are shards of one dataset, whatever splits their names contain, unless another split is requested.
    for shards in [&["part-0.jsonl", "part-1.jsonl"][..], &["train-0.csv", "train-1.csv", "x/y.jsonl"]] {
        let own = Ok(owned(&shards[..2]));
        assert_eq!((&local(shards, "test", false), &local(shards, "train", true)), (&own, &own), "{shards:?}");
    }
    assert_eq!(local(&["train-0.csv"], "test", true).unwrap_err(), "has no split \"test\"; it has train");
    assert_eq!(local(&["dev/a.json"], "test", false).unwrap(), ["dev/a.json"]);
}

#[test]
fn a_missing_shard_is_noticed() {
    let files = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert!(whole(&files(&["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "x.json"])));
    assert!(!whole(&files(&["data/train-00001-of-00002-ab12.parquet"])));
    assert!(whole(&files(&["train-00001-of-00002.jsonl", "train-00002-of-00002.jsonl"])));
    let refused = |names: &[&str]| local(names, "train", false).unwrap_err();
    let said = refused(&["data/train-00000-of-00003.jsonl", "data/train-00001-of-00003.jsonl", "data/test-00000-of-00001.jsonl"]);
    assert!(said.starts_with("lacks the shard data/train-00002-of-00003; "), "{said}");
    // The folder's own files are the shards.
    let said = refused(&["train-00002-of-00004.jsonl", "train-00004-of-00004.jsonl", "README.md"]);
    assert!(said.starts_with("lacks the shard train-00001-of-00004 and 1 more; "), "{said}");
    // Other splits may be incomplete.
    let others = ["data/train-00000-of-00001.jsonl", "data/test-00000-of-00009.jsonl"];
    assert_eq!(local(&others, "train", false).unwrap(), ["data/train-00000-of-00001.jsonl"]);
}

#[test]
fn test_rows_are_not_taken_for_training() {
    // The only split of a folder, which was not requested by name.
    assert_eq!(local(&["test.jsonl"], "train", false).unwrap_err(), "has no split \"train\"; it has test");
    assert_eq!(local(&["dev/a.jsonl"], "train", false).unwrap_err(), "has no split \"train\"; it has validation");
    // Case is ignored; `datasets` would read both.
    assert_eq!(local(&["Train.jsonl", "TEST.jsonl"], "train", false).unwrap(), ["Train.jsonl"]);
    // In nested folders, the innermost counts; `datasets` reads such a file in both splits.
    assert_eq!(local(&["train/a.jsonl", "train/test/b.jsonl"], "train", false).unwrap(), ["train/a.jsonl"]);
    let both = ["train_test_split/train.jsonl", "train_test_split/test.jsonl"];
    assert_eq!(local(&both, "train", false).unwrap(), ["train_test_split/train.jsonl"]);
    for odd in [&["train_test.jsonl"][..], &["train-test/a.jsonl"], &["train.jsonl", "eval_train.jsonl"]] {
        let error = local(odd, "train", false).unwrap_err();
        assert!(error.contains("whose path names the splits test and train"), "{odd:?}: {error}");
    }
}

#[test]
fn a_card_says_which_files_are_a_splits() {
    let card = DatasetCard::parse("---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: a.jsonl}\n  - {split: test, path: 'b*'}\n- config_name: x\n  data_dir: sub\n---\n").unwrap();
    let files = owned(&["a.jsonl", "b.jsonl", "c.jsonl", "sub/train.jsonl", "sub/test.jsonl"]);
    let of = |subset: Option<&str>, split: &str| choose_local(&files, &card, subset, (split, true));
    let train = of(None, "train").unwrap();
    assert_eq!((train.files, train.others), (owned(&["a.jsonl"]), owned(&["test"])));
    assert_eq!(train.ignored, ["c.jsonl", "sub/train.jsonl", "sub/test.jsonl"]);
    assert_eq!(of(None, "eval").unwrap().files, ["b.jsonl"]);
    assert_eq!(of(None, "dev").unwrap_err(), "has no split \"dev\"; it has test, train");
    assert_eq!(of(Some("x"), "train").unwrap().files, ["sub/train.jsonl"]);
    assert!(of(Some("y"), "train").unwrap_err().contains("lists default, x"));
    // The same on the hub.
    let on_hub = |subset: Option<&str>| choose(&files, &card, subset, "train").map(|choice| choice.files);
    assert_eq!((on_hub(None).unwrap(), on_hub(Some("x")).unwrap()), (owned(&["a.jsonl"]), owned(&["sub/train.jsonl"])));
}

/// Folder, and what `datasets` reads from it, as recorded by tests/parity/check_datasets.py; nothing if `datasets` rejects the folder.
#[derive(serde::Deserialize)]
struct RecordedFolder {
    files: Vec<String>,
    card: Option<String>,
    config: Option<String>,
    split: String,
    expected: Option<Vec<String>>,
}

#[test]
fn folders_are_read_as_datasets_reads_them() {
    let layouts: Vec<RecordedFolder> =
        serde_json::from_str(include_str!("../../../../../tests/fixtures/datasets/layouts.json")).unwrap();
    assert!(layouts.len() > 40);
    for RecordedFolder { mut files, card, config, split, expected } in layouts {
        // Hidden files are not listed.
        files.retain(|file| !file.starts_with('.'));
        files.sort_unstable();
        let card = card.map_or(Ok(DatasetCard::default()), |card| DatasetCard::parse(&format!("---\n{card}---\n"))).unwrap();
        let read = choose_local(&files, &card, config.as_deref(), (&split, true)).map(|choice| choice.files);
        assert_eq!(read.as_ref().ok(), expected.as_ref(), "{files:?} {card:?} {config:?} {split}: {read:?}");
    }
}
