//! Classifies errors as the user's mistake or as failures, for the exit code.

use crate::{checkpoint, config, data, dist, gguf, model, plugin, report, trackers, train};
use std::error::Error;

/// Returns whether the user's input is at fault; `None` if no module knows the error, which was then created in `cli`.
pub(super) fn is_mistake(error: &anyhow::Error) -> Option<bool> {
    error.chain().find_map(is_mistake_of_module)
}

fn is_mistake_of_module(error: &(dyn Error + 'static)) -> Option<bool> {
    macro_rules! first_of {
        ($($kind:ty),*) => {
            None$(.or_else(|| error.downcast_ref::<$kind>().map(<$kind>::is_mistake)))*
        };
    }
    let of_room = first_of!(
        train::Error,
        plugin::Error,
        model::Error,
        data::Error,
        config::Error,
        checkpoint::Error,
        dist::Error,
        trackers::Error,
        gguf::Error
    );
    let of_page = || match error.downcast_ref()? {
        report::Error::NotARun { .. } => Some(true),
        // The cause is the operating system's error.
        report::Error::Read { .. } | report::Error::Write { .. } => None,
    };
    of_room.or_else(of_page).or_else(|| error.downcast_ref().map(config::files::is_path_error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::path::PathBuf;

    fn kind(error: impl Into<anyhow::Error>) -> Option<bool> {
        is_mistake(&error.into())
    }

    #[test]
    fn an_error_is_a_mistake_by_its_kind_wherever_it_arose() {
        let io = |kind: io::ErrorKind| config::Error::Io { path: PathBuf::from("run.toml"), source: kind.into() };
        assert_eq!(kind(io(io::ErrorKind::NotFound)), Some(true));
        assert_eq!(kind(train::Error::from(io(io::ErrorKind::NotFound))), Some(true));
        assert_eq!(kind(train::Error::from(io(io::ErrorKind::StorageFull))), Some(false));
        assert_eq!(kind(io::Error::from_raw_os_error(28)), Some(false));
        let call = |step| plugin::Error::Call { name: "a".into(), function: "score", step, detail: "trapped".into() };
        assert_eq!(kind(train::Error::from(call(Some(3)))), Some(false));
        assert_eq!(kind(train::Error::from(call(None))), Some(true));
        assert_eq!(kind(train::Error::DryRun(call(Some(0)))), Some(true));
        let failure = |mistake| dist::RankFailure { reason: "it broke".into(), plugin: None, mistake, of_saving: false };
        assert_eq!(kind(train::Error::from(dist::Error::Failed { rank: 1, failure: failure(true) })), Some(true));
        assert_eq!(kind(train::Error::from(dist::Error::Failed { rank: 1, failure: failure(false) })), Some(false));
    }

    #[test]
    fn what_no_room_knows_was_put_into_words_at_the_edge() {
        assert_eq!(kind(anyhow::anyhow!("--count: too many")), None);
        assert_eq!(kind(anyhow::Error::from(io::Error::from(io::ErrorKind::StorageFull)).context("can't write it")), Some(false));
    }
}
