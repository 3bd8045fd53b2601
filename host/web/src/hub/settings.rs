//! What the environment says of the hub, under the names that its own libraries read.

use crate::config::files;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of the file that holds a token.
const LONGEST_TOKEN: u64 = 16 << 10;

/// How the hub is reached. Can't be printed, since the token is a secret.
#[derive(Clone)]
pub struct HubSettings {
    /// Its address, without a slash at the end (HF_ENDPOINT).
    pub endpoint: String,
    /// The folder of its cache (HF_HUB_CACHE, or `hub` in HF_HOME).
    pub cache: PathBuf,
    /// Servers that it may redirect to although they are not public, as judges' hosts are granted (RLHOST_HUB_HOSTS).
    pub redirects: String,
    /// Who asks (HF_TOKEN, or the file that `hf auth login` writes).
    pub token: Option<String>,
    /// Whether the cache alone may be looked at (HF_HUB_OFFLINE).
    pub offline: bool,
    /// How long after a broken connection the next is tried; each time twice as long.
    pub retry_delay: Duration,
    /// How slow it may be.
    pub timeouts: HubTimeouts,
}

/// How slow a hub may be, that nobody is kept waiting by one that sends a byte now and then.
#[derive(Clone, Copy, Debug)]
pub struct HubTimeouts {
    /// The time for an answer about a repository or a file, with all of it.
    pub answer: Duration,
    /// The time in which a download has to get on, broken connections included,
    pub stretch: Duration,
    /// by so many bytes.
    pub least: u64,
}

impl Default for HubTimeouts {
    fn default() -> Self {
        Self { answer: Duration::from_secs(120), stretch: Duration::from_secs(60), least: 64 << 10 }
    }
}

impl HubSettings {
    /// As the environment has them.
    pub fn from_env() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.trim().is_empty()));
        let user = std::env::home_dir().unwrap_or_default();
        let path = |text: String| match text.strip_prefix("~/") {
            Some(rest) => user.join(rest),
            None => PathBuf::from(text),
        };
        let caches = || first(&["XDG_CACHE_HOME"]).map_or_else(|| user.join(".cache"), path);
        let home = first(&["HF_HOME"]).map_or_else(|| caches().join("huggingface"), path);
        let cache = first(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).map_or_else(|| home.join("hub"), path);
        let token_file = first(&["HF_TOKEN_PATH"]).map_or_else(|| home.join("token"), path);
        let token = first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).or_else(|| read_token(&token_file));
        let endpoint = first(&["HF_ENDPOINT"]).unwrap_or_else(|| "https://huggingface.co".to_owned());
        let offline = first(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]);
        Self {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            cache: std::path::absolute(&cache).unwrap_or(cache),
            redirects: first(&["RLHOST_HUB_HOSTS"]).unwrap_or_default(),
            token: token.map(|token| token.trim().to_owned()),
            offline: offline.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.trim().to_lowercase().as_str())),
            retry_delay: Duration::from_secs(1),
            timeouts: HubTimeouts::default(),
        }
    }
}

fn read_token(path: &Path) -> Option<String> {
    files::read_text(path, LONGEST_TOKEN).ok().filter(|token| !token.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        HubSettings::read(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_environment_says_where_and_who() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let at = home.path().to_str().unwrap();
        let plain = settings(&[("HF_HOME", at), ("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "")]);
        assert_eq!((plain.cache, plain.token.as_deref()), (home.path().join("hub"), Some("hf_file")));
        assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", false));
        let given = [
            ("HF_HOME", at),
            ("HF_HUB_CACHE", "/elsewhere"),
            ("HF_TOKEN", " hf_given\n"),
            ("HF_HUB_OFFLINE", "True"),
            ("HF_ENDPOINT", "http://mirror/hf/"),
            ("RLHOST_HUB_HOSTS", "http://store:9000, cdn"),
        ];
        let given = settings(&given);
        assert_eq!((given.cache, given.token.as_deref()), (PathBuf::from("/elsewhere"), Some("hf_given")));
        assert_eq!((given.endpoint.as_str(), given.offline), ("http://mirror/hf", true));
        assert_eq!((given.redirects.as_str(), plain.redirects.as_str()), ("http://store:9000, cdn", ""));
        assert!(settings(&[("XDG_CACHE_HOME", at)]).cache.ends_with("huggingface/hub"));
    }
}
