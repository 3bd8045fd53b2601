//! Routes of tokens to experts, computed on the CPU.
//!
//! Shapes: `N` tokens, `E` experts, `K` of them for each token, `R = N K` rows sorted by expert.

use super::elementwise::{cast, from_vec, to_vec};
use super::math::sigmoid;
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

/// Settings by which experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Number of experts of each token, `K`.
    pub chosen: usize,
    /// Function that turns the router's results into scores.
    pub scores: RouterScoring,
    /// Whether the weights of a token's experts are normalised to sum to `factor`, instead of being their scores times `factor`.
    pub normalised: bool,
    /// Factor of all weights.
    pub factor: f32,
    /// Added to the sum of a token's scores before they are divided by it.
    pub epsilon: f32,
    /// Number of groups of experts, and of groups from which a token's experts are chosen. The chosen groups are those whose
    /// [`Routing::best_of_group`] best experts have the highest sum of scores (DeepSeek-AI 2024, arXiv 2405.04434 and 2412.19437).
    pub groups: (usize, usize),
    /// Number of a group's best experts whose scores are added.
    pub best_of_group: usize,
}

/// A function that turns a router's results for a token into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScoring {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each result.
    Sigmoid,
}

impl Routing {
    /// Returns the routing to the most probable experts, without groups.
    pub const fn new(chosen: usize, normalised: bool) -> Self {
        Self { chosen, scores: RouterScoring::Softmax, normalised, factor: 1.0, epsilon: 0.0, groups: (1, 1), best_of_group: 2 }
    }

    /// Returns the value that weights are divided by, given the sum of a token's scores.
    fn divisor(&self, sum: f32) -> f32 {
        if self.normalised { sum + self.epsilon } else { 1.0 }
    }

    /// Returns whether this many experts can be chosen from `experts`.
    fn fits(&self, experts: usize) -> bool {
        let (groups, kept) = self.groups;
        let divides = groups > 0 && experts.is_multiple_of(groups) && (1..=groups).contains(&kept);
        divides && (1..=experts / groups.max(1) * kept).contains(&self.chosen)
    }

    /// Finds a token's experts, best first, by the values `by`.
    fn choose(&self, by: &mut [f32], out: &mut [usize]) {
        let (groups, kept) = self.groups;
        if kept < groups {
            let size = by.len() / groups;
            let mut best = vec![0; size.min(self.best_of_group)];
            let sum_of_best = |group: &[f32]| {
                most_probable(group, &mut best);
                best.iter().map(|&expert| group[expert]).sum::<f32>()
            };
            let sums: Vec<f32> = by.chunks(size).map(sum_of_best).collect();
            let mut found = vec![0; kept];
            most_probable(&sums, &mut found);
            let others = by.chunks_mut(size).enumerate().filter(|(group, _)| !found.contains(group));
            others.for_each(|(_, group)| group.fill(f32::NEG_INFINITY));
        }
        most_probable(by, out);
    }
}

/// Routes of tokens to experts, with weights.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Scores of all experts, `[N, E]`: probabilities, unless the routing uses another function.
    probabilities: Vec<f32>,
    pub(super) experts: usize,
    routing: Routing,
    /// Index of each token's j-th expert among the sorted rows, `[N, K]`.
    pub(super) places: Vec<usize>,
    /// Experts of each token, the most probable first, `[N, K]`.
    chosen: Vec<usize>,
    /// Token of each sorted row, `[R]`.
    tokens: Vec<usize>,
    /// Weight of each sorted row, `[R]`.
    pub(super) weights: Vec<f32>,
    /// First sorted row of each expert, and the number of rows, `[E + 1]`.
    firsts: Vec<usize>,
    /// Factors of the weights, if there are some.
    factors: Option<WeightFactors>,
}

/// Factors of experts' weights.
#[derive(Clone, Debug)]
struct WeightFactors {
    /// Factor of each expert, `[E]`.
    factors: Vec<f32>,
    /// Weights before they were multiplied, `[R]`.
    plain: Vec<f32>,
}

/// A derivative of a loss with respect to all probabilities: for token `t` and expert `e` it is `tokens[t] * experts[e]`.
#[derive(Clone, Copy)]
pub struct RouterGradient<'a> {
    /// Factor of each token, `[N]`.
    pub tokens: &'a [f32],
    /// Factor of each expert, `[E]`.
    pub experts: &'a [f32],
}

impl Routes {
    /// Routes each token to the experts with the highest scores, given the router's results `logits: [N, E]`. Only for the choice, a
    /// `correction: [E]` is added to the scores. Of equally good experts, the first is chosen.
    pub fn new(logits: &Tensor, routing: Routing, correction: Option<&Tensor>) -> Result<Self> {
        let ((n, experts), chosen) = (matrix_dims(logits), routing.chosen);
        let correction = correction.map(to_vec).transpose()?;
        if !routing.fits(experts) || correction.as_ref().is_some_and(|correction| correction.len() != experts) {
            return Err(Error::shape("routes", format!("{routing:?} of {experts} experts")));
        }
        let mut probabilities = to_vec(logits)?;
        let score = match routing.scores {
            RouterScoring::Softmax => softmax,
            RouterScoring::Sigmoid => |row: &mut [f32]| row.iter_mut().for_each(|x| *x = sigmoid(*x)),
        };
        probabilities.par_chunks_mut(experts).for_each(score);
        let mut all = vec![0; n * chosen];
        all.par_chunks_mut(chosen).zip(probabilities.par_chunks(experts)).for_each(|(out, row)| {
            let mut by = row.to_vec();
            by.iter_mut().zip(correction.iter().flatten()).for_each(|(by, more)| *by += more);
            routing.choose(&mut by, out);
        });
        let mut firsts = vec![0; experts + 1];
        all.iter().for_each(|&expert| firsts[expert + 1] += 1);
        for expert in 0..experts {
            firsts[expert + 1] += firsts[expert];
        }
        let (mut next, mut places) = (firsts.clone(), Vec::with_capacity(all.len()));
        let (mut tokens, mut weights) = (vec![0; all.len()], vec![0.0; all.len()]);
        for (token, own) in all.chunks(chosen).enumerate() {
            let row = &probabilities[token * experts..][..experts];
            let divisor = routing.divisor(own.iter().map(|&expert| row[expert]).sum());
            for &expert in own {
                let place = next[expert];
                next[expert] += 1;
                places.push(place);
                (tokens[place], weights[place]) = (token, row[expert] / divisor * routing.factor);
            }
        }
        Ok(Self { probabilities, experts, routing, places, chosen: all, tokens, weights, firsts, factors: None })
    }

    /// Multiplies the weight of each row by the factor of its expert, from `factors: [E]`.
    ///
    /// # Errors
    /// If there is not one factor per expert.
    pub fn with_factors(mut self, factors: &Tensor) -> Result<Self> {
        let factors = to_vec(factors)?;
        if factors.len() != self.experts {
            return Err(Error::shape("routes", format!("{} factors of {} experts", factors.len(), self.experts)));
        }
        let plain = self.weights.clone();
        for (expert, rows) in self.firsts.windows(2).map(|ends| ends[0]..ends[1]).enumerate() {
            self.weights[rows].iter_mut().for_each(|weight| *weight *= factors[expert]);
        }
        self.factors = Some(WeightFactors { factors, plain });
        Ok(self)
    }

    /// Adds the gradient of the factors to `into: [E]`, given that of each sorted row's weight.
    pub fn backward_factors(&self, d_weights: &[f32], into: &Tensor) -> Result<()> {
        let Some(WeightFactors { plain, .. }) = self.factors.as_ref().filter(|_| d_weights.len() == self.weights.len()) else {
            return Err(Error::shape("routes backward", format!("{} weights without factors", d_weights.len())));
        };
        let sum = |rows: Range<usize>| d_weights[rows.clone()].iter().zip(&plain[rows]).map(|(d, weight)| d * weight).sum();
        let sums: Vec<f32> = self.firsts.windows(2).map(|ends| sum(ends[0]..ends[1])).collect();
        super::add_into(into, &from_vec(sums, self.experts, into.device())?)
    }

    /// Returns the weights before factors, and their gradient, given that of the weights.
    fn plain_weights(&self, d_weights: &[f32]) -> (&[f32], Vec<f32>) {
        let mut d = d_weights.to_vec();
        let Some(WeightFactors { factors, plain }) = &self.factors else { return (&self.weights, d) };
        for (expert, rows) in self.firsts.windows(2).map(|ends| ends[0]..ends[1]).enumerate() {
            d[rows].iter_mut().for_each(|d| *d *= factors[expert]);
        }
        (plain, d)
    }

    /// Returns the token of each sorted row, `[R]`.
    pub fn tokens(&self) -> &[usize] {
        &self.tokens
    }

    /// Returns the number of experts per token, `K`.
    pub(super) fn each(&self) -> usize {
        (self.chosen.len() * self.experts / self.probabilities.len().max(1)).max(1)
    }

    /// Returns each expert that has rows, with its rows.
    pub fn groups(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let all = self.firsts.windows(2).enumerate().map(|(expert, ends)| (expert, ends[0]..ends[1]));
        all.filter(|(_, rows)| !rows.is_empty())
    }

    /// Adds the routing load of each expert: the weights of its tokens to `counts`, and the weighted sum of its probabilities to `sums`,
    /// both `[E]`. Tokens have the weights `of_tokens`, `[N]`.
    pub fn add_load(&self, of_tokens: &[f32], counts: &mut [f64], sums: &mut [f64]) {
        for ((own, row), &weight) in self.chosen.chunks(self.each()).zip(self.probabilities.chunks(self.experts)).zip(of_tokens) {
            own.iter().for_each(|&expert| counts[expert] += f64::from(weight));
            sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += f64::from(weight * p));
        }
    }

    /// Returns the gradient of the logits, `[N, E]`, on the device and in the precision of `like`, given that of each sorted row's weight.
    /// If a loss also depends on all probabilities, its `slope` is added.
    pub fn backward(&self, d_weights: &[f32], slope: Option<RouterGradient<'_>>, like: &Tensor) -> Result<Tensor> {
        let (each, experts) = (self.each(), self.experts);
        if d_weights.len() != self.weights.len() || slope.is_some_and(|slope| slope.experts.len() != experts) {
            return Err(Error::shape("routes backward", format!("{} weights of {}", d_weights.len(), self.weights.len())));
        }
        let (weights, d_weights) = self.plain_weights(d_weights);
        let mut d = vec![0f32; self.probabilities.len()];
        let rows = d.par_chunks_mut(experts).zip(self.probabilities.par_chunks(experts)).enumerate();
        rows.for_each(|(token, (d, p))| {
            let (own, places) = (&self.chosen[token * each..][..each], &self.places[token * each..][..each]);
            if let Some(RouterGradient { tokens, experts }) = slope {
                d.iter_mut().zip(experts).for_each(|(d, slope)| *d = tokens[token] * slope);
            }
            let Routing { normalised, factor, scores, .. } = self.routing;
            let mean = places.iter().map(|&place| d_weights[place] * weights[place]).sum();
            let mean: f32 = if normalised { mean } else { 0.0 };
            let divisor = self.routing.divisor(own.iter().map(|&expert| p[expert]).sum());
            for (&expert, &place) in own.iter().zip(places) {
                d[expert] += (d_weights[place] * factor - mean) / divisor;
            }
            let mean: f32 = d.iter().zip(p).map(|(d, p)| d * p).sum();
            d.iter_mut().zip(p).for_each(|(d, p)| match scores {
                RouterScoring::Softmax => *d = p * (*d - mean),
                RouterScoring::Sigmoid => *d *= p * (1.0 - p),
            });
        });
        cast(&from_vec(d, (self.probabilities.len() / experts, experts), like.device())?, like.dtype())
    }
}

/// Turns logits into probabilities.
fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// Finds the most probable experts of a row.
fn most_probable(row: &[f32], out: &mut [usize]) {
    for j in 0..out.len() {
        let (found, rest) = out.split_at_mut(j);
        let mut free = (0..row.len()).filter(|expert| !found.contains(expert));
        let first = free.next().unwrap_or_default();
        rest[0] = free.fold(first, |best, expert| if row[expert] > row[best] { expert } else { best });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn each_token_goes_to_its_most_probable_experts() {
        let logits = Tensor::new(&[[0f32, 2.0, 1.0], [3.0, 3.0, 0.0], [0.0, 1.0, 5.0]], &Device::Cpu).unwrap();
        let routes = Routes::new(&logits, Routing::new(2, true), None).unwrap();
        assert_eq!(routes.chosen, [1, 2, 0, 1, 2, 1]);
        assert_eq!(routes.tokens, [1, 0, 1, 2, 0, 2]);
        assert_eq!(routes.groups().collect::<Vec<_>>(), [(0, 0..1), (1, 1..4), (2, 4..6)]);
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(routes.weights[0], 0.5);
        near(routes.weights[1], 1.0 / (1.0 + (-1f32).exp()));
        let plain = Routes::new(&logits, Routing::new(2, false), None).unwrap();
        near(plain.weights[0], 3f32.exp() / (2.0 * 3f32.exp() + 1.0));
        let (mut counts, mut sums) = (vec![0.0; 3], vec![0.0; 3]);
        routes.add_load(&[1.0, 2.0, 1.0], &mut counts, &mut sums);
        assert_eq!(counts, [2.0, 4.0, 2.0]);
        assert!((sums.iter().sum::<f64>() - 4.0).abs() < 1e-6);
        let refused = |chosen: usize| Routes::new(&logits, Routing::new(chosen, true), None).is_err();
        assert!(refused(4) && refused(0));
        // Some experts are chosen even if logits are not finite; the pass that computed them fails because of its results.
        let broken = Tensor::new(&[[f32::NAN, f32::NAN]], &Device::Cpu).unwrap();
        Routes::new(&broken, Routing::new(1, true), None).unwrap();
    }

    #[test]
    fn the_gradient_of_the_logits_is_that_of_finite_differences() {
        let (n, experts, chosen) = (3, 5, 2);
        let logits: Vec<f32> = (0..n * experts).map(|i| (i as f32 * 1.7).sin() * 2.0).collect();
        let (c, experts_slope, tokens) = ([0.7, -1.1, 0.4, 2.0, 0.3, -0.6], [0.2, -0.5, 0.9, 0.1, 0.4], [1.0, 2.0, 1.0]);
        let sigmoid = Routing { scores: RouterScoring::Sigmoid, factor: 2.5, ..Routing::new(chosen, true) };
        let all = [Routing::new(chosen, true), Routing::new(chosen, false), sigmoid, Routing { normalised: false, ..sigmoid }];
        let factors = [0.5, -1.5, 2.0, 0.0, 0.7];
        for (routing, factors) in all.into_iter().flat_map(|routing| [(routing, None), (routing, Some(factors))]) {
            let routes_with = |logits: &[f32], factors: Option<[f32; 5]>| {
                let logits = Tensor::from_slice(logits, (n, experts), &Device::Cpu).unwrap();
                let routes = Routes::new(&logits, routing, None).unwrap();
                factors.map_or(routes.clone(), |f| routes.with_factors(&Tensor::new(&f, &Device::Cpu).unwrap()).unwrap())
            };
            let routes = |logits: &[f32]| routes_with(logits, factors);
            // A derivative for each token's experts in their order, not in the order of the sorted rows.
            let loss = |logits: &[f32]| {
                let r = routes(logits);
                let own: f32 = r.places.iter().zip(c).map(|(&place, c)| c * r.weights[place]).sum();
                let all = r.probabilities.chunks(experts).zip(tokens);
                own + all.map(|(p, t)| t * p.iter().zip(experts_slope).map(|(p, s)| p * s).sum::<f32>()).sum::<f32>()
            };
            let r = routes(&logits);
            let mut d_weights = vec![0.0; c.len()];
            r.places.iter().zip(c).for_each(|(&place, c)| d_weights[place] = c);
            let slope = RouterGradient { tokens: &tokens, experts: &experts_slope };
            let like = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap();
            let got = r.backward(&d_weights, Some(slope), &like).unwrap();
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            if let Some(factors) = factors {
                let d_factors = Tensor::ones(experts, candle_core::DType::F32, &Device::Cpu).unwrap();
                r.backward_factors(&d_weights, &d_factors).unwrap();
                for (i, got) in d_factors.to_vec1::<f32>().unwrap().into_iter().enumerate() {
                    let with = |factor: f32| {
                        let mut other = factors;
                        other[i] = factor;
                        let r = routes_with(&logits, Some(other));
                        r.places.iter().zip(c).map(|(&place, c)| c * r.weights[place]).sum::<f32>()
                    };
                    // Weights are linear in the factors.
                    let want = 1.0 + with(1.0) - with(0.0);
                    assert!((got - want).abs() < 1e-5, "factor {i}: {got} {want}");
                }
            }
            for (i, got) in got.into_iter().enumerate() {
                let (mut up, mut down) = (logits.clone(), logits.clone());
                (up[i], down[i]) = (up[i] + 1e-2, down[i] - 1e-2);
                let want = (loss(&up) - loss(&down)) / 2e-2;
                assert!((got - want).abs() < 1e-3, "{i}: {got} {want}");
            }
        }
    }

    #[test]
    fn a_correction_and_groups_choose_and_scores_weigh() {
        // Logistic functions of 0.5, 0.731, 0.881, 0.269, 0.953 and 0.119.
        let logits = Tensor::new(&[[0f32, 1.0, 2.0, -1.0, 3.0, -2.0]], &Device::Cpu).unwrap();
        let correction = Tensor::new(&[0f32, 0.4, 0.0, 0.0, 0.0, 0.0], &Device::Cpu).unwrap();
        let routing = Routing { scores: RouterScoring::Sigmoid, factor: 2.0, groups: (3, 2), ..Routing::new(3, true) };
        // The groups of two have 0.5 + 1.131, 0.881 + 0.269 and 0.953 + 0.119, so the first and the second are chosen.
        let routes = Routes::new(&logits, routing, Some(&correction)).unwrap();
        assert_eq!(routes.chosen, [1, 2, 0]);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let sum = sigmoid(1.0) + sigmoid(2.0) + sigmoid(0.0);
        let want = [sigmoid(0.0), sigmoid(1.0), sigmoid(2.0)].map(|score| 2.0 * score / sum);
        assert!(routes.weights.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{:?}", routes.weights);
        let alone = Routes::new(&logits, Routing { groups: (1, 1), ..routing }, None).unwrap();
        assert_eq!(alone.chosen, [4, 2, 1]);
        // Of single experts, 1.131, 0.881 and 0.953 are the best of each group, so the first and the third are chosen.
        let by_best = Routes::new(&logits, Routing { best_of_group: 1, ..routing }, Some(&correction)).unwrap();
        assert_eq!(by_best.chosen, [1, 4, 0]);
        for wrong in
            [Routing { groups: (4, 1), ..routing }, Routing { groups: (3, 1), ..routing }, Routing { groups: (3, 4), ..routing }]
        {
            assert!(Routes::new(&logits, wrong, None).is_err(), "{wrong:?}");
        }
        assert!(Routes::new(&logits, routing, Some(&Tensor::new(&[0f32], &Device::Cpu).unwrap())).is_err());
    }
}
