//! Special and added tokens in a tokenizer's settings, with the semantics of transformers.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

/// Key of the added tokens, by id.
const ADDED: &str = "added_tokens_decoder";

/// Named tokens that every tokenizer may have.
const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Keys of further special tokens: a list, or an object with names. The second is the older key.
const FURTHER: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// Key of an object with the names of further special tokens, as transformers 5 saves them.
const SPECIFIC: &str = "model_specific_special_tokens";

/// Adds the special tokens of `special_tokens_map.json` to a tokenizer's settings. As in transformers, they replace those of the settings,
/// and are ignored if the settings list added tokens.
pub(super) fn with_map(config: Value, map: Option<Map<String, Value>>) -> Value {
    let Some(map) = map.filter(|_| config.get(ADDED).is_none()) else { return config };
    let mut config = match config {
        Value::Object(config) => config,
        _ => Map::new(),
    };
    for (key, value) in map {
        match (config.get_mut(&key), value) {
            (Some(Value::Array(known)), Value::Array(more)) if FURTHER.contains(&key.as_str()) => {
                let more: Vec<Value> = more.into_iter().filter(|token| !known.contains(token)).collect();
                known.extend(more);
            }
            (_, value) => drop(config.insert(key, value)),
        }
    }
    Value::Object(config)
}

/// Returns the text of a special token, given as a string or as an object with `content`.
fn text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// Returns the named tokens with their names, in the order in which transformers adds those that a tokenizer lacks: first the standard
/// names, then other keys that end with `_token`, then named further tokens. As in transformers, [`SPECIFIC`] counts only without the latter
/// two.
fn named_tokens(config: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let usual = NAMES.into_iter().map(|name| (name, &config[name]));
    let settings = config.as_object().into_iter().flatten();
    let other = settings.filter(|(key, _)| !NAMES.contains(&key.as_str()) && key.ends_with("_token"));
    let further = FURTHER.into_iter().find_map(|key| config[key].as_object()).into_iter().flatten();
    let mut own = other.chain(further).filter(|(_, value)| text(value).is_some()).peekable();
    let specific = if own.peek().is_none() { config[SPECIFIC].as_object() } else { None };
    let own = own.chain(specific.into_iter().flatten());
    usual.chain(own.map(|(key, value)| (key.as_str(), value))).filter(|(_, value)| text(value).is_some())
}

/// Returns the texts of the named tokens, which are variables of the chat template.
pub(super) fn named(config: &Value) -> Map<String, Value> {
    named_tokens(config).filter_map(|(name, value)| Some((name.to_owned(), Value::from(text(value)?)))).collect()
}

/// Tokens that settings add to a tokenizer.
#[derive(Debug, Default)]
pub(super) struct ConfiguredTokens {
    /// Tokens described with their properties; they replace the tokenizer's own.
    described: Vec<AddedToken>,
    /// Tokens that are added only if the tokenizer lacks them.
    named: Vec<AddedToken>,
}

impl ConfiguredTokens {
    /// Reads the tokens in settings. `legacy` is `added_tokens.json`: ids by text.
    ///
    /// # Errors
    /// Names the entry that is not a token.
    pub(super) fn from_settings(config: &Value, legacy: Option<Map<String, Value>>) -> Result<Self, String> {
        let names = named(config);
        let is_named = |own: &str| names.values().any(|name| name == own);
        let further: Vec<&Value> = FURTHER.into_iter().find_map(|key| config[key].as_array()).into_iter().flatten().collect();
        let is_further = |own: &str| further.iter().any(|token| text(token) == Some(own));
        let mut this = Self::default();
        match &config[ADDED] {
            Value::Null => {
                let mut legacy: Vec<(String, Value)> = legacy.into_iter().flatten().collect();
                legacy.sort_by_key(|(_, id)| id.as_u64());
                this.named.extend(legacy.into_iter().map(|(own, _)| {
                    let special = is_named(&own) || is_further(&own);
                    AddedToken::from(own, special)
                }));
            }
            Value::Object(all) => {
                let mut tokens = Vec::new();
                for (id, token) in all {
                    let number: u64 = id.parse().map_err(|_| format!("{ADDED}: {id:?} is not the id of a token"))?;
                    let mut token = described(token).ok_or_else(|| format!("{ADDED}: {id} is not a token with a content"))?;
                    token.special |= is_named(&token.content);
                    tokens.push((number, token));
                }
                tokens.sort_by_key(|(number, _)| *number);
                this.described.extend(tokens.into_iter().map(|(_, token)| token));
            }
            _ => return Err(format!("{ADDED} is not an object of tokens by their ids")),
        }
        let named = named_tokens(config).map(|(_, token)| token).filter(|token| text(token) != Some(""));
        for token in named.chain(further) {
            let own = text(token).ok_or_else(|| "extra_special_tokens: one is not a token".to_owned())?;
            let token = described(token).unwrap_or_else(|| AddedToken::from(own, true));
            this.named.push(AddedToken { special: true, ..token });
        }
        Ok(this)
    }

    /// Adds the tokens to a tokenizer. Returns whether any was new or different.
    ///
    /// # Errors
    /// If the tokenizer's normalizer fails.
    pub(super) fn add_to(self, inner: &mut tokenizers::Tokenizer) -> tokenizers::Result<bool> {
        let known = inner.get_added_tokens_decoder();
        let own = |token: &AddedToken| known.values().find(|own| own.content == token.content);
        let mut new: Vec<AddedToken> = self.described;
        new.retain(|token| own(token).is_none_or(|own| properties(own) != properties(token)));
        for token in self.named {
            if own(&token).is_none() && !new.iter().any(|other| other.content == token.content) {
                new.push(token);
            }
        }
        let some = !new.is_empty();
        inner.add_tokens(new)?;
        Ok(some)
    }
}

/// Reads a token with its properties.
fn described(value: &Value) -> Option<AddedToken> {
    let content = value.get("content")?.as_str()?;
    let is = |key: &str, default: bool| value[key].as_bool().unwrap_or(default);
    let special = is("special", false);
    let token = AddedToken::from(content, special);
    let token = token.single_word(is("single_word", false)).lstrip(is("lstrip", false)).rstrip(is("rstrip", false));
    Some(token.normalized(is("normalized", !special)))
}

fn properties(token: &AddedToken) -> [bool; 5] {
    [token.single_word, token.lstrip, token.rstrip, token.normalized, token.special]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;
    use serde_json::json;

    fn map(value: Value) -> Option<Map<String, Value>> {
        value.as_object().cloned()
    }

    #[test]
    fn the_map_of_special_tokens_is_read_as_transformers_does() {
        let read = map(json!({"bos_token": {"content": "<s>"}, "pad_token": "<p>", "extra_special_tokens": ["<b>", "<c>"]}));
        let config = json!({"bos_token": "<x>", "eos_token": "</s>", "extra_special_tokens": ["<a>", "<b>"]});
        let whole = with_map(config, read.clone());
        assert_eq!(Value::from(named(&whole)), json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<p>"}));
        assert_eq!(whole["extra_special_tokens"], json!(["<a>", "<b>", "<c>"]));
        assert_eq!(with_map(Value::Null, read.clone())["pad_token"], "<p>");
        // Settings that list added tokens are complete.
        let complete = json!({"added_tokens_decoder": {}, "eos_token": "</s>"});
        assert_eq!(with_map(complete.clone(), read), complete);
    }

    #[test]
    fn named_tokens_are_those_of_a_template() {
        let config = json!({
            "bos_token": "<s>", "unk_token": null, "add_bos_token": true, "image_token": "<i>", "model_max_length": 9,
            "extra_special_tokens": {"audio": "<a>", "boi_token": {"content": "<b>"}},
        });
        let expected = json!({"bos_token": "<s>", "image_token": "<i>", "audio": "<a>", "boi_token": "<b>"});
        assert_eq!(Value::from(named(&config)), expected);
        let mut saved = json!({"eos_token": "<e>", "model_specific_special_tokens": {"image_token": "<i>", "audio": "<a>"}});
        assert_eq!(Value::from(named(&saved)), json!({"eos_token": "<e>", "image_token": "<i>", "audio": "<a>"}));
        saved["video_token"] = "<v>".into();
        assert_eq!(Value::from(named(&saved)), json!({"eos_token": "<e>", "video_token": "<v>"}));
    }

    #[test]
    fn added_tokens_have_the_properties_that_settings_give() {
        let config = json!({
            "eos_token": "<e>",
            "added_tokens_decoder": {
                "10": {"content": "<e>", "rstrip": true, "lstrip": true, "single_word": true, "normalized": true},
                "9": {"content": "<f>", "special": true},
            },
            "additional_special_tokens": ["<g>", {"content": "<h>", "lstrip": true}],
        });
        let added = ConfiguredTokens::from_settings(&config, None).unwrap();
        let of =
            |tokens: &[AddedToken]| tokens.iter().map(|token| (token.content.clone(), properties(token))).collect::<Vec<_>>();
        let [yes, no] = [true, false];
        assert_eq!(of(&added.described), [("<f>".into(), [no, no, no, no, yes]), ("<e>".into(), [yes; 5])]);
        assert_eq!(
            of(&added.named),
            [
                ("<e>".into(), [no, no, no, no, yes]),
                ("<g>".into(), [no, no, no, no, yes]),
                ("<h>".into(), [no, yes, no, yes, yes])
            ]
        );
        let legacy = ConfiguredTokens::from_settings(&json!({"pad_token": "<p>"}), map(json!({"<q>": 8, "<p>": 7}))).unwrap();
        let pad = || ("<p>".into(), [no, no, no, no, yes]);
        assert_eq!(of(&legacy.named), [pad(), ("<q>".into(), [no, no, no, yes, no]), pad()]);
        for (wrong, part) in [
            (json!({"added_tokens_decoder": []}), "not an object"),
            (json!({"added_tokens_decoder": {"x": {"content": "a"}}}), "\"x\" is not the id"),
            (json!({"added_tokens_decoder": {"1": {}}}), "1 is not a token"),
            (json!({"extra_special_tokens": [3]}), "not a token"),
        ] {
            assert!(ConfiguredTokens::from_settings(&wrong, None).unwrap_err().contains(part), "{wrong}");
        }
    }

    /// Opens a tokenizer of words, spaces and `<e>`, with these additional settings files.
    fn opened(files: &[(&str, Value)]) -> crate::Result<(tempfile::TempDir, Tokenizer)> {
        let place = tempfile::tempdir().unwrap();
        let own = json!({"id": 4, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [own], "normalizer": null,
            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2, " ": 3, "<e>": 4}, "unk_token": "?"},
        });
        std::fs::write(place.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        for (name, value) in files {
            std::fs::write(place.path().join(name), value.to_string()).unwrap();
        }
        let tokenizer = Tokenizer::open(place.path())?;
        Ok((place, tokenizer))
    }

    fn tokens(files: &[(&str, Value)], text: &str) -> Vec<u32> {
        opened(files).unwrap().1.encode(text, false).unwrap()
    }

    #[test]
    fn a_tokenizer_has_the_tokens_of_its_settings() {
        let settings = |all: Value| [("tokenizer_config.json", all)];
        let ending = |more: Value| {
            let mut token = json!({"content": "<e>", "special": true, "normalized": false});
            token.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            settings(json!({"added_tokens_decoder": {"4": token}}))
        };
        assert_eq!(tokens(&[], "a <e> b"), [1, 3, 4, 3, 2]);
        assert_eq!(tokens(&ending(json!({"rstrip": true})), "a <e> b"), [1, 3, 4, 2]);
        assert_eq!(tokens(&ending(json!({"lstrip": true})), "a <e> b"), [1, 4, 3, 2]);
        assert_eq!(tokens(&ending(json!({"single_word": true})), "a<e>"), [0]);
        // Tokens that only the settings name.
        let other = json!({"added_tokens_decoder": {"5": {"content": "<f>", "special": true}}, "extra_special_tokens": ["<g>"]});
        assert_eq!(tokens(&settings(other.clone()), "a<f><g>b"), [1, 5, 6, 2]);
        let (_place, tokenizer) = opened(&settings(other)).unwrap();
        assert_eq!((tokenizer.special_in("x<g>"), tokenizer.vocab_size()), (Some("<g>"), 7));
        assert_eq!(tokens(&settings(json!({"additional_special_tokens": ["<g>", "<e>"]})), "a<g><e>"), [1, 5, 4]);
        assert_eq!(tokens(&[("added_tokens.json", json!({"<h>": 5}))], "a<h>"), [1, 5]);
        // Named tokens that the tokenizer lacks are added in the order of transformers.
        let named = json!({"image_token": "<i>", "mask_token": "<m>", "extra_special_tokens": {"audio": {"content": "<u>", "rstrip": true}}});
        assert_eq!(tokens(&settings(named), "<m><i><u> b"), [5, 6, 7, 2]);
        let saved = json!({"model_specific_special_tokens": {"image_token": "<i>", "audio": "<u>"}});
        assert_eq!(tokens(&settings(saved), "a<i><u>b"), [1, 5, 6, 2]);
        assert_eq!(tokens(&[("special_tokens_map.json", json!({"cls_token": "<c>", "eos_token": "<x>"}))], "<c><x>"), [6, 5]);
        let wrong = opened(&settings(json!({"added_tokens_decoder": {"x": {}}}))).unwrap_err().to_string();
        assert!(wrong.contains("tokenizer_config.json") && wrong.contains("\"x\" is not the id"), "{wrong}");
    }

    #[test]
    fn tokenizers_with_other_added_tokens_are_others() {
        let (_a, plain) = opened(&[]).unwrap();
        let (_b, same) = opened(&[("tokenizer_config.json", json!({"eos_token": "<e>"}))]).unwrap();
        let (_c, other) = opened(&[("tokenizer_config.json", json!({"extra_special_tokens": ["<g>"]}))]).unwrap();
        assert!(plain.is_same_as(&same) && !plain.is_same_as(&other));
    }

    #[test]
    fn the_begin_token_may_be_named_in_the_map_alone() {
        let map = json!({"bos_token": {"content": "a", "lstrip": false}, "eos_token": "<e>"});
        let (_place, tokenizer) =
            opened(&[("special_tokens_map.json", map), ("tokenizer_config.json", json!({"eos_token": "b"}))]).unwrap();
        assert_eq!(tokenizer.bos_and_eos_ids(), (Some(1), Some(4)));
    }
}
