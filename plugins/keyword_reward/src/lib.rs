//! Scores words and phrases that completions must or should not contain.

use aho_corasick::AhoCorasick;
use rlhost_plugin_sdk::prelude::*;

/// How hits become a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeywordScoring {
    /// `block_score` for each occurrence of a blocklist entry plus `allow_score` for each allowlist entry that occurs, at least
    /// `floor`.
    PerHit,
    /// 1 if no blocklist entry and every allowlist entry occurs, else 0.
    AllOrNothing,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeywordRewardSettings {
    /// Words or phrases that a completion must not contain.
    pub blocklist: Vec<String>,
    /// Words or phrases that it should contain.
    pub allowlist: Vec<String>,
    /// Whether upper and lower case are equal.
    pub ignore_case: bool,
    /// Whether entries match whole words only, so that `art` is not found in `cart` or `arts`.
    pub whole_words: bool,
    /// How hits become a score.
    pub scoring: KeywordScoring,
    /// Score of each occurrence of a blocklist entry, for `per_hit`.
    pub block_score: f64,
    /// Score of each allowlist entry that occurs, for `per_hit`; repetition gains nothing.
    pub allow_score: f64,
    /// Lowest score, for `per_hit`.
    pub floor: f64,
}

impl Default for KeywordRewardSettings {
    fn default() -> Self {
        Self {
            blocklist: Vec::new(),
            allowlist: Vec::new(),
            ignore_case: true,
            whole_words: true,
            scoring: KeywordScoring::PerHit,
            block_score: -1.0,
            allow_score: 1.0,
            floor: -5.0,
        }
    }
}

/// The settings with their lists compiled for searching.
pub struct KeywordFinder {
    settings: KeywordRewardSettings,
    /// Finds the entries of the blocklist and of the allowlist, numbered consecutively in this order.
    finder: AhoCorasick,
}

impl KeywordFinder {
    /// Compiles the settings' lists.
    ///
    /// # Errors
    /// If both lists or an entry are empty, or the lists are too long.
    pub fn new(mut settings: KeywordRewardSettings) -> Result<Self, Error> {
        let fail = |detail: &str| Err(Error::Config(detail.to_owned()));
        if settings.blocklist.is_empty() && settings.allowlist.is_empty() {
            return fail("blocklist and allowlist are both empty; give words or phrases for at least one");
        }
        for (name, list) in [("blocklist", &mut settings.blocklist), ("allowlist", &mut settings.allowlist)] {
            if list.iter().any(|entry| entry.trim().is_empty()) {
                return fail(&format!("{name} has an empty entry; an entry must be a word or a phrase"));
            }
            if settings.ignore_case {
                list.iter_mut().for_each(|entry| *entry = entry.to_lowercase());
            }
            // Each entry counts once, even if it is listed several times.
            list.sort();
            list.dedup();
        }
        let finder = AhoCorasick::new(settings.blocklist.iter().chain(&settings.allowlist))
            .map_err(|e| Error::Config(format!("can't search for blocklist and allowlist: {e}")))?;
        Ok(Self { settings, finder })
    }

    /// Scores a completion.
    #[must_use]
    pub fn score(&self, completion: &str) -> f64 {
        let settings = &self.settings;
        let lower = settings.ignore_case.then(|| completion.to_lowercase());
        let text = lower.as_deref().unwrap_or(completion);
        let mut blocked = 0_usize;
        let mut allowed = vec![false; settings.allowlist.len()];
        for hit in self.finder.find_overlapping_iter(text) {
            if settings.whole_words && !(is_boundary(text, hit.start()) && is_boundary(text, hit.end())) {
                continue;
            }
            match hit.pattern().as_usize().checked_sub(settings.blocklist.len()) {
                None => blocked += 1,
                Some(entry) => allowed[entry] = true,
            }
        }
        let there = allowed.iter().filter(|there| **there).count();
        match settings.scoring {
            KeywordScoring::PerHit => {
                let sum = settings.block_score * blocked as f64 + settings.allow_score * there as f64;
                sum.max(settings.floor)
            }
            KeywordScoring::AllOrNothing if blocked == 0 && there == allowed.len() => 1.0,
            KeywordScoring::AllOrNothing => 0.0,
        }
    }
}

/// Returns whether no word spans this position. Combining marks belong to the preceding word.
fn is_boundary(text: &str, at: usize) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let goes_on = |c: char| in_word(c) || is_mark(c);
    !(text[..at].trim_end_matches(is_mark).ends_with(in_word) && text[at..].starts_with(goes_on))
}

/// Returns whether a character is in one of Unicode's blocks of combining marks. Vowel signs of other scripts are alphanumeric.
fn is_mark(c: char) -> bool {
    let blocks = [
        '\u{300}'..='\u{36f}',
        '\u{1ab0}'..='\u{1aff}',
        '\u{1dc0}'..='\u{1dff}',
        '\u{20d0}'..='\u{20ff}',
        '\u{fe20}'..='\u{fe2f}',
    ];
    blocks.iter().any(|block| block.contains(&c))
}

reward! {
    /// A score from the words and phrases that occur and those that don't.
    config: KeywordRewardSettings,
    prepared: KeywordFinder = KeywordFinder::new,
    needs: COMPLETION_TEXT,
    |lists, sample| lists.score(sample.completion) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|&entry| entry.to_owned()).collect()
    }

    fn score_of(completion: &str, settings: KeywordRewardSettings) -> f32 {
        let lists = KeywordFinder::new(settings).unwrap();
        Case { completion: completion.into(), ..Case::default() }.run(|sample| score(&lists, sample)).unwrap().unwrap()
    }

    fn blocking(entries: &[&str]) -> KeywordRewardSettings {
        KeywordRewardSettings { blocklist: list(entries), ..KeywordRewardSettings::default() }
    }

    #[test]
    fn each_blocked_place_costs_down_to_the_floor() {
        let settings = || KeywordRewardSettings { block_score: -0.5, floor: -1.25, ..blocking(&["as an AI", "sorry"]) };
        assert_eq!(score_of("Here you are.", settings()), 0.0);
        assert_eq!(score_of("Sorry, as an ai I can't.", settings()), -1.0);
        assert_eq!(score_of("sorry sorry sorry", settings()), -1.25);
    }

    #[test]
    fn each_allowed_entry_counts_once() {
        let settings =
            || KeywordRewardSettings { allowlist: list(&["thanks", "please"]), allow_score: 0.5, ..blocking(&["now"]) };
        assert_eq!(score_of("Thanks, thanks, thanks!", settings()), 0.5);
        assert_eq!(score_of("Please. Thanks.", settings()), 1.0);
        assert_eq!(score_of("Please now, now.", settings()), -1.5);
    }

    #[test]
    fn all_or_nothing_wants_everything() {
        let settings = || KeywordRewardSettings {
            allowlist: list(&["thanks", "please"]),
            scoring: KeywordScoring::AllOrNothing,
            ..blocking(&["now"])
        };
        assert_eq!(score_of("Please, and thanks.", settings()), 1.0);
        assert_eq!(score_of("Thanks.", settings()), 0.0);
        assert_eq!(score_of("Now, please, and thanks.", settings()), 0.0);
    }

    #[test]
    fn case_and_word_ends_count_where_told() {
        assert_eq!(score_of("Smart art, arts", blocking(&["ART"])), -1.0);
        assert_eq!(score_of("Smart art, arts", KeywordRewardSettings { whole_words: false, ..blocking(&["ART"]) }), -3.0);
        assert_eq!(score_of("ART art", KeywordRewardSettings { ignore_case: false, ..blocking(&["ART"]) }), -1.0);
        assert_eq!(score_of("ÄRGER, ärgerlich", blocking(&["Ärger"])), -1.0);
        assert_eq!(score_of("art_1", blocking(&["art"])), 0.0);
        // If an entry ends in something other than a letter, a letter may follow it.
        assert_eq!(score_of("wow!!no C++11", blocking(&["!!", "C++"])), -2.0);
    }

    #[test]
    fn a_combining_mark_is_part_of_the_word_before_it() {
        assert_eq!(score_of("e\u{301}cole, cafe\u{301}, e\u{301}te\u{301}", blocking(&["cole", "cafe", "te", "e"])), 0.0);
        assert_eq!(score_of("e\u{301}cole, cafe\u{301}s", blocking(&["e\u{301}cole", "cafe\u{301}"])), -1.0);
        // Without a word before it, a mark continues none.
        assert_eq!(score_of("=\u{338}no", blocking(&["=", "no"])), -2.0);
    }

    #[test]
    fn entries_inside_of_others_are_found_too() {
        assert_eq!(score_of("a bad word", blocking(&["bad", "bad word", "word"])), -3.0);
        assert_eq!(score_of("bad", blocking(&["bad", "BAD"])), -1.0);
        let both = KeywordRewardSettings { allowlist: list(&["bad"]), allow_score: 3.0, ..blocking(&["bad"]) };
        assert_eq!(score_of("bad", both), 2.0);
    }

    #[test]
    fn empty_lists_and_entries_are_refused_when_configured() {
        let refusal = |settings| KeywordFinder::new(settings).err().unwrap().to_string();
        assert!(refusal(KeywordRewardSettings::default()).contains("both empty"));
        let error = refusal(KeywordRewardSettings { allowlist: list(&["fine", " "]), ..KeywordRewardSettings::default() });
        assert!(error.contains("allowlist"), "{error}");
    }
}
