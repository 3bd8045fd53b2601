//! Reading rows, the order in which they come, and tokens of a text and back.
//!
//!     cargo bench --workspace --profile dev --bench data

#![allow(missing_docs)]

mod common;

use common::short;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rlhost::data::{Loader, TextOrChat, Tokenizer, pack, parse_prompts};
use rlhost::model::builtin;
use rlhost::train::BUILT_IN_PROMPTS;
use std::hint::black_box;
use std::path::Path;

fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("data");
    let bytes = BUILT_IN_PROMPTS.as_bytes();
    let read = || parse_prompts(Path::new("prompts.jsonl"), bytes).unwrap();
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("JSON lines of prompts", |b| b.iter(|| black_box(read())));

    group.throughput(Throughput::Elements(1_000_000));
    group.bench_function("a pass over a million rows, in batches of 64", |b| {
        b.iter(|| {
            let mut loader = Loader::new(1_000_000, 64, 1, true, false);
            for _ in 0..loader.batches_per_epoch() {
                black_box(loader.next_batch());
            }
        });
    });
    let lengths: Vec<usize> = (0..100_000).map(|i| 20 + i * 7919 % 900).collect();
    group.throughput(Throughput::Elements(lengths.len() as u64));
    group.bench_function("packing 100,000 texts", |b| b.iter(|| black_box(pack(&lengths, 1024))));

    let folder = tempfile::tempdir().unwrap();
    builtin::write(folder.path()).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    let texts: Vec<String> =
        read().into_iter().filter_map(|row| if let TextOrChat::Text(text) = row.prompt { Some(text) } else { None }).collect();
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text, true).unwrap()).collect();
    group.throughput(Throughput::Elements(ids.iter().map(|ids| ids.len() as u64).sum()));
    group.bench_function("tokens of texts", |b| {
        b.iter(|| texts.iter().for_each(|text| drop(black_box(tokenizer.encode(text, true).unwrap()))));
    });
    group.bench_function("texts of tokens", |b| {
        b.iter(|| ids.iter().for_each(|ids| drop(black_box(tokenizer.decode(ids).unwrap()))));
    });
}

criterion_group!(name = benches; config = short(); targets = rows);
criterion_main!(benches);
