use super::super::row_outcome::NAMED;
use super::*;
use crate::data::{TokenCountBounds, Tokenizer, TokenizerOverrides};
use crate::dataset::{LINES_PREFIX, LearnedParts, PromptAnswers, splitting};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Returns the built-in model's tokenizer, with a chat template that refuses system messages.
fn tokenizer() -> Tokenizer {
    let template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.role }}: \
                    {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    let wording = TokenizerOverrides { template: Some(("t".into(), template.into())), ..TokenizerOverrides::default() };
    Tokenizer::open_with(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/builtin-model/model"), &wording).unwrap()
}

fn written(rows: &[Value]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let lines: Vec<String> = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(&path, lines.concat()).unwrap();
    (folder, path)
}

/// Returns a text; texts have many lengths and scripts.
fn text(i: usize) -> String {
    let words = ["the", "a storm,", "é", "12 3", "\n\n", "  ", "don't", "猫", "e\u{301}", "Zürich.", "<|endoftext|>", "x"];
    (0..i * 7 % 23).map(|k| words[(i * 5 + k * k) % words.len()]).collect::<Vec<_>>().join(if i.is_multiple_of(3) {
        ""
    } else {
        " "
    })
}

fn rows() -> Vec<Value> {
    let said = |role: &str, i: usize| json!([{"role": role, "content": text(i)}]);
    let row = |i: usize| match i % 11 {
        1 | 9 => {
            let asked = said(if i.is_multiple_of(4) { "system" } else { "user" }, i);
            let (a, b) = (said("assistant", i + 1), said("assistant", i + 2));
            json!({"prompt": asked, "completion": a, "chosen": a, "rejected": b, "chat_template_kwargs": {}})
        }
        3 => json!({"prompt": 7, "text": text(i)}),
        5 => json!({"prompt": text(i), "completion": "", "chosen": "", "rejected": text(i + 1)}),
        7 => json!({"prompt": "", "completion": "<|endoftext|>", "chosen": text(i), "rejected": text(i)}),
        _ => {
            let (a, b) = (text(i + 2), format!("{}b", text(i)));
            json!({"prompt": text(i), "completion": text(i + 1), "chosen": a, "rejected": b, format!("column {}", i % 4): i})
        }
    };
    (0..1300).map(row).collect()
}

type TestAnswer = (Vec<u32>, Vec<u32>, Option<(bool, Vec<u32>)>, [usize; 2]);

type TestPrompt = (usize, Vec<u32>, Option<TestAnswer>, String, String);

fn tokens(prompts: &[Arc<Prompt>]) -> Vec<TestPrompt> {
    let one = |p: &Arc<Prompt>| {
        let label = |a: &PromptAnswers| a.label.as_ref().map(|label| (label.desirable, label.beyond.clone()));
        let answers = p.answers.as_ref().map(|a| (a.chosen.clone(), a.rejected.clone(), label(a), a.value_positions));
        (p.row, p.tokens.clone(), answers, p.text.clone(), json!(p.columns).to_string())
    };
    prompts.iter().map(one).collect()
}

#[test]
fn rows_judged_by_bounds_are_those_judged_by_their_tokens() {
    let (_folder, path) = written(&rows());
    let dataset = Dataset::from(path.as_path());
    let tokenizer = tokenizer();
    let lengths = TokenCountBounds::from_tokenizer(&tokenizer).map(Arc::new);
    assert!(lengths.is_some(), "something can be proved");
    let completions = |whole| DatasetKind::Completions(LearnedParts { includes_prompts: whole, turns: false });
    for kind in [
        DatasetKind::Prompts,
        DatasetKind::Pairs,
        completions(false),
        completions(true),
        DatasetKind::Labelled,
        DatasetKind::ValuedPairs,
    ] {
        for (longest, longest_prompt, framed) in [(1024, None, false), (24, None, false), (30, Some(9), true)] {
            let longest_prompt = longest_prompt.filter(|_| kind.lacks_prompt_limit().is_none());
            // Texts of a reward model are not truncated.
            let longest = if matches!(kind, DatasetKind::ValuedPairs) { 4 * longest } else { longest };
            let by = |lengths| DatasetReader {
                tokenizer: tokenizer.clone(),
                lengths,
                context: longest,
                longest,
                longest_prompt,
                completion: 8,
                strict: false,
                framed,
                messages: false,
                form: None,
                taught: None,
                likely_tokens: false,
            };
            let (bounded, warning) = by(lengths.clone()).read(Some(&dataset), kind, &World::single_process()).unwrap();
            let (counted, also) = by(None).read(Some(&dataset), kind, &World::single_process()).unwrap();
            assert_eq!(warning, also);
            assert!(warning.is_some() && bounded.len() > 300, "{}", bounded.len());
            assert_eq!(bounded.columns(), counted.columns());
            let warns = |prompts: &PromptSet| Some(prompts.longest()).filter(|long| long + 8 > longest);
            assert!(warns(&bounded) == warns(&counted) || !matches!(kind, DatasetKind::Prompts));
            let some: Vec<usize> = (0..bounded.len()).rev().step_by(3).collect();
            assert_eq!(tokens(&bounded.get(&some).unwrap()), tokens(&counted.get(&some).unwrap()));
            assert_eq!(bounded.fingerprint_of_tokens().unwrap(), counted.fingerprint_of_tokens().unwrap());
            let lengths = bounded.lengths(&World::single_process()).unwrap();
            assert!(bounded.all.get().is_none(), "rows are counted without being kept");
            assert_eq!(tokens(bounded.all().unwrap()), tokens(counted.all().unwrap()));
            assert_eq!(lengths, counted.lengths(&World::single_process()).unwrap(), "{longest}");
            let all = PromptSet::from(bounded.all().unwrap().to_vec());
            assert_eq!(all.fingerprint().unwrap(), counted.fingerprint_of_tokens().unwrap());
            assert_eq!(all.columns(), counted.columns());
        }
    }
}

#[test]
fn rows_that_are_truncated_are_counted_and_the_first_is_named() {
    let (_folder, path) = written(&rows());
    let (dataset, world, tokenizer) = (Dataset::from(path.as_path()), World::single_process(), tokenizer());
    let lengths = TokenCountBounds::from_tokenizer(&tokenizer).map(Arc::new);
    let completions = |whole| DatasetKind::Completions(LearnedParts { includes_prompts: whole, turns: false });
    for kind in [DatasetKind::Pairs, completions(false), completions(true), DatasetKind::Labelled] {
        for (longest_prompt, framed, context) in [(None, false, 1024), (Some(9), true, 1024), (None, false, 24)] {
            let longest_prompt = longest_prompt.filter(|_| kind.lacks_prompt_limit().is_none());
            let by = |lengths| DatasetReader {
                tokenizer: tokenizer.clone(),
                lengths,
                context,
                longest: 24,
                longest_prompt,
                completion: 0,
                strict: false,
                framed,
                messages: false,
                form: None,
                taught: None,
                likely_tokens: false,
            };
            let warning = by(lengths.clone()).read(Some(&dataset), kind, &world).unwrap().1.unwrap();
            assert_eq!(Some(&warning), by(None).read(Some(&dataset), kind, &world).unwrap().1.as_ref());
            let drawn = by(lengths.clone()).read_drawn(&dataset, kind, true, &world).unwrap().1;
            for said in [warning, drawn.join("; ")] {
                // What the model's context cuts off is mentioned later.
                let is_named = said.contains(" is longer than 24 tokens (max_length) and cut off there. ");
                assert_eq!(is_named, context > 24, "{said}");
                assert_eq!(said.ends_with(" rows are affected; raise max_length to keep whole texts"), context > 24, "{said}");
            }
        }
    }
}

/// Returns texts with prompts, in conversations, as tokens, and as tokens with a mask.
fn texts_of_all_kinds() -> Vec<Value> {
    let masked = |i: usize| {
        let ids: Vec<usize> = (1..i % 50 + 3).collect();
        json!({"input_ids": ids, "labels": ids.iter().map(|id| if id % 7 < 4 { -100 } else { *id as i64 }).collect::<Vec<_>>()})
    };
    let row = |i: usize| match i % 6 {
        0 => json!({"prompt": text(i), "completion": text(i + 1)}),
        1 => json!({"input_ids": (1..i % 40 + 3).collect::<Vec<_>>()}),
        2 => masked(i),
        3 => json!({"messages": [{"role": "user", "content": text(i)}, {"role": "assistant", "content": text(i + 2)}]}),
        _ => json!({"text": (0..i % 5).map(|k| text(i + k)).collect::<String>()}),
    };
    (0..600).map(row).collect()
}

/// Returns a reader without a length limit, for texts that are cut later.
fn of_any_length() -> DatasetReader {
    let tokenizer = tokenizer();
    let lengths = TokenCountBounds::from_tokenizer(&tokenizer).map(Arc::new);
    let (context, longest, longest_prompt, completion) = (1024, usize::MAX, None, 0);
    let (strict, framed, messages) = (false, false, false);
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

#[test]
fn texts_that_are_cut_by_their_lengths_are_those_cut_by_their_tokens() {
    let (_folder, path) = written(&texts_of_all_kinds());
    let (reader, dataset) = (of_any_length(), Dataset::from(path.as_path()));
    for (whole, turns) in [(false, false), (true, false), (false, true)] {
        let read = || {
            reader
                .read(
                    Some(&dataset),
                    DatasetKind::Completions(LearnedParts { includes_prompts: whole, turns }),
                    &World::single_process(),
                )
                .unwrap()
                .0
        };
        let all = read().all().unwrap().to_vec();
        let order: Vec<usize> = (0..all.len()).rev().step_by(2).collect();
        let turned: Vec<Arc<Prompt>> = order.iter().map(|place| all[*place].clone()).collect();
        for length in [2, 9, 31] {
            let split = [read(), PromptSet::from(all.clone())]
                .map(|texts| splitting::split(texts, length, whole, &World::single_process()).unwrap());
            let wrapped = [read(), PromptSet::from(all.clone())]
                .map(|texts| splitting::wrap(texts, order.iter().copied(), length, whole, &World::single_process()).unwrap());
            assert_defined(&split[0], defined(&all, whole, length, false));
            assert_defined(&wrapped[0], defined(&turned, whole, length, true));
            for [later, now] in [split, wrapped] {
                assert_alike(&later, &now, length);
            }
        }
    }
}

/// Asserts that sequences have these tokens and masks. An uncut text keeps its prompt, so its mask omits the prompt.
fn assert_defined(sequences: &PromptSet, mut want: Vec<Vec<(u32, u8)>>) {
    let prompts = sequences.get(&(0..sequences.len()).collect::<Vec<_>>()).unwrap();
    let mut got = found(&prompts);
    assert_eq!(got.len(), want.len());
    for ((prompt, got), want) in prompts.iter().zip(&mut got).zip(&mut want) {
        let known = if prompt.text.is_empty() { 1 } else { prompt.tokens.len() };
        got.iter_mut().take(known).chain(want.iter_mut().take(known)).for_each(|token| token.1 = 0);
    }
    assert_eq!(got, want);
}

/// Asserts that sequences made on demand equal those made at the start.
fn assert_alike(later: &PromptSet, now: &PromptSet, length: usize) {
    assert!(later.len() > 50 && later.len() == now.len(), "{} sequences of {length}", later.len());
    assert_eq!(later.lengths(&World::single_process()).unwrap(), now.lengths(&World::single_process()).unwrap());
    let some: Vec<usize> = (0..later.len()).rev().step_by(2).collect();
    let learned = |prompts: &PromptSet| -> Vec<_> {
        prompts.get(&some).unwrap().iter().map(|p| (p.index, p.answers.as_ref().unwrap().learned.clone())).collect()
    };
    let tokens_of = |prompts: &PromptSet| tokens(&prompts.get(&some).unwrap());
    assert_eq!(tokens_of(later), tokens_of(now));
    assert_eq!(learned(later), learned(now));
    assert_eq!(later.fingerprint_of_tokens().unwrap(), now.fingerprint_of_tokens().unwrap());
    assert_eq!(later.all.get().is_some(), length == 2, "sequences of long texts are made at once, others later");
    let counted: Vec<usize> = later.all().unwrap().iter().map(|p| p.length()).collect();
    assert_eq!(counted, now.lengths(&World::single_process()).unwrap());
    assert!(counted.iter().all(|own| *own <= length));
}

/// Cuts texts as the strategies are defined. Returns the sequences with more than one token, of which one after the first is learned, with
/// their masks.
fn defined(texts: &[Arc<Prompt>], whole: bool, length: usize, wrapped: bool) -> Vec<Vec<(u32, u8)>> {
    let text = |prompt: &Arc<Prompt>| -> Vec<(u32, u8)> {
        let answers = prompt.answers.as_ref().unwrap();
        let plain = answers.learned.is_none() && (whole || prompt.text.is_empty());
        let mask = answers.learned.clone().unwrap_or_else(|| vec![1; answers.chosen.len()]);
        let asked = prompt.tokens.iter().map(|token| (*token, u8::from(plain)));
        asked.chain(answers.chosen.iter().copied().zip(mask)).collect()
    };
    let all: Vec<Vec<(u32, u8)>> = texts.iter().map(text).collect();
    let cut: Vec<Vec<(u32, u8)>> = match wrapped {
        true => all.concat().chunks(length).map(<[_]>::to_vec).collect(),
        false => all.iter().flat_map(|text| text.chunks(length).map(<[_]>::to_vec)).collect(),
    };
    cut.into_iter().filter(|sequence| sequence[1..].iter().any(|(_, learned)| *learned == 1)).collect()
}

/// Returns the tokens of sequences with their masks; the mask of a first token is unknown.
fn found(prompts: &[Arc<Prompt>]) -> Vec<Vec<(u32, u8)>> {
    let one = |prompt: &Arc<Prompt>| {
        let answers = prompt.answers.as_ref().unwrap();
        let mask = answers.learned.clone().unwrap_or_else(|| vec![1; answers.chosen.len()]);
        let asked = prompt.tokens.iter().map(|token| (*token, 0));
        asked.chain(answers.chosen.iter().copied().zip(mask)).collect()
    };
    prompts.iter().map(one).collect()
}

#[test]
fn a_fingerprint_of_cut_texts_changes_with_their_order_and_the_length() {
    let (_folder, path) = written(&(0..40).map(|i| json!({"text": text(i + 3)})).collect::<Vec<_>>());
    let reader = of_any_length();
    let read = || {
        reader
            .read(
                Some(&path.as_path().into()),
                DatasetKind::Completions(LearnedParts { includes_prompts: true, turns: false }),
                &World::single_process(),
            )
            .unwrap()
            .0
    };
    let wrapped = |order: Vec<usize>, length| {
        splitting::wrap(read(), order, length, true, &World::single_process()).unwrap().fingerprint().unwrap()
    };
    let all: Vec<usize> = (0..read().len()).collect();
    let first = wrapped(all.clone(), 16);
    assert!(first.starts_with(ROWS_PREFIX));
    assert_eq!(first, wrapped(all.clone(), 16));
    assert_ne!(first, wrapped(all.clone(), 17));
    assert_ne!(first, wrapped(all.into_iter().rev().collect(), 16));
    let split = splitting::split(read(), 16, true, &World::single_process()).unwrap().fingerprint().unwrap();
    assert!(split != first && split != read().fingerprint().unwrap());
}

#[test]
fn of_very_many_unusable_rows_the_first_are_named_and_all_are_counted() {
    let odd = 2 * NAMED;
    let row = |i: usize| match i {
        _ if i >= odd => json!({"prompt": "good"}),
        _ if i.is_multiple_of(2) => json!({"prompt": 7}),
        _ => json!({"prompt": [{"role": "system", "content": "refused by the template"}]}),
    };
    let (_folder, path) = written(&(0..odd + 4).map(row).collect::<Vec<_>>());
    let (tokenizer, lengths, longest_prompt, completion, strict) = (tokenizer(), None, None, 8, false);
    let (context, longest, framed, messages) = (64, 64, false, false);
    let reader = DatasetReader {
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
    };
    let (prompts, warning) = reader.read(Some(&path.as_path().into()), DatasetKind::Prompts, &World::single_process()).unwrap();
    let warning = warning.unwrap();
    assert_eq!(prompts.len(), 4);
    assert!(warning.starts_with(&format!("skipped {odd} of {} rows", odd + 4)), "{warning}");
    assert!(warning.contains("jsonl:1: ") && warning.contains(", as in 3; ") && warning.contains("jsonl:2: "), "{warning}");
    assert!(warning.ends_with(&format!("; {} more", odd - 3)), "{warning}");
}

#[test]
fn a_fingerprint_changes_with_what_shapes_tokens_and_nothing_else() {
    let (_folder, path) = written(&rows());
    let tokenizer = tokenizer();
    let lengths = TokenCountBounds::from_tokenizer(&tokenizer).map(Arc::new);
    let of = |path: &Path, longest, context| {
        let tokenizer = tokenizer.clone();
        let (lengths, longest_prompt, completion, strict) = (lengths.clone(), None, 8, false);
        let reader = DatasetReader {
            tokenizer,
            lengths,
            context,
            longest,
            longest_prompt,
            completion,
            strict,
            framed: false,
            messages: false,
            form: None,
            taught: None,
            likely_tokens: false,
        };
        reader.read(Some(&path.into()), DatasetKind::Pairs, &World::single_process()).unwrap().0.fingerprint().unwrap()
    };
    let first = of(&path, 8192, 1024);
    assert!(first.starts_with(ROWS_PREFIX));
    assert_eq!(first, of(&path, 9000, 4096), "no row is longer than either");
    assert_ne!(first, of(&path, 24, 1024));
    let mut changed = rows();
    changed[1291]["chosen"] = "other".into();
    let (_folder, other) = written(&changed);
    assert_ne!(first, of(&other, 8192, 1024));
    changed = rows();
    changed[1291]["column 1"] = "other".into();
    let (_folder, other) = written(&changed);
    assert_ne!(first, of(&other, 8192, 1024));
}

mod lazy_selection;
