//! Order of a dataset's rows. It depends only on seed and position, so a resumed run continues exactly where it stopped.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Position in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Cursor {
    /// Number of finished passes.
    pub epoch: u64,
    /// Number of rows taken in the current pass.
    pub taken: usize,
}

/// Returns rows in batches of a fixed size. An incomplete last batch of a pass is dropped or returned.
#[derive(Clone, Debug)]
pub struct Loader {
    rows: usize,
    /// Number of usable rows, as far as known.
    usable: usize,
    batch: usize,
    partial: bool,
    seed: u64,
    shuffle: bool,
    mix: bool,
    cursor: Cursor,
    order: Vec<usize>,
}

impl Loader {
    /// Creates a loader. `rows` must be at least `batch`, or at least one if incomplete batches are returned (`partial`).
    pub fn new(rows: usize, batch: usize, seed: u64, shuffle: bool, partial: bool) -> Self {
        let (usable, mix, cursor, order) = (rows, false, Cursor::default(), Vec::new());
        let mut this = Self { rows, usable, batch, partial, seed, shuffle, mix, cursor, order };
        this.deal();
        this
    }

    /// Returns this loader for a dataset with only this many usable rows. Its batches then come from [`Loader::next_usable`].
    #[must_use]
    pub fn with_usable(self, usable: usize) -> Self {
        Self { usable, ..self }
    }

    /// Returns this loader with the rows of each batch shuffled, for batches that several updates train on in parts.
    #[must_use]
    pub fn with_mixing(self, mix: bool) -> Self {
        // If all rows are shuffled, so are the rows of a batch.
        Self { mix: mix && !self.shuffle, ..self }
    }

    fn deal(&mut self) {
        self.order = (0..self.rows).collect();
        if self.shuffle {
            shuffle(&mut self.order, self.seed, self.cursor.epoch);
        }
    }

    /// Moves to a position.
    pub fn seek(&mut self, cursor: Cursor) {
        // The order of a pass depends only on its number.
        let same_pass = self.cursor.epoch == cursor.epoch;
        self.cursor = cursor;
        if !same_pass {
            self.deal();
        }
    }

    /// Returns the number of batches per pass.
    pub fn batches_per_epoch(&self) -> usize {
        if self.partial { self.usable.div_ceil(self.batch) } else { self.usable / self.batch }
    }

    /// Returns the size of the incomplete batch at the end of a pass; 0 if there is none.
    pub fn partial_batch_size(&self) -> usize {
        if self.partial { self.usable % self.batch } else { 0 }
    }

    /// Returns the number of rows per batch, and whether a pass may end with an incomplete batch.
    pub fn batch(&self) -> (usize, bool) {
        (self.batch, self.partial)
    }

    /// Returns whether the next batch starts a new pass.
    pub fn is_at_end(&self) -> bool {
        let left = self.rows.saturating_sub(self.cursor.taken);
        left < if self.partial { 1 } else { self.batch }
    }

    /// Returns whether the next batch starts a new pass if only some rows are usable; `judge` decides which of the next rows are.
    ///
    /// # Errors
    /// Errors of `judge`.
    pub fn is_at_usable_end<E>(&self, mut judge: impl FnMut(&[usize]) -> Result<Vec<bool>, E>) -> Result<bool, E> {
        let (mut missing, mut end) = (if self.partial { 1 } else { self.batch }, self.cursor.taken);
        while missing > 0 && end < self.rows {
            let some = &self.order[end..(end + missing).min(self.rows)];
            missing -= judge(some)?.into_iter().filter(|usable| *usable).count();
            end += some.len();
        }
        Ok(missing > 0)
    }

    /// Returns the next batch's row indices.
    pub fn next_batch(&mut self) -> Vec<usize> {
        if self.is_at_end() {
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, taken: 0 };
            self.deal();
        }
        let end = (self.cursor.taken + self.batch).min(self.rows);
        let batch = self.order[self.cursor.taken..end].to_vec();
        self.taken(batch, end)
    }

    /// Returns the next batch without the rows for which `skips` holds, given pass and row, and the number of skipped rows. Rows at the end
    /// of a pass that don't fill a batch are dropped. A batch that finds too few rows in an entire pass includes skipped ones.
    pub fn next_batch_without(&mut self, skips: impl Fn(u64, usize) -> bool) -> (Vec<usize>, usize) {
        let mut left_out = 0;
        loop {
            let Cursor { epoch, taken: begun } = self.cursor;
            let (mut batch, mut skipped, mut end) = (Vec::with_capacity(self.batch), Vec::new(), begun);
            while batch.len() < self.batch && end < self.rows {
                let row = self.order[end];
                if skips(epoch, row) {
                    skipped.push(row);
                } else {
                    batch.push(row);
                }
                end += 1;
            }
            if batch.len() == self.batch || begun == 0 {
                let missing = (self.batch - batch.len()).min(skipped.len());
                batch.extend(&skipped[..missing]);
                return (self.taken(batch, end), left_out + skipped.len() - missing);
            }
            left_out += skipped.len();
            self.cursor = Cursor { epoch: epoch + 1, taken: 0 };
            self.deal();
        }
    }

    /// Returns the next batch of usable rows, without those to skip, and the number of skipped rows; `judge` decides which of the next rows
    /// are usable. An incomplete batch at the end of a pass is dropped or returned. A batch that finds too few rows in an entire pass
    /// includes skipped ones; if these don't fill it either, it is smaller.
    ///
    /// The order is that of all rows, so it does not depend on which rows were judged before.
    ///
    /// # Errors
    /// Errors of `judge`; the position is then unchanged.
    pub fn next_usable<E>(
        &mut self,
        mut judge: impl FnMut(&[usize]) -> Result<Vec<bool>, E>,
        skips: impl Fn(u64, usize) -> bool,
    ) -> Result<(Vec<usize>, usize), E> {
        let (before, mut left_out) = (self.cursor, 0);
        loop {
            let begun = self.cursor.taken;
            let (batch, skipped, end) = match self.usable_from(begun, &mut judge, &skips) {
                Ok(found) => found,
                Err(error) => {
                    self.seek(before);
                    return Err(error);
                }
            };
            let is_rest = self.partial && !batch.is_empty();
            if batch.len() == self.batch || is_rest || begun == 0 {
                let missing = (self.batch - batch.len()).min(skipped.len());
                let batch = [&batch[..], &skipped[..missing]].concat();
                return Ok((self.taken(batch, end), left_out + skipped.len() - missing));
            }
            left_out += skipped.len();
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, taken: 0 };
            self.deal();
        }
    }

    /// Returns the rows of a batch that starts at this position, its skipped rows, and where it ends. Judges no more rows than necessary.
    fn usable_from<E>(
        &self,
        begun: usize,
        judge: &mut impl FnMut(&[usize]) -> Result<Vec<bool>, E>,
        skips: &impl Fn(u64, usize) -> bool,
    ) -> Result<(Vec<usize>, Vec<usize>, usize), E> {
        let (mut batch, mut skipped, mut end) = (Vec::with_capacity(self.batch), Vec::new(), begun);
        while batch.len() < self.batch && end < self.rows {
            let some = &self.order[end..(end + self.batch - batch.len()).min(self.rows)];
            for (row, _) in some.iter().zip(judge(some)?).filter(|(_, usable)| *usable) {
                let skips = skips(self.cursor.epoch, *row);
                if skips { &mut skipped } else { &mut batch }.push(*row);
            }
            end += some.len();
        }
        Ok((batch, skipped, end))
    }

    /// Moves past a batch, and shuffles it if requested.
    fn taken(&mut self, mut batch: Vec<usize>, end: usize) -> Vec<usize> {
        if self.mix {
            // A number for each batch; the epoch in a snapshot may be any.
            let begun = self.cursor.epoch.wrapping_mul(self.rows as u64).wrapping_add(self.cursor.taken as u64);
            shuffle(&mut batch, !self.seed, begun);
        }
        self.cursor.taken = end;
        batch
    }

    /// Returns the position of the next batch.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }
}

/// Shuffles rows in an order determined by `seed` and `stream`.
pub fn shuffle(rows: &mut [usize], seed: u64, stream: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    // Fisher-Yates shuffle from the end; the bias of the remainder is below 2^-32 for any dataset.
    for i in (1..rows.len()).rev() {
        rows.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_deals_each_row_once_and_drops_the_partial_batch() {
        let mut loader = Loader::new(10, 3, 1, true, false);
        let mut seen: Vec<usize> = (0..3).flat_map(|_| loader.next_batch()).collect();
        assert_eq!(loader.cursor(), Cursor { epoch: 0, taken: 9 });
        assert!(loader.is_at_end());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
        loader.next_batch();
        assert_eq!(loader.cursor(), Cursor { epoch: 1, taken: 3 });
        assert!(!loader.is_at_end());
    }

    #[test]
    fn a_pass_may_end_with_a_partial_batch() {
        let mut loader = Loader::new(5, 2, 1, true, true);
        let sizes: Vec<usize> = (0..4).map(|_| loader.next_batch().len()).collect();
        assert_eq!((sizes, loader.batches_per_epoch(), loader.partial_batch_size()), (vec![2, 2, 1, 2], 3, 1));
        assert_eq!(Loader::new(5, 2, 1, true, false).partial_batch_size(), 0);
    }

    #[test]
    fn rows_to_skip_are_left_out_unless_a_whole_pass_has_too_few_others() {
        let mut loader = Loader::new(10, 3, 1, false, false);
        let odd = |_: u64, row: usize| row % 2 == 1;
        assert_eq!(loader.next_batch_without(odd), (vec![0, 2, 4], 2));
        // 6 and 8 don't fill a batch.
        assert_eq!(loader.next_batch_without(odd), (vec![0, 2, 4], 3 + 2));
        assert_eq!(loader.cursor(), Cursor { epoch: 1, taken: 5 });
        let few = |_: u64, row: usize| row != 7;
        assert_eq!(loader.next_batch_without(few), (vec![7, 0, 1], 4 + 7));
        assert_eq!(loader.cursor(), Cursor { epoch: 2, taken: 10 });
        let all = |_: u64, _: usize| true;
        assert_eq!(loader.next_batch_without(all), (vec![0, 1, 2], 7));
        // Without rows to skip, the order is unchanged.
        for (shuffled, mixed) in [(true, false), (false, true)] {
            let new = || Loader::new(11, 4, 9, shuffled, false).with_mixing(mixed);
            let (mut usual, mut other) = (new(), new());
            for _ in 0..7 {
                assert_eq!(other.next_batch_without(|_, _| false), (usual.next_batch(), 0));
            }
        }
    }

    type Judged = Result<Vec<bool>, String>;

    fn thirds(rows: &[usize]) -> Judged {
        Ok(rows.iter().map(|row| row % 3 != 1).collect())
    }

    #[test]
    fn rows_that_can_not_be_used_are_left_out_of_the_order_of_all() {
        // If all rows are usable, the order is unchanged.
        for (shuffled, mixed, partial) in [(true, false, false), (false, true, false), (true, false, true)] {
            let new = || Loader::new(11, 4, 9, shuffled, partial).with_mixing(mixed);
            let (mut usual, mut other) = (new(), new());
            for _ in 0..9 {
                let all = |rows: &[usize]| Judged::Ok(vec![true; rows.len()]);
                assert_eq!(other.is_at_usable_end(all).unwrap(), usual.is_at_end());
                assert_eq!(other.next_usable(all, |_, _| false).unwrap(), (usual.next_batch(), 0));
                assert_eq!(other.cursor(), usual.cursor());
            }
        }
        // 8 of 12 rows are usable.
        for partial in [false, true] {
            let mut loader = Loader::new(12, 3, 9, true, partial).with_usable(8);
            assert_eq!((loader.batches_per_epoch(), loader.partial_batch_size()), if partial { (3, 2) } else { (2, 0) });
            let mut order: Vec<usize> = (0..12).collect();
            shuffle(&mut order, 9, 0);
            order.retain(|row| row % 3 != 1);
            let sizes: &[usize] = if partial { &[3, 3, 2] } else { &[3, 3] };
            let got: Vec<Vec<usize>> = sizes.iter().map(|_| loader.next_usable(thirds, |_, _| false).unwrap().0).collect();
            assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
            assert_eq!(got.concat(), order[..sizes.iter().sum()]);
            assert!(loader.is_at_usable_end(thirds).unwrap());
            // The next pass, from its beginning and from a position within it.
            let mut resumed = Loader::new(12, 3, 9, true, partial);
            resumed.seek(loader.cursor());
            let next = loader.next_usable(thirds, |_, _| false).unwrap();
            assert_eq!((next.0.len(), loader.cursor().epoch), (3, 1));
            assert_eq!(resumed.next_usable(thirds, |_, _| false).unwrap(), next);
        }
    }

    #[test]
    fn no_row_is_judged_before_it_is_needed_and_an_error_moves_nothing() {
        let (mut loader, mut seen) = (Loader::new(12, 3, 9, false, false), Vec::new());
        let mut judge = |rows: &[usize]| {
            seen.extend_from_slice(rows);
            thirds(rows)
        };
        assert_eq!(loader.next_usable(&mut judge, |_, _| false).unwrap(), (vec![0, 2, 3], 0));
        assert_eq!(seen, [0, 1, 2, 3]);
        let before = loader.cursor();
        let fails = |rows: &[usize]| if rows.contains(&5) { Err("5".to_owned()) } else { thirds(rows) };
        assert_eq!(loader.next_usable(fails, |_, _| false), Err("5".to_owned()));
        assert_eq!(loader.cursor(), before);
        assert_eq!(loader.next_usable(thirds, |_, _| false).unwrap(), (vec![5, 6, 8], 0));
        // An entire pass has fewer usable rows than a batch, or none.
        let one = |rows: &[usize]| Judged::Ok(rows.iter().map(|row| *row == 7).collect());
        assert_eq!(loader.next_usable(one, |_, _| false).unwrap(), (vec![7], 0));
        assert_eq!(loader.next_usable(|rows| Judged::Ok(vec![false; rows.len()]), |_, _| false).unwrap(), (vec![], 0));
        // Skipped rows are taken only if there are no others.
        let mut loader = Loader::new(12, 3, 9, false, false);
        assert_eq!(loader.next_usable(thirds, |_, row| row < 6).unwrap(), (vec![6, 8, 9], 4));
        assert_eq!(loader.next_usable(thirds, |_, row| row > 2).unwrap(), (vec![0, 2, 3], 1 + 5));
    }

    #[test]
    fn a_loader_at_a_cursor_goes_on_like_the_first() {
        let mut whole = Loader::new(11, 2, 9, true, false);
        for _ in 0..13 {
            let mut resumed = Loader::new(11, 2, 9, true, false);
            resumed.seek(whole.cursor());
            assert_eq!(resumed.next_batch(), whole.next_batch());
        }
        let mixed = |seed| Loader::new(11, 4, seed, false, false).with_mixing(true);
        let mut whole = mixed(9);
        let batches: Vec<Vec<usize>> = (0..4).map(|_| whole.next_batch()).collect();
        for (i, batch) in batches.iter().enumerate() {
            let mut rows = batch.clone();
            rows.sort_unstable();
            assert_eq!(rows, [[0, 1, 2, 3], [4, 5, 6, 7]][i % 2], "rows of a batch in another order");
            let mut resumed = mixed(9);
            resumed.seek(Cursor { epoch: u64::MAX - 1, taken: 4 });
            assert_eq!(resumed.next_batch().len(), 4);
            resumed.seek(Cursor { epoch: i as u64 / 2, taken: 4 * (i % 2) });
            assert_eq!(resumed.next_batch(), *batch);
        }
        assert!(batches[0] != batches[2] || batches[1] != batches[3], "another order in another pass");
        assert_ne!((0..2).flat_map(|_| mixed(8).next_batch()).collect::<Vec<_>>(), batches[..2].concat());
        let plain: Vec<usize> = Loader::new(4, 4, 9, false, false).next_batch();
        assert_eq!(plain, [0, 1, 2, 3]);
    }
}
