//! Parquet tables. Lists, structs and maps become JSON.

use super::packed::too_large;
use super::{File, Row};
use crate::data::Result;
use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Map, Value, json};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// How every Parquet file begins, and ends.
pub(super) const MAGIC: &[u8] = b"PAR1";

/// Memory that a value takes beside its text, roughly.
const VALUE: u64 = 64;

/// The table's rows, of at most about `limit` bytes in memory.
pub(super) fn rows(file: &File, bytes: Vec<u8>, limit: u64) -> Result<Vec<Row>> {
    // The reader panics over some kinds of damage.
    let read = quietly(|| table(file, bytes, limit));
    read.unwrap_or_else(|| Err(damaged(file, "its contents don't fit its schema")))
}

fn damaged(file: &File, said: impl ToString) -> crate::data::Error {
    let said = said.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    file.wrong(format!("is cut off, damaged, or not the Parquet that can be read: {said}"))
}

fn table(file: &File, bytes: Vec<u8>, limit: u64) -> Result<Vec<Row>> {
    let reader = SerializedFileReader::new(Bytes::from(bytes)).map_err(|e| damaged(file, e))?;
    let mut rows = Vec::new();
    let mut read = Read { bytes: 0, lost: false };
    let mut lost = BTreeSet::new();
    for row in reader.get_row_iter(None).map_err(|e| damaged(file, e))? {
        let row = row.map_err(|e| damaged(file, format!("row {}: {e}", rows.len() + 1)))?;
        let mut columns = Map::new();
        for (name, field) in row.into_columns() {
            let value = read.value(&field);
            if std::mem::take(&mut read.lost) {
                lost.insert(name.clone());
            }
            columns.insert(name, value);
        }
        read.bytes += VALUE;
        if read.bytes > limit {
            return Err(file.wrong(too_large(limit)));
        }
        rows.push((file.place(rows.len() + 1), columns));
    }
    let said = reader.metadata().file_metadata().num_rows();
    if said != rows.len() as i64 {
        return Err(damaged(file, format!("it has {} rows and says {said}", rows.len())));
    }
    if !lost.is_empty() {
        let names = lost.into_iter().collect::<Vec<_>>().join(", ");
        tracing::warn!("{}: bytes that are no text are left out, in the columns {names}", file.0.display());
    }
    Ok(rows)
}

/// What was read so far.
struct Read {
    bytes: u64,
    /// Whether bytes were left out, since they are no text.
    lost: bool,
}

impl Read {
    fn value(&mut self, field: &Field) -> Value {
        self.bytes += VALUE;
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
                group.get_column_iter().map(|(name, field)| (name.clone(), self.value(field))).collect::<Map<_, _>>().into()
            }
            Field::ListInternal(list) => list.elements().iter().map(|field| self.value(field)).collect(),
            Field::MapInternal(map) => {
                let key = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                map.entries().iter().map(|(k, v)| (key(self.value(k)), self.value(v))).collect::<Map<_, _>>().into()
            }
        }
    }

    fn text(&mut self, text: &str) -> Value {
        self.bytes += text.len() as u64;
        Value::String(text.to_owned())
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs something that may panic; none if it does, and then nothing is printed.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                loud(panic);
            }
        }));
    });
    QUIET.set(true);
    // What `work` leaves half done goes with it.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    outcome.ok()
}
