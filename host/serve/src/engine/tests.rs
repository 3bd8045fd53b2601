use super::*;
use crate::model::{FrozenModel, ModelFolder, WeightStorage, builtin};
use crate::ops::sampler::Sampler;
use rlhost_config::RolloutDtype;
use rlhost_models::rollout::{self, Generator};

const GREEDY: Sampler = Sampler { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, repetition_penalty: 1.0 };
const WARM: Sampler = Sampler { temperature: 0.8, top_p: 0.9, top_k: 40, min_p: 0.01, repetition_penalty: 1.1 };
const OPTIONS: EngineOptions =
    EngineOptions { max_model_len: 512, max_num_seqs: 4, max_waiting: 64, cache_bytes: 64 << 20, favours_throughput: false };

fn frozen() -> FrozenModel {
    let folder = tempfile::tempdir().unwrap();
    builtin::write(folder.path()).unwrap();
    FrozenModel::new(ModelFolder::open(folder.path()).unwrap().with_weight_storage(WeightStorage::AS_STORED).decoder().unwrap())
}

/// Returns the built-in model with some weights changed.
fn changed() -> FrozenModel {
    let folder = tempfile::tempdir().unwrap();
    builtin::write(folder.path()).unwrap();
    change_weights(folder.path());
    FrozenModel::new(ModelFolder::open(folder.path()).unwrap().with_weight_storage(WeightStorage::AS_STORED).decoder().unwrap())
}

/// Changes some weights of the model in a folder a little.
pub(crate) fn change_weights(folder: &std::path::Path) {
    let file = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let begin = (bytes.len() * 3 / 4) & !1;
    // Flips a bit of the mantissa.
    bytes[begin..].iter_mut().step_by(2).for_each(|byte| *byte ^= 0x40);
    std::fs::write(&file, bytes).unwrap();
}

fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| 10 + (seed * 7919 + i * i * 31 + i * 17) % 900).collect()
}

fn request(tokens: &[u32], sampling: Sampler, max_tokens: usize) -> EngineRequest {
    EngineRequest {
        tokens: tokens.into(),
        sampling,
        logit_bias: Arc::new([]),
        max_tokens,
        random: RandomStream::from_seed(7),
        ends: Arc::new([]),
        stop: None,
        scoring: LogprobSettings::default(),
        salt: 0,
        adapter: None,
    }
}

/// Returns the tokens of a request, and how many tokens of its prompt were found in the cache.
fn finished(mut stream: TokenStream) -> (Vec<ScoredToken>, usize) {
    let (mut tokens, mut found) = (Vec::new(), usize::MAX);
    loop {
        match stream.blocking_next().unwrap() {
            EngineEvent::Prompt { cached, .. } => found = cached,
            EngineEvent::Token(token) => tokens.push(token),
            EngineEvent::Finished(_) => return (tokens, found),
            EngineEvent::Failed(detail) => panic!("{detail}"),
        }
    }
}

fn one(engine: &InferenceEngine, request: EngineRequest) -> (Vec<ScoredToken>, usize) {
    finished(engine.submit(vec![request]).unwrap().remove(0))
}

/// Returns the bits of the log-probabilities.
fn bits(tokens: &[ScoredToken]) -> Vec<(u32, u32)> {
    tokens.iter().map(|token| (token.id, token.logp.to_bits())).collect()
}

#[test]
fn greedy_tokens_and_log_probabilities_are_those_of_a_generation_for_training() {
    let frozen = frozen();
    let decoding = frozen.decoding().unwrap();
    let tokens = prompt(1, 90);
    let generator = Generator {
        model: &decoding,
        sampling: GREEDY,
        logp_temperature: 1.0,
        keep_support: false,
        max_new_tokens: 40,
        max_num_seqs: 4,
        seed: 0,
        generation: 0,
        end_tokens: &[],
        stops: &|_| false,
        reply_provider: None,
    };
    let known =
        generator.run(&[rollout::PromptRequest { tokens: tokens.clone(), row: 0, first: 0, samples: 1 }]).unwrap().remove(0);
    let engine = InferenceEngine::start(frozen.decoding().unwrap(), 3, OPTIONS).unwrap();
    let (found, _) = one(&engine, request(&tokens, GREEDY, 40));
    assert_eq!(found.iter().map(|token| token.id).collect::<Vec<_>>(), known.tokens);
    for (token, logp) in found.iter().zip(known.logp) {
        assert!((token.logp - logp).abs() < 1e-4 && token.version == 3, "{token:?} {logp}");
    }
}

#[test]
fn a_seed_gives_the_same_bits_alone_in_a_crowd_and_from_the_cache() {
    let dtypes = [RolloutDtype::Auto, RolloutDtype::Bfloat16, RolloutDtype::Int8];
    for (dtype, favours_throughput) in dtypes.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
        let frozen = frozen();
        let options = EngineOptions { favours_throughput, ..OPTIONS };
        let start = || InferenceEngine::start(frozen.decoding_with(dtype).unwrap(), 0, options).unwrap();
        let tokens = prompt(2, 150);
        let alone = bits(&one(&start(), request(&tokens, WARM, 30)).0);
        let engine = start();
        let mut all: Vec<EngineRequest> = (0..24).map(|i| request(&prompt(i, 20 + 9 * i), WARM, 10 + i as usize)).collect();
        // Sharing its own prefix, so that part of it is found while others are computed.
        all.insert(9, request(&tokens[..100], WARM, 3));
        all.insert(20, request(&tokens, WARM, 30));
        let streams = engine.submit(all).unwrap();
        let (crowded, _) = finished(streams.into_iter().nth(20).unwrap());
        assert_eq!(bits(&crowded), alone, "{dtype:?}");
        let (again, cached) = one(&engine, request(&tokens, WARM, 30));
        assert_eq!((bits(&again), cached), (alone.clone(), 149), "{dtype:?}");
        // The conversation continues: everything but the last token, which was sampled and never read, is cached.
        let longer: Vec<u32> = tokens.iter().copied().chain(alone.iter().map(|(id, _)| *id)).chain([11, 12]).collect();
        let (next, cached) = one(&engine, request(&longer, WARM, 5));
        assert_eq!(cached, 179);
        assert_eq!(bits(&next), bits(&one(&start(), request(&longer, WARM, 5)).0));
        let salted = EngineRequest { salt: 1, ..request(&tokens, WARM, 30) };
        let (apart, cached) = one(&engine, salted);
        assert_eq!((bits(&apart), cached), (alone, 0));
    }
}

#[test]
fn completions_of_one_prompt_read_it_once_and_differ_by_their_sample() {
    let engine = InferenceEngine::start(frozen().decoding().unwrap(), 0, OPTIONS).unwrap();
    let tokens = prompt(3, 200);
    let sampled = |sample: u64| EngineRequest {
        random: RandomStream { sample, ..RandomStream::from_seed(7) },
        ..request(&tokens, Sampler::default(), 12)
    };
    let streams = engine.submit((0..4).map(sampled).collect()).unwrap();
    let all: Vec<_> = streams.into_iter().map(finished).collect();
    assert_eq!(all.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [0, 199, 199, 199]);
    assert!((1..4).all(|i| bits(&all[i].0) != bits(&all[0].0)));
    assert_eq!(engine.counters().total(CounterKind::CachedTokens), 3 * 199);
}

#[test]
fn of_a_model_that_carries_a_state_whole_prompts_and_whole_texts_are_shared() {
    for name in ["lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe", "qwen3_next", "granitemoehybrid", "nemotron_h", "falcon_h1"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
        let frozen = FrozenModel::new(ModelFolder::open(folder).unwrap().decoder().unwrap());
        let start = || InferenceEngine::start(frozen.decoding().unwrap(), 0, OPTIONS).unwrap();
        let tokens: Vec<u32> = prompt(3, 32).into_iter().map(|token| token % 90).collect();
        let sampled = |tokens: &[u32], sample: u64| EngineRequest {
            random: RandomStream { sample, ..RandomStream::from_seed(7) },
            ..request(tokens, Sampler::default(), 12)
        };
        let engine = start();
        // A prompt that shares only a part of the others computes all of it.
        let part = [&tokens[..24], &[5, 6, 7, 8]].concat();
        let all = (0..4).map(|sample| sampled(&tokens, sample)).chain([sampled(&part, 9)]).collect();
        let all: Vec<_> = engine.submit(all).unwrap().into_iter().map(finished).collect();
        assert_eq!(all.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [0, 31, 31, 31, 0], "{name}");
        for (sample, (crowded, _)) in (0..4).zip(&all) {
            assert_eq!(bits(crowded), bits(&one(&start(), sampled(&tokens, sample)).0), "{name}");
        }
        assert_eq!(bits(&all[4].0), bits(&one(&start(), sampled(&part, 9)).0), "{name}");
        // A conversation goes on after all that was read; another continues the prompt.
        let said: Vec<u32> = all[2].0.iter().map(|token| token.id).collect();
        for (longer, known) in [([&tokens[..], &said, &[11, 12]].concat(), 43), ([&tokens[..], &[9, 9, 9]].concat(), 31)] {
            let (next, cached) = one(&engine, sampled(&longer, 1));
            assert_eq!((bits(&next), cached), (bits(&one(&start(), sampled(&longer, 1)).0), known), "{name}");
        }
        // What the engine samples has the log-probabilities of one pass over it.
        let text = [&tokens[..], &said].concat();
        let mut forest = crate::ops::Forest::new();
        forest.push(&text, None);
        let rows: Vec<usize> = (tokens.len() - 1..text.len() - 1).collect();
        let logits = crate::ops::to_vec(&frozen.logits(&forest, &rows).unwrap()).unwrap();
        for (token, logits) in all[2].0.iter().zip(logits.chunks(logits.len() / said.len())) {
            let sum: f64 = logits.iter().map(|z| f64::from(*z).exp()).sum();
            let logp = f64::from(logits[token.id as usize]) - sum.ln();
            assert!((f64::from(token.logp) - logp).abs() < 1e-4, "{name}: {token:?}, {logp}");
        }
    }
}

#[test]
fn a_prompt_is_scored_as_the_model_alone_scores_it() {
    let frozen = frozen();
    let engine = InferenceEngine::start(frozen.decoding().unwrap(), 0, OPTIONS).unwrap();
    let tokens = prompt(4, 70);
    let wanted = EngineRequest {
        scoring: LogprobSettings { scores_prompt: true, alternatives: Some(2), ..LogprobSettings::default() },
        ..request(&tokens, GREEDY, 0)
    };
    let mut stream = engine.submit(vec![wanted]).unwrap().remove(0);
    let Some(EngineEvent::Prompt { scored, .. }) = stream.blocking_next() else { panic!("no scores") };
    assert_eq!(stream.blocking_next(), Some(EngineEvent::Finished(FinishReason::Length)));
    let mut forest = crate::ops::Forest::new();
    forest.push(&tokens, None);
    let rows: Vec<usize> = (0..tokens.len()).collect();
    let logits = crate::ops::to_vec(&frozen.logits(&forest, &rows).unwrap()).unwrap();
    assert_eq!(scored.len(), tokens.len() - 1);
    for ((token, logits), &id) in scored.iter().zip(logits.chunks(logits.len() / tokens.len())).zip(&tokens[1..]) {
        let sum: f64 = logits.iter().map(|z| f64::from(*z).exp()).sum();
        let logp = |id: u32| (f64::from(logits[id as usize]) - sum.ln()) as f32;
        let above = logits.iter().filter(|z| **z > logits[id as usize]).count() as u32;
        assert!(token.id == id && (token.logp - logp(id)).abs() < 1e-4 && token.rank == above + 1, "{token:?}");
        assert!(token.top.len() == 2 && token.top[0].1 >= token.top[1].1 && (token.top[0].1 - logp(token.top[0].0)).abs() < 1e-4);
    }
}

#[test]
fn a_client_that_is_gone_frees_its_place() {
    let engine = InferenceEngine::start(frozen().decoding().unwrap(), 0, EngineOptions { max_num_seqs: 1, ..OPTIONS }).unwrap();
    let mut first = engine.submit(vec![request(&prompt(5, 20), GREEDY, 480)]).unwrap().remove(0);
    let second = engine.submit(vec![request(&prompt(6, 20), GREEDY, 4)]).unwrap().remove(0);
    assert!(matches!(first.blocking_next(), Some(EngineEvent::Prompt { .. })));
    drop(first);
    assert_eq!(finished(second).0.len(), 4);
    assert_eq!((engine.counters().total(CounterKind::Abandoned), engine.counters().waiting()), (1, 0));
    assert!(engine.counters().total(CounterKind::SampledTokens) < 480);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_computed() {
    let frozen = frozen();
    let start = |options| InferenceEngine::start(frozen.decoding().unwrap(), 0, options).unwrap();
    let engine = start(EngineOptions { max_waiting: 2, max_num_seqs: 1, ..OPTIONS });
    let refused = |engine: &InferenceEngine, request| engine.submit(vec![request]).unwrap_err();
    assert_eq!(refused(&engine, request(&[], GREEDY, 1)), RequestRefusal::Empty);
    let long = refused(&engine, request(&prompt(1, 500), GREEDY, 13));
    assert_eq!(long, RequestRefusal::TooLong { prompt: 500, max_tokens: 13, most: 512 });
    assert!(matches!(refused(&engine, request(&[1 << 20], GREEDY, 1)), RequestRefusal::UnknownToken { .. }));
    let bytes = frozen.decoding().unwrap().bytes_per_position();
    let small = start(EngineOptions { cache_bytes: 60 * bytes, ..OPTIONS });
    assert_eq!(
        refused(&small, request(&prompt(1, 50), GREEDY, 13)),
        RequestRefusal::TooLong { prompt: 50, max_tokens: 13, most: 60 }
    );
    let long = || request(&prompt(7, 20), GREEDY, 400);
    let mut held = engine.submit(vec![long()]).unwrap();
    assert!(matches!(held[0].blocking_next(), Some(EngineEvent::Prompt { .. })));
    held.extend(engine.submit(vec![long(), long()]).unwrap());
    assert_eq!(refused(&engine, long()), RequestRefusal::Full);
    engine.stop_accepting();
    assert_eq!(refused(&engine, long()), RequestRefusal::Stopping);
    assert_eq!(engine.counters().total(CounterKind::PromptTokens), 20);
}

#[test]
fn the_cache_stays_within_its_memory_and_forgets_what_was_used_least() {
    let decoding = frozen().decoding().unwrap();
    let bytes = decoding.bytes_per_position();
    let engine = InferenceEngine::start(decoding, 0, EngineOptions { cache_bytes: 400 * bytes, ..OPTIONS }).unwrap();
    for seed in 0..8 {
        one(&engine, request(&prompt(seed, 100), GREEDY, 4));
        assert!(engine.counters().cached_bytes() <= 400 * bytes);
    }
    assert_eq!(one(&engine, request(&prompt(7, 100), GREEDY, 4)).1, 99);
    assert_eq!(one(&engine, request(&prompt(0, 100), GREEDY, 4)).1, 0);
}

#[test]
fn sequences_that_outgrow_the_memory_pause_and_give_the_same_bits() {
    let frozen = frozen();
    let bytes = frozen.decoding().unwrap().bytes_per_position();
    let start = |positions: usize| {
        InferenceEngine::start(frozen.decoding().unwrap(), 0, EngineOptions { cache_bytes: positions * bytes, ..OPTIONS })
            .unwrap()
    };
    let long = |seed: u32| request(&prompt(seed, 30 + seed), WARM, 420);
    let (ample, tight) = (start(1 << 14), start(700));
    let streams = tight.submit((0..4).map(long).collect()).unwrap();
    for (seed, stream) in (0..4).zip(streams) {
        let (paused, cached) = finished(stream);
        assert_eq!((bits(&paused), cached), (bits(&one(&ample, long(seed)).0), 0), "{seed}");
        assert!(tight.counters().cached_bytes() <= 700 * bytes);
    }
    // Four sequences have 900 positions when they began together and half of their tokens are sampled.
    assert!(tight.counters().total(CounterKind::Rounds) > 420 + 40);
}

#[test]
fn new_weights_begin_a_version_and_forget_the_prefixes_of_the_old() {
    let frozen = frozen();
    let engine = InferenceEngine::start(frozen.decoding().unwrap(), 1, OPTIONS).unwrap();
    let tokens = prompt(8, 60);
    let before = one(&engine, request(&tokens, GREEDY, 4)).0;
    engine.replace(frozen.decoding().unwrap(), 2).unwrap();
    let (after, cached) = one(&engine, request(&tokens, GREEDY, 4));
    assert_eq!((bits(&after), cached), (bits(&before), 0));
    assert!(before.iter().all(|token| token.version == 1) && after.iter().all(|token| token.version == 2));
}

/// Returns the next token of a stream, after the prompt.
fn next_token(stream: &mut TokenStream) -> ScoredToken {
    loop {
        match stream.blocking_next().unwrap() {
            EngineEvent::Token(token) => return token,
            EngineEvent::Prompt { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_of_several_weights_are_computed_together_and_share_nothing() {
    let (own, other) = (frozen(), changed());
    let alone = InferenceEngine::start(other.decoding().unwrap(), 0, OPTIONS).unwrap();
    let tokens = prompt(11, 60);
    let wanted = bits(&one(&alone, request(&tokens, WARM, 20)).0);
    let engine = InferenceEngine::start(own.decoding().unwrap(), 1, OPTIONS).unwrap();
    let base = bits(&one(&engine, request(&tokens, WARM, 20)).0);
    assert_ne!(base, wanted);
    let adapter = Arc::new(EngineAdapter::new(other.decoding().unwrap(), 7));
    let with = |adapter: &Arc<EngineAdapter>| EngineRequest { adapter: Some(Arc::clone(adapter)), ..request(&tokens, WARM, 20) };
    let streams = engine.submit(vec![with(&adapter), request(&tokens, WARM, 20), with(&adapter)]).unwrap();
    let all: Vec<_> = streams.into_iter().map(finished).collect();
    assert_eq!([&all[0], &all[1], &all[2]].map(|(tokens, _)| bits(tokens)), [wanted.clone(), base.clone(), wanted]);
    assert!(all[0].0.iter().all(|token| token.version == 7) && all[1].0.iter().all(|token| token.version == 1));
    engine.replace_adapter(Arc::clone(&adapter), own.decoding().unwrap(), 8).unwrap();
    let (again, cached) = one(&engine, with(&adapter));
    assert!(bits(&again) == base && cached == 0 && again[0].version == 8 && adapter.version() == 8);
}

#[test]
fn weights_that_change_under_way_leave_nothing_in_the_cache() {
    let (own, other) = (frozen(), changed());
    let engine = InferenceEngine::start(own.decoding().unwrap(), 1, OPTIONS).unwrap();
    let tokens = prompt(12, 60);
    let mut stream = engine.submit(vec![request(&tokens, GREEDY, 300)]).unwrap().remove(0);
    next_token(&mut stream);
    engine.replace(other.decoding().unwrap(), 2).unwrap();
    let rest = finished(stream).0;
    assert!(rest.first().unwrap().version <= rest.last().unwrap().version && rest.last().unwrap().version == 2);
    let alone = InferenceEngine::start(other.decoding().unwrap(), 0, OPTIONS).unwrap();
    let (after, cached) = one(&engine, request(&tokens, GREEDY, 8));
    assert_eq!((bits(&after), cached), (bits(&one(&alone, request(&tokens, GREEDY, 8)).0), 0));
}

#[test]
fn a_pause_keeps_finishes_or_ends_what_is_under_way() {
    let engine = InferenceEngine::start(frozen().decoding().unwrap(), 0, OPTIONS).unwrap();
    let wanted = bits(&one(&engine, request(&prompt(13, 40), WARM, 300)).0);
    let begin = || {
        let mut stream = engine.submit(vec![request(&prompt(13, 40), WARM, 300)]).unwrap().remove(0);
        (next_token(&mut stream), stream)
    };
    for mode in [PauseMode::Keep, PauseMode::Wait, PauseMode::Abort] {
        let (first, mut stream) = begin();
        engine.pause(mode).unwrap().blocking_recv().unwrap();
        assert!(engine.is_paused());
        let rounds = engine.counters().total(CounterKind::Rounds);
        let mut waiting = engine.submit(vec![request(&prompt(14, 40), WARM, 2)]).unwrap().remove(0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(engine.counters().total(CounterKind::Rounds), rounds);
        if mode != PauseMode::Keep {
            let events: Vec<EngineEvent> = std::iter::from_fn(|| stream.blocking_next()).collect();
            let (end, tokens) = events.split_last().unwrap();
            let expected = if mode == PauseMode::Abort { FinishReason::Abort } else { FinishReason::Length };
            assert_eq!(*end, EngineEvent::Finished(expected));
            assert!(mode == PauseMode::Abort && tokens.len() < 299 || tokens.len() == 299);
        }
        engine.resume().unwrap().blocking_recv().unwrap();
        assert!(!engine.is_paused());
        if mode == PauseMode::Keep {
            let all: Vec<ScoredToken> = [first].into_iter().chain(finished(stream).0).collect();
            assert_eq!(bits(&all), wanted);
        }
        next_token(&mut waiting);
    }
    assert_eq!(engine.counters().total(CounterKind::Aborted), 1);
    // A client that disconnects during a pause frees its place.
    let (_, stream) = begin();
    engine.pause(PauseMode::Keep).unwrap().blocking_recv().unwrap();
    drop(stream);
    let begun = std::time::Instant::now();
    while engine.counters().total(CounterKind::Abandoned) == 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        std::thread::yield_now();
    }
}

#[test]
fn biases_and_end_tokens_count() {
    let engine = InferenceEngine::start(frozen().decoding().unwrap(), 0, OPTIONS).unwrap();
    let biased = EngineRequest { logit_bias: Arc::new([(33, 100.0)]), ..request(&prompt(9, 20), GREEDY, 5) };
    let (tokens, _) = one(&engine, biased.clone());
    assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), [33; 5]);
    let ending = EngineRequest { ends: Arc::new([33]), ..biased };
    let mut stream = engine.submit(vec![ending]).unwrap().remove(0);
    let events: Vec<EngineEvent> = std::iter::from_fn(|| stream.blocking_next()).collect();
    assert!(
        matches!(&events[..], [EngineEvent::Prompt { .. }, EngineEvent::Token(_), EngineEvent::Finished(FinishReason::End)]),
        "{events:?}"
    );
}
