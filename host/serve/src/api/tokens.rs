//! `/tokenize` and `/detokenize`.

use super::app::App;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::messages::conversation;
use super::reply::Reply;
use serde_json::{Value, json};

/// Answers `/tokenize`: returns the tokens of a text or a conversation.
pub(super) fn tokenize(app: &App, mut fields: Fields) -> Result<Reply> {
    app.model_of(&mut fields)?;
    let with_texts = fields.flag("return_token_strs")?;
    let ids = match fields.text("prompt")? {
        Some(text) => {
            let special = fields.flag_or("add_special_tokens", true)?;
            app.tokenizer.encode(&text, special)?
        }
        None => conversation(app, &mut fields)?.tokens,
    };
    fields.finish()?;
    let text = |id: &u32| Ok(Value::from(app.tokenizer.decode_marked(&[*id])?));
    let texts = with_texts.then(|| ids.iter().map(text).collect::<Result<Value>>()).transpose()?;
    Ok(Reply::json(json!({"count": ids.len(), "max_model_len": app.max_model_len(), "tokens": ids, "token_strs": texts})))
}

/// Answers `/detokenize`: returns the text of tokens, including special tokens.
pub(super) fn detokenize(app: &App, mut fields: Fields) -> Result<Reply> {
    app.model_of(&mut fields)?;
    let ids = fields.ids("tokens")?.ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    fields.finish()?;
    Ok(Reply::json(json!({"prompt": app.tokenizer.decode_marked(&ids)?})))
}
