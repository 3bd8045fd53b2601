//! Parquet tables. Lists, structs and maps become JSON.

mod bounds;
mod compact;

use super::bounds::{Budget, ROW, VALUE, VALUES, long_row};
use super::{File, Row, listed};
use crate::config::printable_path;
use crate::data::Result;
use crate::ops::bounded::quietly;
use ::bytes::Bytes;
use indicatif::HumanBytes;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::TreeBuilder;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::sync::{Arc, mpsc};
use std::thread;

/// The bytes at the beginning and end of every Parquet file.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// Maximum size of a table that is compressed as a whole. It is decompressed into memory, since it is read from its end. Tables
/// usually compress themselves.
const PACKED: u64 = 1 << 30;

/// Number of rows that are passed on together, and of bytes after which fewer are.
const TOGETHER: (usize, u64) = (4096, 8 << 20);

/// Reads a whole compressed table.
pub(super) fn whole(file: &File, packed: impl std::io::Read) -> Result<Bytes> {
    let mut bytes = Vec::new();
    packed.take(PACKED + 1).read_to_end(&mut bytes).map_err(|e| file.wrong(e.to_string()))?;
    if bytes.len() as u64 > PACKED {
        let most = HumanBytes(PACKED);
        return Err(
            file.wrong(format!("decompresses to more than {most}, the maximum for a compressed table; decompress it first"))
        );
    }
    Ok(bytes.into())
}

/// Passes on the table's rows, some at a time, while a thread reads the next ones. They take no more than the rest of the budget;
/// the table's pages take at most `limit` bytes.
///
/// # Errors
/// If the table is damaged, or those of `take`.
pub(super) fn rows(
    file: &File,
    bytes: impl ChunkReader + 'static,
    limit: u64,
    budget: &mut Budget,
    take: impl FnMut(Vec<Row>) -> Result<()>,
) -> Result<()> {
    thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(1);
        // The reader panics over some kinds of damage.
        let read = move || quietly(|| table(file, bytes, limit, budget, |rows| send.send(rows).is_ok())).ok();
        let thread = thread::Builder::new().name("parquet".into());
        let reading = thread.spawn_scoped(scope, read).map_err(|e| file.wrong(format!("can't be read on a thread: {e}")))?;
        let taken = receive.into_iter().try_for_each(take);
        let read = reading.join().ok().flatten();
        taken?;
        read.unwrap_or_else(|| Err(damaged(file, "its contents don't fit its schema")))
    })
}

fn damaged(file: &File, said: impl ToString) -> crate::data::Error {
    let said = said.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    file.wrong(format!("is truncated, damaged, or not supported Parquet: {said}"))
}

/// Passes on rows until `take` says that no more are wanted.
fn table(
    file: &File,
    bytes: impl ChunkReader + 'static,
    limit: u64,
    budget: &mut Budget,
    mut take: impl FnMut(Vec<Row>) -> bool,
) -> Result<()> {
    let damaged = |said: &dyn ToString| damaged(file, said.to_string());
    bounds::metadata(file, &bytes)?;
    let shared = Shared(bytes.into());
    let reader = SerializedFileReader::new(shared.clone()).map_err(|e| damaged(&e))?;
    let metadata = reader.metadata();
    let with_lengths = bounds::pages(file, &shared, metadata, limit)?;
    let schema = metadata.file_metadata().schema_descr_ptr();
    let (mut rows, mut bytes, mut count) = (Vec::new(), 0, 0);
    let mut lost = BTreeSet::new();
    for i in 0..metadata.num_row_groups() {
        let group = reader.get_row_group(i).map_err(|e| damaged(&e))?;
        for (_, column) in with_lengths.iter().filter(|(of, _)| *of == i) {
            bounds::lengths(file, &*group, *column)?;
        }
        bounds::lists(file, &*group, count)?;
        let records = TreeBuilder::new().with_batch_size(bounds::BATCH).as_iter(schema.clone(), &*group);
        for row in records.map_err(|e| damaged(&e))? {
            let row = row.map_err(|e| damaged(&format!("row {}: {e}", count + 1)))?;
            count += 1;
            let place = file.place(count);
            let (mut columns, mut read) = (Map::new(), Read::default());
            for (name, field) in row.into_columns() {
                let value = read.named(&name, &field);
                if std::mem::take(&mut read.lost) {
                    lost.insert(name.clone());
                }
                columns.insert(name, value);
            }
            if read.text > ROW || read.values > VALUES {
                return Err(place.wrong(long_row()));
            }
            budget.row(file, read.text + read.values * VALUE)?;
            rows.push((place, columns));
            bytes += read.text + read.values * VALUE;
            if rows.len() == TOGETHER.0 || bytes >= TOGETHER.1 {
                bytes = 0;
                if !take(std::mem::take(&mut rows)) {
                    return Ok(());
                }
            }
        }
    }
    if !take(rows) {
        return Ok(());
    }
    let said = metadata.file_metadata().num_rows();
    if said != count as i64 {
        return Err(damaged(&format!("it has {count} rows but says {said}")));
    }
    if !lost.is_empty() {
        let names = listed(lost.iter().map(String::as_str));
        tracing::warn!("{}: dropped bytes that are not text from the columns {names}", printable_path(&file.0));
    }
    Ok(())
}

/// A table shared by the checks and the reader.
struct Shared<T>(Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ChunkReader> Length for Shared<T> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<T: ChunkReader> ChunkReader for Shared<T> {
    type T = T::T;

    fn get_read(&self, start: u64) -> parquet::errors::Result<T::T> {
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// The content of a row.
#[derive(Default)]
struct Read {
    /// Bytes of text, including names.
    text: u64,
    values: u64,
    /// Whether bytes were dropped because they are not text.
    lost: bool,
}

impl Read {
    fn value(&mut self, field: &Field) -> Value {
        self.values += 1;
        match field {
            Field::Null => Value::Null,
            Field::Bool(b) => json!(b),
            Field::Byte(n) => json!(n),
            Field::Short(n) => json!(n),
            Field::Int(n) => json!(n),
            Field::Long(n) => json!(n),
            Field::UByte(n) => json!(n),
            Field::UShort(n) => json!(n),
            Field::UInt(n) => json!(n),
            Field::ULong(n) => json!(n),
            Field::Float16(n) => json!(n.to_f32()),
            Field::Float(n) => json!(n),
            Field::Double(n) => json!(n),
            Field::Str(text) => self.text(text),
            Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
                Ok(text) => self.text(text),
                Err(_) => {
                    self.lost = true;
                    Value::Null
                }
            },
            // The reader's own words for days and moments panic where a calendar ends.
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
            Field::Decimal(_) | Field::TimeMillis(_) | Field::TimeMicros(_) => json!(field.to_string()),
            Field::Group(group) => {
                group.get_column_iter().map(|(name, field)| (name.clone(), self.named(name, field))).collect::<Map<_, _>>().into()
            }
            Field::ListInternal(list) => list.elements().iter().map(|field| self.value(field)).collect(),
            Field::MapInternal(map) => {
                let key = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                map.entries().iter().map(|(k, v)| (key(self.value(k)), self.value(v))).collect::<Map<_, _>>().into()
            }
        }
    }

    /// A value whose name each row repeats.
    fn named(&mut self, name: &str, field: &Field) -> Value {
        self.text += name.len() as u64;
        self.value(field)
    }

    fn text(&mut self, text: &str) -> Value {
        self.text += text.len() as u64;
        Value::String(text.to_owned())
    }
}

#[cfg(test)]
mod tests;
