//! Writes a model's logits on a few made-up token ids, for the checks of `tests/parity` to
//! compare: `cargo run --example logits -- MODEL_FOLDER OUT.safetensors`.

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use rlhost::model::{FrozenModel, ModelFolder};
use rlhost::ops::Forest;
use std::collections::HashMap;

const TEXTS: usize = 3;
const TOKENS: usize = 50;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().context("the model's folder is missing")?;
    let out = arguments.next().context("the output file is missing")?;
    let folder = ModelFolder::open(model)?;
    let vocab = folder.architecture().vocab_size;
    let ids: Vec<u32> = (0..TEXTS * TOKENS).map(|i| ((i * i * 31 + i * 7 + 3) % vocab) as u32).collect();
    let mut forest = Forest::new();
    for text in ids.chunks(TOKENS) {
        forest.push(text, None);
    }
    let rows: Vec<usize> = (0..forest.len()).collect();
    let logits = FrozenModel::new(folder.decoder()?).logits(&forest, &rows)?.reshape((TEXTS, TOKENS, vocab))?;
    let ids = Tensor::from_vec(ids, (TEXTS, TOKENS), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("input_ids", ids), ("logits", logits)]), out)?;
    Ok(())
}
