//! Batches of sequences with named columns, as defined by the contract: reads their columns, and builds the columns to return.

pub use crate::bindings::types::{Batch, Column, Scale, Turn, Unit, WeightedReward};
use crate::rows::rows;
use crate::{Error, columns};
use std::ops::Range;

impl Batch {
    /// Returns the column with this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the values of the column with this name, one per unit.
    ///
    /// # Errors
    /// If the column is missing, which happens only if `needs` lacks it, if it has another unit, or if some entries have no value.
    pub fn values(&self, name: &str, unit: Unit) -> Result<&[f32], Error> {
        self.optional(name, unit)?.ok_or_else(|| Error::Input(format!("the batch has no column {name:?}; `needs` must list it")))
    }

    /// Returns the values of the column with this name, if it exists.
    ///
    /// # Errors
    /// If the column has another unit, or some entries have no value.
    pub fn optional(&self, name: &str, unit: Unit) -> Result<Option<&[f32]>, Error> {
        match self.column(name) {
            Some(column) if column.unit != unit => {
                Err(Error::Input(format!("the column {name:?} has an entry per {}, not per {}", noun(column.unit), noun(unit))))
            }
            Some(column) if !column.missing.is_empty() => {
                Err(Error::Input(format!("{} entries of the column {name:?} have no value", column.missing.len())))
            }
            column => Ok(column.map(|column| &column.values[..])),
        }
    }

    /// Returns the tokens of each sequence, as ranges.
    pub fn sequences(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        rows(&self.tokens)
    }

    /// Returns the sequences of each group, as ranges.
    pub fn grouped(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        rows(&self.groups)
    }

    /// Returns the tokens that count: those whose mask is 1.
    pub fn counted(&self) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
        crate::rows::counted(&self.mask, 0..self.mask.len())
    }

    /// Returns the number of entries of a column with this unit; for the whole micro-batch, that of its first such column.
    #[must_use]
    pub fn entries(&self, unit: Unit) -> usize {
        match unit {
            Unit::Token => self.mask.len(),
            Unit::PromptToken => self.prompt_tokens.last().map_or(0, |&end| end as usize),
            Unit::Turn => self.turns.len(),
            Unit::Sequence => self.tokens.len().saturating_sub(1),
            Unit::Group => self.groups.len().saturating_sub(1),
            Unit::MicroBatch => self.columns.iter().find(|column| column.unit == unit).map_or(0, |column| column.values.len()),
        }
    }

    /// Returns one zero per unit, to be filled with derivatives.
    #[must_use]
    pub fn zeros(&self, unit: Unit) -> Vec<f32> {
        vec![0.0; self.entries(unit)]
    }

    /// Adds a column.
    #[must_use]
    pub fn with_column(mut self, column: Column) -> Self {
        self.columns.push(column);
        self
    }

    /// Checks that offsets, turns and columns fit together; an exported plugin calls this before anything else.
    ///
    /// # Errors
    /// If they don't.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Input(what));
        let (sequences, tokens) = (self.entries(Unit::Sequence), self.entries(Unit::Token));
        if !ends_at(&self.groups, sequences) || !ends_at(&self.tokens, tokens) {
            return wrong(format!("the offsets of the batch don't fit {sequences} sequences of {tokens} tokens"));
        }
        let prompt_tokens = self.entries(Unit::PromptToken);
        if !self.prompt_tokens.is_empty()
            && (self.prompt_tokens.len() != self.groups.len() || !ends_at(&self.prompt_tokens, prompt_tokens))
        {
            return wrong(format!("the offsets of prompts don't fit {} groups", self.entries(Unit::Group)));
        }
        self.check_turns()?;
        for column in &self.columns {
            let (given, wanted) = (column.values.len(), self.entries(column.unit));
            if given != wanted {
                return wrong(format!("the column {:?} has {given} entries; it needs {wanted}", column.name));
            }
            if !column.missing.is_sorted_by(|a, b| a < b) || column.missing.last().is_some_and(|&last| last as usize >= given) {
                return wrong(format!("`missing` of the column {:?} is not ascending within {given} entries", column.name));
            }
        }
        Ok(())
    }

    fn check_turns(&self) -> Result<(), Error> {
        let (mut sequence, mut end) = (0, 0);
        for (number, turn) in self.turns.iter().enumerate() {
            let own = self.tokens.get(turn.sequence as usize..(turn.sequence as usize).saturating_add(2));
            let fits = own.is_some_and(|own| own[0] <= turn.start && turn.start <= turn.end && turn.end <= own[1]);
            let follows = turn.sequence > sequence || (turn.sequence == sequence && turn.start >= end);
            if !fits || !follows {
                return Err(Error::Input(format!("turn {number} is not within its sequence, after the turn before it")));
            }
            (sequence, end) = (turn.sequence, turn.end);
        }
        Ok(())
    }

    /// Returns the reward columns of the environments' turns, each with the environment's name.
    pub(crate) fn turn_rewards(&self) -> impl Iterator<Item = (&str, &Column)> {
        let prefix = columns::turn_reward("");
        self.columns.iter().filter_map(move |column| Some((column.name.strip_prefix(&prefix)?, column)))
    }
}

impl Default for Batch {
    /// Creates a batch without sequences.
    fn default() -> Self {
        Self {
            step: 0,
            seed: 0,
            groups: vec![0],
            tokens: vec![0],
            prompt_tokens: Vec::new(),
            turns: Vec::new(),
            mask: Vec::new(),
            columns: Vec::new(),
            scale: Scale::default(),
        }
    }
}

impl Default for Scale {
    /// Creates the totals of an empty step.
    fn default() -> Self {
        Self { items: 0, tokens: 0, prompt_tokens: 0, max_completion_length: 0 }
    }
}

fn noun(unit: Unit) -> &'static str {
    match unit {
        Unit::Token => "token",
        Unit::PromptToken => "token of a prompt",
        Unit::Turn => "turn",
        Unit::Sequence => "sequence",
        Unit::Group => "group",
        Unit::MicroBatch => "sequence of the whole micro-batch",
    }
}

/// Returns whether offsets begin with 0, never decrease, and end with this number.
fn ends_at(offsets: &[u32], end: usize) -> bool {
    offsets.first() == Some(&0) && offsets.is_sorted() && offsets.last().is_some_and(|&last| last as usize == end)
}

impl Column {
    /// Creates a column with one value per entry.
    pub fn new(name: impl Into<String>, unit: Unit, values: Vec<f32>) -> Self {
        Self { name: name.into(), unit, values, missing: Vec::new() }
    }

    /// Creates a column of entries that may have no value.
    pub fn sparse(name: impl Into<String>, unit: Unit, entries: impl IntoIterator<Item = Option<f32>>) -> Self {
        let mut column = Self::new(name, unit, Vec::new());
        for (entry, value) in entries.into_iter().enumerate() {
            column.values.push(value.unwrap_or(0.0));
            if value.is_none() {
                column.missing.push(entry as u32);
            }
        }
        column
    }

    /// Returns the entries; `None` where there is no value.
    pub fn entries(&self) -> impl Iterator<Item = Option<f32>> + '_ {
        let mut missing = self.missing.iter().peekable();
        self.values.iter().enumerate().map(move |(entry, value)| match missing.next_if(|&&m| m as usize == entry) {
            Some(_) => None,
            None => Some(*value),
        })
    }
}

/// The counted tokens of selected sequences, concatenated: the input of losses over whole completions.
pub(crate) struct SelectedTokens {
    /// Offsets of each sequence in columns of the selected tokens.
    pub(crate) offsets: Vec<u32>,
    /// Positions of the selected tokens in columns of the batch.
    places: Vec<usize>,
}

impl SelectedTokens {
    pub(crate) fn new(batch: &Batch, sequences: impl IntoIterator<Item = usize>) -> Self {
        let mut selected = Self { offsets: vec![0], places: Vec::new() };
        for sequence in sequences {
            let tokens = batch.tokens[sequence] as usize..batch.tokens[sequence + 1] as usize;
            selected.places.extend(crate::rows::counted(&batch.mask, tokens));
            selected.offsets.push(selected.places.len() as u32);
        }
        selected
    }

    /// Returns the column with this name for the selected tokens.
    pub(crate) fn values(&self, batch: &Batch, name: &str) -> Result<Vec<f32>, Error> {
        batch.values(name, Unit::Token).map(|values| self.places.iter().map(|&i| values[i]).collect())
    }

    /// Returns the column with this name for the selected tokens, if it exists.
    pub(crate) fn optional(&self, batch: &Batch, name: &str) -> Result<Option<Vec<f32>>, Error> {
        Ok(batch.optional(name, Unit::Token)?.map(|values| self.places.iter().map(|&i| values[i]).collect()))
    }

    /// Writes derivatives of the selected tokens to their positions in a column of the batch.
    pub(crate) fn put(&self, derivatives: &[f32], column: &mut [f32]) -> Result<(), Error> {
        if derivatives.len() != self.places.len() {
            let (given, wanted) = (derivatives.len(), self.places.len());
            return Err(Error::Internal(format!("the loss has {given} derivatives for {wanted} tokens")));
        }
        self.places.iter().zip(derivatives).for_each(|(&i, &derivative)| column[i] = derivative);
        Ok(())
    }
}

/// Synthetic batches, for an algorithm's own tests.
pub mod testing {
    use super::{Batch, Scale};

    /// Returns a batch of groups of sequences with these numbers of tokens, which all count, without columns. The batch is a complete step.
    #[must_use]
    pub fn batch(groups: &[&[u32]]) -> Batch {
        let mut batch = Batch::default();
        for group in groups {
            for length in *group {
                batch.tokens.push(batch.tokens[batch.tokens.len() - 1] + length);
            }
            batch.groups.push(batch.tokens.len() as u32 - 1);
        }
        let tokens = batch.tokens[batch.tokens.len() - 1];
        batch.mask = vec![1; tokens as usize];
        let items = batch.tokens.len() as u32 - 1;
        batch.scale = Scale { items, tokens: u64::from(tokens), ..Scale::default() };
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played() -> Batch {
        let mut batch = testing::batch(&[&[2, 3], &[1]]);
        batch.prompt_tokens = vec![0, 4, 6];
        let turn = |sequence, start, end| Turn { sequence, start, end };
        batch.turns = vec![turn(0, 0, 2), turn(1, 2, 3), turn(1, 3, 5)];
        batch
            .with_column(Column::new("logp", Unit::Token, vec![0.0; 6]))
            .with_column(Column::sparse("turn_reward/game", Unit::Turn, [Some(1.0), None, Some(0.0)]))
            .with_column(Column::new("micro_batch/label", Unit::MicroBatch, vec![1.0; 9]))
    }

    #[test]
    fn columns_are_found_by_name_and_unit() {
        let batch = played();
        assert_eq!(batch.values("logp", Unit::Token), Ok(&[0.0; 6][..]));
        let told = |name: &str, unit| batch.values(name, unit).unwrap_err().to_string();
        assert!(told("ref_logp", Unit::Token).contains("ref_logp"));
        assert!(told("logp", Unit::Sequence).contains("per token, not per sequence"));
        assert!(told("turn_reward/game", Unit::Turn).contains("1 entries"));
        assert_eq!(batch.optional("ref_logp", Unit::Token), Ok(None));
        let turns: Vec<(&str, Vec<Option<f32>>)> = batch.turn_rewards().map(|(name, c)| (name, c.entries().collect())).collect();
        assert_eq!(turns, [("game", vec![Some(1.0), None, Some(0.0)])]);
        assert_eq!(batch.grouped().collect::<Vec<_>>(), [0..2, 2..3]);
        assert_eq!(batch.sequences().collect::<Vec<_>>(), [0..2, 2..5, 5..6]);
    }

    #[test]
    fn selected_tokens_leave_the_masked_out_and_derivatives_go_back_to_their_places() {
        let mut batch = played();
        batch.columns[0].values = vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        batch.mask[3] = 0;
        let selected = SelectedTokens::new(&batch, [1, 0]);
        assert_eq!(selected.offsets, [0, 2, 4]);
        assert_eq!(selected.values(&batch, "logp").unwrap(), [2.0, 4.0, 0.0, 1.0]);
        let mut column = batch.zeros(Unit::Token);
        selected.put(&[0.1, 0.2, 0.3, 0.4], &mut column).unwrap();
        assert_eq!(column, [0.3, 0.4, 0.1, 0.0, 0.2, 0.0]);
        assert!(matches!(selected.put(&[0.1; 3], &mut column), Err(Error::Internal(_))));
    }

    #[test]
    fn batches_that_do_not_fit_together_are_refused() {
        played().check().unwrap();
        Batch::default().check().unwrap();
        let broken: [fn(&mut Batch); 15] = [
            |b| b.groups = vec![0, 2],
            |b| b.groups.clear(),
            |b| b.groups = vec![0, 4, 3],
            |b| b.tokens = vec![0, 2, 5, 7],
            |b| b.tokens = vec![0, 5, 2, 6],
            |b| b.tokens = vec![1, 2, 5, 6],
            |b| b.mask.truncate(5),
            |b| b.prompt_tokens = vec![0, 6],
            |b| b.prompt_tokens = vec![0, 7, 6],
            |b| b.turns[2].sequence = 3,
            |b| b.turns[2].start = 2,
            |b| b.turns[2].end = 6,
            |b| b.columns[0].values.truncate(5),
            |b| b.columns[1].missing = vec![3],
            |b| b.columns[1].missing = vec![2, 1],
        ];
        for (number, breaks) in broken.into_iter().enumerate() {
            let mut batch = played();
            breaks(&mut batch);
            assert!(matches!(batch.check(), Err(Error::Input(_))), "{number}");
        }
        let mut two = played().with_column(Column::new("micro_batch/mismatched_logp", Unit::MicroBatch, vec![0.0; 8]));
        assert!(two.check().is_err());
        two.columns[3].values.push(0.0);
        assert!(two.check().is_ok());
    }
}
