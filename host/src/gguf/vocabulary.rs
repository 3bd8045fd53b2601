//! A tokenizer as metadata of a GGUF file.
//!
//! llama.cpp has two kinds of tokenizers that `tokenizer.json` describes as BPE: byte-level ones (its model `gpt2`), whose patterns it
//! knows by name, and SentencePiece's (its model `llama`), whose pieces have scores. Others are refused.

use super::file::{GgufMetadata, GgufValue};
use super::{Error, Result};
use crate::config::{files, json, printable};
use crate::data::Tokenizer;
use crate::model::Architecture;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;

/// Maximum size of `tokenizer.json` in bytes, as in [`Tokenizer`].
const LARGEST: u64 = 64 << 20;

/// Maximum length of a pattern in an error message, in bytes.
const SHOWN: usize = 200;

/// The character that replaces a space in pieces.
const SPACE: &str = "\u{2581}";

/// Patterns that split a text into words, whether a word that is itself a token is not split further, and llama.cpp's name for the
/// combination.
const PATTERNS: [(&str, bool, &str); 5] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        false,
        "qwen2",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        true,
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        false,
        "dbrx",
    ),
    (
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        false,
        "gpt-4o",
    ),
    (
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
            r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        true,
        "tekken",
    ),
];

/// The parts of `tokenizer.json` that the export uses.
#[derive(Deserialize)]
struct VocabularyFile {
    #[serde(default)]
    added_tokens: Vec<AddedVocabularyToken>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    model: Bpe,
}

#[derive(Deserialize)]
struct AddedVocabularyToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Bpe {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// A merge, in its older or newer form.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair([String; 2]),
}

impl Merge {
    fn line(&self) -> String {
        match self {
            Self::Line(line) => line.clone(),
            Self::Pair(pair) => pair.join(" "),
        }
    }

    /// Returns the piece that the merge produces.
    fn piece(&self) -> String {
        match self {
            Self::Line(line) => line.replacen(' ', "", 1),
            Self::Pair(pair) => pair.concat(),
        }
    }
}

/// A kind of tokenizer.
#[derive(Debug, PartialEq)]
enum GgufTokenizerKind {
    /// Byte-level, with llama.cpp's name for its pattern.
    Bytes(&'static str),
    /// SentencePiece's pieces, with whether a text gets a leading space.
    Pieces { prefix: bool },
}

/// Kinds of tokens (`llama_token_type`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum GgufTokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Returns the metadata of the tokenizer in a folder; adds notes for the user.
///
/// # Errors
/// If llama.cpp has no such tokenizer, or there is no end token.
pub(super) fn metadata(folder: &Path, tokenizer: &Tokenizer, a: &Architecture, notes: &mut Vec<String>) -> Result<GgufMetadata> {
    let path = folder.join("tokenizer.json");
    let wrong = |detail: String| Error::Unknown { path: path.clone(), detail };
    let file = read(&path)?;
    let kind = kind(&file)
        .map_err(|what| wrong(format!("llama.cpp has no tokenizer with {what}, so the model can't be exported as GGUF")))?;
    let (tokens, kinds) = tokens(&file, &kind, a.vocab_size).map_err(wrong)?;
    let (model, name) = match &kind {
        GgufTokenizerKind::Bytes(name) => ("gpt2", *name),
        GgufTokenizerKind::Pieces { .. } => ("llama", "default"),
    };
    let mut all = vec![("model", GgufValue::Text(model.into())), ("pre", GgufValue::Text(name.into()))];
    match kind {
        GgufTokenizerKind::Bytes(_) => {
            all.push(("merges", GgufValue::Texts(file.model.merges.iter().map(Merge::line).collect())));
        }
        GgufTokenizerKind::Pieces { prefix } => {
            all.push(("scores", GgufValue::Numbers(scores(&file.model, &tokens))));
            all.push(("add_space_prefix", GgufValue::Flag(prefix)));
        }
    }
    all.push(("tokens", GgufValue::Texts(tokens)));
    all.push(("token_type", GgufValue::Integers(kinds.iter().map(|kind| *kind as i32).collect())));
    let unknown = file.model.unk_token.as_ref().and_then(|text| file.model.vocab.get(text));
    all.extend(unknown.map(|id| ("unknown_token_id", GgufValue::Count(*id))));
    all.extend(framing(tokenizer, a, notes).map_err(wrong)?);
    Ok(all.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect())
}

/// Reads the tokenizer in a folder for a model; returns the number of resulting keys.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_tokenizer(folder: &Path, a: &Architecture) -> Result<usize> {
    let tokenizer = Tokenizer::open(folder)?;
    Ok(metadata(folder, &tokenizer, a, &mut Vec::new())?.len())
}

fn read(path: &Path) -> Result<VocabularyFile> {
    let unread = |source| crate::data::Error::Io { path: path.to_owned(), source };
    let text = files::read_text(path, LARGEST).map_err(unread)?;
    let wrong = |detail: String| Error::Unknown { path: path.to_owned(), detail };
    let whole = json::value(&text).map_err(|e| wrong(e.to_string()))?;
    // The oldest BPE files have no type.
    let kind = whole["model"]["type"].as_str().unwrap_or("BPE").to_owned();
    if kind != "BPE" {
        let kind = printable(&kind, SHOWN);
        return Err(wrong(format!("a tokenizer of type {kind:?} can't be exported as GGUF; one of type BPE can")));
    }
    serde_json::from_value(whole).map_err(|e| wrong(printable(&e.to_string(), SHOWN)))
}

/// Returns the steps of a normalizer or a pre-tokenizer.
fn steps<'a>(of: &'a Json, list: &str) -> Vec<&'a Json> {
    match of {
        Json::Null => Vec::new(),
        sequence if sequence["type"] == "Sequence" => {
            sequence[list].as_array().into_iter().flatten().flat_map(|step| steps(step, list)).collect()
        }
        one => vec![one],
    }
}

/// Returns the kind of a tokenizer; the error says what llama.cpp lacks.
fn kind(file: &VocabularyFile) -> std::result::Result<GgufTokenizerKind, String> {
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if given(&file.model.continuing_subword_prefix) || given(&file.model.end_of_word_suffix) {
        return Err("a prefix or suffix of subwords".into());
    }
    let (normalizers, words) = (steps(&file.normalizer, "normalizers"), steps(&file.pre_tokenizer, "pretokenizers"));
    if file.model.byte_fallback { pieces(&normalizers, &words) } else { bytes(&normalizers, &words, file.model.ignore_merges) }
}

/// Returns the kind of a byte-level tokenizer, with llama.cpp's name for its pattern.
fn bytes(normalizers: &[&Json], words: &[&Json], ignore_merges: bool) -> std::result::Result<GgufTokenizerKind, String> {
    // llama.cpp does not normalize text, and most typed text is already in NFC.
    if let Some(other) = normalizers.iter().find(|step| step["type"] != "NFC") {
        return Err(format!("the normalizer {}", shown(other)));
    }
    let byte_level = |step: &Json, regex: bool| {
        let is = |key: &str| step[key].as_bool().unwrap_or(true);
        step["type"] == "ByteLevel" && is("use_regex") == regex && !is("add_prefix_space")
    };
    let named = match words {
        [last] if byte_level(last, true) => Some(("gpt-2", false)),
        [digits, last] if digits["type"] == "Digits" && digits["individual_digits"] == true && byte_level(last, true) => {
            Some(("smollm", false))
        }
        [split, last] if split["type"] == "Split" && byte_level(last, false) => pattern(split, ignore_merges),
        _ => None,
    };
    let step =
        || words.first().map_or_else(|| "no pre-tokenizer".to_owned(), |step| format!("the pre-tokenizer {}", shown(step)));
    match named {
        Some((name, whole)) if whole == ignore_merges => Ok(GgufTokenizerKind::Bytes(name)),
        Some(_) => Err(format!("{} and ignore_merges {ignore_merges}", step())),
        None => Err(step()),
    }
}

/// Returns llama.cpp's name of a pattern.
fn pattern(split: &Json, ignore_merges: bool) -> Option<(&'static str, bool)> {
    let isolates = (&split["behavior"], &split["invert"]) == (&"Isolated".into(), &false.into())
        || (&split["behavior"], &split["invert"]) == (&"Removed".into(), &true.into());
    let regex = split["pattern"]["Regex"].as_str().filter(|_| isolates)?;
    let found = |whole: bool| PATTERNS.iter().find(|(known, ignores, _)| *known == regex && *ignores == whole);
    found(ignore_merges).or_else(|| found(!ignore_merges)).map(|(_, ignores, name)| (*name, *ignores))
}

/// Checks that a tokenizer of pieces works like llama.cpp's: it replaces spaces, perhaps after adding a leading one, and does not split
/// text.
fn pieces(normalizers: &[&Json], words: &[&Json]) -> std::result::Result<GgufTokenizerKind, String> {
    let mut prefix = false;
    for step in normalizers {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == SPACE => prefix = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == SPACE => {}
            _ => return Err(format!("the normalizer {}", shown(step))),
        }
    }
    for step in words {
        match step["type"].as_str() {
            Some("Metaspace") if step["replacement"] == SPACE && step["split"] == false => {
                prefix |= step["prepend_scheme"] != "never";
            }
            // After the normalizer, there is no space to split at.
            Some("Split") if step["pattern"]["String"] == " " && !normalizers.is_empty() => {}
            _ => return Err(format!("the pre-tokenizer {}", shown(step))),
        }
    }
    Ok(GgufTokenizerKind::Pieces { prefix })
}

fn shown(step: &Json) -> String {
    printable(&step.to_string(), SHOWN)
}

/// Returns the text and the type of every token, as many as the model has. Tokens that the tokenizer lacks are unused.
fn tokens(
    file: &VocabularyFile,
    kind: &GgufTokenizerKind,
    count: usize,
) -> std::result::Result<(Vec<String>, Vec<GgufTokenType>), String> {
    let mut texts: Vec<String> = (0..count).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![GgufTokenType::Unused; count];
    let mut set = |id: u32, text: String, kind: GgufTokenType| {
        let beyond = || format!("the token {:?} has the number {id}, but the model has only {count}", printable(&text, SHOWN));
        let at = usize::try_from(id).ok().filter(|id| *id < count).ok_or_else(beyond)?;
        (texts[at], kinds[at]) = (text, kind);
        Ok::<_, String>(())
    };
    let of_pieces = matches!(kind, GgufTokenizerKind::Pieces { .. });
    for (text, id) in &file.model.vocab {
        let kind = match text {
            text if of_pieces && file.model.unk_token.as_ref() == Some(text) => GgufTokenType::Unknown,
            text if of_pieces && is_byte(text) => GgufTokenType::Byte,
            _ => GgufTokenType::Normal,
        };
        set(*id, text.clone(), kind)?;
    }
    for AddedVocabularyToken { id, content, special } in &file.added_tokens {
        if file.model.unk_token.as_ref() == Some(content) && of_pieces {
            continue;
        }
        // llama.cpp looks for such tokens in text with plain spaces.
        let (text, kind) = if *special || looks_special(content) {
            (content.clone(), GgufTokenType::Control)
        } else {
            (content.replace(SPACE, " "), GgufTokenType::UserDefined)
        };
        set(*id, text, kind)?;
    }
    Ok((texts, kinds))
}

/// Returns whether a piece represents a byte, like `<0x0A>`.
fn is_byte(piece: &str) -> bool {
    let digits = piece.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Returns whether an added token is a control token although its file does not say so (`does_token_look_special` of llama.cpp's
/// converter).
fn looks_special(text: &str) -> bool {
    let within = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || within("<|", "|>")
        || within("<\u{ff5c}", "\u{ff5c}>")
        || within("<unused", ">")
}

/// Returns a score for each piece. llama.cpp joins the pieces with the highest score first. A later merge gets a lower score, so the order
/// is that of the merges.
fn scores(model: &Bpe, tokens: &[String]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(model.merges.len());
    for (rank, merge) in model.merges.iter().enumerate() {
        ranks.entry(merge.piece()).or_insert(rank);
    }
    let last = model.merges.len();
    tokens.iter().map(|token| -(*ranks.get(token).unwrap_or(&last) as f32)).collect()
}

/// Returns the tokens that begin and end texts, by running the tokenizer to see what it adds around a text.
fn framing(
    tokenizer: &Tokenizer,
    a: &Architecture,
    notes: &mut Vec<String>,
) -> std::result::Result<Vec<(&'static str, GgufValue)>, String> {
    let encoded = |special: bool| tokenizer.encode("a", special).map_err(|e| e.to_string());
    let (plain, framed) = (encoded(false)?, encoded(true)?);
    if plain.is_empty() {
        return Err("the tokenizer has no token for the letter a, so what it adds around a text can't be determined".into());
    }
    let (own_bos, own_eos) = tokenizer.bos_and_eos_ids();
    let ends = tokenizer.eos_ids(&a.eos_token_ids);
    let mut ends: Vec<u32> = own_eos.into_iter().chain(ends.into_iter().filter(|id| Some(*id) != own_eos)).collect();
    let at = framed.windows(plain.len()).position(|window| window == plain);
    let around = at.map(|at| (&framed[..at], &framed[at + plain.len()..]));
    let (before, after) = match around {
        Some((before @ ([] | [_]), after @ ([] | [_]))) => (before.first().copied(), after.first().copied()),
        _ => return Err("llama.cpp adds at most one token before a text and one after it; this tokenizer adds more".into()),
    };
    if let Some(after) = after {
        ends.retain(|id| *id != after);
        ends.insert(0, after);
    }
    if ends.is_empty() {
        return Err("there is no end token; set eos_token in tokenizer_config.json, or eos_token_id in config.json".into());
    }
    let mut all = vec![("add_bos_token", GgufValue::Flag(before.is_some())), ("add_eos_token", GgufValue::Flag(after.is_some()))];
    all.extend(before.or(own_bos).map(|id| ("bos_token_id", GgufValue::Count(id))));
    // llama.cpp ends a text at any of the three.
    all.extend(
        ["eos_token_id", "eot_token_id", "eom_token_id"].into_iter().zip(&ends).map(|(key, id)| (key, GgufValue::Count(*id))),
    );
    if ends.len() > 3 {
        notes.push(format!("a GGUF file can name only three end tokens; {:?} are left out", &ends[3..]));
    }
    all.extend(tokenizer.pad_id().map(|id| ("padding_token_id", GgufValue::Count(id))));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(file: Json) -> VocabularyFile {
        serde_json::from_value(file).unwrap()
    }

    /// Returns normalizers and pre-tokenizers like those of Llama 2 (`Prepend`), of newer Mistrals (`Metaspace`) and of Gemma.
    fn of_pieces() -> [(Json, Json, bool); 3] {
        let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
        let prepend = json!({ "type": "Prepend", "prepend": "\u{2581}" });
        let metaspace = json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false });
        let split = json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false });
        [
            (json!({ "type": "Sequence", "normalizers": [prepend, replace] }), Json::Null, true),
            (Json::Null, metaspace, true),
            (replace, split, false),
        ]
    }

    #[test]
    fn pieces_have_kinds_and_scores_in_the_order_of_merges() {
        for (normalizer, words, prefix) in of_pieces() {
            let file = parsed(json!({
                "normalizer": normalizer, "pre_tokenizer": words,
                "added_tokens": [{ "id": 0, "content": "<unk>", "special": true }, { "id": 7, "content": "<end>", "special": true },
                                 { "id": 8, "content": "<call>" }, { "id": 9, "content": "<|x|>" }],
                "model": { "type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": ["a b", ["\u{2581}", "ab"]],
                           "vocab": { "<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "\u{2581}": 4, "ab": 5, "\u{2581}ab": 6 } },
            }));
            let kind = kind(&file).unwrap();
            assert_eq!(kind, GgufTokenizerKind::Pieces { prefix });
            let (texts, kinds) = tokens(&file, &kind, 11).unwrap();
            assert_eq!(texts[5..], ["ab", "\u{2581}ab", "<end>", "<call>", "<|x|>", "[PAD10]"]);
            assert_eq!(kinds.iter().map(|kind| *kind as i32).collect::<Vec<_>>(), [2, 6, 1, 1, 1, 1, 1, 3, 4, 3, 5]);
            let scores = scores(&file.model, &texts);
            assert_eq!((scores[5], scores[6]), (0.0, -1.0));
            assert!(scores[2..5].iter().all(|score| *score == -2.0));
            assert!(tokens(&file, &kind, 9).is_err_and(|e| e.contains("number 9")));
        }
    }

    #[test]
    fn patterns_have_the_names_under_which_llama_cpp_knows_them() {
        let byte_level = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": regex });
        let split =
            |regex: &str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
        let of = |words: Json, ignore_merges: bool| {
            let model = json!({ "type": "BPE", "ignore_merges": ignore_merges, "vocab": {}, "merges": [] });
            let words = json!({ "type": "Sequence", "pretokenizers": words });
            kind(&parsed(json!({ "normalizer": { "type": "NFC" }, "pre_tokenizer": words, "model": model })))
        };
        let digits = json!({ "type": "Digits", "individual_digits": true });
        assert_eq!(of(json!([byte_level(true)]), false), Ok(GgufTokenizerKind::Bytes("gpt-2")));
        assert_eq!(of(json!([digits, byte_level(true)]), false), Ok(GgufTokenizerKind::Bytes("smollm")));
        for (regex, whole, name) in PATTERNS {
            assert_eq!(of(json!([split(regex), byte_level(false)]), whole), Ok(GgufTokenizerKind::Bytes(name)));
        }
        for (words, ignore_merges, says) in [
            (json!([split(PATTERNS[0].0), byte_level(true)]), false, "pre-tokenizer"),
            (json!([split("."), byte_level(false)]), false, "pre-tokenizer"),
            (json!([split(PATTERNS[0].0), byte_level(false)]), true, "ignore_merges"),
            (json!([byte_level(true)]), true, "ignore_merges"),
            (json!([]), false, "no pre-tokenizer"),
        ] {
            assert!(of(words, ignore_merges).is_err_and(|e| e.contains(says)), "{says}");
        }
    }
}
