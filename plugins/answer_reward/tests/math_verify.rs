//! Compares scores in the mode "formula" with those of TRL's `accuracy_reward` with `math_verify` 0.9.
//!
//! `score_with_trl.py` made `math_verify.jsonl` and `math_verify_layout.jsonl` by calling TRL's reward: each line is the reference,
//! the completion and the score. The pairs of the second file are a few references with each way to write a number, a letter or a
//! list that we could think of: text and fonts, signs, separators, units, spaces, brackets, boxes. The pairs are our own, without
//! those whose scores are known to differ; `known_differences` has those.

use answer_reward::formula::{is_right, read_answer, read_reference};

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
            eprintln!("    {:?}\n    {:?}", read_reference(reference), read_answer(completion));
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

#[test]
fn text_and_layout_around_an_answer_count_as_in_math_verify() {
    let cases = cases(include_str!("math_verify_layout.jsonl"));
    assert!(cases.len() >= 1900);
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
        ("1,2", "\\boxed{2,1}", right, wrong),
        ("3:4", "\\boxed{3:4}", right, wrong),
        ("1e3", "\\boxed{1e3}", right, wrong),
        ("2x", "\\boxed{2*x}", right, wrong),
        ("2x", "\\boxed{2\\text{x}}", wrong, right),
        ("2^{10}", "\\boxed{1024}", right, wrong),
        ("0.5", "\\boxed{\\text{1/2}}", right, wrong),
        // A reference whose LaTeX can't be read: TRL takes a number from it, we do only if nothing else in it may have a meaning.
        ("$13^{}$", "\\boxed{13}", wrong, right),
        ("$13 \\frac{\\text{m}}{\\text{s}}$", "\\boxed{13}", wrong, right),
        // TRL compares a text in \text{...} with how SymPy prints the other side. We compare it with numbers and fractions, and
        // also with those that SymPy leaves as products.
        ("$2x$", "\\boxed{\\text{2*x}}", wrong, right),
        ("$x^2$", "\\boxed{\\text{x**2}}", wrong, right),
        ("$-\\infty$", "\\boxed{\\text{-oo}}", wrong, right),
        ("$\\text{13}$", "\\boxed{\\gcd(13,26)}", wrong, right),
        ("$\\text{13}$", "\\boxed{\\binom{13}{1}}", wrong, right),
        ("$\\text{-5}$", "\\boxed{-1\\cdot5}", right, wrong),
        ("$1-\\frac12$", "\\boxed{\\text{1/2}}", right, wrong),
        // TRL orders the letters of a word, and a list of texts as if they were letters.
        ("$\\text{true}$", "\\boxed{true}", right, wrong),
        ("$10,2$", "\\boxed{\\text{10},\\text{2}}", right, wrong),
        ("$1,2,3$", "\\boxed{1,\\text{2},3}", right, wrong),
        // To TRL, `I` is the imaginary unit and \text{I} is not.
        ("$I$", "\\boxed{\\text{I}}", right, wrong),
        // TRL reads a number before one in parentheses as a mixed fraction, 2+8, and one in parentheses before a fraction.
        ("$-\\frac{7}{2}$", "\\boxed{(-3)\\frac{1}{2}}", wrong, right),
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
