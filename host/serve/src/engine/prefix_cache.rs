//! Keys and values of earlier requests, looked up by their tokens. The least recently used are dropped first.

use crate::model::KvCache;

/// Minimum length of a cached prefix in tokens: computing a shorter one is faster than looking it up.
pub(super) const SHORTEST: usize = 16;

/// Returns the length of the common prefix.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Tokens of a text with their keys and values.
struct PrefixCacheEntry {
    tokens: Vec<u32>,
    salt: u64,
    cache: KvCache,
    bytes: usize,
    used: u64,
}

/// Prefix cache.
#[derive(Default)]
pub(super) struct PrefixCache {
    entries: Vec<PrefixCacheEntry>,
    bytes: usize,
    clock: u64,
}

impl PrefixCache {
    /// Returns the size of all keys and values in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the index of the entry with the longest common prefix with these tokens, and its length.
    fn longest(&self, tokens: &[u32], salt: u64) -> Option<(usize, usize)> {
        let fitting = self.entries.iter().enumerate().filter(|(_, entry)| entry.salt == salt);
        fitting.map(|(i, entry)| (i, common(&entry.tokens, tokens))).max_by_key(|(_, length)| *length)
    }

    /// Returns the length of the longest cached prefix of these tokens.
    pub(super) fn covered(&self, tokens: &[u32], salt: u64) -> usize {
        self.longest(tokens, salt).map_or(0, |(_, length)| length).min(tokens.len())
    }

    /// Returns the keys and values of the longest cached prefix of these tokens, for a sequence of up to `room` positions. An entry that
    /// the sequence continues in full is moved rather than copied, since it comes back when the sequence ends.
    pub(super) fn take(&mut self, tokens: &[u32], salt: u64, room: usize) -> Option<KvCache> {
        let (i, length) = self.longest(tokens, salt).filter(|(_, length)| *length >= SHORTEST)?;
        if self.entries[i].tokens.len() == length {
            let entry = self.entries.swap_remove(i);
            self.bytes -= entry.bytes;
            return Some(entry.cache);
        }
        self.clock += 1;
        self.entries[i].used = self.clock;
        self.entries[i].cache.prefix(length, room)
    }

    /// Caches the keys and values of a text, unless a cached text begins with it. Drops entries that are prefixes of the text.
    pub(super) fn keep(&mut self, tokens: &[u32], salt: u64, cache: KvCache) {
        if tokens.len() < SHORTEST || self.covered(tokens, salt) == tokens.len() {
            return;
        }
        self.entries.retain(|entry| entry.salt != salt || !tokens.starts_with(&entry.tokens));
        self.clock += 1;
        let entry = PrefixCacheEntry { tokens: tokens.to_vec(), salt, bytes: cache.bytes(), cache, used: self.clock };
        self.entries.push(entry);
        self.bytes = self.entries.iter().map(|entry| entry.bytes).sum();
    }

    /// Drops the least recently used entries until the rest takes at most `most` bytes.
    pub(super) fn shrink(&mut self, most: usize) {
        while self.bytes > most {
            let oldest = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used).map(|(i, _)| i);
            let Some(oldest) = oldest else { return };
            self.bytes -= self.entries.swap_remove(oldest).bytes;
        }
    }

    /// Drops all entries.
    pub(super) fn clear(&mut self) {
        *self = Self { clock: self.clock, ..Self::default() };
    }
}
