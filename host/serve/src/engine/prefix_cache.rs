//! Keys, values and states of earlier requests, looked up by their tokens. The least recently used are dropped first.
//!
//! Of a cached text whose layers all attend, any prefix can be used. The state of a recurrent layer is that of the text as a whole, so only
//! requests that begin with all of the text can use it.

use crate::model::KvCache;

/// Minimum length of a cached prefix in tokens: computing a shorter one is faster than looking it up.
pub(super) const SHORTEST: usize = 16;

/// Returns the length of the common prefix.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Tokens of a text with their keys and values, or states.
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

    /// Returns the index of the entry of which the longest prefix of these tokens can be used, and the prefix's length.
    fn longest(&self, tokens: &[u32], salt: u64) -> Option<(usize, usize)> {
        let fitting = self.entries.iter().enumerate().filter(|(_, entry)| entry.salt == salt);
        let usable = |(i, entry): (usize, &PrefixCacheEntry)| {
            let length = common(&entry.tokens, tokens);
            (length == entry.tokens.len() || entry.cache.can_be_cut()).then_some((i, length))
        };
        fitting.filter_map(usable).max_by_key(|(_, length)| *length)
    }

    /// Returns the length of the longest cached prefix of these tokens.
    pub(super) fn covered(&self, tokens: &[u32], salt: u64) -> usize {
        self.longest(tokens, salt).map_or(0, |(_, length)| length).min(tokens.len())
    }

    /// Returns the cache of the longest cached prefix of these tokens, for a sequence of up to `room` positions. An entry that the sequence
    /// continues in full is moved rather than copied, since it comes back when the sequence ends, unless other requests could not share that.
    pub(super) fn take(&mut self, tokens: &[u32], salt: u64, room: usize) -> Option<KvCache> {
        let (i, length) = self.longest(tokens, salt).filter(|(_, length)| *length >= SHORTEST)?;
        let can_be_cut = self.entries[i].cache.can_be_cut();
        if can_be_cut && self.entries[i].tokens.len() == length {
            let entry = self.entries.swap_remove(i);
            self.bytes -= entry.bytes;
            return Some(entry.cache);
        }
        self.clock += 1;
        self.entries[i].used = self.clock;
        let cache = &self.entries[i].cache;
        if can_be_cut { cache.prefix(length, room) } else { Some(cache.clone()) }
    }

    /// Caches a text, unless it can be cut from a cached one. Drops entries that can be cut from the text.
    pub(super) fn keep(&mut self, tokens: &[u32], salt: u64, cache: KvCache) {
        if tokens.len() < SHORTEST || self.covered(tokens, salt) == tokens.len() {
            return;
        }
        if cache.can_be_cut() {
            self.entries.retain(|entry| entry.salt != salt || !tokens.starts_with(&entry.tokens));
        }
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
