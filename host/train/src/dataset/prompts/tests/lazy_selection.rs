//! Compares rows that are judged when they are drawn with rows that are judged at the start.

use super::*;
use crate::data::Loader;

const KINDS: [DatasetKind; 5] = [
    DatasetKind::Prompts,
    DatasetKind::Pairs,
    DatasetKind::Completions(LearnedParts { includes_prompts: false, turns: false }),
    DatasetKind::Labelled,
    DatasetKind::ValuedPairs,
];

fn reader(strict: bool) -> DatasetReader {
    let tokenizer = tokenizer();
    let lengths = TokenCountBounds::from_tokenizer(&tokenizer).map(Arc::new);
    let (context, longest, longest_prompt, completion, framed, messages) = (96, 96, None, 8, false, false);
    DatasetReader {
        tokenizer,
        lengths,
        context,
        longest,
        longest_prompt,
        completion,
        strict,
        framed,
        messages,
        form: None,
        taught: None,
        likely_tokens: false,
    }
}

/// Returns more rows than are judged at the start in any case.
fn many() -> Vec<Value> {
    let changed = |i: usize| {
        let mut all = rows();
        all.iter_mut().for_each(|row| row["copy"] = i.into());
        all
    };
    (0..4).flat_map(changed).take(4200).collect()
}

/// Draws positions until a pass ends; returns the positions and the warnings.
fn pass(prompts: &PromptSet, seed: u64, shuffled: bool) -> (Vec<usize>, Vec<String>) {
    let (mut drawn, mut warnings) = (Vec::new(), Vec::new());
    let mut loader = Loader::new(prompts.len(), 64, seed, shuffled, true);
    while !loader.is_at_usable_end(|rows| prompts.usable(rows)).unwrap() {
        let (rows, _) = loader.next_usable(|rows| prompts.usable(rows), |_, _| false).unwrap();
        drawn.extend(rows);
        warnings.extend(prompts.warnings());
    }
    (drawn, warnings)
}

#[test]
fn rows_judged_when_they_are_drawn_are_those_judged_at_the_start() {
    let (_folder, path) = written(&many());
    let (reader, dataset, world) = (reader(false), Dataset::from(path.as_path()), World::single_process());
    for kind in KINDS {
        let (late, at_start) = reader.read_drawn(&dataset, kind, false, &world).unwrap();
        let (counted, described) = reader.read_drawn(&dataset, kind, true, &world).unwrap();
        assert_eq!((late.are_judged(), counted.are_judged()), (false, true));
        assert_eq!(late.fingerprint().unwrap(), counted.fingerprint().unwrap());
        assert!(late.fingerprint().unwrap().starts_with(LINES_PREFIX) && late.len() == counted.len());
        assert_eq!(late.columns(), counted.columns());
        let (classic, warning) = reader.read(Some(&dataset), kind, &world).unwrap();
        assert_eq!(late.columns(), classic.columns(), "all names are among the rows that are seen first");
        assert_eq!(counted.usable_so_far().unwrap(), classic.len());
        // Once all rows are judged, the warnings about them are the same.
        assert_eq!(described.join("; "), warning.clone().unwrap());
        assert!(at_start[0].starts_with("skipped "), "{at_start:?}");
        let (from_late, warnings) = pass(&late, 7, true);
        let (from_counted, none) = pass(&counted, 7, true);
        assert_eq!(from_late, from_counted);
        assert!(none.is_empty() && !warnings.is_empty(), "{none:?} {warnings:?}");
        assert!(warnings.iter().any(|said| said.contains("(of those that were drawn so far)")), "{warnings:?}");
        assert!(late.are_judged() && from_late.len() == classic.len());
        // Unshuffled positions are in the order of the rows; the halves of pairs are in blocks.
        let in_order = pass(&late, 7, false).0;
        let (of_late, of_classic): (Vec<usize>, Vec<usize>) = in_order.iter().copied().zip(0..).step_by(9).unzip();
        let (got, want) = (late.get(&of_late).unwrap(), classic.get(&of_classic).unwrap());
        assert!(matches!(kind, DatasetKind::Labelled) || tokens(&got) == tokens(&want));
        let first = |prompts: &PromptSet| prompts.first(5).unwrap().iter().map(|prompt| prompt.row).collect::<Vec<_>>();
        assert!(matches!(kind, DatasetKind::Labelled) || first(&late) == first(&classic));
    }
}

#[test]
fn labelled_rows_of_one_form_are_in_the_order_that_they_have_where_all_are_judged_at_the_start() {
    let world = World::single_process();
    let pair = |i: usize| json!({"prompt": text(i), "chosen": format!("a{i}"), "rejected": format!("b{i}")});
    let one = |i: usize| json!({"prompt": text(i), "completion": format!("a{i}"), "label": i.is_multiple_of(3)});
    for rows in [(0..4500).map(pair).collect::<Vec<_>>(), (0..4500).map(one).collect()] {
        let (_folder, path) = written(&rows);
        let (reader, dataset) = (reader(false), Dataset::from(path.as_path()));
        let (late, warnings) = reader.read_drawn(&dataset, DatasetKind::Labelled, false, &world).unwrap();
        let (classic, _) = reader.read(Some(&dataset), DatasetKind::Labelled, &world).unwrap();
        assert!(warnings.is_empty() && !late.are_judged(), "{warnings:?}");
        let in_order = pass(&late, 7, false).0;
        assert_eq!(in_order.len(), classic.len());
        let (of_late, of_classic): (Vec<usize>, Vec<usize>) = in_order.iter().copied().zip(0..).step_by(3).unzip();
        assert_eq!(tokens(&late.get(&of_late).unwrap()), tokens(&classic.get(&of_classic).unwrap()));
        let (fresh, _) = reader.read_drawn(&dataset, DatasetKind::Labelled, true, &world).unwrap();
        assert_eq!(pass(&late, 7, true).0, pass(&fresh, 7, true).0);
    }
}

#[test]
fn a_row_that_ends_the_run_does_so_when_it_is_drawn() {
    let world = World::single_process();
    let pair = |i: usize| format!("{}\n", json!({"prompt": text(i), "chosen": format!("a{i}"), "rejected": "b"}));
    let good: Vec<String> = (0..5000).map(pair).collect();
    let margin = json!({"prompt": "p", "chosen": "a", "rejected": "b", "margin": 1}).to_string();
    for (odd, strict, said) in [
        ("{\"prompt\": ", false, "rows.jsonl:4001: is not a line of JSON"),
        ("[]", false, "rows.jsonl:4001: is not a JSON object"),
        ("{\"prompt\": 7}", true, "rows.jsonl:4001: "),
        (&margin, false, "rows.jsonl:4001: has a \"margin\", but pairs before it have none; either all pairs must"),
    ] {
        let (folder, path) = written(&[]);
        let text = [&good[..4000].concat(), odd, "\n", &good[4000..].concat()].concat();
        std::fs::write(&path, text).unwrap();
        let (prompts, _) = reader(strict).read_drawn(&path.as_path().into(), DatasetKind::ValuedPairs, false, &world).unwrap();
        assert_eq!(prompts.usable(&(300..4000).collect::<Vec<_>>()).unwrap(), vec![true; 3700], "{odd}");
        for _ in 0..2 {
            let error = prompts.usable(&[3999, 4000, 4001]).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        // If all rows are judged at the start, the warning is given there.
        let counted = reader(strict).read_drawn(&path.as_path().into(), DatasetKind::ValuedPairs, true, &world);
        assert!(counted.map(drop).unwrap_err().to_string().contains(said), "{odd}");
        drop(folder);
    }
}

#[test]
fn of_a_dataset_without_a_usable_row_the_first_is_named_once_all_were_judged() {
    let (_folder, path) = written(&(0..5000).map(|i| json!({"prompt": i})).collect::<Vec<_>>());
    let (dataset, world) = (Dataset::from(path.as_path()), World::single_process());
    let want = reader(false).read(Some(&dataset), DatasetKind::Prompts, &world).map(drop).unwrap_err().to_string();
    assert!(want.contains("none of the 5000 rows"), "{want}");
    let (prompts, _) = reader(false).read_drawn(&dataset, DatasetKind::Prompts, false, &world).unwrap();
    assert_eq!(prompts.first(4).map(drop).unwrap_err().to_string(), want);
    let counted = reader(false).read_drawn(&dataset, DatasetKind::Prompts, true, &world);
    assert_eq!(counted.map(drop).unwrap_err().to_string(), want);
}

#[test]
fn a_fingerprint_of_lines_changes_with_rows_columns_and_what_shapes_tokens() {
    let of = |rows: &[Value], columns: &[(&str, &str)], longest, kind| {
        let (_folder, path) = written(rows);
        let columns = columns.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let dataset = Dataset { columns, ..path.as_path().into() };
        let reader = DatasetReader { longest, ..reader(false) };
        reader.read_drawn(&dataset, kind, false, &World::single_process()).unwrap().0.fingerprint().unwrap()
    };
    let row = |i: usize| json!({"prompt": text(i), "other": text(i + 1), "chosen": "a", "rejected": "b"});
    let rows: Vec<Value> = (0..5000).map(row).collect();
    let first = of(&rows, &[], 96, DatasetKind::Pairs);
    assert_eq!(first, of(&rows, &[], 96, DatasetKind::Pairs));
    let mut changed = rows.clone();
    changed[4321]["other"] = "x".into();
    let renamed = [("prompt", "other"), ("other", "prompt")];
    let others = [
        of(&changed, &[], 96, DatasetKind::Pairs),
        of(&rows, &renamed, 96, DatasetKind::Pairs),
        of(&rows, &[], 90, DatasetKind::Pairs),
        of(&rows, &[], 96, DatasetKind::Labelled),
    ];
    assert!(!others.contains(&first));
}
