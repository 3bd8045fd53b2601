//! Suggests a name for a misspelled one.

/// Returns `; did you mean "NAME"?` for the known name nearest to `name`, or nothing if none is near. It is appended to error messages.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}

/// Maximum length of a name for which suggestions are computed, in bytes: the time grows with the product of the lengths.
const LONGEST_SPELLED: usize = 128;

/// Returns the known name of which `name` is most likely a misspelling, if one is near.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LONGEST_SPELLED {
        return None;
    }
    let plain = name.replace('-', "_");
    let known = known.into_iter().filter(|known| known.len() <= LONGEST_SPELLED);
    let best = known.map(|k| (strsim::damerau_levenshtein(&plain, k), k)).min()?;
    (best.0 <= (plain.len() / 3).max(1)).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["learning_rate", "num_generations"];
        assert_eq!(did_you_mean("learning-rat", known), "; did you mean \"learning_rate\"?");
        assert_eq!(did_you_mean("num_generation", known), "; did you mean \"num_generations\"?");
        assert_eq!(did_you_mean("temperature", known), "");
        assert_eq!(did_you_mean("anything", []), "");
        // Takes no time, however long the names are.
        let (long, other) = ("x".repeat(1 << 20), "y".repeat(1 << 20));
        assert_eq!(did_you_mean(&long, [other.as_str(), "x"]), "");
        assert_eq!(did_you_mean("learning_rat", [other.as_str(), "learning_rate"]), "; did you mean \"learning_rate\"?");
    }
}
