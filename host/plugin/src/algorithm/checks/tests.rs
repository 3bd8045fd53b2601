use super::super::{DataSource, Pair, Scale};
use super::*;

/// Returns two groups of two sequences with 1, 2, 0 and 1 tokens. The second token does not count.
fn batch() -> Batch {
    Batch {
        step: 1,
        seed: 0,
        groups: vec![0, 2, 4],
        tokens: vec![0, 1, 3, 3, 4],
        prompt_tokens: Vec::new(),
        turns: Vec::new(),
        mask: vec![1, 0, 1, 1],
        columns: Vec::new(),
        scale: Scale { items: 4, tokens: 3, prompt_tokens: 0, max_completion_length: 2 },
    }
}

fn lists(estimates: &[&str]) -> Data {
    let estimates = estimates.iter().map(|name| (*name).to_owned()).collect();
    Data { source: DataSource::Either, shape: Shape::Completions, estimates }
}

fn tokens(name: &str, values: [f32; 4]) -> Column {
    Column::new(name, Unit::Token, values.to_vec())
}

#[test]
fn estimates_are_listed_finite_and_as_long_as_the_batch() {
    let data = lists(&["advantage", "baseline", "mask"]);
    let said = |columns: &[Column]| estimates(columns, &data, &batch()).map(drop).unwrap_err();
    let good = [
        tokens("advantage", [1.0, 0.0, -1.0, 2.0]),
        Column::new("baseline", Unit::Sequence, vec![1.0, 2.0, 3.0, 4.0]),
        tokens("mask", [1.0, 0.0, 0.0, 1.0]),
    ];
    let (columns, mask) = estimates(&good, &data, &batch()).unwrap();
    assert_eq!((columns.len(), mask), (2, vec![1, 0, 0, 1]));
    assert_eq!(estimates(&good[..1], &data, &batch()).unwrap().1, batch().mask);

    assert!(
        said(&[tokens("return", [0.0; 4])]).contains("return, which is none of the estimates that it lists: advantage, baseline")
    );
    assert!(said(&[good[0].clone(), good[0].clone()]).contains("advantage twice"));
    assert!(said(&[tokens("advantage", [0.0, f32::NAN, 0.0, 0.0])]).contains("NaN in values of advantage at token 1"));
    let short = Column::new("advantage", Unit::Token, vec![0.0; 3]);
    assert_eq!(said(&[short]), "returned 3 values of advantage for 4 tokens");
    let long = Column::new("baseline", Unit::Sequence, vec![0.0; 5]);
    assert_eq!(said(&[long]), "returned 5 values of baseline for 4 sequences");
    assert!(said(&[Column::new("baseline", Unit::Group, vec![0.0; 2])]).contains("an entry per group"));
    assert!(said(&[Column::new("baseline", Unit::PromptToken, Vec::new())]).contains("an entry per prompt token"));
}

#[test]
fn entries_without_a_value_ascend_exist_and_hold_0() {
    let data = lists(&["advantage"]);
    let said = |missing: &[u32]| {
        let column = Column { missing: missing.to_vec(), ..tokens("advantage", [0.0, 0.0, 3.0, 0.0]) };
        estimates(&[column], &data, &batch()).map(drop)
    };
    assert_eq!(said(&[0, 1, 3]), Ok(()));
    for wrong in [[1, 0], [1, 1]] {
        assert!(said(&wrong).unwrap_err().contains("must be ascending"), "{wrong:?}");
    }
    assert!(said(&[4]).unwrap_err().contains("the missing entry 4, but there are 4 tokens"));
    assert!(said(&[0, u32::MAX]).unwrap_err().contains("4294967295"));
    assert!(said(&[2]).unwrap_err().contains("returned 3 of advantage at token 2, which is missing"));
}

#[test]
fn a_mask_only_leaves_tokens_out() {
    let data = lists(&["mask"]);
    let said = |column: Column| estimates(&[column], &data, &batch()).map(|(_, mask)| mask);
    assert_eq!(said(tokens("mask", [0.0, 0.0, 1.0, 0.0])), Ok(vec![0, 0, 1, 0]));
    assert!(said(tokens("mask", [1.0, 1.0, 1.0, 1.0])).unwrap_err().contains("mask 1 for token 1, whose mask is 0"));
    for wrong in [0.5, 2.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(said(tokens("mask", [wrong, 0.0, 1.0, 1.0])).unwrap_err().contains("other than 0 and 1"), "{wrong}");
    }
    assert!(said(Column::new("mask", Unit::Sequence, vec![1.0; 4])).is_err());
    assert!(said(Column::new("mask", Unit::Token, vec![1.0; 3])).unwrap_err().contains("a mask of 3 entries for 4 tokens"));
    assert!(said(Column { missing: vec![1], ..tokens("mask", [1.0, 0.0, 1.0, 1.0]) }).is_err());
}

#[test]
fn pairs_are_two_completions_of_a_group() {
    let said = |given: &[(u32, u32)]| {
        let given: Vec<Pair> = given.iter().map(|&(chosen, rejected)| Pair { chosen, rejected }).collect();
        pairs(&given, &batch())
    };
    assert_eq!(said(&[(0, 1), (1, 0), (3, 2)]), Ok(()));
    assert!(said(&[(0, 1), (0, 1)]).unwrap_err().contains("the pair of rows 0 and 1 twice"));
    for (chosen, rejected) in [(1, 2), (0, 0), (0, 4), (7, 7), (4, 5), (u32::MAX, 0)] {
        assert!(said(&[(chosen, rejected)]).unwrap_err().contains("must be two of the 4 completions"), "{chosen} {rejected}");
    }
}

#[test]
fn derivatives_are_of_needed_columns_and_0_where_the_mask_is() {
    let needs: NeededInputs = ["logp", "old_logp", "sequence_value"].into_iter().collect();
    let said = |column: Column| derivatives(&[column], &needs, &batch(), true);
    assert_eq!(said(tokens("logp", [1.0, 0.0, 1.0, 1.0])), Ok(()));
    assert_eq!(said(Column::new("sequence_value", Unit::Sequence, vec![1.0; 4])), Ok(()));
    let beside = said(tokens("logp", [0.0, 1.0, 0.0, 0.0])).unwrap_err();
    assert_eq!(beside, "returned 1 in d_logp at token 1, whose mask is 0");
    assert_eq!(derivatives(&[tokens("logp", [0.0, 1.0, 0.0, 0.0])], &needs, &batch(), false), Ok(()));
    assert!(
        said(tokens("old_logp", [0.0; 4]))
            .unwrap_err()
            .contains("a loss has derivatives of logp, teacher_divergence, entropy, prompt_logp, value")
    );
    assert!(said(tokens("nonsense", [0.0; 4])).unwrap_err().contains("derivatives of nonsense"));
    let unneeded = said(tokens("entropy", [0.0; 4])).unwrap_err();
    assert!(unneeded.contains("entropy, which it does not need: its needs are logp, old_logp, sequence_value"), "{unneeded}");
    assert!(
        said(Column::new("logp", Unit::Sequence, vec![0.0; 4]))
            .unwrap_err()
            .contains("an entry per sequence; there is one per token")
    );
    assert!(said(Column::new("logp", Unit::Token, vec![0.0; 5])).unwrap_err().contains("5 d_logp for 4 tokens"));
    assert!(said(tokens("logp", [0.0, 0.0, f32::INFINITY, 0.0])).unwrap_err().contains("inf in d_logp at token 2"));
    assert!(said(Column { missing: vec![3], ..tokens("logp", [0.0; 4]) }).unwrap_err().contains("without a value at token 3"));
    let twice = [tokens("logp", [0.0; 4]), tokens("logp", [0.0; 4])];
    assert!(derivatives(&twice, &needs, &batch(), true).unwrap_err().contains("logp twice"));
}

#[test]
fn losses_are_bounded() {
    assert_eq!(loss(-1e100), Ok(()));
    assert!(loss(1e101).unwrap_err().contains("a loss of 1e101; the limit is 1e100"));
    assert!(loss(f64::NAN).unwrap_err().contains("NaN"));
    assert!(loss(f64::NEG_INFINITY).unwrap_err().contains("-inf"));
}

#[test]
fn what_it_learns_from_fits_its_exports_and_its_estimates_are_its_own() {
    let said = |source, shape, names: &[&str], exports| data(&Data { source, shape, ..lists(names) }, exports);
    assert_eq!(said(DataSource::Either, Shape::Completions, &["advantage", "mask"], (true, false)), Ok(()));
    assert_eq!(said(DataSource::Policy, Shape::Pairs, &[], (false, true)), Ok(()));
    assert_eq!(said(DataSource::Dataset, Shape::Pairs, &[], (false, false)), Ok(()));
    // Without estimates, there is nothing to export.
    assert_eq!(said(DataSource::Either, Shape::Completions, &[], (false, false)), Ok(()));
    for (source, shape, names, exports, wanted) in [
        (DataSource::Policy, Shape::Completions, &["advantage"][..], (false, true), "does not export estimator"),
        (DataSource::Either, Shape::Completions, &["advantage"], (false, false), "does not export estimator"),
        (DataSource::Policy, Shape::Pairs, &[], (true, false), "does not export pairing"),
    ] {
        assert!(said(source, shape, names, exports).unwrap_err().contains(wanted), "{source:?} {shape:?}");
    }
    assert!(said(DataSource::Dataset, Shape::Completions, &["advantage"], (true, true)).unwrap_err().contains("lists estimates"));
    assert!(said(DataSource::Policy, Shape::Pairs, &["advantage"], (true, true)).unwrap_err().contains("lists estimates"));
    for own in ["logp", "turn_reward", "turn_reward/x", "reward/x", "micro_batch/label", "teacher_divergence/2"] {
        let refused = said(DataSource::Either, Shape::Completions, &[own], (true, false)).unwrap_err();
        assert!(refused.contains("a column of the host's"), "{refused}");
    }
    let twice = said(DataSource::Either, Shape::Completions, &["a", "a"], (true, false)).unwrap_err();
    assert!(twice.contains("\"a\" twice"), "{twice}");
    for hidden in ["", "a\nb", &"x".repeat(129)] {
        assert!(said(DataSource::Either, Shape::Completions, &[hidden], (true, false)).is_err(), "{hidden:?}");
    }
}
