use super::*;
use proptest::prelude::*;
use serde_json::json;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/datasets").join(name)
}

fn columns(rows: Vec<LocatedRow>) -> Vec<Value> {
    rows.into_iter().map(|(_, columns)| Value::Object(columns)).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn parsed(name: &str, bytes: &[u8]) -> std::result::Result<Vec<Value>, String> {
    parse(Path::new(name), bytes).map(columns).map_err(|e| e.to_string())
}

/// Creates a folder with files of these names and contents.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn packed_files_are_read_whatever_their_name() {
    let lines = b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n";
    let zstd = zstd::encode_all(&lines[..], 3).unwrap();
    // `cat` joins compressed shards in this way.
    let twice = [gzip(&lines[..16]), gzip(&lines[16..])].concat();
    for packed in [lines.to_vec(), gzip(lines), zstd, twice, gzip(b"[{\"prompt\": \"a\"}, {\"prompt\": \"b\"}]")] {
        assert_eq!(parsed("p.jsonl", &packed).unwrap(), [json!({"prompt": "a"}), json!({"prompt": "b"})]);
    }
    let table = std::fs::read(fixture("conversations.parquet")).unwrap();
    assert_eq!(parsed("t.gz", &gzip(&table)).unwrap().len(), 2);
    assert_eq!(parsed("story.txt.gz", &gzip(b"once")).unwrap(), [json!({"text": "once"})]);
}

#[test]
fn a_packed_file_that_is_cut_off_or_damaged_is_named() {
    let lines: String = (0..400).map(|i| format!("{{\"prompt\": \"{}\"}}\n", i * i)).collect();
    for packed in [gzip(lines.as_bytes()), zstd::encode_all(lines.as_bytes(), 3).unwrap()] {
        let cut = parsed("p.jsonl.gz", &packed[..packed.len() / 2]).unwrap_err();
        assert!(cut.starts_with("p.jsonl.gz: is truncated"), "{cut}");
        let mut damaged = packed.clone();
        let middle = damaged.len() / 2;
        damaged[middle..middle + 20].fill(0xa5);
        let damaged = parsed("p.jsonl.gz", &damaged).unwrap_err();
        assert!(damaged.starts_with("p.jsonl.gz: is compressed with") && !damaged.contains('\n'), "{damaged}");
    }
}

#[test]
fn a_file_that_becomes_too_much_is_refused() {
    let file = DatasetFile::new(Path::new("bomb.gz"));
    let zeros = vec![b' '; 1 << 20];
    for packed in [gzip(&zeros), zstd::encode_all(zeros.as_slice(), 3).unwrap()] {
        let unpacked = |limit| {
            let mut bytes = Vec::new();
            let DecompressedFile { mut stream, .. } = decompression::unpack(&file, packed.as_slice(), limit).unwrap();
            stream.read_to_end(&mut bytes).map_err(|e| e.to_string())
        };
        assert_eq!(unpacked(1 << 20).unwrap(), 1 << 20);
        let error = unpacked((1 << 20) - 1).unwrap_err();
        assert!(error.starts_with("takes more than"), "{error}");
    }
    let table = Bytes::from(std::fs::read(fixture("table-none.parquet")).unwrap());
    for (limit, budget) in [(1000, 1 << 20), (1 << 20, 1000)] {
        let error =
            parquet::rows(&file, table.clone(), limit, &mut FileMemoryBudget::new(budget), |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("takes more than"), "{error}");
    }
    let mut rows: &[u8] = b"{}\n{}\n{}\n";
    assert!(
        json::rows(&file, json::JsonRowReader::new(&file, &mut rows, 0), &mut FileMemoryBudget::new(200))
            .unwrap_err()
            .to_string()
            .contains("takes more than")
    );
    assert!(bounds::limit(0) >= 1 << 30 && bounds::limit(1 << 40) > 1 << 46);
}

#[test]
fn a_row_that_is_too_long_is_refused_before_it_is_built() {
    let long = "x".repeat(bounds::ROW as usize);
    for (name, text) in [
        ("l.jsonl", format!("{{\"a\": 1}}\n{{\"a\": \"{long}\"}}\n")),
        ("l.json", format!("[{{\"a\": 1}},\n {{\"a\": \"{long}\"}}]")),
        ("l.txt", format!("a\n<|endoftext|>{long}x")),
    ] {
        for bytes in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let error = parsed(name, &bytes).unwrap_err();
            assert!(error.starts_with(&format!("{name}:2: ")) && error.contains("16.00 MiB"), "{error}");
        }
    }
    assert_eq!(parsed("l.txt", long.as_bytes()).unwrap().len(), 1);
    let many = format!("{{\"a\": [{}0]}}", "0,".repeat(bounds::VALUES as usize));
    for (name, text) in [("m.jsonl", many.clone()), ("m.json", format!("[{many}]"))] {
        let error = parsed(name, text.as_bytes()).unwrap_err();
        assert!(error.starts_with(&format!("{name}:1: has more than 1048576 values")), "{error}");
    }
    let deep = format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parsed("d.jsonl", deep.as_bytes()).unwrap_err().contains("recursion limit"));
}

#[test]
fn bytes_after_gzip_data_are_named_and_zeros_passed_over() {
    let packed = gzip(b"{\"prompt\": \"a\"}\n");
    for (after, fine) in [(&[0; 700][..], true), (b"x", false), (b"hello, world", false), (&[0, 0, 1], false)] {
        match parsed("p.gz", &[&packed, after].concat()) {
            Ok(rows) => assert!(fine && rows.len() == 1, "{after:?}"),
            Err(error) => assert!(!fine && error.contains("other bytes follow its gzip data"), "{error}"),
        }
    }
    let second = gzip(b"{\"prompt\": \"b\"}\n");
    assert!(parsed("p.gz", &[&packed[..], &second[..second.len() - 4]].concat()).unwrap_err().contains("is truncated"));
}

#[test]
fn a_key_that_comes_twice_is_refused_and_what_is_said_stays_one_line() {
    let says = |text: &str| parsed("k.jsonl", text.as_bytes()).unwrap_err();
    assert_eq!(says("{\"a\": 1, \"a\": 2}"), "k.jsonl:1: has the key \"a\" twice in one object");
    assert!(says("{}\n{\"x\": [{\"k\\u001b\": 1, \"k\\u001b\": 2}]}").starts_with("k.jsonl:2: has the key \"k\\u{1b}\" twice"));
    assert!(parsed("k.json", b"[{\"a\": {\"b\": 1, \"b\": 1}}]").unwrap_err().starts_with("k.json:1: has the key \"b\" twice"));
    let wrong = Location::first().row_error(format!("\x1b[2J\n{}", "y".repeat(1 << 20))).to_string();
    assert!(wrong.starts_with("test:1: \\u{1b}[2J\\n") && wrong.len() < 3000, "{}", &wrong[..80]);
    let row: Map<String, Value> = (0..100).map(|i| (format!("\x1b{i}{}", "z".repeat(1000)), Value::Null)).collect();
    assert!(names(&row).len() < 3000 && names(&row).contains("\\u{1b}0z") && names(&row).ends_with("and 84 more"));
}

#[test]
fn an_array_is_cut_into_rows_wherever_its_brackets_stand() {
    let rows = parsed("a.json", br#" [ {"a": "]},[\"\\"}, {"b": {"c": [1, {"d": "}"}]}} ,{} ] "#).unwrap();
    assert_eq!(rows, [json!({"a": "]},[\"\\"}), json!({"b": {"c": [1, {"d": "}"}]}}), json!({})]);
    for (text, said) in [
        ("[{\"a\": 1}, ]", "a.json:2: is not JSON"),
        ("[{\"a\": 1}", "it is truncated"),
        ("[{\"a\": \"]", "it is truncated"),
        ("[{}] {}", "something follows its end"),
        ("[{}}", "ends with }"),
        ("[{}, 1]", "a.json:2: is not a JSON object"),
        ("[]", "has no rows"),
        ("[{\"a\" 1}]", "a.json:1: is not JSON: expected `:`"),
    ] {
        let error = parsed("a.json", text.as_bytes()).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn tables_of_every_codec_give_the_same_json() {
    let expected = [
        json!({
            "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1 + 1?"}],
            "text": "a", "count": 1, "small": 200, "score": 0.5, "half": 0.5, "good": true, "tags": ["x", "y"],
            "deep": [[1], [2, 3]], "about": {"source": "web", "url": null}, "pairs": {"k": 1},
            "when": "2024-02-29T12:30:15.25Z", "day": "2024-02-29", "price": "1.50", "bytes": "plain", "nothing": null,
        }),
        json!({
            "prompt": [{"role": "user", "content": "höflich, 你好 🙂"}],
            "text": null, "count": -2, "small": 0, "score": null, "half": 1.0, "good": false, "tags": [],
            "deep": [[]], "about": null, "pairs": {}, "when": null, "day": null, "price": null, "bytes": null, "nothing": null,
        }),
        json!({
            "prompt": [], "text": "c", "count": 3, "small": 7, "score": -1.25, "half": 2.0, "good": null, "tags": null,
            "deep": null, "about": {"source": "book", "url": "u"}, "pairs": null, "when": "2024-02-29T12:30:15.25Z",
            "day": "1969-12-31", "price": "-0.05", "bytes": null, "nothing": null,
        }),
    ];
    for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"] {
        let rows = read(&fixture(&format!("table-{codec}.parquet")).as_path().into()).unwrap();
        assert!(rows[2].0.row_error("x").to_string().ends_with(&format!("table-{codec}.parquet:3: x")));
        assert_eq!(columns(rows), expected, "{codec}");
    }
}

#[test]
fn a_table_that_is_cut_off_or_damaged_is_one_line_and_no_panic() {
    let whole = std::fs::read(fixture("table-snappy.parquet")).unwrap();
    let expected = parsed("t.parquet", &whole).unwrap();
    for length in (4..whole.len()).step_by(97) {
        let cut = parsed("t.parquet", &whole[..length]).unwrap_err();
        assert!(cut.starts_with("t.parquet: is truncated, damaged") && !cut.contains('\n'), "{cut}");
    }
    let mut noticed = 0;
    for at in (4..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        match parsed("t.parquet", &damaged) {
            Ok(rows) => noticed += usize::from(rows != expected),
            Err(error) => {
                assert!(error.starts_with("t.parquet: ") && !error.contains('\n'), "{error}");
                noticed += 1;
            }
        }
    }
    assert!(noticed > 500, "{noticed}");
}

#[test]
fn text_is_cut_into_documents() {
    let text = "\nOne.\nTwo.\n<|endoftext|>\n\n<|endoftext|>\n  Three.\n";
    let rows = parse(Path::new("t.txt"), text.as_bytes()).unwrap();
    assert!(rows[1].0.row_error("x").to_string().starts_with("t.txt:7: "), "{:?}", rows[1].0);
    assert_eq!(columns(rows), [json!({"text": "One.\nTwo."}), json!({"text": "Three."})]);
    assert_eq!(parsed("t.txt", b"{\"all\": 1}").unwrap(), [json!({"text": "{\"all\": 1}"})]);
    assert!(parsed("t.txt", b"fine\n\xff").unwrap_err().starts_with("t.txt:2: is not UTF-8"));
    assert!(parsed("t.txt", b" <|endoftext|>\n").unwrap_err().contains("no rows"));
}

#[test]
fn each_line_of_a_text_is_a_row_as_in_datasets() {
    let rows = parse(Path::new("t.txt"), b"One.\n\n  two \r\n\t\nthree\rfour\nlast").unwrap();
    assert!(rows[1].0.row_error("x").to_string().starts_with("t.txt:3: "), "{:?}", rows[1].0);
    let texts = ["One.", "  two ", "three", "four", "last"];
    assert_eq!(columns(rows), texts.map(|text| json!({"text": text})));
    assert_eq!(parsed("t.txt.gz", &gzip(b"a\nb\n")).unwrap().len(), 2);
    for empty in [&b""[..], b"\n\n", b" \r\n"] {
        assert!(parsed("t.txt", empty).unwrap_err().contains("no rows"));
    }
    // The file is larger than a document may be, but consists of lines.
    let lines = "a line of a large file\n".repeat(1 << 20);
    assert_eq!(parsed("t.txt", lines.as_bytes()).unwrap().len(), 1 << 20);
    let late = format!("{lines}<|endoftext|>");
    assert!(parsed("t.txt", late.as_bytes()).unwrap_err().contains("t.txt:1: is the beginning of a document that is longer"));
    let long = format!("a\n{}\n", "é".repeat(9 << 20));
    assert!(parsed("t.txt", long.as_bytes()).unwrap_err().starts_with("t.txt:2: is a line that is longer than 16.00 MiB"));
}

#[test]
fn short_rows_are_many_without_being_damaged() {
    let file = DatasetFile::new(Path::new("rows.jsonl"));
    let mut budget = FileMemoryBudget::for_file_size(45_000_000);
    for _ in 0..3_000_000 {
        // {"prompt":"a"}
        budget.row_of(&file, 15, 2 * bounds::VALUE + 7).unwrap();
    }
    let mut digits = FileMemoryBudget::for_file_size(90_000_000);
    assert!((0..90).any(|_| digits.row_of(&file, 1 << 20, (1 << 19) * bounds::VALUE).is_err()));
}

#[test]
fn parts_of_splits_are_read_one_after_another() {
    use crate::{DatasetTable, FilePart, SingleRank, SplitPart};
    let lines = |name: &str, count: usize| (0..count).map(|i| format!("{{\"prompt\": \"{name}{i}\"}}\n")).collect::<String>();
    let csv = format!("prompt\n{}", (0..10).map(|i| format!("c{i}\n")).collect::<String>());
    let shards = folder(&[("a.jsonl", lines("a", 6).as_str()), ("b.jsonl", &lines("b", 4)), ("c.csv", &csv)]);
    let files: Vec<PathBuf> = ["a.jsonl", "b.jsonl", "c.csv"].map(|name| shards.path().join(name)).into();
    let read_parts = |parts: &[(Range<usize>, &str)]| {
        let part = |(files, text): &(Range<usize>, &str)| {
            let slice = SplitPart::parse(text).unwrap()[0].slice;
            FilePart { files: files.clone(), slice }
        };
        let dataset = Dataset { files: files.clone(), parts: parts.iter().map(part).collect(), ..Dataset::default() };
        let rows = columns(read(&dataset).map_err(|e| e.to_string())?);
        // The table of a run has the same rows.
        let mut seen = Vec::new();
        let table =
            DatasetTable::read(&dataset, &SingleRank, |_, _, columns| Value::Object(columns), |_, row| seen.push(row)).unwrap();
        assert_eq!(seen, rows);
        assert_eq!(Value::Object(table.row(rows.len() - 1).unwrap().1), rows[rows.len() - 1]);
        Ok::<_, String>(rows.iter().map(|row| row["prompt"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(read_parts(&[(0..2, "t[:25%]")]).unwrap(), "a0 a1");
    assert_eq!(read_parts(&[(0..2, "t[5:7]"), (2..3, "t[-2:]"), (0..2, "t[:1]")]).unwrap(), "a5 b0 c8 c9 a0");
    assert_eq!(read_parts(&[(2..3, "t"), (0..2, "t[:10%]")]).unwrap(), "c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 a0");
    assert!(read_parts(&[(0..1, "t[8:]")]).unwrap_err().contains("has 6 rows, of which this part has none"));
}

#[test]
fn shards_of_a_folder_come_in_the_order_of_their_names() {
    let row = |n: usize| format!("{{\"prompt\": \"{n}\"}}\n");
    let (a, b, c) = (row(1), row(2), row(3));
    let files = [("train-00001.jsonl", b.as_str()), ("train-00000.json", &a), ("train-2.NDJSON", &c), ("README.md", "#")];
    let shards = folder(&files);
    std::fs::write(shards.path().join(".hidden.jsonl"), "{").unwrap();
    std::fs::write(shards.path().join("dataset_info.json"), "{}").unwrap();
    assert_eq!(columns(read(&shards.path().into()).unwrap()), [1, 2, 3].map(|n| json!({"prompt": n.to_string()})));
    std::fs::write(shards.path().join("train-00001.jsonl"), "{\"prompt\": \"b\"}\n[]").unwrap();
    let error = read(&shards.path().into()).unwrap_err().to_string();
    assert!(error.contains("train-00001.jsonl:2: is not a JSON object"), "{error}");
}

#[test]
fn a_folder_that_is_no_dataset_says_what_it_is() {
    let says = |files: &[(&str, &str)]| read(&folder(files).path().into()).unwrap_err().to_string();
    assert!(says(&[("config.json", "{}"), ("model.safetensors", "")]).contains("folder of a model"));
    assert!(says(&[("state.json", "{}"), ("data-0.arrow", "")]).contains("to_parquet"));
    assert!(says(&[("a.xml", ""), ("b.arff", "")]).contains("it holds a.xml, b.arff"));
    assert!(says(&[]).contains("it holds nothing else"));
    assert!(says(&[("train-0.jsonl", ""), ("test-0.jsonl", "")]).contains("several splits (test, train)"));
    assert!(says(&[("a.jsonl", "")]).contains("has no rows"));
    assert!(says(&[("a\x1b[2J.xml", "")]).contains("it holds a\\u{1b}[2J.xml"));
    assert!(says(&[("a\x1b.jsonl", "{")]).contains("a\\u{1b}.jsonl:1: "));
}

#[cfg(unix)]
#[test]
fn what_is_no_file_among_shards_is_refused_by_name() {
    let good = folder(&[("train-0.jsonl", "{\"prompt\": \"a\"}"), ("notes.xml", "")]);
    assert_eq!(read(&good.path().into()).unwrap().len(), 1);
    let link = good.path().join("train-1.jsonl");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let says = |path: &Path| read(&path.into()).unwrap_err().to_string();
    assert!(says(good.path()).ends_with("train-1.jsonl: it is a link to a file that does not exist"), "{}", says(good.path()));
    assert!(says(&link).contains("train-1.jsonl: it is a link"), "{}", says(&link));
    std::fs::remove_file(&link).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&link).status().unwrap().success());
    assert!(says(good.path()).ends_with("train-1.jsonl: it is a pipe, not a regular file"), "{}", says(good.path()));
    assert!(says(Path::new("/dev/zero")).contains("a device"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_bytes_make_the_reader_panic(begin in 0..4_usize, rest in proptest::collection::vec(any::<u8>(), 0..200)) {
        let begins: [&[u8]; 4] = [b"PAR1", &[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd], b"["];
        let _ = parse(Path::new("p"), &[begins[begin], &rest].concat());
    }
}
