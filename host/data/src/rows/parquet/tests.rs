use super::super::bounds as row_bounds;
use super::super::row::DatasetFile;
use super::*;
use ::parquet::basic::Encoding;
use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use ::parquet::schema::parser::parse_message_type;
use std::path::Path;

/// Reads all rows of a table within a memory limit.
fn within(table: Vec<u8>, limit: u64) -> Result<Vec<LocatedRow>> {
    let mut all = Vec::new();
    let take = |some: Vec<LocatedRow>| {
        all.extend(some);
        Ok(())
    };
    rows(&DatasetFile::new(Path::new("t")), Bytes::from(table), limit, &mut FileMemoryBudget::new(limit), take)?;
    Ok(all)
}

fn read(table: Vec<u8>) -> std::result::Result<Vec<LocatedRow>, String> {
    let limit = row_bounds::limit(table.len() as u64);
    within(table, limit).map_err(|e| e.to_string())
}

/// Returns a table with these bytes as its metadata.
fn with_metadata(bytes: &[u8]) -> Vec<u8> {
    [b"PAR1", bytes, &(bytes.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

/// Returns rows of lists, each of which repeats the same text this many times through a dictionary.
fn lists(text: &str, counts: &[usize]) -> Vec<u8> {
    let schema = "message m { required group l (LIST) { repeated group list { required binary element (UTF8); } } }";
    let large = WriterProperties::builder().set_dictionary_page_size_limit(64 << 20).build();
    let mut table = Vec::new();
    let schema = parse_message_type(schema).unwrap().into();
    let mut writer = SerializedFileWriter::new(&mut table, schema, large.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let all: usize = counts.iter().sum();
    let repeated: Vec<i16> = counts.iter().flat_map(|count| (0..*count).map(|i| i16::from(i > 0))).collect();
    let values = vec![ByteArray::from(text); all];
    column.typed::<ByteArrayType>().write_batch(&values, Some(&vec![1; all]), Some(&repeated)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    table
}

/// Writes a table with this schema; each function writes a column.
fn table_of(schema: &str, columns: &[&dyn Fn(&mut SerializedColumnWriter<'_>)]) -> Vec<u8> {
    let mut table = Vec::new();
    let schema = parse_message_type(schema).unwrap().into();
    let mut writer = SerializedFileWriter::new(&mut table, schema, WriterProperties::new().into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for write in columns {
        let mut column = group.next_column().unwrap().unwrap();
        write(&mut column);
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    table
}

#[test]
fn whole_decimals_and_moments_in_nanoseconds_are_written_like_others() {
    let schema = "message m {
        required int64 when (TIMESTAMP(NANOS,true));
        required int64 whole (DECIMAL(18, 0));
        required group l (LIST) { repeated group list { required int64 element (TIMESTAMP(NANOS,false)); } }
        required group s { required int64 when (TIMESTAMP(NANOS,true)); required int64 n; }
    }";
    let moment = 1_709_209_815_250_000_001;
    let one = |column: &mut SerializedColumnWriter<'_>, n: i64| {
        column.typed::<Int64Type>().write_batch(&[n], None, None).unwrap();
    };
    let listed = |column: &mut SerializedColumnWriter<'_>| {
        column.typed::<Int64Type>().write_batch(&[0], Some(&[1]), Some(&[0])).unwrap();
    };
    let table =
        table_of(schema, &[&|c| one(c, moment), &|c| one(c, -5), &|c| listed(c), &|c| one(c, moment), &|c| one(c, moment)]);
    let text = "2024-02-29T12:30:15.250000001Z";
    let expected = json!({"when": text, "whole": "-5", "l": ["1970-01-01T00:00:00Z"], "s": {"when": text, "n": moment}});
    assert_eq!(Value::Object(read(table).unwrap()[0].1.clone()), expected);
}

#[test]
fn a_key_that_comes_twice_is_refused_and_a_number_that_is_none_is_null() {
    let numbers = |n: f64| {
        table_of(
            "message m { required double n; }",
            &[&|column| {
                column.typed::<DoubleType>().write_batch(&[1.0, n], None, None).unwrap();
            }],
        )
    };
    for odd in [f64::NAN, f64::NEG_INFINITY] {
        let read = read(numbers(odd)).unwrap();
        assert_eq!([&read[0].1["n"], &read[1].1["n"]], [&json!(1.0), &Value::Null]);
    }
    let schema =
        "message m { required group p (MAP) { repeated group key_value { required binary key (UTF8); required int32 value; } } }";
    let map = |second: &str| {
        let keys = [ByteArray::from("k"), ByteArray::from(second)];
        let (defined, repeated): (&[i16], &[i16]) = (&[1, 1], &[0, 1]);
        let write_keys = |column: &mut SerializedColumnWriter<'_>| {
            column.typed::<ByteArrayType>().write_batch(&keys, Some(defined), Some(repeated)).unwrap();
        };
        let write_values = |column: &mut SerializedColumnWriter<'_>| {
            column.typed::<Int32Type>().write_batch(&[1, 2], Some(defined), Some(repeated)).unwrap();
        };
        read(table_of(schema, &[&write_keys, &write_values]))
    };
    assert_eq!(map("other").unwrap()[0].1["p"], json!({"k": 1, "other": 2}));
    assert_eq!(map("k").unwrap_err(), "t:1: column \"p\" has the key \"k\" twice in one map");
}

#[test]
fn a_text_that_a_dictionary_says_a_thousand_times_is_refused_before_it_is_made() {
    let rows = read(lists("abc", &[2, 1])).unwrap();
    assert_eq!(rows[0].1["l"], json!(["abc", "abc"]));
    let table = lists(&"x".repeat(1 << 16), &[1, 1000, 1]);
    assert!(table.len() < 1 << 20);
    let error = read(table).unwrap_err();
    assert!(error.starts_with("t:2: has more than 16.00 MiB in its column \"l.list.element\""), "{error}");
}

#[test]
fn a_name_that_every_row_repeats_counts_each_time() {
    let name = "n".repeat(1 << 20);
    let schema = Arc::new(parse_message_type(&format!("message m {{ required int32 {name}; }}")).unwrap());
    let mut table = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut table, schema, WriterProperties::new().into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[7; 12], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let read = |limit: u64| within(table.clone(), limit);
    assert_eq!(read(1 << 30).unwrap()[11].1[&name], 7);
    assert!(read(8 << 20).unwrap_err().to_string().contains("takes more than"));
}

#[test]
fn pages_that_say_more_texts_than_values_are_refused() {
    let schema = Arc::new(parse_message_type("message m { required binary a (UTF8); }").unwrap());
    let written = |encoding| {
        let plain = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding).build();
        let mut table = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut table, schema.clone(), plain.into()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values = [ByteArray::from("one"), ByteArray::from("two")];
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        table
    };
    let mut table = written(Encoding::DELTA_LENGTH_BYTE_ARRAY);
    assert_eq!(read(table.clone()).unwrap()[1].1["a"], "two");
    // Blocks of 128 in 4 miniblocks, 2 texts, the first of 3 bytes.
    let at = table.windows(5).position(|w| w == [0x80, 1, 4, 2, 6]).unwrap();
    table[at + 3] = 0x7f;
    assert!(read(table).unwrap_err().contains("more strings than values"));
    let mut table = written(Encoding::DELTA_BYTE_ARRAY);
    assert_eq!(read(table.clone()).unwrap()[1].1["a"], "two");
    let at = table.windows(4).position(|w| w == [0x80, 1, 4, 2]).unwrap();
    table[at + 3] = 0x7f;
    assert!(read(table).unwrap_err().contains("more strings than values"));
}

/// Returns a table of one text column with this encoding.
fn texts(values: &[&str], encoding: Option<Encoding>) -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message m { required binary a (UTF8); }").unwrap());
    let properties = WriterProperties::builder().set_dictionary_page_size_limit(64 << 20);
    let properties = match encoding {
        Some(encoding) => properties.set_dictionary_enabled(false).set_encoding(encoding),
        None => properties.set_compression(::parquet::basic::Compression::SNAPPY),
    };
    let mut table = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut table, schema, properties.build().into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<ByteArray> = values.iter().map(|text| ByteArray::from(*text)).collect();
    column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    table
}

#[test]
fn strings_that_share_their_beginnings_are_read_within_the_limit() {
    let words: Vec<String> = (0..1000).map(|i| format!("{}{i}", "a common beginning ".repeat(i % 7))).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::PLAIN] {
        let rows = read(texts(&words, Some(encoding))).unwrap();
        assert!(rows.iter().map(|(_, row)| row["a"].as_str().unwrap()).eq(words.iter().copied()), "{encoding}");
    }
    // A megabyte in each of a thousand rows, encoded in few bytes.
    let long = "x".repeat(1 << 20);
    let table = texts(&vec![long.as_str(); 1000], Some(Encoding::DELTA_BYTE_ARRAY));
    assert!(table.len() < 2 << 20);
    assert!(within(table, 100 << 20).unwrap_err().to_string().contains("takes more than 100.00 MiB"));
}

#[test]
fn rows_that_name_one_long_text_are_refused_before_any_is_passed_on() {
    let long = "x".repeat(3 << 20);
    let table = texts(&[long.as_str(); 100], None);
    assert!(table.len() < 1 << 18, "{}", table.len());
    let (size, mut passed) = (table.len() as u64, 0);
    let take = |rows: Vec<LocatedRow>| {
        passed += rows.len();
        Ok(())
    };
    let file = DatasetFile::new(Path::new("t"));
    let read = rows(&file, Bytes::from(table), row_bounds::limit(size), &mut FileMemoryBudget::for_file_size(size), take);
    let error = read.unwrap_err().to_string();
    assert!(error.starts_with("t: has more than 64.00 MiB of text") && error.ends_with("write it as JSON lines"), "{error}");
    assert_eq!(passed, 0);
    assert_eq!(read_all(&texts(&[&long[..1 << 20]; 20], None)), 20);
}

fn read_all(table: &[u8]) -> usize {
    super::super::parse(Path::new("t.parquet"), table).unwrap().len()
}

#[test]
fn metadata_that_are_too_long_too_wide_or_too_deep_are_refused() {
    // Groups with one child each, and lists that claim more than there is.
    let group = [0x48, 1, b'a', 0x15, 2, 0];
    let schema = |count: usize| {
        let head = [0x15, 2, 0x19, 0xfc];
        let mut bytes = head.to_vec();
        bytes.extend([count as u8 & 0x7f | 0x80, (count >> 7) as u8 & 0x7f | 0x80, (count >> 14) as u8]);
        bytes.extend(group.repeat(count));
        bytes
    };
    for (table, said) in [
        (with_metadata(&schema(4000)), "column groups nested more than 64 deep"),
        (with_metadata(&schema(100_000)), "more than 4096 columns"),
        (with_metadata(&schema(60)), "damaged"),
        (with_metadata(&[0x15, 2, 0x49, 0xfc, 0xff, 0xff, 0xff, 0x7f]), "a list of more than a million"),
        (with_metadata(&[0x1c; 5000]), "structures nested too deeply"),
        (with_metadata(&vec![0; 17 << 20]), "has 17.00 MiB of metadata"),
        ([&b"PAR1"[..], &u32::MAX.to_le_bytes(), b"PAR1"].concat(), "of metadata"),
        (b"PAR1PAR1".to_vec(), "of metadata"),
        (b"PAR1\0\0\0\0PAR1".to_vec(), "damaged"),
    ] {
        let error = read(table).unwrap_err();
        assert!(error.contains(said) && !error.contains('\n'), "{said}: {error}");
    }
}

#[test]
fn an_error_of_what_takes_rows_ends_the_reading_and_comes_back() {
    let table = Bytes::from(lists("abc", &[1; 5 * TOGETHER.0]));
    let file = DatasetFile::new(Path::new("t"));
    let mut taken = Vec::new();
    let take = |rows: Vec<LocatedRow>| {
        taken.push(rows.len());
        if taken.len() < 2 { Ok(()) } else { Err(file.file_error("enough")) }
    };
    let said = rows(&file, table, 1 << 30, &mut FileMemoryBudget::new(1 << 30), take).unwrap_err().to_string();
    assert!(said.ends_with("enough") && taken == [TOGETHER.0; 2], "{said}: {taken:?}");
}
