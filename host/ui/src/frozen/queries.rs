//! Queries in the form in which the page sends them.

/// Returns a query of these names and values.
pub(super) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let encoded = |text: &str| {
        let byte = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02x}") };
        text.bytes().map(byte).collect::<String>()
    };
    pairs.into_iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}
