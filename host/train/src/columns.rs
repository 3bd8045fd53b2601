//! Named columns of completions: one value per token or per completion, shared by what computes them and what reads them.

use crate::plugin::{Column, Unit};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Columns with different names.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedColumns(Vec<Column>);

impl NamedColumns {
    /// Returns the column of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Column> {
        self.0.iter().find(|column| column.name == name)
    }

    /// Returns the values of the column of this name.
    pub(super) fn values(&self, name: &str) -> Option<&[f32]> {
        self.get(name).map(|column| &column.values[..])
    }

    /// Returns all columns, in order of insertion.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Column> {
        self.0.iter()
    }

    /// Adds a column, replacing one with the same name.
    pub(super) fn set(&mut self, column: Column) {
        match self.0.iter_mut().find(|own| own.name == column.name) {
            Some(own) => *own = column,
            None => self.0.push(column),
        }
    }

    /// Adds a column of one value per token, if there is one.
    pub(super) fn set_per_token(&mut self, name: &str, values: Option<Vec<f32>>) {
        if let Some(values) = values {
            self.set(Column::new(name, Unit::Token, values));
        }
    }

    /// Appends the entries of other completions to the columns that both have; the others are dropped.
    pub(super) fn append(&mut self, mut more: Self) {
        self.0.retain_mut(|own| {
            let Some(place) = more.0.iter().position(|column| column.name == own.name) else { return false };
            let added = more.0.swap_remove(place);
            let before = own.values.len() as u32;
            own.missing.extend(added.missing.iter().map(|entry| before + entry));
            own.values.extend(added.values);
            true
        });
    }

    /// Returns the columns with only the entries that `entries` returns for a column's unit.
    #[must_use]
    pub(super) fn selected(&self, entries: impl Fn(Unit) -> Vec<usize>) -> Self {
        Self(self.0.iter().map(|column| selected(column, &entries(column.unit))).collect())
    }
}

impl Serialize for NamedColumns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let column = |c: &Column| (c.name.clone(), number(c.unit), c.values.clone(), c.missing.clone());
        serializer.collect_seq(self.0.iter().map(column))
    }
}

impl<'de> Deserialize<'de> for NamedColumns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let columns: Vec<(String, u8, Vec<f32>, Vec<u32>)> = Deserialize::deserialize(deserializer)?;
        let column = |(name, unit, values, missing): (String, u8, Vec<f32>, Vec<u32>)| {
            let unit = UNITS.get(usize::from(unit)).copied().ok_or_else(|| D::Error::custom("an unknown unit"))?;
            Ok(Column { name, unit, values, missing })
        };
        columns.into_iter().map(column).collect::<Result<_, _>>().map(Self)
    }
}

/// The units by the numbers that ranks exchange.
const UNITS: [Unit; 6] = [Unit::Token, Unit::PromptToken, Unit::Turn, Unit::Sequence, Unit::Group, Unit::MicroBatch];

fn number(unit: Unit) -> u8 {
    UNITS.iter().position(|other| *other == unit).unwrap_or_default() as u8
}

impl IntoIterator for NamedColumns {
    type Item = Column;
    type IntoIter = std::vec::IntoIter<Column>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<Column> for NamedColumns {
    fn from_iter<T: IntoIterator<Item = Column>>(columns: T) -> Self {
        let mut all = Self::default();
        columns.into_iter().for_each(|column| all.set(column));
        all
    }
}

/// Returns a column with these entries, in this order.
pub(super) fn selected(column: &Column, entries: &[usize]) -> Column {
    let values = entries.iter().map(|entry| column.values[*entry]).collect();
    let is_missing = |entry: usize| column.missing.binary_search(&(entry as u32)).is_ok();
    let missing = if column.missing.is_empty() {
        Vec::new()
    } else {
        (0..entries.len()).filter(|place| is_missing(entries[*place])).map(|place| place as u32).collect()
    };
    Column { name: column.name.clone(), unit: column.unit, values, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(name: &str, entries: &[Option<f32>]) -> Column {
        Column::sparse(name, Unit::Sequence, entries.iter().copied())
    }

    #[test]
    fn appended_and_selected_entries_keep_what_is_missing() {
        let mut columns: NamedColumns = [sparse("a", &[Some(1.0), None]), sparse("only here", &[None])].into_iter().collect();
        columns.append([sparse("a", &[None, Some(4.0)]), sparse("only there", &[None])].into_iter().collect());
        assert_eq!(columns.iter().count(), 1);
        let a = columns.get("a").unwrap();
        assert_eq!(a.entries().collect::<Vec<_>>(), [Some(1.0), None, None, Some(4.0)]);
        let some = columns.selected(|unit| if unit == Unit::Sequence { vec![3, 1, 0] } else { Vec::new() });
        assert_eq!(some.get("a").unwrap().entries().collect::<Vec<_>>(), [Some(4.0), None, Some(1.0)]);
        assert_eq!(some.get("a").unwrap().missing, [1]);
    }

    #[test]
    fn a_column_takes_the_place_of_one_with_its_name() {
        let mut columns = NamedColumns::default();
        columns.set_per_token("a", Some(vec![1.0]));
        columns.set_per_token("b", Some(vec![2.0]));
        columns.set_per_token("a", Some(vec![3.0]));
        columns.set_per_token("b", None);
        assert_eq!(columns.values("a"), Some(&[3.0][..]));
        assert_eq!((columns.values("b"), columns.values("c")), (Some(&[2.0][..]), None));
    }
}
