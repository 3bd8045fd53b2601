//! Counts the minimum operations and bytes of passes and generations, to compare with measured times. A multiply-add counts as two
//! operations, as usual. Elementwise operations and recomputation that saves memory are not counted.

use super::weights::bytes;
use super::weights::{Linear, LinearAdapter};
use super::{Architecture, Weights};
use crate::ops::Forest;
use candle_core::Tensor;
use std::ops::AddAssign;

/// Floating-point operations of passes through a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassCost {
    /// Operations of the forward passes.
    pub forward: f64,
    /// Operations of the backward passes: as many as forward for the gradients of the products' inputs, and again as many for those of the
    /// trained weights.
    pub backward: f64,
}

impl AddAssign for PassCost {
    fn add_assign(&mut self, more: Self) {
        self.forward += more.forward;
        self.backward += more.backward;
    }
}

/// Cost of generating completions: the prompts' pass, then one token after another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationCost {
    /// Floating-point operations of the prompts' pass.
    pub prefill: f64,
    /// Floating-point operations of the tokens after each completion's first.
    pub decode: f64,
    /// Bytes read in decoding: all weights once per round of tokens, and all cached keys and values that each token attends to. A
    /// prompt's are read once for all its completions.
    pub bytes: f64,
    /// Number of rounds. A round generates one token of each running sequence.
    pub rounds: f64,
}

impl AddAssign for GenerationCost {
    fn add_assign(&mut self, more: Self) {
        self.prefill += more.prefill;
        self.decode += more.decode;
        self.bytes += more.bytes;
        self.rounds += more.rounds;
    }
}

/// Returns `0 + 1 + ... + n`.
fn triangle(n: usize) -> f64 {
    n as f64 * (n as f64 + 1.0) / 2.0
}

/// Returns the operations of one token's attention to one position in one layer: its part of a score and of an output.
fn attention_a_place(a: &Architecture, layer: usize) -> f64 {
    match &a.latent {
        Some(latent) => 2.0 * (latent.query_width() + latent.value_width()) as f64,
        None => 4.0 * (a.heads_of(layer).heads * a.heads_of(layer).head_dim) as f64,
    }
}

/// Returns the operations of one token's attention to one position in all layers.
fn attention_of_layers(a: &Architecture) -> f64 {
    (0..a.layers).filter(|&layer| a.attends(layer)).map(|layer| attention_a_place(a, layer)).sum()
}

/// Returns the bytes that a token reads of a weight whose values are copied in at most `bits`, excluding the scales of copies.
fn bytes_within(weight: &Tensor, bits: usize) -> usize {
    bytes(weight).min(weight.elem_count() * bits / 8)
}

/// Returns the bytes that a token reads of a linear map. An adapter is merged into an f32 weight and separate from other weights.
fn read_bytes(l: &Linear, bits: usize) -> usize {
    let of_adapter = |LinearAdapter { a, b, bias, magnitude, .. }: &LinearAdapter| {
        bytes(a) + bytes(b) + [bias, magnitude].into_iter().flatten().map(bytes).sum::<usize>()
    };
    let adapter = l.adapter.iter().filter(|_| !l.matrix().is_f32()).map(of_adapter);
    bytes_within(&l.weight, bits) + l.scales.iter().map(|scales| bytes(&scales.values)).sum::<usize>() + adapter.sum::<usize>()
}

impl Weights {
    /// Counts a pass over a forest with this many predicting positions: forward and, if anything is trained, backward. After its attention,
    /// the last layer is computed for those positions only.
    ///
    /// Experts count the rows routed to them: each token's, by its number of experts.
    pub fn pass_cost(&self, a: &Architecture, forest: &Forest, selected: usize) -> PassCost {
        self.pass_cost_with(a, forest, selected, selected)
    }

    /// Counts a pass in which the last layer is computed for `last` positions after its attention.
    pub(super) fn pass_cost_with(&self, a: &Architecture, forest: &Forest, selected: usize, last: usize) -> PassCost {
        let output = match &self.value_head {
            Some(head) if self.is_value_model() => &head.weight,
            _ => self.output(),
        };
        let (mut sum, mut directed) = (PassCost::default(), 0.0);
        let trained = self.lora.is_none();
        let mut matrix = |elements: usize, rows: usize, trained: bool| {
            let products = 2.0 * elements as f64 * rows as f64;
            sum += PassCost { forward: products, backward: if trained { 2.0 * products } else { products } };
        };
        for (i, layer) in self.layers.iter().enumerate() {
            let all = forest.len();
            let behind = if i + 1 == self.layers.len() { last } else { all };
            let (reading, rest, stacks) = layer.maps().in_order();
            let (chosen, experts) = a.mixture.as_ref().map_or((0, 1), |mixture| (mixture.routing.chosen, mixture.experts));
            for Linear { weight, adapter, .. } in stacks {
                matrix(weight.elem_count() / experts, behind * chosen, trained);
                if let Some(LinearAdapter { a, b, .. }) = adapter {
                    matrix((a.elem_count() + b.elem_count()) / experts, behind * chosen, true);
                }
            }
            let rows = reading.into_iter().map(|l| (l, all)).chain(rest.into_iter().map(|l| (l, behind)));
            for (linear, rows) in rows {
                matrix(linear.elements(), rows, trained);
                if let Some(LinearAdapter { a, b, magnitude, .. }) = &linear.adapter {
                    matrix(a.elem_count() + b.elem_count(), rows, true);
                    // Lengths of the rows: a product of both matrices, and a sum of squares.
                    directed += magnitude.as_ref().map_or(0.0, |_| 2.0 * ((b.dims()[1] + 1) * linear.elements()) as f64);
                }
            }
        }
        if let Some(own) = &self.layer_inputs {
            matrix(own.projection.elements(), forest.len(), trained);
            if let Some(LinearAdapter { a, b, .. }) = &own.projection.adapter {
                matrix(a.elem_count() + b.elem_count(), forest.len(), true);
            }
        }
        matrix(output.elem_count(), selected, self.trains_output());
        let seen = |layer: usize| -> f64 {
            let most = a.attention(layer).window.map_or(f64::INFINITY, |window| window as f64);
            forest.positions().iter().map(|&position| (f64::from(position) + 1.0).min(most)).sum()
        };
        let attending = (0..self.layers.len()).filter(|&layer| a.attends(layer));
        let attention = attending.map(|layer| seen(layer) * attention_a_place(a, layer)).sum::<f64>();
        let states = a.recurring() as f64 * forest.len() as f64 * a.operations_of_state();
        sum += PassCost { forward: attention + states + directed, backward: 2.0 * (attention + states) };
        sum
    }

    /// Counts the generation of completions, given each prompt's length and its completions' lengths, with at most this many sequences at
    /// once, from weights of at most `bits` per value. The first token of each completion comes from the prompt's pass. A round reads as
    /// many experts as its tokens use if they use all equally.
    pub fn generation_cost(
        &self,
        a: &Architecture,
        prompts: &[(&[u32], Vec<usize>)],
        most: usize,
        bits: usize,
    ) -> GenerationCost {
        let mut forest = Forest::new();
        let (mut places, mut read, mut tokens, mut longest) = (0.0, 0.0, 0, 0);
        for (prompt, completions) in prompts {
            forest.push(prompt, None);
            let after_first = completions.iter().map(|length| length.saturating_sub(1));
            for n in after_first.clone() {
                places += n as f64 * prompt.len() as f64 + triangle(n);
                read += triangle(n);
                tokens += n;
            }
            let rounds = after_first.max().unwrap_or(0);
            read += rounds as f64 * prompt.len() as f64;
            longest = longest.max(rounds);
        }
        let rounds = longest.max(tokens.div_ceil(most.max(1))) as f64;
        let output = self.output();
        let cached = self.cached_bytes(a, bits);
        let (mut elements, mut read_once) = (output.elem_count() as f64, bytes_within(output, bits) as f64);
        let (mut stacked, mut stacked_bytes) = (0.0, 0.0);
        if let Some(own) = &self.layer_inputs {
            elements += own.projection.elements() as f64;
            read_once += read_bytes(&own.projection, bits) as f64;
        }
        for layer in &self.layers {
            let (reading, rest, stacks) = layer.maps().in_order();
            for map in reading.into_iter().chain(rest) {
                elements += map.elements() as f64;
                read_once += read_bytes(map, bits) as f64;
            }
            for stack in stacks {
                stacked += stack.weight.elem_count() as f64;
                stacked_bytes += bytes_within(&stack.weight, bits) as f64;
            }
        }
        let used = |of_tokens: f64| {
            let part = a.mixture.as_ref().map_or(0.0, |mixture| mixture.routing.chosen as f64 / mixture.experts as f64);
            1.0 - (1.0 - part).powf(of_tokens)
        };
        let of_experts = stacked_bytes * used(tokens as f64 / rounds.max(1.0));
        GenerationCost {
            prefill: self.pass_cost(a, &forest, prompts.len()).forward,
            decode: 2.0 * (elements + stacked * used(1.0)) * tokens as f64
                + places * attention_of_layers(a)
                + a.recurring() as f64 * tokens as f64 * a.operations_of_state(),
            // A state is read and written.
            bytes: (read_once + of_experts) * rounds + cached * read + 2.0 * a.state_bytes() * tokens as f64,
            rounds,
        }
    }

    /// Returns the bytes of a token's keys and values in all layers. They are in bf16 if weights have fewer than 32 bits.
    fn cached_bytes(&self, a: &Architecture, bits: usize) -> f64 {
        let output = self.output();
        let size = match (output.device().is_cpu(), bits) {
            (true, 32..) => size_of::<f32>(),
            (true, _) => size_of::<u16>(),
            (false, _) => output.dtype().size_in_bytes(),
        };
        2.0 * a.cached_width() as f64 * size as f64
    }

    /// Returns the bytes of the keys, values and states of a generation with at most this many sequences at once, for all prompts and the
    /// longest sequences. See [`Weights::generation_cost`] for `bits`.
    pub fn peak_cache_bytes(&self, a: &Architecture, prompts: &[(&[u32], Vec<usize>)], most: usize, bits: usize) -> f64 {
        let mut lengths: Vec<usize> = prompts.iter().flat_map(|(_, lengths)| lengths.iter().copied()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let tokens = lengths.iter().take(most).sum::<usize>() + prompts.iter().map(|(prompt, _)| prompt.len()).sum::<usize>();
        let states = prompts.len() + lengths.len().min(most);
        tokens as f64 * self.cached_bytes(a, bits) + states as f64 * a.state_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn model() -> (Architecture, Weights) {
        let config = r#"{"model_type": "llama", "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 11}"#;
        let a = Architecture::parse(config).unwrap();
        let weights = Weights::build(&a, |_, shape| Ok(Tensor::zeros(shape, DType::F32, &Device::Cpu)?)).unwrap();
        (a, weights)
    }

    /// Multiplications of a layer's matrices for one token: query and output 8 x 6, key and value
    /// 4 x 6, the gated unit three times 10 x 6.
    const BEFORE: f64 = (8 * 6 + 2 * 4 * 6) as f64;
    const BEHIND: f64 = (8 * 6 + 3 * 10 * 6) as f64;
    const OUTPUT: f64 = (11 * 6) as f64;

    #[test]
    fn a_pass_counts_each_prompt_once_and_the_last_layer_where_something_is_predicted() {
        let (a, weights) = model();
        let mut forest = Forest::new();
        let prompt = forest.push(&[1, 2, 3], None);
        forest.push(&[4, 5], Some(prompt));
        forest.push(&[6], Some(prompt));
        // Six tokens, three of them predicted; they see 1, 2, 3, 4, 5 and 4 places.
        let matrices = 2.0 * (6.0 * (2.0 * BEFORE + BEHIND) + 3.0 * (BEHIND + OUTPUT));
        let attention = 2.0 * 2.0 * 2.0 * (4.0 * 2.0) * 19.0;
        let passed = weights.pass_cost(&a, &forest, 3);
        assert_eq!(passed, PassCost { forward: matrices + attention, backward: 2.0 * (matrices + attention) });
    }

    #[test]
    fn of_experts_those_in_use_count() {
        let config = r#"{"model_type": "mixtral", "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 11, "num_local_experts": 5,
            "num_experts_per_tok": 2}"#;
        let a = Architecture::parse(config).unwrap();
        let weights = Weights::build(&a, |_, shape| Ok(Tensor::zeros(shape, DType::F32, &Device::Cpu)?)).unwrap();
        let mut forest = Forest::new();
        forest.push(&[1, 2, 3], None);
        // A router of 5 x 6, and two experts of three times 10 x 6 each.
        let behind = (8 * 6 + 5 * 6 + 2 * 3 * 10 * 6) as f64;
        let matrices = 2.0 * (3.0 * (2.0 * BEFORE + behind) + 2.0 * (behind + OUTPUT));
        let attention = 2.0 * 2.0 * 2.0 * (4.0 * 2.0) * 6.0;
        assert_eq!(weights.pass_cost(&a, &forest, 2).forward, matrices + attention);
        // One sequence reads two of five experts a round; of many, each expert has some.
        let experts = (5 * 3 * 10 * 6) as f64;
        let elements = |sequences: usize| {
            let prompts: [(&[u32], Vec<usize>); 1] = [(&[1], vec![2; sequences])];
            let cached = sequences as f64 + 1.0;
            weights.generation_cost(&a, &prompts, sequences, 32).bytes / 4.0 - cached * 2.0 * 2.0 * 4.0
        };
        let apart = 2.0 * (BEFORE + 8.0 * 6.0 + 5.0 * 6.0) + OUTPUT;
        assert!((elements(1) - apart - 2.0 * 0.4 * experts).abs() < 1e-6, "{}", elements(1));
        assert!((elements(2) - apart - 2.0 * 0.64 * experts).abs() < 1e-6, "{}", elements(2));
    }

    #[test]
    fn an_adapter_leaves_out_the_gradients_of_what_it_does_not_train() {
        let (a, weights) = model();
        let mut forest = Forest::new();
        forest.push(&[1, 2, 3], None);
        let whole = weights.pass_cost(&a, &forest, 2);
        let lora = super::super::LoraSettings::new(2, 4.0);
        let adapted = weights.with_new_adapter(lora, &["q_proj".to_owned()], 1).unwrap();
        let passed = adapted.pass_cost(&a, &forest, 2);
        let own = 2.0 * 2.0 * 3.0 * (2.0 * 6.0 + 8.0 * 2.0);
        assert_eq!(passed.forward, whole.forward + own);
        let matrices = 2.0 * (3.0 * (2.0 * BEFORE + BEHIND) + 2.0 * (BEHIND + OUTPUT));
        assert_eq!(passed.backward, whole.backward - matrices + 2.0 * own);
    }

    #[test]
    fn a_generation_reads_the_weights_once_a_round_and_a_prompt_once_for_its_completions() {
        let (a, weights) = model();
        let prompts: [(&[u32], Vec<usize>); 2] = [(&[1, 2, 3], vec![4, 2]), (&[5, 6], vec![1, 3])];
        let elements = 2.0 * (BEFORE + BEHIND) + OUTPUT;
        let generated = weights.generation_cost(&a, &prompts, 16, 32);
        // Tokens after the first: 3, 1, 0 and 2; the longest takes three rounds.
        assert_eq!(generated.rounds, 3.0);
        // Places: 3 completions tokens see 4, 5, 6; one sees 4; two see 3 and 4.
        let attention = 2.0 * 2.0 * 2.0 * (4.0 * 2.0);
        assert_eq!(generated.decode, 2.0 * elements * 6.0 + attention * (15.0 + 4.0 + 7.0));
        // Own places read: 1 + 2 + 3, 1, and 1 + 2; prompts: 3 of 3, and 2 of 2.
        let entries = 6.0 + 1.0 + 3.0 + 9.0 + 4.0;
        assert_eq!(generated.bytes, 4.0 * (elements * 3.0 + entries * 2.0 * 2.0 * 4.0));
        let of_8_bits = weights.generation_cost(&a, &prompts, 16, 8);
        assert_eq!(of_8_bits.bytes, elements * 3.0 + 2.0 * entries * 2.0 * 2.0 * 4.0);
        assert_eq!(weights.generation_cost(&a, &prompts, 1, 32).rounds, 6.0);
        // Five prompt tokens, and at most the two longest completions: keys and values of two layers, 4 wide.
        assert_eq!(weights.peak_cache_bytes(&a, &prompts, 2, 32), 4.0 * 2.0 * 2.0 * 4.0 * (5.0 + 4.0 + 3.0));
        let mut forest = Forest::new();
        forest.push(&[1, 2, 3], None);
        forest.push(&[5, 6], None);
        assert_eq!(generated.prefill, weights.pass_cost(&a, &forest, 2).forward);
    }
}
