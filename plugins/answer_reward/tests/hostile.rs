//! Completions that a model may write to make the reward crash or hang.

use answer_reward::formula::is_right;

/// Pieces of LaTeX and of English.
const MARKS: &str = "( [ { \\{ $ $$ \\( \\[ \\boxed{ \\boxed{1 \\boxed{1}, $\\boxed{ \\frac \\frac{1} \\frac{ \\frac1 \\sqrt \\sqrt{ ^ \
    ^( x^ x_ - + ! | |x \\text{ \\text{a} answer answer: , ; 1 1, . \\ \\\\ \\sin \\log_ e^ e^{ f( f(x \\left( \\cup \
    (1,2)\\cup \\pm \\begin{matrix} & % \\% ä ∞ percent \\choose {1\\choose = x= < 1< \\mod 5\\mod inf";

/// Pieces of LaTeX and of English.
const PIECES: &str = "\\frac { } 1 2.5 x ^ _ ( ) [ ] \\sqrt \\pi + - , ; = < \\le \\cup \\infty \\{ \\} | ! \\boxed{ $ $$ \\text{ é ∞ \\% \
    % \\sin \\log e d i \\\\ \\begin{pmatrix} \\end{pmatrix} & answer is : and \\pm . \\left \\right \\mathbb{R} \
    \\setminus \\binom \\choose \\circ f( \\in ° 0 E \\approx inf cm";

/// Scores a completion. Work that grows with the square of such texts would not end in hours.
fn score(completion: &str, reference: &str) -> Option<bool> {
    is_right(completion, reference)
}

#[test]
fn repeated_marks_take_bounded_time() {
    let marks: Vec<&str> = MARKS
        .split(' ')
        .chain([
            " [",
            "answer is",
            "final answer is",
            "final answer",
            "answer $",
            "answer =",
            " ",
            "\n",
            "and ",
            "\\sin x",
            "cm ",
        ])
        .collect();
    for mark in marks {
        for length in [3_900, 50_000] {
            let text = mark.repeat(length / mark.len());
            for completion in [
                text.clone(),
                format!("\\boxed{{{text}}}"),
                format!("$\\boxed{{{text}}}$"),
                format!("The answer is ${text}$"),
                format!("{text}\\boxed{{7}}"),
            ] {
                assert_ne!(score(&completion, "$x^2+7$"), None, "{mark}");
            }
        }
    }
}

#[test]
fn ten_megabytes_take_bounded_time() {
    for mark in ["(", "\\frac", "$"] {
        let text = mark.repeat(10_000_000 / mark.len());
        assert_eq!(score(&text, "$x^2+7$"), Some(false), "{mark}");
        assert_eq!(score(&format!("{text} \\boxed{{x^2+7}}"), "$x^2+7$"), Some(true), "{mark}");
    }
}

#[test]
fn deep_nesting_is_not_read() {
    for (open, close) in [
        ("(", ")"),
        ("{", "}"),
        ("\\sqrt{", "}"),
        ("\\frac{1}{", "}"),
        ("\\sin(", ")"),
        ("2^{", "}"),
        ("|", "|"),
        ("\\{", "\\}"),
        ("(1,", ")"),
        ("f(", ",1)"),
        ("x^", ""),
        ("x^2/", ""),
        ("\\sin ", ""),
        ("1+2x(-3!^2\\sin ", ")"),
        ("\\frac{2-3\\sin(|", "|)^2!}{y}"),
        ("\\{(2,", ")\\}"),
        ("(1,2)\\cup((1,3)\\cap", ")"),
        ("5\\mod ", ""),
        ("\\begin{pmatrix}1&", "\\end{pmatrix}"),
    ] {
        for depth in [2, 5, 10, 20, 30, 39, 41, 100, 600] {
            let text = format!("{}x{}", open.repeat(depth), close.repeat(depth));
            // Plugins have a stack of a megabyte, of which this takes no more than half, even without optimisation.
            let thread = std::thread::Builder::new().stack_size(1 << 19);
            let scored = thread.spawn(move || {
                let boxed = format!("\\boxed{{{text}}}");
                (score(&boxed, "$y^3+1$"), score(&boxed, &format!("${text}$")))
            });
            let (wrong, itself) = scored.unwrap().join().unwrap();
            // What is too long even for a text has no score.
            assert!(wrong == Some(false) && itself != Some(false), "{open} {depth}");
        }
    }
}

#[test]
fn large_numbers_take_bounded_time() {
    for text in [
        "10^{10^{10}}",
        "10^{10^{10^{10}}}",
        "9^{9^{9^9}}",
        "10000!",
        "100000000000!",
        "((100!)!)!",
        "100!!!!",
        "2^{100000000000000000000}",
        "(x+1)^{1000000000}",
        "(x+1)^{(x+1)^{(x+1)^{9}}}",
        "\\binom{1000000}{500000}",
        "\\binom{10^{30}}{10^{29}}",
        "e^{e^{e^{e^{e^9}}}}",
        "\\frac{1}{0}",
        "0^{-1}",
        "0^0",
        "\\ln 0",
        "\\tan\\frac{\\pi}{2}",
        "\\sqrt[0]{2}",
        "\\log_1 5",
        "5\\mod 0",
        "\\lfloor 10^{400}\\rfloor",
        "1E999999999999",
        "1E2147483647",
        "0.1E-2147483648",
        "\\gcd(10^{400},2)",
        "\\gcd(0,0)",
        "\\sin(10^{300})",
        "\\max(\\infty,1)",
    ] {
        let boxed = format!("\\boxed{{{text}}}");
        assert_eq!(score(&boxed, "$7$"), Some(false), "{text}");
        assert_eq!(score(&boxed, "$x^2$"), Some(false), "{text}");
        assert_ne!(score(&boxed, &format!("${text}$")), None, "{text}");
        assert_ne!(score("\\boxed{7}", &boxed), None, "{text}");
    }
    assert_eq!(score("\\boxed{10^{10^{10}}}", "$10^{10^{10}}$"), Some(true));
    assert_eq!(score("\\boxed{10^{10^{10}}+1}", "$10^{10^{10}}$"), Some(false));
    assert_eq!(score("\\boxed{1000!}", "$1000\\cdot 999!$"), Some(true));
    assert_eq!(score("\\boxed{1000!+1}", "$1000\\cdot 999!$"), Some(false));
}

#[test]
fn long_lists_take_bounded_time() {
    for element in ["x+1", "\\sqrt{2}", "x=1", "(1,2)", "\\frac{1}{3}"] {
        for count in [50, 99, 101, 900] {
            let list = vec![element; count].join(",");
            let other: Vec<String> = (0..count).map(|i| format!("{element}{}", i % 7)).collect();
            score(&format!("\\boxed{{{list}}}"), &format!("${}$", other.join(",")));
            score(&format!("\\boxed{{{}}}", other.join(",")), &format!("${list}$"));
        }
    }
    let roots: Vec<String> = (2..100).map(|i| format!("\\sqrt{{{i}+x}}")).collect();
    let reversed: Vec<String> = roots.iter().rev().cloned().collect();
    assert_eq!(score(&format!("\\boxed{{{}}}", roots.join(",")), &format!("${}$", reversed.join(","))), Some(true));
}

/// Pieces of LaTeX in pseudo-random order: none of them may panic.
#[test]
fn no_text_panics() {
    let pieces: Vec<&str> = PIECES.split(' ').chain([" ", "\n"]).collect();
    let mut state = 0x1234_5678_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let mut text = || (0..random(14)).map(|_| pieces[random(pieces.len())]).collect::<String>();
        let (completion, reference) = (text(), text());
        let _ = is_right(&completion, &reference);
        let _ = is_right(&format!("\\boxed{{{completion}}}"), &format!("${reference}$"));
        let _ = is_right(&format!("answer ${completion}$"), &format!("${completion}$"));
    }
}

#[test]
fn long_references_are_read_from_their_end_and_in_little_time() {
    let long = "1 ".repeat(1 << 20);
    assert_eq!(is_right("\\boxed{7}", &format!("{long} so it is \\boxed{{7}}")), Some(true));
    // Tables of numbers, which are no calculations: linear in what is read.
    for _ in 0..64 {
        assert_eq!(is_right("\\boxed{7}", &long), Some(false));
    }
}
