//! The custom section that holds a script.

use super::Script;
use wasmparser::BinaryReader;

/// Name of the section.
const NAME: &str = "rlhost-script";

/// Preamble of a component.
const COMPONENT: [u8; 8] = *b"\0asm\x0d\0\x01\0";

/// A script found in a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedScript {
    pub script: Script,
    /// Length of the bytes before the section, which are the interpreter if there are any.
    pub before: usize,
}

impl EmbeddedScript {
    /// Returns the length of the interpreter that the component includes, if it does.
    pub fn own_interpreter(&self) -> Option<usize> {
        (self.before > COMPONENT.len()).then_some(self.before)
    }
}

/// Returns the script in the last section of a component.
pub fn find(bytes: &[u8]) -> Option<EmbeddedScript> {
    let rest = bytes.strip_prefix(&COMPONENT)?;
    let mut reader = BinaryReader::new(rest, COMPONENT.len());
    loop {
        let before = reader.original_position();
        let id = reader.read_u8().ok()?;
        let length = usize::try_from(reader.read_var_u32().ok()?).ok()?;
        let content = reader.read_bytes(length).ok()?;
        if id == 0 && reader.eof() {
            let mut content = BinaryReader::new(content, 0);
            let is_ours = content.read_string().ok()? == NAME;
            let length = content.bytes_remaining();
            let json = content.read_bytes(length).ok().filter(|_| is_ours)?;
            return Some(EmbeddedScript { script: serde_json::from_slice(json).ok()?, before });
        }
    }
}

/// Returns a component that contains a script, after an interpreter if one is given.
pub fn write(script: &Script, interpreter: Option<&[u8]>) -> Vec<u8> {
    // A script has only texts, which always serialize.
    let json = serde_json::to_vec(script).unwrap_or_default();
    let mut content = Vec::with_capacity(json.len() + NAME.len() + 5);
    put_length(NAME.len(), &mut content);
    content.extend_from_slice(NAME.as_bytes());
    content.extend_from_slice(&json);
    let mut bytes = interpreter.unwrap_or(&COMPONENT).to_vec();
    bytes.push(0);
    put_length(content.len(), &mut bytes);
    bytes.extend_from_slice(&content);
    bytes
}

/// Writes a length in LEB128, as WebAssembly does: seven bits per byte, lowest first.
fn put_length(mut length: usize, into: &mut Vec<u8>) {
    while length > 0x7f {
        into.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    into.push(length as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn script(source: &str) -> Script {
        let modules = BTreeMap::from([("words.py".to_owned(), "x = 1\n".to_owned())]);
        Script { name: "a.py".into(), source: source.into(), function: Some("f".into()), modules }
    }

    #[test]
    fn a_script_is_found_alone_and_behind_an_interpreter() {
        for source in ["", "def f(completion): return 1.0\n", &"é\n".repeat(100_000)] {
            let script = script(source);
            let thin = write(&script, None);
            assert!(wasmparser::Validator::new().validate_all(&thin).is_ok());
            let found = find(&thin).unwrap();
            assert_eq!((&found.script, found.own_interpreter()), (&script, None));
            let interpreter = wat::parse_str("(component (core module))").unwrap();
            let whole = write(&script, Some(&interpreter));
            assert!(wasmparser::Validator::new().validate_all(&whole).is_ok());
            let found = find(&whole).unwrap();
            assert_eq!((&found.script, found.own_interpreter()), (&script, Some(interpreter.len())));
            for cut in 0..thin.len().min(200) {
                assert_eq!(find(&thin[..cut]), None);
            }
        }
    }

    #[test]
    fn nothing_is_found_where_no_script_is() {
        let other = wat::parse_str("(component (core module) (@custom \"other\" \"{}\"))").unwrap();
        assert_eq!(find(&other), None);
        assert_eq!(find(b""), None);
        assert_eq!(find(&wat::parse_str("(module)").unwrap()), None);
        // With another section after it, it is not the last, so an inner component's section is never mistaken for it.
        let mut more = write(&script("x"), None);
        more.extend_from_slice(&[0, 2, 1, b'a']);
        assert_eq!(find(&more), None);
    }
}
