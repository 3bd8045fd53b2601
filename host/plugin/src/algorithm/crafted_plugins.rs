//! Handmade plugins of contract 1.0 with fixed answers: core modules with the answers in their memory.

use super::{Column, Data, Pair};
use crate::{Metric, PluginSource};
use std::fmt::Write;

/// Addresses at which the answers begin and at which arguments are stored.
const ANSWERS: u32 = 1024;
const ARGUMENTS: u32 = 1 << 20;

/// A memory with values as the canonical ABI lays them out.
#[derive(Default)]
struct CraftedMemory(Vec<u8>);

impl CraftedMemory {
    /// Adds bytes at a multiple of 8. Returns their address.
    fn put(&mut self, bytes: &[u8]) -> u32 {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        let at = ANSWERS + self.0.len() as u32;
        self.0.extend(bytes);
        at
    }

    /// Adds items whose layout is complete. Returns the list's address and length.
    fn list(&mut self, items: &[Vec<u8>]) -> [u8; 8] {
        let at = self.put(&items.concat());
        pair(at, items.len() as u32)
    }

    fn text(&mut self, text: &str) -> [u8; 8] {
        let at = self.put(text.as_bytes());
        pair(at, text.len() as u32)
    }

    fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) -> [u8; 8] {
        let items: Vec<Vec<u8>> = texts.into_iter().map(|text| self.text(text).to_vec()).collect();
        self.list(&items)
    }

    fn column(&mut self, column: &Column) -> Vec<u8> {
        let name = self.text(&column.name);
        let values = self.list(&column.values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>());
        let missing = self.list(&column.missing.iter().map(|entry| entry.to_le_bytes().to_vec()).collect::<Vec<_>>());
        [&name[..], &[column.unit as u8, 0, 0, 0], &values, &missing].concat()
    }

    fn columns(&mut self, columns: &[Column]) -> [u8; 8] {
        let items: Vec<Vec<u8>> = columns.iter().map(|column| self.column(column)).collect();
        self.list(&items)
    }

    fn metrics(&mut self, metrics: &[Metric]) -> [u8; 8] {
        let items = metrics.iter().map(|metric| {
            let name = self.text(&metric.name);
            let (value, weight) = (metric.value.to_le_bytes(), metric.weight.to_le_bytes());
            [&name[..], &value, &weight, &[metric.reduction as u8, 0, 0, 0, 0, 0, 0, 0]].concat()
        });
        let items: Vec<Vec<u8>> = items.collect();
        self.list(&items)
    }
}

fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first.to_le_bytes());
    both[4..].copy_from_slice(&second.to_le_bytes());
    both
}

/// The answers of an algorithm.
#[derive(Clone)]
pub(crate) struct CraftedAlgorithm {
    pub needs: Vec<&'static str>,
    pub stateless: bool,
    pub data: Data,
    /// Whether the plugin exports an estimator and a pairing.
    pub exports: (bool, bool),
    pub estimates: Vec<Column>,
    pub pairs: Vec<Pair>,
    pub loss: f64,
    pub derivatives: Vec<Column>,
    /// Metrics of all answers.
    pub metrics: Vec<Metric>,
    /// WebAssembly that runs in `loss` before the answer: `$batch` is the batch's address, `$loss` that of the loss in the answer.
    pub before_loss: &'static str,
}

impl CraftedAlgorithm {
    /// Returns a component's source.
    pub(crate) fn source(&self) -> PluginSource {
        PluginSource::new("crafted".into(), self.module().into())
    }

    /// Returns the module, which rlhost wraps into a component.
    fn module(&self) -> Vec<u8> {
        let mut memory = CraftedMemory::default();
        let info = info(&mut memory, &self.needs, self.stateless);
        let nothing = memory.put(&[0; 16]);
        let names = memory.texts(self.data.estimates.iter().map(String::as_str));
        let data = memory.put(&[&[0, 0, 0, 0, self.data.source as u8, self.data.shape as u8, 0, 0][..], &names].concat());
        let metrics = memory.metrics(&self.metrics);
        let columns = memory.columns(&self.estimates);
        let estimates = memory.put(&[&[0, 0, 0, 0][..], &columns, &metrics].concat());
        let pairs = memory.list(&self.pairs.iter().map(|two| pair(two.chosen, two.rejected).to_vec()).collect::<Vec<_>>());
        let choice = memory.put(&[&[0, 0, 0, 0][..], &pairs, &metrics].concat());
        let derivatives = memory.columns(&self.derivatives);
        let gradient = memory.put(&[&[0; 8][..], &self.loss.to_le_bytes(), &derivatives, &metrics].concat());
        let (estimator, pairing) = self.exports;
        let answer = |exported: bool, name: &str, at: u32| match exported {
            true => format!("(func (export \"rlhost:plugin/{name}\") (param i32) (result i32) (i32.const {at}))"),
            false => String::new(),
        };
        let functions = format!(
            "(func (export \"rlhost:plugin/algorithm@1.0.0#describe-data\") (result i32) (i32.const {data}))
            (func (export \"rlhost:plugin/algorithm@1.0.0#loss\") (param $batch i32) (result i32)
                (local $loss i32) (local.set $loss (i32.const {loss}))
                {}
                (i32.const {gradient}))
            {}
            {}",
            self.before_loss,
            answer(estimator, "estimator@1.0.0#estimate", estimates),
            answer(pairing, "pairing@1.0.0#choose", choice),
            loss = gradient + 8,
        );
        module(&memory, (info, nothing), &functions)
    }
}

/// Returns a reward that scores no completion.
pub(crate) fn reward(needs: &[&str]) -> PluginSource {
    let mut memory = CraftedMemory::default();
    let described = (info(&mut memory, needs, true), memory.put(&[0; 16]));
    let rows = memory.put(&[0; 64]);
    let scores = memory.put(&[&[0, 0, 0, 0][..], &pair(rows, 0), &pair(0, 0)].concat());
    let functions = format!(
        "(func (export \"rlhost:plugin/reward@1.0.0#score\")
            (param i64 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
            (i32.store (i32.const {}) (local.get 7))
            (i32.const {scores}))",
        scores + 8
    );
    PluginSource::new("crafted".into(), module(&memory, described, &functions).into())
}

/// Lays out a plugin's description.
fn info(memory: &mut CraftedMemory, needs: &[&str], stateless: bool) -> u32 {
    let texts = ["crafted", "1.0", "", "{}"].map(|text| memory.text(text)).concat();
    let needs = memory.texts(needs.iter().copied());
    memory.put(&[&texts[..], &needs, &[u8::from(stateless), 0, 0, 0]].concat())
}

fn module(memory: &CraftedMemory, (info, nothing): (u32, u32), functions: &str) -> Vec<u8> {
    let mut bytes = String::new();
    memory.0.iter().for_each(|byte| write!(bytes, "\\{byte:02x}").unwrap());
    let text = format!(
        "(module
            (memory (export \"memory\") 64)
            (global $next (mut i32) (i32.const {ARGUMENTS}))
            (global $calls (mut i32) (i32.const 0))
            (data (i32.const {ANSWERS}) \"{bytes}\")
            (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32)
                (local $at i32)
                (local.set $at (global.get $next))
                (global.set $next (i32.and (i32.add (i32.add (local.get $at) (local.get 3)) (i32.const 15)) (i32.const -16)))
                (local.get $at))
            (func (export \"rlhost:plugin/plugin@1.0.0#describe\") (result i32) (i32.const {info}))
            (func (export \"rlhost:plugin/plugin@1.0.0#configure\") (param i32 i32) (result i32) (i32.const {nothing}))
            {functions})"
    );
    wat::parse_str(text).unwrap()
}
