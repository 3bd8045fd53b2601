//! Bounds the work of a tokenizer's decoder.

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
