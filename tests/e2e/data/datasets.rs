//! Datasets, plugins and settings of strangers: what is no file, has no end, lies or is absurd is one clear line, in little
//! memory and without waiting.

#![cfg(unix)]

use flate2::{Compression, write::GzEncoder};
use rlhost_tests::{CommandOutcome, TestFolder, binary, tiny};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

/// Address space that reading a dataset may take, in KiB: less than would hold what the files become.
const MEMORY: u64 = 3 << 20;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn pipe(place: &TestFolder, name: &str) {
    assert!(Command::new("mkfifo").arg(place.path(name)).status().unwrap().success());
}

/// Learns a tokenizer from a dataset, which takes no plugin and no model, in bounded memory.
fn learn(place: &TestFolder, corpus: &str) -> CommandOutcome {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\"")]).arg(binary());
    command.args(["new-model", "new", "--config", "config.json", "--vocab-size", "300", "--corpus", corpus]);
    CommandOutcome::new(command.current_dir(place.path(".")).env("NO_COLOR", "1").env_remove("RUST_LOG").output().unwrap())
}

/// Tables of commas and tabs that are none, lie or are absurd.
fn write_tables(place: &TestFolder) {
    place.write("bomb.csv.gz", gzip(format!("text\n{}\n", "a b ".repeat(6 << 20)).as_bytes()));
    // A name of 8 MiB that each of a thousand rows would have a copy of.
    place.write("names.tsv.gz", gzip(format!("text\t{}\n{}", "n".repeat(8 << 20), "a\tb\n".repeat(1000)).as_bytes()));
    place.write("many.csv", format!("{}\n", ",".repeat(2 << 20)));
    place.write("short.csv", "text,id\na,1\nb\n");
    place.write("open.csv", "text,id\n\"a,1\nb,2\n");
    place.write("twice.csv", "te\x1b[2Jxt,te\x1b[2Jxt\na,b\n");
    place.write("index.csv", ",text\n0,a\n");
    place.write("utf16.csv", "text\na\n".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    place.write("nul.csv", "text\na\0b\n");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn datasets_that_are_no_data_are_one_line_in_little_memory() {
    let place = TestFolder::new();
    place.write("config.json", std::fs::read(std::path::Path::new(tiny()).join("config.json")).unwrap());
    // 600 MB and more that take no room on the disk.
    for (name, begin, size) in [
        ("line.jsonl", &b"{\"text\": \""[..], 600 << 20),
        ("array.json", b"[{\"text\": \"", 600 << 20),
        ("book.txt", b"It was a dark and stormy night.", 600 << 20),
        ("line.csv", b"text\na\n\"", 600 << 20),
        ("table.parquet", b"PAR1", 8 << 30),
    ] {
        place.write(name, begin);
        File::options().append(true).open(place.path(name)).unwrap().set_len(size).unwrap();
    }
    let long = format!("{{\"text\": \"{}\"}}\n", "a b ".repeat(6 << 20));
    place.write("bomb.jsonl.gz", gzip(long.as_bytes()));
    let row = format!("{{\"text\": \"{}\"}}\n", "a b ".repeat(1 << 18));
    place.write("bombs.jsonl.gz", gzip(row.repeat(300).as_bytes()));
    place.write("large.jsonl", format!("{{\"text\": \"{}\"}}\n", "a b ".repeat(3 << 19)));
    place.write("many.jsonl", format!("{{\"text\": [{}0]}}\n", "0,".repeat(2 << 20)));
    place.write("deep.jsonl", "[".repeat(1 << 20).replacen('[', "{\"text\": [", 1));
    place.write("twice.jsonl", "{\"text\": \"a\", \"text\": \"b\"}\n");
    place.write("after.jsonl.gz", [gzip(b"{\"text\": \"a\"}\n"), b"more".to_vec()].concat());
    place.write("escape.jsonl", "{\"te\\u001b[2Jxt\": 1}\n");
    place.write("conversation.jsonl", "{\"messages\": [\"\\u001b]0;x\\u0007\\n\"]}\n");
    write_tables(&place);
    pipe(&place, "pipe.jsonl");
    let _socket = UnixListener::bind(place.path("socket.jsonl")).unwrap();
    symlink("nowhere.jsonl", place.path("link.jsonl")).unwrap();
    for folder in ["pipes", "links"] {
        std::fs::create_dir(place.path(folder)).unwrap();
        place.write(&format!("{folder}/train-0.jsonl"), "{\"text\": \"a\"}\n");
    }
    pipe(&place, "pipes/train-1.jsonl");
    symlink("nowhere", place.path("links/train-1.jsonl")).unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("line.jsonl", &["line.jsonl:1: is longer than 16.00 MiB"]),
        ("array.json", &["array.json:1: is longer than 16.00 MiB"]),
        ("book.txt", &["book.txt:1: ", "longer than 16.00 MiB", "<|endoftext|>"]),
        ("table.parquet", &["table.parquet: is truncated"]),
        ("bomb.jsonl.gz", &["bomb.jsonl.gz:1: is longer than 16.00 MiB"]),
        ("bombs.jsonl.gz", &["bombs.jsonl.gz: takes more than 256.00 MiB"]),
        ("large.jsonl", &["large.jsonl:1: column \"text\" has 6.0 MiB of text"]),
        ("many.jsonl", &["many.jsonl:1: has more than 1048576 values"]),
        ("deep.jsonl", &["deep.jsonl:1: ", "recursion limit"]),
        ("twice.jsonl", &["twice.jsonl:1: has the key \"text\" twice"]),
        ("after.jsonl.gz", &["after.jsonl.gz: ", "other bytes follow its gzip data"]),
        ("escape.jsonl", &["escape.jsonl:1: ", "te\\u{1b}[2Jxt"]),
        ("conversation.jsonl", &["conversation.jsonl:1: "]),
        ("line.csv", &["line.csv:3: is longer than 16.00 MiB", "quotes closed"]),
        ("bomb.csv.gz", &["bomb.csv.gz:2: is longer than 16.00 MiB"]),
        ("names.tsv.gz", &["names.tsv.gz: takes more than 1.00 GiB"]),
        ("many.csv", &["many.csv:1: has more than 1048576 values"]),
        ("short.csv", &["short.csv:3: has 1 value, but the first row names 2 columns", "line break in quotes"]),
        ("open.csv", &["open.csv:2: opens a quote that is never closed"]),
        ("twice.csv", &["twice.csv:1: names the column \"te\\u{1b}[2Jxt\" twice"]),
        ("index.csv", &["index.csv:1: column 1 has no name", "index=False"]),
        ("utf16.csv", &["utf16.csv:1: ", "save the file as UTF-8"]),
        ("nul.csv", &["nul.csv:2: column \"text\" has a NUL byte"]),
        ("pipe.jsonl", &["pipe.jsonl: it is a pipe, not a regular file"]),
        ("socket.jsonl", &["socket.jsonl: it is a socket, not a regular file"]),
        ("link.jsonl", &["link.jsonl: it is a link to a file that does not exist"]),
        ("/dev/zero", &["/dev/zero: it is a device, not a regular file"]),
        ("pipes", &["pipes/train-1.jsonl: it is a pipe"]),
        ("links", &["links/train-1.jsonl: it is a link to a file that does not exist"]),
    ];
    for (corpus, expected) in cases {
        let outcome = learn(&place, corpus);
        assert_eq!(outcome.code, Some(2), "{corpus}: {}", outcome.stderr);
        for part in *expected {
            assert!(outcome.error().contains(part), "{corpus} should mention {part:?}: {}", outcome.error());
        }
        assert!(!outcome.stderr.contains('\x1b') && outcome.stderr.len() < 4000, "{corpus}: {:?}", outcome.stderr);
        assert!(!place.path("new").exists(), "{corpus}");
    }
}

#[test]
fn pipes_and_devices_are_neither_settings_nor_plugins() {
    let place = TestFolder::new();
    pipe(&place, "pipe");
    symlink("nowhere", place.path("link.wasm")).unwrap();
    std::fs::create_dir(place.path("folder.wasm")).unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--config", "/dev/zero"], &["/dev/zero", "a device"]),
        (&["--config", "pipe"], &["pipe", "a pipe"]),
        (&["--config", "."], &["a folder"]),
        (&["--plugin", "/dev/zero"], &["/dev/zero", "a device"]),
        (&["--plugin", "pipe"], &["pipe", "a pipe"]),
        (&["--plugin", "link.wasm"], &["link.wasm", "a link to a file that does not exist"]),
        (&["--plugin", "folder.wasm"], &["folder.wasm", "a folder"]),
        (&["--algorithm", "/dev/zero"], &["/dev/zero", "a device"]),
    ];
    for (arguments, expected) in cases {
        let outcome = place.run(&[&["--output-dir", "run"], *arguments].concat());
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        assert!(expected.iter().all(|part| outcome.error().contains(part)), "{arguments:?}: {}", outcome.error());
    }
}

#[test]
fn what_is_not_read_and_which_of_two_plugins_is_taken_is_said() {
    let place = TestFolder::new();
    std::fs::create_dir(place.path("shards")).unwrap();
    place.write("shards/train-0.jsonl", "{\"prompt\": \"a\"}\n".repeat(8));
    place.write("shards/more\x1b[2J.xml", "");
    place.write("shards/README.md", "");
    let run = |folder: &str, plugin: &str| {
        let run = ["--model", tiny(), "--dataset", "shards", "--max-steps", "1", "--max-completion-length", "4"];
        place.run(&[&run[..], &["--plugin", plugin, "--output-dir", folder]].concat())
    };
    let plain = run("first", "tldr_length_reward");
    plain.succeeded();
    assert!(plain.stderr.contains("more\\u{1b}[2J.xml") && !plain.stderr.contains("README"), "{}", plain.stderr);
    assert!(!plain.stderr.contains("the built-in plugin"), "{}", plain.stderr);
    place.write("tldr_length_reward.wasm", "not wasm");
    let carried = run("second", "tldr_length_reward");
    carried.succeeded();
    assert!(carried.stderr.contains("using the built-in plugin"), "{}", carried.stderr);
    let own = run("third", "tldr_length_reward.wasm");
    assert_eq!(own.code, Some(2), "{}", own.stderr);
    assert!(own.stderr.contains("using the file in this folder"), "{}", own.stderr);
}
