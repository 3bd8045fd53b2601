//! Statistics of an evaluation's prompts as a sample: pass@k and maj@k, and the standard errors of means over prompts.
//!
//! Completions of one prompt are not independent, so every standard error is that of a mean over the prompts' means.

use super::experience::Experience;
use super::plan::SolvedPlan;
use crate::metrics::Metric;
use std::collections::BTreeMap;
use std::ops::Range;

/// A completion: whether it solves its prompt, and its answer, if it has one.
#[derive(Clone, Copy, Debug)]
struct Attempt<'a> {
    solved: bool,
    answer: Option<&'a str>,
}

/// Returns the additional metrics of an evaluation's completions; none for completions without rewards.
pub(super) fn figures(e: &Experience, solved: Option<&SolvedPlan>) -> Vec<Metric> {
    let groups: Vec<Range<usize>> = (0..e.prompts.len()).map(|prompt| e.rows(prompt..prompt + 1)).collect();
    let mut metrics = Vec::new();
    for column in e.rewards.iter().chain(&e.eval_rewards) {
        let means = groups.iter().filter_map(|rows| {
            let scores: Vec<f64> = column.values[rows.clone()].iter().flatten().map(|v| f64::from(*v)).collect();
            (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
        });
        let means: Vec<f64> = means.collect();
        metrics.extend(error(format!("rewards/{}/stderr", column.name), &means));
    }
    metrics.extend(solved.map(|plan| passes(e, plan, &groups)).unwrap_or_default());
    metrics
}

/// Returns pass@k and maj@k over groups of rows.
fn passes(e: &Experience, plan: &SolvedPlan, groups: &[Range<usize>]) -> Vec<Metric> {
    let named = |name: &str| plan.reward.as_deref().is_none_or(|wanted| wanted == name);
    let Some(column) = e.rewards.iter().chain(&e.eval_rewards).find(|column| named(&column.name)) else { return Vec::new() };
    let attempt = |row: usize| Attempt {
        // A completion without a score counts as unsolved.
        solved: column.values[row].is_some_and(|score| f64::from(score) >= plan.threshold),
        answer: answer(&e.texts[row], plan.answer_after.as_deref()),
    };
    let groups: Vec<Vec<Attempt<'_>>> = groups.iter().map(|rows| rows.clone().map(attempt).collect()).collect();
    let mut metrics = Vec::new();
    for &k in &plan.k {
        let solved = |group: &Vec<Attempt<'_>>| group.iter().filter(|attempt| attempt.solved).count();
        metrics.extend(mean(format!("pass@{k}"), groups.iter().map(|group| pass_at(group.len(), solved(group), k))));
        // Among two or fewer, the majority is a random one.
        if k > 2 {
            metrics.extend(mean(format!("maj@{k}"), groups.iter().map(|group| majority_at(group, k))));
        }
    }
    metrics
}

/// Returns the mean of a value per prompt, and its standard error.
fn mean(name: String, values: impl Iterator<Item = f64>) -> impl Iterator<Item = Metric> {
    let values: Vec<f64> = values.collect();
    let n = values.len() as f64;
    let whole = (n > 0.0).then(|| Metric::mean(name.clone(), values.iter().sum::<f64>() / n, n));
    whole.into_iter().chain(error(format!("{name}/stderr"), &values))
}

/// Returns the standard error of the mean of these values; none for a single value.
fn error(name: String, values: &[f64]) -> Option<Metric> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    (n > 1.0).then(|| Metric::mean(name, (squares / (n - 1.0) / n).sqrt(), n))
}

/// Returns the probability that at least one of `k` completions solves the prompt. This is the unbiased estimate from `n >= k` completions,
/// `c` of which solve it: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).
fn pass_at(n: usize, c: usize, k: usize) -> f64 {
    if n < c + k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// Returns the probability that the most frequent answer among `k` completions is right: the mean over consecutive blocks of `k`, which are
/// independent samples. Equally frequent answers have equal weights. If only some completions with an answer are solved, their fraction
/// counts. Completions without an answer don't vote.
fn majority_at(group: &[Attempt<'_>], k: usize) -> f64 {
    let parts = group.chunks_exact(k.max(1));
    let count = parts.len() as f64;
    parts.map(majority).sum::<f64>() / count
}

fn majority(part: &[Attempt<'_>]) -> f64 {
    let mut votes: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for attempt in part {
        if let Some(answer) = attempt.answer {
            let (count, solved) = votes.entry(answer).or_default();
            (*count, *solved) = (*count + 1, *solved + usize::from(attempt.solved));
        }
    }
    let Some(most) = votes.values().map(|(count, _)| *count).max() else { return 0.0 };
    let first: Vec<f64> =
        votes.values().filter(|(count, _)| *count == most).map(|(count, solved)| *solved as f64 / *count as f64).collect();
    first.iter().sum::<f64>() / first.len() as f64
}

/// Returns a completion's answer: the text after the last `after`, up to the closing brace or else to the end of the line; without `after`,
/// the whole completion. Surrounding white space is removed.
fn answer<'a>(text: &'a str, after: Option<&str>) -> Option<&'a str> {
    let found = match after {
        None => text,
        Some(after) => {
            let (_, rest) = text.rsplit_once(after)?;
            if after.ends_with('{') { closed(rest)? } else { rest.trim_start_matches(' ').lines().next()? }
        }
    };
    Some(found.trim()).filter(|found| !found.is_empty())
}

/// Returns the text before the closing brace that matches an opening brace before the text.
fn closed(text: &str) -> Option<&str> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if depth == 0 {
            return text.get(..at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of 1 - C(n - c, k) / C(n, k) were computed by hand.
    #[test]
    fn pass_at_k_has_its_known_values() {
        let n = 5;
        let expected = [
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [0.2, 0.4, 0.6, 0.8, 1.0],
            [0.4, 0.7, 0.9, 1.0, 1.0],
            [0.6, 0.9, 1.0, 1.0, 1.0],
            [0.8, 1.0, 1.0, 1.0, 1.0],
            [1.0, 1.0, 1.0, 1.0, 1.0],
        ];
        for (c, row) in expected.iter().enumerate() {
            for (k, want) in row.iter().enumerate() {
                let got = pass_at(n, c, k + 1);
                assert!((got - want).abs() < 1e-12, "c {c}, k {}: {got}, not {want}", k + 1);
            }
        }
        // 1 - C(197, 100) / C(200, 100), as in Chen et al.'s numpy code.
        assert!((pass_at(200, 3, 100) - 0.876_884_422_110_552_7).abs() < 1e-12);
        assert!(pass_at(100_000, 1, 50_000) > 0.499_999);
    }

    #[test]
    fn pass_at_k_is_the_mean_over_all_subsets() {
        for (n, c) in [(6, 2), (7, 3), (4, 4), (5, 0)] {
            for k in 1..=n {
                let subsets = (0u32..1 << n).filter(|s| s.count_ones() as usize == k);
                let (all, hit) = subsets.fold((0, 0), |(all, hit), s| (all + 1, hit + u32::from(s & ((1 << c) - 1) != 0)));
                let want = f64::from(hit) / f64::from(all);
                assert!((pass_at(n, c, k) - want).abs() < 1e-12, "{n} {c} {k}");
            }
        }
    }

    #[test]
    fn the_majority_is_of_answers_and_ties_are_shared() {
        let group = |votes: &[(&'static str, bool)]| {
            let attempt = |(answer, solved): &(&'static str, bool)| Attempt {
                solved: *solved,
                answer: Some(*answer).filter(|answer| !answer.is_empty()),
            };
            votes.iter().map(attempt).collect::<Vec<_>>()
        };
        let (right, wrong) = (("4", true), ("5", false));
        assert_eq!(majority_at(&group(&[right, wrong, right]), 3), 1.0);
        assert_eq!(majority_at(&group(&[right, wrong, wrong]), 3), 0.0);
        assert_eq!(majority_at(&group(&[right, wrong, right, wrong]), 4), 0.5, "a tie");
        assert_eq!(majority_at(&group(&[right, right, wrong, wrong, wrong, right]), 3), 0.5, "two parts of three");
        assert_eq!(majority_at(&group(&[("", false), ("", false), right]), 3), 1.0, "no answer, no vote");
        assert_eq!(majority_at(&group(&[("", false); 3]), 3), 0.0);
        assert_eq!(majority_at(&group(&[("4", true), ("4", false), wrong]), 3), 0.5, "by what the reward says");
    }

    #[test]
    fn an_answer_is_what_follows_its_mark() {
        assert_eq!(answer(" 4 \n", None), Some("4"));
        assert_eq!(answer("  ", None), None);
        assert_eq!(answer("so 3 + 1\n#### 4 \nthat is it", Some("####")), Some("4"));
        assert_eq!(answer("#### 3 #### 4", Some("####")), Some("4"));
        assert_eq!(answer("####", Some("####")), None);
        assert_eq!(answer("4", Some("####")), None);
        assert_eq!(answer("\\boxed{\\frac{1}{2}} indeed", Some("\\boxed{")), Some("\\frac{1}{2}"));
        assert_eq!(answer("\\boxed{4", Some("\\boxed{")), None);
    }

    #[test]
    fn errors_are_those_of_means_over_prompts() {
        let named: Vec<Metric> = mean("x".into(), [0.0, 1.0, 1.0, 0.0].into_iter()).collect();
        assert_eq!((named[0].name.as_str(), named[0].value), ("x", 0.5));
        // sqrt((4 * 0.25 / 3) / 4)
        assert!((named[1].value - (1.0f64 / 12.0).sqrt()).abs() < 1e-15 && named[1].name == "x/stderr");
        assert!(error("x".into(), &[1.0]).is_none());
    }
}
