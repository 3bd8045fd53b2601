//! What the mode "formula" takes for equal, by expectations of our own.

use answer_reward::formula::{is_right, read_answer, read_reference};

fn equal(reference: &str, answer: &str) -> Option<bool> {
    is_right(&format!("\\boxed{{{answer}}}"), &format!("${reference}$"))
}

/// Asserts that all of these are equal, in both directions, and none equals one of the others.
fn check(same: &[&str], different: &[&str]) {
    for a in same {
        for b in same {
            assert_eq!(equal(a, b), Some(true), "{a} and {b}: {:?}", read_reference(&format!("${a}$")));
        }
        for other in different {
            assert_eq!(equal(a, other), Some(false), "{a} and {other}");
            assert_eq!(equal(other, a), Some(false), "{other} and {a}");
        }
    }
}

#[test]
fn the_last_number_of_a_formula_is_not_its_value() {
    for (formula, number) in [
        ("x^2+3", "3"),
        ("10^3", "3"),
        ("\\frac{\\sqrt{2}}{2}", "2"),
        ("\\frac12", "12"),
        ("\\frac12", "2"),
        ("(1,2)", "2"),
        ("6\\pi", "6"),
        ("2\\sqrt{5}", "5"),
        ("52+8", "8"),
        ("x_2", "2"),
        ("\\log_2 3", "3"),
        ("-3", "3"),
        ("[0,5]", "5"),
    ] {
        assert_eq!(equal(formula, number), Some(false), "{number} for {formula}");
    }
}

#[test]
fn numbers() {
    check(&["1000", "1,000", "10^3", "10^{3}", "1{,}000", "10\\cdot 100", "1000.0"], &["10^2", "1001", "1,00"]);
    check(&["\\frac{1}{2}", "0.5", "1/2", "\\dfrac{2}{4}", "2^{-1}", "1:2"], &["12", "\\frac{1}{3}", "-\\frac{1}{2}", "2"]);
    check(&["-\\frac{3}{4}", "\\frac{-3}{4}", "\\frac{3}{-4}", "-0.75"], &["\\frac{3}{4}"]);
    check(&["3\\frac{1}{2}", "\\frac{7}{2}", "3.5"], &["\\frac{3}{2}", "3"]);
    check(&["\\frac{22}{7}", "3.142857"], &["3.14", "\\pi", "3.142858"]);
    check(&["12345678901234567890123456789012345678901"], &["12345678901234567890123456789012345678902"]);
    check(&["2^{200}", "4^{100}", "2^{199}\\cdot 2"], &["2^{200}+1", "2^{201}"]);
    check(&["20!", "20\\cdot 19!", "2432902008176640000"], &["20", "19!"]);
    check(&["\\binom{5}{2}", "10", "{5 \\choose 3}"], &["\\frac{5}{2}", "5"]);
    check(&["12\\text{ cm}^2", "12", "12\\text{ apples}"], &["12^2", "24"]);
}

#[test]
fn expressions() {
    check(&["\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", "\\sqrt{\\frac{1}{2}}", "2^{-1/2}"], &["\\sqrt{2}", "2", "0.7071"]);
    check(&["(x+1)^3", "x^3+3x^2+3x+1", "(1+x)(x+1)^2"], &["x^3+1", "(x+1)^2", "(y+1)^3"]);
    check(&["\\frac{x+y}{xy}", "\\frac{1}{x}+\\frac{1}{y}"], &["\\frac{2}{x+y}", "x+y"]);
    check(&["2\\sin x\\cos x", "\\sin(2x)", "\\sin 2x"], &["\\sin x", "2\\sin x"]);
    check(&["\\sin^2 x+\\cos^2 x", "1"], &["\\sin^2 x", "0"]);
    check(&["|x|", "\\sqrt{x^2}", "\\left|-x\\right|"], &["-x", "x^2"]);
    check(&["\\ln 8", "3\\ln 2", "\\ln(8)"], &["\\log 8", "\\ln 2"]);
    check(&["\\log 100", "2", "\\log_{10} 100"], &["\\ln 100"]);
    check(&["e^{2x}", "(e^x)^2", "\\exp(2x)"], &["e^{x^2}", "e^x"]);
    check(&["\\sqrt[3]{2}", "2^{1/3}"], &["\\sqrt{2}", "3\\sqrt{2}"]);
    check(&["\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}"], &["\\frac{n(n-1)}{2}"]);
    check(&["a^{m+n}", "a^m a^n"], &["a^{mn}", "a^m+a^n"]);
    check(&["\\theta+\\frac{\\pi}{6}", "\\frac{\\pi}{6}+\\theta"], &["\\phi+\\frac{\\pi}{6}"]);
    check(&["f(x)+1", "1+f(x)"], &["f(y)+1", "g(x)+1", "x+1"]);
    check(&["\\lfloor 3.7\\rfloor", "3", "\\lceil 2.1\\rceil"], &["4"]);
}

#[test]
fn sets_tuples_and_intervals() {
    check(&["(1,2,3)"], &["(3,2,1)", "(1,2)", "[1,3)"]);
    check(&["\\{1,2,3\\}", "\\{3,1,2\\}"], &["\\{1,2\\}", "\\{1,2,4\\}"]);
    check(&["\\pm 2", "2,-2", "\\{-2,2\\}"], &["2", "-2"]);
    check(&["(1,2]"], &["[1,2]", "(1,2)", "[1,2)", "(1,3]"]);
    check(
        &["(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,2)", "\\mathbb{R}\\setminus[2,3]"],
        &["(-\\infty,2)", "(-\\infty,2]\\cup(3,\\infty)"],
    );
    check(
        &["\\begin{pmatrix}1\\\\2\\end{pmatrix}"],
        &["\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"],
    );
    assert_eq!(equal("x>2", "(2,\\infty)"), Some(true));
    assert_eq!(equal("x>2", "[2,\\infty)"), Some(false));
}

#[test]
fn relations() {
    check(&["x=3", "3", "x = 1+2 = 3"], &["4", "x=4"]);
    assert_eq!(equal("x=3", "y=3"), Some(false));
    check(&["2x+3y=5", "4x+6y-10=0", "5=3y+2x"], &["2x+3y=-5", "2x=5"]);
    check(&["x\\le 5", "5\\ge x"], &["x<5", "x\\ge 5"]);
    check(&["1<x\\le 5", "5\\ge x>1"], &["1\\le x\\le 5", "1<y\\le 5"]);
}

#[test]
fn what_cannot_be_read_is_not_guessed() {
    for text in ["\\foo{7}", "7+", "\\frac{7}", "(7", "7 8", "x^", "\\sqrt7", "7\\int x", "a~7", "\\frac12"] {
        assert_eq!(read_answer(&format!("\\boxed{{{text}}}")).node, None, "{text}");
        assert_eq!(equal("7", text), Some(false), "{text}");
        assert_eq!(equal("8", text), Some(false), "{text}");
    }
    for none in ["", "seven", "hello there", "x+y"] {
        assert_eq!(is_right("\\boxed{7}", none), None, "{none}");
    }
}

#[test]
fn answers_are_in_boxes_or_after_the_word() {
    for right in
        ["\\boxed{7}", "So the answer is $7$.", "\\boxed{5} is too small. Rather \\boxed{7}", "$\\boxed{x=7}$", "Answer: \\(7\\)"]
    {
        assert_eq!(is_right(right, "7"), Some(true), "{right}");
    }
    for wrong in ["7", "The answer is 7.", "#### 7", "It is $7$", "\\boxed{7} is too large. Rather \\boxed{5}", ""] {
        assert_eq!(is_right(wrong, "7"), Some(false), "{wrong}");
    }
    let solution = "Since $x^2=4$ and $x>0$, we get $x=\\boxed{2}$.";
    assert_eq!(is_right("\\boxed{2}", solution), Some(true));
    assert_eq!(is_right("\\boxed{4}", solution), Some(false));
}
