//! Settings of the hub from the environment variables of Hugging Face's own libraries.

use crate::config::files;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum size of the token file, in bytes.
const LONGEST_TOKEN: u64 = 16 << 10;

/// Settings of the hub. Not `Debug`, since the token is a secret.
#[derive(Clone)]
pub struct HubSettings {
    /// Address, without a trailing slash (HF_ENDPOINT).
    pub endpoint: String,
    /// Folder of the cache (HF_HUB_CACHE, or `hub` in HF_HOME).
    pub cache: PathBuf,
    /// Servers to which the hub may redirect although they are not public, in the form of grants of judges' hosts (RLHOST_HUB_HOSTS).
    pub redirects: String,
    /// Access token (HF_TOKEN, or the file that `hf auth login` writes).
    pub token: Option<String>,
    /// Whether only the cache may be used (HF_HUB_OFFLINE).
    pub offline: bool,
    /// Delay before the first retry after a broken connection; doubles with each retry.
    pub retry_delay: Duration,
    /// Limits on a slow hub.
    pub timeouts: HubTimeouts,
}

/// Limits on a slow hub, so that a server that sends a byte now and then can't block a run.
#[derive(Clone, Copy, Debug)]
pub struct HubTimeouts {
    /// Maximum time for the complete response about a repository or a file.
    pub answer: Duration,
    /// Interval, including broken connections, in which a download must receive at least `least` bytes.
    pub stretch: Duration,
    /// Minimum number of bytes per `stretch`.
    pub least: u64,
}

impl Default for HubTimeouts {
    fn default() -> Self {
        Self { answer: Duration::from_secs(120), stretch: Duration::from_secs(60), least: 64 << 10 }
    }
}

impl HubSettings {
    /// Reads the settings from the environment.
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
