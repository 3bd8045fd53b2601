//! What an environment costs a generation: 64 episodes of ten turns, with environments that take their time.
//!
//!     cargo bench --workspace --profile dev --bench episodes
//!
//! Each round generates with every environment in turn, and the table has the medians of the rounds. "A turn" takes 5 ms for each
//! and sleeps; "computing" also takes 5 ms for each turn, of a processor. Their episodes are divided among instances as the host
//! divides a plugin's: among 64 that wait, and one a thread of those that compute. An instance takes its turns one after the other.
//! "One instance" has all of them, and sleeps too.

#![allow(missing_docs, clippy::print_stdout)]

mod common;

use common::{MODELS, PROMPT, architecture, decoder, tokens};
use rlhost::model::FrozenModel;
use rlhost::ops::sampler::Sampler;
use rlhost::rollout::{EndedTurn, Generator, PromptRequest, ReplyProvider, TurnReply};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const EPISODES: usize = 64;
/// Completions of a prompt.
const SAMPLES: usize = 8;
const TURNS: usize = 10;
/// Tokens that the model writes in a turn, and reads in a reply.
const TURN: usize = 16;
const REPLY: usize = 8;
const PAUSE: Duration = Duration::from_millis(5);
const ROUNDS: usize = 3;

/// The model of that size in `compare_trl.py`, between the two that other benchmarks are of.
const MIDDLE: (&str, &str) = (
    "30M",
    r#"{"model_type": "qwen2", "hidden_size": 512, "num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 4,
        "intermediate_size": 1376, "vocab_size": 2048, "max_position_embeddings": 2048, "rope_theta": 1e6,
        "tie_word_embeddings": true}"#,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum EnvironmentPace {
    AtOnce,
    OneInstance,
    Turn,
    Computing,
}

impl EnvironmentPace {
    /// How many instances share the episodes.
    fn instances(self) -> usize {
        match self {
            Self::AtOnce | Self::OneInstance => 1,
            Self::Turn => 64,
            Self::Computing => rayon::current_num_threads(),
        }
    }

    /// What an instance does for that many turns.
    fn spend(self, turns: usize) {
        match self {
            Self::AtOnce => {}
            Self::OneInstance | Self::Turn => (0..turns).for_each(|_| std::thread::sleep(PAUSE)),
            Self::Computing => {
                for _ in 0..turns {
                    let begun = Instant::now();
                    while begun.elapsed() < PAUSE {
                        black_box(0);
                    }
                }
            }
        }
    }
}

/// Replies to each turn with the same tokens.
struct SlowEnvironment {
    pace: EnvironmentPace,
    /// Held by the call that an instance answers.
    busy: Vec<Mutex<()>>,
    calls: AtomicUsize,
    turns: AtomicUsize,
    /// Nanoseconds in calls.
    taken: AtomicU64,
    /// Turns of each episode.
    played: Mutex<BTreeMap<(usize, usize), usize>>,
}

impl ReplyProvider for SlowEnvironment {
    fn next_turns(&self, ended: &[EndedTurn<'_>]) -> Vec<TurnReply> {
        let begun = Instant::now();
        let instance = &self.busy[self.instance(ended[0].request, ended[0].sample)];
        let own = instance.lock().unwrap();
        self.pace.spend(ended.len());
        drop(own);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.turns.fetch_add(ended.len(), Ordering::Relaxed);
        self.taken.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let mut played = self.played.lock().unwrap();
        let next = |ended: &EndedTurn<'_>| {
            let turns = played.entry((ended.request, ended.sample)).or_default();
            *turns += 1;
            if *turns < TURNS { TurnReply::Read(vec![1; REPLY]) } else { TurnReply::Over(true) }
        };
        ended.iter().map(next).collect()
    }

    fn instance(&self, request: usize, sample: usize) -> usize {
        (request * SAMPLES + sample) * self.pace.instances() / EPISODES
    }

    fn max_tokens(&self) -> usize {
        TURNS * (TURN + REPLY)
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let paces = [EnvironmentPace::AtOnce, EnvironmentPace::OneInstance, EnvironmentPace::Turn, EnvironmentPace::Computing];
    for (model, config) in [MODELS[0], MIDDLE] {
        let a = architecture(config);
        let decoding = FrozenModel::new(decoder(&a)).decoding().unwrap();
        let request =
            |p: usize| PromptRequest { tokens: tokens(PROMPT / 4, a.vocab_size, p), row: p as u64, first: 0, samples: SAMPLES };
        let requests: Vec<PromptRequest> = (0..EPISODES / SAMPLES).map(request).collect();
        let generate = |pace: EnvironmentPace| {
            let (calls, turns, taken, played) = Default::default();
            let busy = (0..pace.instances()).map(|_| Mutex::default()).collect();
            let slow = SlowEnvironment { pace, busy, calls, turns, taken, played };
            let generator = Generator {
                model: &decoding,
                sampling: Sampler::default(),
                logp_temperature: 1.0,
                keep_support: false,
                max_new_tokens: TURN,
                max_num_seqs: 256,
                seed: 1,
                generation: 0,
                end_tokens: &[],
                // Turns of different lengths, half of them cut short, by what was sampled.
                stops: &|turn: &[u32]| turn.len() > TURN / 4 && turn[turn.len() - 1].is_multiple_of(32),
                reply_provider: Some(&slow),
            };
            let begun = Instant::now();
            let rollouts = generator.run(&requests).unwrap();
            (begun.elapsed().as_secs_f64(), rollouts, slow)
        };
        let mut times = vec![Vec::new(); paces.len()];
        let first = generate(EnvironmentPace::AtOnce).1;
        println!("{model}: {EPISODES} episodes, {} tokens sampled", first.iter().map(|r| r.sampled()).sum::<usize>());
        let mut counts = Vec::new();
        for _ in 0..ROUNDS {
            counts.clear();
            for (pace, times) in paces.iter().zip(&mut times) {
                let (time, rollouts, slow) = generate(*pace);
                assert!(rollouts == first, "how long an environment takes changes what is generated");
                times.push(time);
                let [calls, turns] = [&slow.calls, &slow.turns].map(|n| n.load(Ordering::Relaxed));
                counts.push((calls, turns, slow.taken.load(Ordering::Relaxed) as f64 / 1e9));
            }
        }
        let alone = median(times[0].clone());
        for ((pace, times), (calls, turns, taken)) in paces.iter().zip(times).zip(counts) {
            let time = median(times);
            let loss = 100.0 * (time / alone - 1.0);
            println!("  {pace:?}: {time:.3} s, {loss:+.1}%; {turns} turns in {calls} calls, which took {taken:.2} s together");
        }
    }
}
