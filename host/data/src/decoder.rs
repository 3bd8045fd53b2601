//! Texts of single tokens, and bounds on the work of a tokenizer's decoder.

use serde_json::Value;

/// Maximum factor by which a decoder may lengthen tokens and still run without limits. Decoders of common models only shorten them.
const MOST_GROWTH: usize = 4;

/// Maximum number of parts with which a decoder may run without limits: each part processes every token.
const MOST_PARTS: usize = 32;

/// Returns whether a decoder, given as JSON, may take long or produce much more text than it reads. Its parts run in sequence, so their
/// growth factors multiply.
pub(super) fn is_free(decoder: &Value) -> bool {
    let mut parts = Vec::new();
    collect(decoder, &mut parts);
    let growth = parts.iter().fold(1usize, |product, part| product.saturating_mul(growth(part)));
    parts.len() > MOST_PARTS || growth > MOST_GROWTH
}

/// Collects the parts of a decoder, flattening sequences.
fn collect<'a>(decoder: &'a Value, into: &mut Vec<&'a Value>) {
    match decoder["decoders"].as_array() {
        Some(all) => all.iter().for_each(|part| collect(part, into)),
        None if decoder.is_null() => {}
        None => into.push(decoder),
    }
}

/// Returns the factor by which a part may lengthen a token.
fn growth(part: &Value) -> usize {
    let bytes = |value: &Value| value.as_str().map_or(0, str::len);
    match part["type"].as_str() {
        Some("Fuse" | "Strip" | "Metaspace" | "ByteFallback") => 1,
        // An invalid byte becomes a character of three bytes.
        Some("ByteLevel") => 2,
        // Adds a space before each token.
        Some("WordPiece") => 2,
        // An empty suffix or delimiter is found between all characters.
        Some("BPEDecoder") => 1 + usize::from(bytes(&part["suffix"]) == 0),
        Some("CTC") => 1 + usize::from(bytes(&part["word_delimiter_token"]) == 0),
        Some("Replace") => match (bytes(&part["pattern"]["String"]), bytes(&part["content"])) {
            // A regular expression, or an empty text.
            (0, _) => usize::MAX,
            (from, to) => to.div_ceil(from).max(1),
        },
        _ => usize::MAX,
    }
}

/// Returns the text that each token adds, as [`Tokenizer::texts_of`](super::Tokenizer::texts_of) does.
pub(super) fn texts_of(tokenizer: &tokenizers::Tokenizer, ids: &[u32]) -> tokenizers::Result<Vec<String>> {
    let (mut stream, mut texts) = (tokenizer.decode_stream(false), Vec::with_capacity(ids.len()));
    for &id in ids {
        let text = match stream.step(id) {
            Ok(text) => text.unwrap_or_default(),
            // With a fallback to bytes, those of an incomplete character change how the bytes before them are decoded.
            Err(_) => {
                stream = tokenizer.decode_stream(false);
                let own = stream.step(id)?.unwrap_or_default();
                format!("{}{own}", char::REPLACEMENT_CHARACTER)
            }
        };
        texts.push(text);
    }
    // Nothing is left if the last token completed a character.
    if texts.last().is_some_and(String::is_empty) {
        let whole = tokenizer.decode(ids, false)?;
        let rest = whole.strip_prefix(&texts.concat()).map_or_else(|| char::REPLACEMENT_CHARACTER.to_string(), str::to_owned);
        texts.iter_mut().last().into_iter().for_each(|last| last.push_str(&rest));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sequence(parts: &[Value]) -> Value {
        json!({ "type": "Sequence", "decoders": parts })
    }

    fn replace(from: &str, to: &str) -> Value {
        json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
    }

    #[test]
    fn every_token_has_a_text_where_bytes_are_no_character() {
        let pieces = ["<unk>", "</s>", "<0x7D>", "<0xE2>", "<0x82>", "<0xAC>", "a"];
        let vocab: Value = pieces.iter().enumerate().map(|(id, piece)| ((*piece).to_owned(), json!(id))).collect();
        let end = json!({"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
        let model = json!({"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true, "unk_token": "<unk>"});
        let decoder = sequence(&[json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
        let whole = json!({"version": "1.0", "added_tokens": [end], "decoder": decoder, "model": model});
        let tokenizer: tokenizers::Tokenizer = whole.to_string().parse().unwrap();
        let texts = |ids: &[u32]| texts_of(&tokenizer, ids).unwrap();
        assert_eq!(texts(&[6, 2, 3, 4, 5, 1]), ["a", "}", "", "", "\u{20ac}", "</s>"]);
        // Half of a character after a byte: all bytes together are none.
        assert_eq!(texts(&[6, 2, 3, 1]), ["a", "}", "", "\u{fffd}</s>"]);
        assert_eq!(texts(&[2, 3, 6, 6]), ["}", "", "\u{fffd}a", "a"]);
        assert_eq!(texts(&[2, 3, 4]), ["}", "", "\u{fffd}"]);
        for seed in 0..2000u32 {
            let ids: Vec<u32> = (0..8).map(|at| (seed.wrapping_mul(2_654_435_761).rotate_left(4 * at) >> 7) % 7).collect();
            assert_eq!(texts(&ids).len(), 8, "{ids:?}");
        }
    }

    #[test]
    fn common_decoders_are_not_watched() {
        let llama = sequence(&[
            replace("\u{2581}", " "),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
            json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }),
        ]);
        let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
        let word_piece = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
        let bpe = json!({ "type": "BPEDecoder", "suffix": "</w>" });
        let ctc = json!({ "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true });
        let metaspace = json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true });
        for decoder in [llama, byte_level, word_piece, bpe, ctc, metaspace, Value::Null] {
            // Compare with the JSON that the library writes.
            let read: Option<tokenizers::DecoderWrapper> = serde_json::from_value(decoder.clone()).unwrap();
            assert!(!is_free(&serde_json::to_value(read).unwrap()), "{decoder}");
        }
    }

    #[test]
    fn decoders_that_multiply_or_have_patterns_are_watched() {
        let doubles = replace("a", "aa");
        let free = [
            sequence(&vec![replace("a", "aaaaaaaaaa"); 40]),
            sequence(&vec![doubles.clone(); 3]),
            sequence(&[sequence(&vec![doubles.clone(); 2]), sequence(std::slice::from_ref(&doubles))]),
            sequence(&vec![json!({ "type": "BPEDecoder", "suffix": "" }); 3]),
            sequence(&vec![json!({ "type": "Fuse" }); 33]),
            replace("a", "aaaaa"),
            replace("", "a"),
            json!({ "type": "Replace", "pattern": { "Regex": "(a|a)*$" }, "content": "" }),
            json!({ "type": "Later" }),
        ];
        for decoder in free {
            assert!(is_free(&decoder), "{decoder}");
        }
        assert!(!is_free(&sequence(&vec![doubles; 2])));
    }
}
