//! The states that plugins export.

use std::sync::Arc;

/// A plugin's exported state, to be restored in another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginState {
    /// Exported bytes.
    pub bytes: Arc<[u8]>,
    /// Name and version of the plugin that exported it.
    pub written_by: String,
}

/// Prefix of a joint state of two plugins.
const JOINT: &[u8] = b"rlhost-joint-state\0";

impl PluginState {
    /// Joins the states of a plugin and of its base into one.
    pub(super) fn join(own: Option<Self>, of_base: Option<Self>) -> Option<Self> {
        let written_by = own.as_ref().or(of_base.as_ref())?.written_by.clone();
        let mut bytes = JOINT.to_vec();
        for state in [own, of_base] {
            put(state.as_ref().map(|state| state.written_by.as_bytes()), &mut bytes);
            put(state.as_ref().map(|state| &*state.bytes), &mut bytes);
        }
        Some(Self { bytes: bytes.into(), written_by })
    }

    /// Splits a state made by [`join`](Self::join). The state of a single plugin is the base's if a plugin of that name wrote it.
    pub(super) fn divide(self, base: &str) -> [Option<Self>; 2] {
        let parts = self.bytes.strip_prefix(JOINT).and_then(|mut rest| {
            let mut next = || {
                let written_by = take(&mut rest)?.map(|text| String::from_utf8_lossy(text).into_owned());
                let bytes = take(&mut rest)?;
                Some(written_by.zip(bytes).map(|(written_by, bytes)| Self { bytes: bytes.into(), written_by }))
            };
            Some([next()?, next()?])
        });
        parts.unwrap_or_else(|| match self.written_by.split(' ').next() == Some(base) {
            true => [None, Some(self)],
            false => [Some(self), None],
        })
    }
}

/// Appends optional bytes with their length.
fn put(bytes: Option<&[u8]>, into: &mut Vec<u8>) {
    into.extend(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
    into.extend_from_slice(bytes.unwrap_or_default());
}

/// Reads optional bytes that [`put`] wrote.
fn take<'a>(from: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (length, rest) = from.split_first_chunk()?;
    *from = rest;
    match u64::from_le_bytes(*length) {
        u64::MAX => Some(None),
        length => {
            let (bytes, rest) = from.split_at_checked(usize::try_from(length).ok()?)?;
            *from = rest;
            Some(Some(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(bytes: &[u8], written_by: &str) -> Option<PluginState> {
        Some(PluginState { bytes: bytes.into(), written_by: written_by.to_owned() })
    }

    #[test]
    fn the_states_of_two_plugins_are_divided_as_they_were() {
        let (own, base) = (state(b"own", "mine Python"), state(b"", "grpo 0.1.0"));
        for pair in [[own.clone(), base.clone()], [own.clone(), None], [None, base.clone()]] {
            let [one, other] = pair.clone();
            assert_eq!(PluginState::join(one, other).unwrap().divide("grpo"), pair);
        }
        assert_eq!(PluginState::join(None, None), None);
        // The state of a run that had only one of them.
        assert_eq!(base.clone().unwrap().divide("grpo"), [None, base]);
        assert_eq!(own.clone().unwrap().divide("grpo"), [own, None]);
        // A truncated state.
        let whole = PluginState::join(state(b"own", "mine"), state(b"other", "grpo 1")).unwrap();
        let cut = PluginState { bytes: whole.bytes[..whole.bytes.len() - 2].into(), ..whole };
        assert_eq!(cut.clone().divide("grpo"), [Some(cut), None]);
    }
}
