use super::*;

fn card(configs: &str) -> Result<DatasetCard, String> {
    DatasetCard::parse(&format!("---\nlicense: mit\n{configs}\n---\n# Data\n"))
}

fn splits_of(configs: &str, name: Option<&str>, files: &[&str]) -> Result<Vec<(String, Vec<String>)>, String> {
    let card = card(configs)?;
    let config = card.config(name)?.ok_or("no configs")?;
    config.check("train", files)?;
    Ok(config.files(files).unwrap_or_default())
}

#[test]
fn files_are_listed_in_every_form_that_datasets_knows() {
    let files = ["a.jsonl", "b.jsonl", "data/part-00.json", "data/part-01.json", "data/part-10.json", "x/c.jsonl"];
    let all = |configs: &str| splits_of(&format!("configs:\n- config_name: default\n{configs}"), None, &files).unwrap();
    let of = |pairs: &[(&str, &[&str])]| -> Vec<(String, Vec<String>)> {
        pairs.iter().map(|(split, files)| ((*split).to_owned(), files.iter().map(|f| (*f).to_owned()).collect())).collect()
    };
    assert_eq!(
        all("  data_files:\n  - split: train\n    path: a.jsonl\n  - split: test\n    path: ./b.jsonl"),
        of(&[("train", &["a.jsonl"]), ("test", &["b.jsonl"])])
    );
    assert_eq!(all("  data_files: data/part-0*"), of(&[("train", &["data/part-00.json", "data/part-01.json"])]));
    assert_eq!(all("  data_files: [b.jsonl, a.jsonl, '*.jsonl']"), of(&[("train", &["b.jsonl", "a.jsonl"])]));
    assert_eq!(all("  data_files: {dev: [x/*.jsonl, none/*]}"), of(&[("dev", &["x/c.jsonl"])]));
    assert_eq!(all("  data_dir: x/\n  data_files: '**'"), of(&[("train", &["x/c.jsonl"])]));
    assert!(all("  data_dir: ./data").is_empty());
    assert_eq!(card("configs:\n- config_name: a\n  data_dir: ./data").unwrap().configs[0].folder, "data/");
}

#[test]
fn a_config_is_named_or_the_default() {
    let name = |configs: &str, name: Option<&str>| card(configs)?.config(name).map(|found| found.map(|c| c.name.clone()));
    let two = "configs:\n- config_name: en\n  data_files: a\n- config_name: 2024\n  data_files: b\n";
    assert_eq!(name(two, Some("2024")).unwrap().unwrap(), "2024");
    assert_eq!(name(two, None).unwrap_err(), "has several subsets, en, 2024; name one, as in OWNER/NAME/en or FOLDER/en");
    assert_eq!(name(two, Some("fr")).unwrap_err(), "has no subset \"fr\"; its README.md lists en, 2024");
    assert_eq!(name(&format!("{two}  default: true\n"), None).unwrap().unwrap(), "2024");
    assert_eq!(name(&two.replace("en\n", "default\n"), None).unwrap().unwrap(), "default");
    assert!(name(&format!("{two}  default: true\n- config_name: default\n"), None).unwrap_err().contains("several default"));
    assert_eq!(name("configs:\n- config_name: only\n", None).unwrap().unwrap(), "only");
    for none in ["", "configs: null", "configs: []"] {
        assert_eq!(name(none, Some("x")), Ok(None));
    }
    for yes in ["true", "yes", "On", "\"True\""] {
        assert_eq!(name(&format!("{two}  default: {yes}\n"), None).unwrap().unwrap(), "2024", "{yes}");
    }
    assert!(name(&format!("{two}  default: no\n"), None).unwrap_err().starts_with("has several subsets"));
    assert_eq!(DatasetCard::parse("# No front matter\n---\nconfigs: 3\n---\n").unwrap(), DatasetCard::default());
}

#[test]
fn what_is_wrong_with_a_card_is_named() {
    for (configs, said) in [
        ("configs: 3", "not a list: 3"),
        ("configs: [a]", "without \"config_name\": \"a\""),
        ("configs:\n- data_files: a", "without \"config_name\""),
        ("configs:\n- config_name: a\n  data_files: 7", "\"data_files\" are not a path"),
        ("configs:\n- config_name: a\n  data_files: []", "\"data_files\" are not a path"),
        ("configs:\n- config_name: a\n  data_files: [{split: train}]", "\"data_files\" are not a path"),
        ("configs:\n- config_name: a\n  data_files: [{split: a-b, path: x}]", "the split \"a-b\""),
        ("configs:\n- config_name: a\n  data_files: [{split: a, path: x}, {split: a, path: y}]", "the split \"a\" twice"),
        ("configs:\n- config_name: a\n  data_files: ../x.jsonl", "\"../x.jsonl\", which is not within the dataset"),
        ("configs:\n- config_name: a\n  data_files: /etc/passwd", "not within"),
        ("configs:\n- config_name: a\n  data_files: data/**.jsonl", "\"data/**.jsonl\", in which ** is only a part of a name"),
        ("configs:\n- config_name: a\n  data_files: [a**/x]", "only a part of a name"),
        ("configs:\n- config_name: a\n  data_files: https://host/x.jsonl", "not within"),
        ("configs:\n- config_name: a\n  data_dir: a/../../b", "not within"),
        ("configs: [", "line "),
        ("a: 1\na: 2", "duplicate"),
    ] {
        let error = card(configs).unwrap_err();
        assert!(error.starts_with("README.md ") && error.contains(said) && !error.contains('\n'), "{configs}: {error}");
    }
    assert!(card(&format!("configs: {}", "[".repeat(100_000))).unwrap_err().contains("brackets"));
    let missing = splits_of("configs:\n- config_name: a\n  data_files: b.jsonl", None, &["a.jsonl"]).unwrap_err();
    assert!(missing.starts_with("has no file \"b.jsonl\", which its README.md names for the split \"train\""), "{missing}");
}

#[test]
fn keys_without_effect_are_named() {
    let unused =
        |keys: &str| card(&format!("configs:\n- {{config_name: a, default: true, {keys}}}")).unwrap().configs[0].unused();
    assert_eq!(unused("data_files: b.csv"), None);
    let said = unused("data_files: b.csv, sep: ';', field: data").unwrap();
    assert!(said.contains("sep") && said.contains("field") && said.ends_with("for the config \"a\", without effect"), "{said}");
}

#[test]
fn a_file_of_settings_replaces_the_cards_keys() {
    let own = "---\nconfigs:\n- config_name: a\n---\n";
    let names = |settings: &str| DatasetCard::parse_with(own, settings).map(|card| card.names().join(","));
    assert_eq!(names("---\nconfigs:\n- config_name: b\n").unwrap(), "b");
    for none in ["", "\n", "license: mit\n"] {
        assert_eq!(names(none).unwrap(), "a", "{none}");
    }
    assert!(names("configs: [").unwrap_err().starts_with(".huggingface.yaml line "));
    assert!(names("configs: 3").unwrap_err().starts_with(".huggingface.yaml has \"configs\""));
}
