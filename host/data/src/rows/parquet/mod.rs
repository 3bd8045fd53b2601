//! Parquet tables. Lists, structs and maps become JSON.

mod bounds;
mod compact;
mod delta;

use super::bounds::{FileMemoryBudget, ROW, VALUE, VALUES, long_row};
use super::row::{DatasetFile, LocatedRow, listed};
use super::{Location, RowColumns};
use crate::Result;
use crate::config::printable_path;
use crate::ops::bounded::quietly;
use ::bytes::Bytes;
use bounds::damaged;
use indicatif::HumanBytes;
use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::TreeBuilder;
use parquet::schema::types::{Type, TypePtr};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::sync::{Arc, mpsc};
use std::thread;

/// Magic bytes at the beginning and end of every Parquet file.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// Maximum size of a table in a compressed file. It is decompressed into memory, since Parquet is read from its end. Parquet usually has
/// its own compression.
const PACKED: u64 = 1 << 30;

/// Maximum number of rows that are passed on together, and number of bytes that ends such a batch earlier.
const TOGETHER: (usize, u64) = (4096, 8 << 20);

/// Size below which a table is read completely before its rows are passed on, so that no work is lost if its rows have too much text.
const SMALL: u64 = 1 << 20;

/// Decompresses a table into memory.
pub(super) fn whole(file: &DatasetFile, packed: impl std::io::Read) -> Result<Bytes> {
    let mut bytes = Vec::new();
    packed.take(PACKED + 1).read_to_end(&mut bytes).map_err(|e| file.file_error(e.to_string()))?;
    if bytes.len() as u64 > PACKED {
        let most = HumanBytes(PACKED);
        return Err(
            file.file_error(format!("decompresses to more than {most}, the maximum for a compressed table; decompress it first"))
        );
    }
    Ok(bytes.into())
}

/// Passes on the table's rows in batches, while a thread reads the next ones. The rows use at most the rest of the budget; the pages use at
/// most `limit` bytes.
///
/// # Errors
/// If the table is damaged, or `take` fails.
pub(super) fn rows(
    file: &DatasetFile,
    bytes: impl ChunkReader + 'static,
    limit: u64,
    budget: &mut FileMemoryBudget,
    take: impl FnMut(Vec<LocatedRow>) -> Result<()>,
) -> Result<()> {
    thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(1);
        // The reader panics on some kinds of damage.
        let read = move || quietly(|| table(file, bytes, limit, budget, |rows| send.send(rows).is_ok())).ok();
        let thread = thread::Builder::new().name("parquet".into());
        let reading = thread.spawn_scoped(scope, read).map_err(|e| file.file_error(format!("can't be read on a thread: {e}")))?;
        let taken = receive.into_iter().try_for_each(take);
        let read = reading.join().ok().flatten();
        taken?;
        read.unwrap_or_else(|| Err(damaged(file, "its contents don't fit its schema")))
    })
}

/// Passes on rows until `take` returns false.
fn table(
    file: &DatasetFile,
    bytes: impl ChunkReader + 'static,
    limit: u64,
    budget: &mut FileMemoryBudget,
    mut take: impl FnMut(Vec<LocatedRow>) -> bool,
) -> Result<()> {
    let damaged = |said: &dyn ToString| damaged(file, said.to_string());
    bounds::metadata(file, &bytes)?;
    let (holds, mut held) = (bytes.len() < SMALL, Vec::new());
    let shared = SharedParquetFile(bytes.into());
    let reader = SerializedFileReader::new(shared.clone()).map_err(|e| damaged(&e))?;
    let metadata = reader.metadata();
    let checked = bounds::pages(file, &shared, metadata, limit)?;
    let schema = metadata.file_metadata().schema_descr_ptr();
    let (mut rows, mut bytes, mut count) = (Vec::new(), 0, 0);
    let (mut dropped, mut expanded) = (NulledColumns::default(), 0_u64);
    for i in 0..metadata.num_row_groups() {
        let group = reader.get_row_group(i).map_err(|e| damaged(&e))?;
        for (_, column) in checked.iter().filter(|(of, _)| *of == i) {
            expanded = expanded.saturating_add(bounds::lengths(file, &*group, *column, limit - expanded.min(limit))?);
        }
        bounds::lists(file, &*group, count)?;
        let records = TreeBuilder::new().with_batch_size(bounds::BATCH).as_iter(schema.clone(), &*group);
        for row in records.map_err(|e| damaged(&e))? {
            let row = row.map_err(|e| damaged(&format!("row {}: {e}", count + 1)))?;
            count += 1;
            let place = file.place(count);
            let (columns, read) = row_of(&place, row.into_columns(), schema.root_schema().get_fields(), &mut dropped)?;
            budget.row(file, read.size())?;
            budget.text(file, read.text)?;
            rows.push((place, columns));
            bytes += read.size();
            if rows.len() == TOGETHER.0 || bytes >= TOGETHER.1 {
                bytes = 0;
                let together = std::mem::take(&mut rows);
                if holds {
                    held.push(together);
                } else if !take(together) {
                    return Ok(());
                }
            }
        }
    }
    if !held.into_iter().chain([rows]).all(take) {
        return Ok(());
    }
    let said = metadata.file_metadata().num_rows();
    if said != count as i64 {
        return Err(damaged(&format!("it has {count} rows but says {said}")));
    }
    dropped.warn(file);
    Ok(())
}

/// Columns with values that became null.
#[derive(Default)]
struct NulledColumns {
    /// Columns with bytes that are not text.
    bytes: BTreeSet<String>,
    /// Columns with infinite numbers, or NaN, which many programs write for missing numbers.
    odd: BTreeSet<String>,
}

impl NulledColumns {
    fn warn(&self, file: &DatasetFile) {
        for (what, columns) in [("bytes that are not text", &self.bytes), ("NaN or infinite numbers", &self.odd)] {
            if !columns.is_empty() {
                let names = listed(columns.iter().map(String::as_str));
                tracing::warn!("{}: dropped {what} from the columns {names}", printable_path(&file.0));
            }
        }
    }
}

/// Returns a row and its memory, given its columns and their types.
fn row_of(
    place: &Location,
    fields: Vec<(String, Field)>,
    types: &[TypePtr],
    dropped: &mut NulledColumns,
) -> Result<(RowColumns, ParquetRowConverter)> {
    let (mut columns, mut read) = (Map::new(), ParquetRowConverter::default());
    for ((name, field), of) in fields.into_iter().zip(types) {
        let value = read.named(&name, &field, Some(of));
        if let Some(detail) = read.wrong.take() {
            return Err(place.row_error(format!("column {name:?} {detail}")));
        }
        if std::mem::take(&mut read.lost) {
            dropped.bytes.insert(name.clone());
        }
        if std::mem::take(&mut read.odd) {
            dropped.odd.insert(name.clone());
        }
        columns.insert(name, value);
    }
    if read.text > ROW || read.values > VALUES {
        return Err(place.row_error(long_row()));
    }
    Ok((columns, read))
}

/// Table shared by the checks and the reader.
struct SharedParquetFile<T>(Arc<T>);

impl<T> Clone for SharedParquetFile<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ChunkReader> Length for SharedParquetFile<T> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<T: ChunkReader> ChunkReader for SharedParquetFile<T> {
    type T = T::T;

    fn get_read(&self, start: u64) -> parquet::errors::Result<T::T> {
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// Converts a row to JSON.
#[derive(Default)]
struct ParquetRowConverter {
    /// Size of the text in bytes, including names.
    text: u64,
    values: u64,
    /// Whether bytes were dropped because they are not text.
    lost: bool,
    /// Whether a NaN or infinite number became null.
    odd: bool,
    /// First value that could not be converted.
    wrong: Option<String>,
}

impl ParquetRowConverter {
    /// Returns the memory that the row takes.
    fn size(&self) -> u64 {
        self.text + self.values * VALUE
    }

    /// Converts a field to JSON, given its type if known.
    fn value(&mut self, field: &Field, of: Option<&Type>) -> Value {
        self.values += 1;
        match field {
            Field::Null => Value::Null,
            Field::Bool(b) => json!(b),
            Field::Byte(n) => json!(n),
            Field::Short(n) => json!(n),
            Field::Int(n) => json!(n),
            // The reader returns nanosecond timestamps as plain integers.
            Field::Long(t) if is_in_nanoseconds(of) => {
                jiff::Timestamp::from_nanosecond(i128::from(*t)).map_or_else(|_| json!(t), |t| json!(t.to_string()))
            }
            Field::Long(n) => json!(n),
            Field::UByte(n) => json!(n),
            Field::UShort(n) => json!(n),
            Field::UInt(n) => json!(n),
            Field::ULong(n) => json!(n),
            Field::Float16(n) => self.number(n.to_f32()),
            Field::Float(n) => self.number(*n),
            Field::Double(n) => self.number(*n),
            Field::Str(text) => self.text(text),
            Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
                Ok(text) => self.text(text),
                Err(_) => {
                    self.lost = true;
                    Value::Null
                }
            },
            // The reader's own formatting of dates and timestamps panics beyond the range of its calendar.
            Field::Date(days) => {
                let moment = jiff::Timestamp::from_second(i64::from(*days) * 24 * 60 * 60);
                moment.map_or_else(|_| json!(days), |t| json!(t.strftime("%Y-%m-%d").to_string()))
            }
            Field::TimestampMillis(t) => {
                jiff::Timestamp::from_millisecond(*t).map_or_else(|_| json!(t), |t| json!(t.to_string()))
            }
            Field::TimestampMicros(t) => {
                jiff::Timestamp::from_microsecond(*t).map_or_else(|_| json!(t), |t| json!(t.to_string()))
            }
            // The reader formats integral decimals as `5.`.
            Field::Decimal(_) => json!(field.to_string().trim_end_matches('.')),
            Field::TimeMillis(_) | Field::TimeMicros(_) => json!(field.to_string()),
            Field::Group(group) => {
                let mut columns = Map::new();
                for (i, (name, field)) in group.get_column_iter().enumerate() {
                    let value = self.named(name, field, child(of, i).filter(|of| of.name() == name));
                    columns.insert(name.clone(), value);
                }
                columns.into()
            }
            Field::ListInternal(list) => {
                let of = child(child(of, 0), 0);
                list.elements().iter().map(|field| self.value(field, of)).collect()
            }
            Field::MapInternal(map) => self.map(map.entries(), child(of, 0)),
        }
    }

    /// Converts the entries of a map of this type to an object.
    fn map(&mut self, entries: &[(Field, Field)], of: Option<&Type>) -> Value {
        let mut all = Map::new();
        for (key, value) in entries {
            let key = self.value(key, child(of, 0));
            let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            if all.contains_key(&key) {
                self.wrong.get_or_insert_with(|| format!("has the key {key:?} twice in one map"));
            }
            let value = self.value(value, child(of, 1));
            all.insert(key, value);
        }
        all.into()
    }

    /// Converts a number; NaN and infinite numbers become null.
    fn number(&mut self, n: impl Into<f64> + Serialize + Copy) -> Value {
        let number: f64 = n.into();
        self.odd |= !number.is_finite();
        json!(n)
    }

    /// Converts a value, and counts its name, which each row repeats.
    fn named(&mut self, name: &str, field: &Field, of: Option<&Type>) -> Value {
        self.text += name.len() as u64;
        self.value(field, of)
    }

    fn text(&mut self, text: &str) -> Value {
        self.text += text.len() as u64;
        Value::String(text.to_owned())
    }
}

/// Returns the type of a group's child. For the elements of lists in older layouts it is unknown, so their nanosecond timestamps stay
/// numbers.
fn child(of: Option<&Type>, at: usize) -> Option<&Type> {
    of.filter(|of| of.is_group()).and_then(|of| of.get_fields().get(at)).map(|of| &**of)
}

/// Returns whether values of a type are nanosecond timestamps.
fn is_in_nanoseconds(of: Option<&Type>) -> bool {
    let logical = of.and_then(|of| of.get_basic_info().logical_type_ref());
    matches!(logical, Some(LogicalType::Timestamp(moment)) if moment.unit == TimeUnit::NANOS)
}

#[cfg(test)]
mod tests;
