//! The prompts of a run: all prepared, or read from the dataset and tokenized on demand.

use super::lazy_selection::{DatasetRows, LazySelection};
use super::length_cache::counted;
use super::row_verdict::ParsedRow;
use super::splitting::{SplitTexts, TextOutline};
use super::usable_rows::{RowPart, UsableSummary};
use super::{DatasetKind, DatasetReader, Prompt, PromptDigest};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::data::{Dataset, DatasetTable};
use crate::dist::World;
use crate::ops::top_divergence::LikelyToken;
use crate::ranks::RunRanks;
use crate::{Error, Result};
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Prefix of a fingerprint that was computed from rows instead of tokens.
pub(crate) const ROWS_PREFIX: &str = "rows:";

/// Size of the cache of recent prompts, in bytes.
const RECENT_BYTES: usize = 16 << 20;

/// Minimum number of rows per tokenizing thread.
const ROWS_A_THREAD: usize = 32;

/// Replaces the number of unlearned tokens if these are not all at the beginning.
const MASKED: usize = u32::MAX as usize;

/// Number of rows that are prepared at a time when all are prepared.
const TOGETHER: usize = 4096;

/// The prompts of a run: all prepared, or read from the dataset and tokenized on demand.
pub(crate) struct PromptSet {
    /// All prompts, if they have been prepared.
    all: OnceLock<Vec<Arc<Prompt>>>,
    source: PromptSource,
    /// Names of the dataset's other columns.
    columns: BTreeSet<String>,
    /// Whether any prompt is a conversation.
    chat: bool,
    /// Length of the longest prompt, if it is long enough for a warning.
    longest: usize,
}

/// Origin of prompts.
enum PromptSource {
    /// All prompts were prepared at the start.
    Prepared,
    Rows(Box<LazyRows>),
    Cut(Box<SplitTexts>),
}

/// Rows that are prepared on demand.
struct LazyRows {
    reader: DatasetReader,
    kind: DatasetKind,
    table: DatasetTable,
    places: RowSelection,
    fingerprint: String,
    recent: Mutex<RecentPrompts>,
}

/// Selection of the rows in use.
enum RowSelection {
    /// Usable rows, in the order of training.
    Usable(Vec<RowPart>),
    /// All usable rows, judged when they are drawn.
    All(Box<LazySelection>),
}

/// Recently used prompts.
#[derive(Default)]
struct RecentPrompts {
    prompts: HashMap<usize, Arc<Prompt>>,
    /// Positions and sizes of the prompts, oldest first.
    order: VecDeque<(usize, usize)>,
    bytes: usize,
}

impl RecentPrompts {
    fn keep(&mut self, prompt: &Arc<Prompt>) {
        let answers = prompt.answers.as_ref().map_or(0, |a| a.chosen.len() + a.rejected.len());
        let lists = prompt.answers.iter().flat_map(|a| &a.likely_tokens).flatten();
        let taught = lists.map(|list| size_of::<Vec<LikelyToken>>() + size_of_val(list.as_slice())).sum::<usize>();
        let columns = prompt.columns.values().map(|value| 128 + value.as_str().map_or(256, str::len));
        let size = 512 + prompt.text.len() + 4 * (prompt.tokens.len() + answers) + columns.sum::<usize>() + taught;
        if self.prompts.insert(prompt.index, prompt.clone()).is_some() {
            return;
        }
        self.order.push_back((prompt.index, size));
        self.bytes += size;
        while self.bytes > RECENT_BYTES
            && let Some((index, size)) = self.order.pop_front()
        {
            self.prompts.remove(&index);
            self.bytes -= size;
        }
    }
}

impl From<Vec<Arc<Prompt>>> for PromptSet {
    fn from(all: Vec<Arc<Prompt>>) -> Self {
        let columns = all.iter().flat_map(|prompt| prompt.columns.keys().cloned()).collect();
        let (chat, longest) = (all.iter().any(|prompt| prompt.chat), all.iter().map(|prompt| prompt.tokens.len()).max());
        Self { all: OnceLock::from(all), source: PromptSource::Prepared, columns, chat, longest: longest.unwrap_or(0) }
    }
}

impl From<SplitTexts> for PromptSet {
    fn from(cut: SplitTexts) -> Self {
        let Self { columns, chat, longest, .. } = cut.texts();
        let (columns, chat, longest) = (columns.clone(), *chat, *longest);
        Self { all: OnceLock::new(), source: PromptSource::Cut(Box::new(cut)), columns, chat, longest }
    }
}

impl DatasetReader {
    /// Reads a dataset of this kind, or the built-in prompts, and finds the usable rows. They are tokenized on demand. Also returns a
    /// warning that names skipped rows.
    pub(crate) fn read(&self, given: Option<&Dataset>, kind: DatasetKind, world: &World) -> Result<(PromptSet, Option<String>)> {
        if !matches!(kind, DatasetKind::Prompts) {
            kind.dataset(given)?;
        }
        if let Some(detail) = kind.lacks_prompt_limit().filter(|_| self.longest_prompt.is_some()) {
            return Err(Error::setting("max_prompt_length", detail));
        }
        let (table, UsableSummary { used, sums, hash, columns, warning }) = self.look(given, kind, world)?;
        let fingerprint = format!("{ROWS_PREFIX}{hash}");
        let rows = LazyRows {
            reader: self.clone(),
            kind,
            table,
            places: RowSelection::Usable(used),
            fingerprint,
            recent: Mutex::default(),
        };
        let source = PromptSource::Rows(Box::new(rows));
        Ok((PromptSet { all: OnceLock::new(), source, columns, chat: sums.chat, longest: sums.longest }, warning))
    }

    /// Opens a dataset whose rows are drawn from all of them. They are judged when they are drawn or, if their lengths are needed, now.
    pub(crate) fn read_drawn(
        &self,
        dataset: &Dataset,
        kind: DatasetKind,
        counted: bool,
        world: &World,
    ) -> Result<(PromptSet, Vec<String>)> {
        if let Some(detail) = kind.lacks_prompt_limit().filter(|_| self.longest_prompt.is_some()) {
            return Err(Error::setting("max_prompt_length", detail));
        }
        let task = ProgressTask::new(Activity::FindingRows).with_total(None, ProgressUnit::Rows);
        let table = DatasetTable::locate(dataset, &RunRanks(world), |_| task.add(1))?;
        drop(task);
        let drawing = LazySelection::new(kind, table.count(), self.strict);
        let of = DatasetRows { reader: self, kind, table: &table };
        let (columns, fingerprint) = drawing.begin(of)?;
        if counted || drawing.is_small(&table) {
            let all = world.gather("datasets that are judged together", fingerprint.clone())?;
            let are_same = all.iter().all(|other| *other == fingerprint);
            drawing.judge_all(of, are_same.then_some(world))?;
        }
        let warnings = drawing.describe(of);
        let places = RowSelection::All(Box::new(drawing));
        let rows = LazyRows { reader: self.clone(), kind, table, places, fingerprint, recent: Mutex::default() };
        let source = PromptSource::Rows(Box::new(rows));
        Ok((PromptSet { all: OnceLock::new(), source, columns, chat: false, longest: 0 }, warnings))
    }
}

impl LazyRows {
    fn len(&self) -> usize {
        match &self.places {
            RowSelection::Usable(used) => used.len(),
            RowSelection::All(drawing) => drawing.len(),
        }
    }

    /// Returns the judgements of the rows, if these are judged when they are drawn.
    fn drawing(&self) -> Option<&LazySelection> {
        if let RowSelection::All(drawing) = &self.places { Some(drawing) } else { None }
    }

    fn readable(&self) -> DatasetRows<'_> {
        DatasetRows { reader: &self.reader, kind: self.kind, table: &self.table }
    }

    fn read(&self, index: usize) -> Result<ParsedRow> {
        let RowPart { row, part } = match &self.places {
            RowSelection::Usable(used) => used[index],
            RowSelection::All(drawing) => drawing.used(index),
        };
        let (place, columns) = self.table.row(row)?;
        let parts = self.reader.rows_of(self.kind, row, &place, columns)?;
        parts.into_iter().nth(part).ok_or(Error::Bug("a row has lost a part"))
    }

    fn prepare(&self, index: usize) -> Result<Arc<Prompt>> {
        let prepared = self.reader.prepare(self.kind, self.read(index)?)?;
        Ok(Arc::new(Prompt { index, ..prepared.prompt }))
    }

    fn lengths(&self, world: &World) -> Result<Vec<usize>> {
        let counts = counted(&self.fingerprint, self.len(), world, |rows| {
            let task = ProgressTask::new(Activity::CountingTokens).with_total(rows.len() as u64, ProgressUnit::Rows);
            let length = |index| {
                task.add(1);
                Ok([self.reader.length(self.kind, self.read(index)?)?])
            };
            let lengths = rows.into_par_iter().with_min_len(ROWS_A_THREAD).map(length);
            lengths.collect::<Vec<_>>().into_iter().collect()
        })?;
        Ok(counts.into_flattened())
    }

    /// Returns each row's length and its number of unlearned tokens at the beginning, or [`MASKED`].
    fn outlines(&self, whole: bool, world: &World) -> Result<Vec<[usize; 2]>> {
        counted(&format!("{} outlines {whole}", self.fingerprint), self.len(), world, |rows| {
            let task = ProgressTask::new(Activity::CountingTokens).with_total(rows.len() as u64, ProgressUnit::Rows);
            let outline = |index| {
                task.add(1);
                let row = self.read(index)?;
                if row.is_plain(self.kind) {
                    return Ok([self.reader.length(self.kind, row)?, 0]);
                }
                Ok(match TextOutline::from_prompt(&self.reader.prepare(self.kind, row)?.prompt, whole) {
                    TextOutline::Plain(length, unlearned) => [length, unlearned],
                    TextOutline::Masked(mask) => [mask.len(), MASKED],
                })
            };
            let outlines = rows.into_par_iter().with_min_len(ROWS_A_THREAD).map(outline);
            outlines.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Returns the outline of a row, given the `outlines` of all.
    fn outline(&self, outlines: &[[usize; 2]], index: usize, whole: bool) -> Result<TextOutline> {
        match outlines[index] {
            [_, MASKED] => Ok(TextOutline::from_prompt(&*self.prepare(index)?, whole)),
            [length, unlearned] => Ok(TextOutline::Plain(length, unlearned)),
        }
    }

    fn prepared(&self, indices: &[usize]) -> Result<Vec<Arc<Prompt>>> {
        indices.par_iter().with_min_len(ROWS_A_THREAD).map(|index| self.prepare(*index)).collect::<Vec<_>>().into_iter().collect()
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, RecentPrompts> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PromptSet {
    /// Returns the number of prompts, including those that turn out to be unusable when they are drawn.
    pub(crate) fn len(&self) -> usize {
        match &self.source {
            PromptSource::Rows(rows) => rows.len(),
            PromptSource::Cut(cut) => cut.len(),
            PromptSource::Prepared => self.all.get().map_or(0, Vec::len),
        }
    }

    /// Returns the prompts at these positions.
    ///
    /// # Errors
    /// If a row has changed since it was first read.
    pub(crate) fn get(&self, indices: &[usize]) -> Result<Vec<Arc<Prompt>>> {
        if let Some(all) = self.all.get().filter(|_| !self.are_drawn()) {
            return Ok(indices.iter().map(|index| all[*index].clone()).collect());
        }
        let rows = match &self.source {
            PromptSource::Rows(rows) => rows,
            PromptSource::Cut(cut) => return cut.get(indices),
            PromptSource::Prepared => return Ok(Vec::new()),
        };
        let missing: Vec<usize> = {
            let recent = rows.recent();
            indices.iter().copied().filter(|index| !recent.prompts.contains_key(index)).collect()
        };
        let new: HashMap<usize, Arc<Prompt>> =
            rows.prepared(&missing)?.into_iter().map(|prompt| (prompt.index, prompt)).collect();
        let mut recent = rows.recent();
        let found = indices.iter().map(|index| new.get(index).or_else(|| recent.prompts.get(index)).cloned());
        let found: Option<Vec<_>> = found.collect();
        new.values().for_each(|prompt| recent.keep(prompt));
        found.ok_or(Error::Bug("a prompt was not prepared"))
    }

    /// Returns the rows that are judged when they are drawn, with their judgements.
    fn drawn(&self) -> Option<(&LazyRows, &LazySelection)> {
        if let PromptSource::Rows(rows) = &self.source { Some((rows, rows.drawing()?)) } else { None }
    }

    /// Returns whether prompts are drawn in the order of all rows, some of which may turn out to be unusable.
    pub(crate) fn are_drawn(&self) -> bool {
        self.drawn().is_some()
    }

    /// Returns whether all rows have been judged.
    pub(crate) fn are_judged(&self) -> bool {
        self.drawn().is_none_or(|(_, drawing)| drawing.is_done())
    }

    /// Returns which of these positions are usable.
    ///
    /// # Errors
    /// If a row ends the run: it has changed, is not JSON, or is unusable where that is an error.
    pub(crate) fn usable(&self, indices: &[usize]) -> Result<Vec<bool>> {
        match self.drawn() {
            Some((rows, drawing)) => drawing.usable(rows.readable(), indices),
            None => Ok(vec![true; indices.len()]),
        }
    }

    /// Returns the number of usable positions among those judged so far.
    ///
    /// # Errors
    /// If all were judged and none is usable; the reason is the first row's.
    pub(crate) fn usable_so_far(&self) -> Result<usize> {
        let Some((_, drawing)) = self.drawn() else { return Ok(self.len()) };
        drawing.check_some()?;
        Ok(drawing.usable_so_far())
    }

    /// Takes the warnings about rows that were drawn since the last call.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.drawn().map(|(_, drawing)| drawing.warnings()).unwrap_or_default()
    }

    /// Returns at most the first `count` prompts.
    ///
    /// # Errors
    /// As [`PromptSet::get`] and [`PromptSet::usable`]; if there are no prompts, the reason why the first row is unusable.
    pub(crate) fn first(&self, count: usize) -> Result<Vec<Arc<Prompt>>> {
        let (mut first, mut next) = (Vec::new(), 0);
        while first.len() < count && next < self.len() {
            let some: Vec<usize> = (next..self.len().min(next + count - first.len())).collect();
            next += some.len();
            first.extend(some.iter().zip(self.usable(&some)?).filter(|(_, usable)| *usable).map(|(index, _)| *index));
        }
        if first.is_empty() {
            self.usable_so_far()?;
        }
        self.get(&first)
    }

    /// Prepares and stores all prompts.
    ///
    /// # Errors
    /// As [`PromptSet::get`].
    pub(crate) fn all(&self) -> Result<&[Arc<Prompt>]> {
        if self.all.get().is_none() {
            if let Some((rows, drawing)) = self.drawn() {
                drawing.judge_all(rows.readable(), None)?;
            }
            let mut all = Vec::with_capacity(self.len());
            self.each(0..self.len(), |prompt| {
                all.push(prompt);
                Ok(())
            })?;
            let _ = self.all.set(all);
        }
        Ok(self.all.get().map_or(&[], Vec::as_slice))
    }

    /// Prepares the prompts at these positions, some at a time, and passes each to the callback.
    ///
    /// # Errors
    /// As [`PromptSet::get`].
    pub(super) fn each(
        &self,
        order: impl IntoIterator<Item = usize>,
        mut take: impl FnMut(Arc<Prompt>) -> Result<()>,
    ) -> Result<()> {
        let mut order = order.into_iter();
        loop {
            let mut some: Vec<usize> = order.by_ref().take(TOGETHER).collect();
            if some.is_empty() {
                return Ok(());
            }
            if self.are_drawn() {
                let mut usable = self.usable(&some)?.into_iter();
                some.retain(|_| usable.next() == Some(true));
            }
            let prompts = match (self.all.get(), &self.source) {
                (None, PromptSource::Rows(rows)) => rows.prepared(&some)?,
                _ => self.get(&some)?,
            };
            prompts.into_iter().try_for_each(&mut take)?;
        }
    }

    /// Returns the number of tokens of each prompt with its first answer. The ranks divide the work.
    ///
    /// # Errors
    /// As [`PromptSet::get`].
    pub(crate) fn lengths(&self, world: &World) -> Result<Vec<usize>> {
        match (self.all.get(), &self.source) {
            (None, PromptSource::Rows(rows)) => rows.lengths(world),
            (None, PromptSource::Cut(cut)) => Ok(cut.lengths()),
            (all, _) => Ok(all.into_iter().flatten().map(|prompt| prompt.length()).collect()),
        }
    }

    /// Passes the outlines of the texts at these positions to the callback, in order. The ranks divide the work. If `whole`, prompts are
    /// learned.
    ///
    /// # Errors
    /// As [`PromptSet::get`].
    pub(super) fn outlines(
        &self,
        order: impl IntoIterator<Item = usize>,
        (whole, world): (bool, &World),
        mut take: impl FnMut(usize, &TextOutline),
    ) -> Result<()> {
        if let (None, PromptSource::Rows(rows)) = (self.all.get(), &self.source) {
            let outlines = rows.outlines(whole, world)?;
            let mut order = order.into_iter();
            loop {
                let some: Vec<usize> = order.by_ref().take(TOGETHER).collect();
                if some.is_empty() {
                    return Ok(());
                }
                let outline = |text: &usize| Ok((*text, rows.outline(&outlines, *text, whole)?));
                let all = some.par_iter().with_min_len(ROWS_A_THREAD).map(outline).collect::<Vec<Result<_>>>();
                for of_text in all {
                    let (text, outline) = of_text?;
                    take(text, &outline);
                }
            }
        }
        let order: Vec<usize> = order.into_iter().collect();
        order.iter().zip(self.get(&order)?).for_each(|(text, prompt)| take(*text, &TextOutline::from_prompt(&prompt, whole)));
        Ok(())
    }

    /// Returns the names of the dataset's other columns.
    pub(crate) fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    /// Returns whether any prompt is a conversation.
    pub(crate) fn has_chat(&self) -> bool {
        self.chat || self.drawn().is_some_and(|(_, drawing)| drawing.has_chat())
    }

    /// Returns the length of the longest prompt, or a smaller number if its completions end within the model's context anyway.
    pub(crate) fn longest(&self) -> usize {
        self.drawn().map_or(self.longest, |(_, drawing)| drawing.longest())
    }

    /// Returns a hash of everything that determines the prompts' tokens and columns.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        match &self.source {
            PromptSource::Rows(rows) => Ok(rows.fingerprint.clone()),
            PromptSource::Cut(cut) => cut.fingerprint(),
            PromptSource::Prepared => self.fingerprint_of_tokens(),
        }
    }

    /// Returns the hash of the prompts' tokens and columns, as stored by checkpoints from before rows were tokenized on demand.
    pub(crate) fn fingerprint_of_tokens(&self) -> Result<String> {
        let mut hash = PromptDigest::default();
        self.each(0..self.len(), |prompt| hash.add(&prompt))?;
        Ok(hash.done())
    }
}

#[cfg(test)]
mod tests;
