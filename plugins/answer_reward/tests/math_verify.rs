//! Compares scores in the mode "formula" with those of TRL's `accuracy_reward` with `math_verify` 0.9.
//!
//! `score_with_trl.py` made `math_verify.jsonl` by calling TRL's reward: each line is the reference, the completion and the score.
//! The pairs are our own, without those whose scores are known to differ; `known_differences` has those.

use answer_reward::formula::{is_right, of_answer, of_reference};

fn cases(text: &str) -> Vec<(String, String, Option<f64>)> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns how many scores differ, after printing them.
fn differences(cases: &[(String, String, Option<f64>)]) -> usize {
    let mut different = 0;
    for (reference, completion, score) in cases {
        let ours = is_right(completion, reference).map(f64::from);
        if ours != *score {
            different += 1;
            eprintln!("{reference:?} {completion:?}: {ours:?} instead of {score:?}");
            eprintln!("    {:?}\n    {:?}", of_reference(reference), of_answer(completion));
        }
    }
    different
}

#[test]
fn scores_are_those_of_math_verify() {
    let cases = cases(include_str!("math_verify.jsonl"));
    assert!(cases.len() >= 150);
    assert_eq!(differences(&cases), 0);
}

/// Pairs with another score than TRL's, whose scores come from the same script: reference, completion, ours, TRL's.
#[test]
fn known_differences() {
    let (right, wrong) = (Some(true), Some(false));
    let cases = [
        // A reference without dollar signs: TRL takes a number from it.
        ("2\\sqrt{3}", "\\boxed{2}", wrong, right),
        ("2\\sqrt{3}", "\\boxed{2\\sqrt{3}}", right, wrong),
        ("\\log_2 8", "\\boxed{3}", right, wrong),
        ("4!\\cdot 5", "\\boxed{120}", right, wrong),
        ("0.\\overline{3}", "\\boxed{0}", None, right),
        // TRL reads a number before one in parentheses as a mixed fraction, 2+8.
        ("$16$", "\\boxed{2(8)}", right, wrong),
        ("$10$", "\\boxed{2(8)}", wrong, right),
        // Ours aren't computed.
        ("$\\sum_{i=1}^{3} i$", "\\boxed{6}", wrong, right),
        ("$\\int_0^1 x dx$", "\\boxed{\\frac{1}{2}}", wrong, right),
        ("$\\lim_{x \\to 0} x$", "\\boxed{0}", wrong, right),
        ("$\\frac{d}{dx} x^2$", "\\boxed{2x}", wrong, right),
        ("$\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}$", "\\boxed{-2}", wrong, right),
        // Equations are compared up to a constant factor.
        ("$\\frac{x}{y}=2$", "\\boxed{x=2y}", wrong, right),
        // TRL rounds large decimals.
        ("$6.02\\times10^{23}$", "\\boxed{602000000000000000000000}", right, wrong),
    ];
    for (reference, completion, ours, trl) in cases {
        assert_ne!(ours, trl);
        assert_eq!(is_right(completion, reference), ours, "{reference} {completion}");
    }
}

/// For larger comparisons: `MATH_VERIFY_CASES=file cargo test -p answer_reward -- more_scores --nocapture`.
#[test]
fn more_scores_can_be_compared() {
    let Ok(file) = std::env::var("MATH_VERIFY_CASES") else { return };
    let cases = cases(&std::fs::read_to_string(file).unwrap());
    let started = std::time::Instant::now();
    eprintln!("{} of {} differ, in {:?}", differences(&cases), cases.len(), started.elapsed());
}
