//! Which experts each token goes to, computed on the CPU.
//!
//! Shapes: `N` tokens, `E` experts, `K` of them for each token, `R = N K` rows sorted by expert.

use super::elementwise::{cast, from_vec, to_vec};
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

/// The experts that tokens go to, with their weights.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Probabilities of all experts, `[N, E]`.
    probabilities: Vec<f32>,
    pub(super) experts: usize,
    /// Whether the weights of a token's experts add up to one, instead of being the probabilities.
    normalised: bool,
    /// Place of a token's j-th expert among the sorted rows, `[N, K]`.
    pub(super) places: Vec<usize>,
    /// Experts of a token, the most probable first, `[N, K]`.
    chosen: Vec<usize>,
    /// Token of each sorted row, `[R]`.
    tokens: Vec<usize>,
    /// Weight of each sorted row, `[R]`.
    pub(super) weights: Vec<f32>,
    /// First sorted row of each expert, and their number, `[E + 1]`.
    firsts: Vec<usize>,
}

/// A derivative of a loss with respect to all probabilities: for token `t` and expert `e` it is `tokens[t] * experts[e]`.
#[derive(Clone, Copy)]
pub struct Slope<'a> {
    /// `[N]`
    pub tokens: &'a [f32],
    /// `[E]`
    pub experts: &'a [f32],
}

impl Routes {
    /// Sends each token to its `chosen` most probable experts, given the router's results `logits: [N, E]`. Of equally probable
    /// experts, the first is taken.
    pub fn new(logits: &Tensor, chosen: usize, normalised: bool) -> Result<Self> {
        let (n, experts) = matrix_dims(logits);
        if chosen == 0 || chosen > experts {
            return Err(Error::shape("routes", format!("{chosen} of {experts} experts")));
        }
        let mut probabilities = to_vec(logits)?;
        probabilities.par_chunks_mut(experts).for_each(softmax);
        let mut all = vec![0; n * chosen];
        all.par_chunks_mut(chosen).zip(probabilities.par_chunks(experts)).for_each(|(out, row)| most_probable(row, out));
        let mut firsts = vec![0; experts + 1];
        all.iter().for_each(|&expert| firsts[expert + 1] += 1);
        for expert in 0..experts {
            firsts[expert + 1] += firsts[expert];
        }
        let (mut next, mut places) = (firsts.clone(), Vec::with_capacity(all.len()));
        let (mut tokens, mut weights) = (vec![0; all.len()], vec![0.0; all.len()]);
        for (token, own) in all.chunks(chosen).enumerate() {
            let row = &probabilities[token * experts..][..experts];
            let sum = if normalised { own.iter().map(|&expert| row[expert]).sum() } else { 1.0 };
            for &expert in own {
                let place = next[expert];
                next[expert] += 1;
                places.push(place);
                (tokens[place], weights[place]) = (token, row[expert] / sum);
            }
        }
        Ok(Self { probabilities, experts, normalised, places, chosen: all, tokens, weights, firsts })
    }

    /// Returns the token of each sorted row, `[R]`.
    pub fn tokens(&self) -> &[usize] {
        &self.tokens
    }

    /// Returns the number of experts per token, `K`.
    pub(super) fn each(&self) -> usize {
        (self.chosen.len() * self.experts / self.probabilities.len().max(1)).max(1)
    }

    /// Returns each expert that has rows, and the rows.
    pub fn groups(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let all = self.firsts.windows(2).enumerate().map(|(expert, ends)| (expert, ends[0]..ends[1]));
        all.filter(|(_, rows)| !rows.is_empty())
    }

    /// Adds, for each expert, the weights of the tokens that go to it to `counts`, and the weighted sum of its probabilities to
    /// `sums`; both are `[E]`. Tokens have these weights, `[N]`.
    pub fn add_load(&self, of_tokens: &[f32], counts: &mut [f64], sums: &mut [f64]) {
        for ((own, row), &weight) in self.chosen.chunks(self.each()).zip(self.probabilities.chunks(self.experts)).zip(of_tokens) {
            own.iter().for_each(|&expert| counts[expert] += f64::from(weight));
            sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += f64::from(weight * p));
        }
    }

    /// Returns the gradient of the logits, `[N, E]`, on the device and in the precision of `like`, given that of each sorted row's
    /// weight and, if a loss also uses all probabilities, its slope.
    pub fn backward(&self, d_weights: &[f32], slope: Option<Slope<'_>>, like: &Tensor) -> Result<Tensor> {
        let (each, experts) = (self.each(), self.experts);
        if d_weights.len() != self.weights.len() || slope.is_some_and(|slope| slope.experts.len() != experts) {
            return Err(Error::shape("routes backward", format!("{} weights of {}", d_weights.len(), self.weights.len())));
        }
        let mut d = vec![0f32; self.probabilities.len()];
        let rows = d.par_chunks_mut(experts).zip(self.probabilities.par_chunks(experts)).enumerate();
        rows.for_each(|(token, (d, p))| {
            let (own, places) = (&self.chosen[token * each..][..each], &self.places[token * each..][..each]);
            if let Some(Slope { tokens, experts }) = slope {
                d.iter_mut().zip(experts).for_each(|(d, slope)| *d = tokens[token] * slope);
            }
            let (sum, mean) = if self.normalised {
                let mean = places.iter().map(|&place| d_weights[place] * self.weights[place]).sum();
                (own.iter().map(|&expert| p[expert]).sum(), mean)
            } else {
                (1.0, 0.0)
            };
            for (&expert, &place) in own.iter().zip(places) {
                d[expert] += (d_weights[place] - mean) / sum;
            }
            let mean: f32 = d.iter().zip(p).map(|(d, p)| d * p).sum();
            d.iter_mut().zip(p).for_each(|(d, p)| *d = p * (*d - mean));
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
        let routes = Routes::new(&logits, 2, true).unwrap();
        assert_eq!(routes.chosen, [1, 2, 0, 1, 2, 1]);
        assert_eq!(routes.tokens, [1, 0, 1, 2, 0, 2]);
        assert_eq!(routes.groups().collect::<Vec<_>>(), [(0, 0..1), (1, 1..4), (2, 4..6)]);
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(routes.weights[0], 0.5);
        near(routes.weights[1], 1.0 / (1.0 + (-1f32).exp()));
        let plain = Routes::new(&logits, 2, false).unwrap();
        near(plain.weights[0], 3f32.exp() / (2.0 * 3f32.exp() + 1.0));
        let (mut counts, mut sums) = (vec![0.0; 3], vec![0.0; 3]);
        routes.add_load(&[1.0, 2.0, 1.0], &mut counts, &mut sums);
        assert_eq!(counts, [2.0, 4.0, 2.0]);
        assert!((sums.iter().sum::<f64>() - 4.0).abs() < 1e-6);
        assert!(Routes::new(&logits, 4, true).is_err() && Routes::new(&logits, 0, true).is_err());
        // Of what is not finite, something is chosen; the pass that computed it fails for its results.
        Routes::new(&Tensor::new(&[[f32::NAN, f32::NAN]], &Device::Cpu).unwrap(), 1, true).unwrap();
    }

    #[test]
    fn the_gradient_of_the_logits_is_that_of_finite_differences() {
        let (n, experts, chosen) = (3, 5, 2);
        let logits: Vec<f32> = (0..n * experts).map(|i| (i as f32 * 1.7).sin() * 2.0).collect();
        let (c, experts_slope, tokens) = ([0.7, -1.1, 0.4, 2.0, 0.3, -0.6], [0.2, -0.5, 0.9, 0.1, 0.4], [1.0, 2.0, 1.0]);
        for normalised in [true, false] {
            let routes = |logits: &[f32]| {
                let logits = Tensor::from_slice(logits, (n, experts), &Device::Cpu).unwrap();
                Routes::new(&logits, chosen, normalised).unwrap()
            };
            // A derivative for each token's experts in their order, not in that of the sorted rows.
            let loss = |logits: &[f32]| {
                let r = routes(logits);
                let own: f32 = r.places.iter().zip(c).map(|(&place, c)| c * r.weights[place]).sum();
                let all = r.probabilities.chunks(experts).zip(tokens);
                own + all.map(|(p, t)| t * p.iter().zip(experts_slope).map(|(p, s)| p * s).sum::<f32>()).sum::<f32>()
            };
            let r = routes(&logits);
            let mut d_weights = vec![0.0; c.len()];
            r.places.iter().zip(c).for_each(|(&place, c)| d_weights[place] = c);
            let slope = Slope { tokens: &tokens, experts: &experts_slope };
            let like = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap();
            let got = r.backward(&d_weights, Some(slope), &like).unwrap();
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            for (i, got) in got.into_iter().enumerate() {
                let (mut up, mut down) = (logits.clone(), logits.clone());
                (up[i], down[i]) = (up[i] + 1e-2, down[i] - 1e-2);
                let want = (loss(&up) - loss(&down)) / 2e-2;
                assert!((got - want).abs() < 1e-3, "{i}: {got} {want}");
            }
        }
    }
}
