//! A plugin's access to the outside: servers by name, limits on requests to them, secrets that the host inserts into requests, and folders
//! to read.

use super::{files, printable};
use schemars::JsonSchema;
use serde::de::{Error as _, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Maximum size of a file that holds a secret, in bytes.
const LONGEST_SECRET: u64 = 16 << 10;

/// Minimum length of a secret, in bytes: a shorter one could not be distinguished from other text when it is removed from responses.
const SHORTEST_SECRET: usize = 8;

/// Maximum allowed size of a response: its line in the record must not exceed the maximum length of a line.
const LARGEST_RESPONSE_KB: u32 = 16 << 10;

/// Maximum number of servers and secrets of one plugin.
const MOST: usize = 100;

/// The longest duration of any limit; longer ones are reduced to it.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Limits on the requests of a plugin.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpLimits {
    /// Number of concurrent requests.
    pub max_concurrency: u32,
    /// Time for one attempt at a request, including the whole answer, in seconds.
    pub timeout_s: f64,
    /// Time for all requests of one call of the plugin, including retries, in seconds. It is added to `limits.call_timeout_s`.
    pub call_timeout_s: f64,
    /// Number of retries after a failure or a request to wait.
    pub retries: u32,
    /// Pause before the first retry, in seconds; it doubles each time, or follows Retry-After.
    pub backoff_s: f64,
    /// Maximum size of a request, in KiB.
    pub max_request_kb: u32,
    /// Maximum size of an answer, in KiB.
    pub max_response_kb: u32,
    /// Number of redirects that are followed, to granted servers only.
    pub max_redirects: u32,
    /// Maximum size of the record of answers in the run's folder, in MiB.
    pub max_record_mb: u64,
    /// File with certificates (PEM) of authorities to trust instead of the usual ones.
    pub ca_file: Option<String>,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_concurrency: 64,
            timeout_s: 60.0,
            call_timeout_s: 300.0,
            retries: 4,
            backoff_s: 0.5,
            max_request_kb: 1024,
            max_response_kb: 1024,
            max_redirects: 3,
            max_record_mb: 4096,
            ca_file: None,
        }
    }
}

impl HttpLimits {
    /// Returns whether all limits have their defaults.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the time for one attempt.
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s)
    }

    /// Returns the time for all requests of one call.
    pub fn call_timeout(&self) -> Duration {
        seconds(self.call_timeout_s)
    }

    /// Returns the time before the second attempt.
    pub fn backoff(&self) -> Duration {
        seconds(self.backoff_s)
    }

    fn check(&self) -> Result<(), String> {
        let times = [("timeout_s", self.timeout_s), ("call_timeout_s", self.call_timeout_s)];
        if let Some((key, _)) = times.iter().find(|(_, time)| time.is_nan() || *time <= 0.0) {
            return Err(format!("http.{key} must be greater than 0"));
        }
        if self.backoff_s.is_nan() || self.backoff_s < 0.0 {
            return Err("http.backoff_s must be 0 or more".to_owned());
        }
        if self.max_response_kb > LARGEST_RESPONSE_KB {
            return Err(format!("http.max_response_kb is {}; it must be at most {LARGEST_RESPONSE_KB}", self.max_response_kb));
        }
        if !(1..=1024).contains(&self.max_concurrency) {
            return Err(format!("http.max_concurrency is {}; it must be from 1 to 1024", self.max_concurrency));
        }
        Ok(())
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(LONGEST).min(LONGEST)
}

/// A server to which a plugin may send requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Whether requests may use HTTPS.
    pub https: bool,
    /// Whether requests may use plain HTTP.
    pub http: bool,
    /// Name or address of the server, in lower case; an IPv6 address in brackets.
    pub name: String,
    /// Port of the server; the scheme's default if `None`.
    pub port: Option<u16>,
}

impl Host {
    /// Parses `[SCHEME://]HOST[:PORT]`. The default scheme is https; on this machine, http too.
    ///
    /// # Errors
    /// If the text is invalid; says what is valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shown = printable(text, 200);
        let wrong = |detail: &str| format!("hosts: {shown:?} {detail}; write HOST:PORT, or http://HOST:PORT for one without TLS");
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (name, port) = match (rest.rfind(':'), rest.rfind(']')) {
            (Some(colon), bracket) if bracket.is_none_or(|at| at < colon) => (&rest[..colon], Some(&rest[colon + 1..])),
            _ => (rest, None),
        };
        let port = match port.map(str::parse::<u16>) {
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return Err(wrong("has no port from 1 to 65535 after its colon")),
            None => None,
        };
        let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
        let good = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !name.is_empty() && name.len() <= 253 && is_name(name),
        };
        if !good {
            return Err(wrong("is not the name or address of one server"));
        }
        let (https, http) = match scheme.as_deref() {
            Some("https") => (true, false),
            Some("http") => (false, true),
            Some(_) => return Err(wrong("is neither https nor http")),
            None => (true, is_local(name)),
        };
        Ok(Self { https, http, name: name.to_ascii_lowercase(), port })
    }

    /// Returns whether requests to this server may use this scheme and port.
    pub fn allows(&self, https: bool, name: &str, port: u16) -> bool {
        let own = self.port.unwrap_or(if https { 443 } else { 80 });
        (if https { self.https } else { self.http }) && self.name == name && own == port
    }
}

/// Returns whether a server's name refers to this machine.
pub fn is_local(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The value of a secret, which has no `Debug` or `Display` output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Reads a secret from `env:VARIABLE` or `file:PATH`.
    ///
    /// # Errors
    /// If there is no usable secret; the error never contains its text.
    pub fn read(name: &str, from: &str) -> Result<Self, String> {
        let text = match from.split_once(':') {
            Some(("env", variable)) => std::env::var(variable)
                .map_err(|_| format!("secrets.{name}: the environment variable {} is not set", printable(variable, 200)))?,
            Some(("file", path)) => files::read_text(Path::new(path), LONGEST_SECRET)
                .map_err(|e| format!("secrets.{name}: can't read {}: {e}", printable(path, 200)))?,
            _ => return Err(not_a_source(name)),
        };
        let text = text.trim();
        if text.len() < SHORTEST_SECRET || !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
            return Err(format!("secrets.{name}: it must be one line of at least {SHORTEST_SECRET} ASCII characters"));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the secret's text, for insertion into a request.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Returns an error that lists valid sources. It omits the given text, which may be the secret itself.
fn not_a_source(name: &str) -> String {
    format!(
        "secrets.{name} must say where the secret is, env:VARIABLE or file:PATH; the secret itself must not be in a configuration"
    )
}

/// The grants of a plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grants {
    /// The servers, as written.
    pub hosts: Vec<String>,
    /// The secrets: their names and sources.
    pub secrets: BTreeMap<String, String>,
    /// Limits on requests.
    pub http: HttpLimits,
    /// The folders: the names under which the plugin sees them, and their paths.
    pub folders: BTreeMap<String, String>,
}

impl Grants {
    /// Returns whether nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.folders.is_empty()
    }

    /// Checks everything except whether secrets exist.
    ///
    /// # Errors
    /// If a value is invalid; names the key.
    pub fn check(&self) -> Result<(), String> {
        self.http.check()?;
        if [self.hosts.len(), self.secrets.len(), self.folders.len()].into_iter().any(|count| count > MOST) {
            return Err(format!("at most {MOST} hosts, {MOST} secrets and {MOST} folders can be granted"));
        }
        for (name, path) in &self.folders {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) {
                return Err(format!("folders: the name {:?} may contain only letters, digits, _ and -", printable(name, 200)));
            }
            if path.is_empty() {
                return Err(format!("folders.{name} must be the path of a folder"));
            }
        }
        self.hosts.iter().try_for_each(|host| Host::parse(host).map(drop))?;
        for (name, from) in &self.secrets {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(format!("secrets: the name {:?} may contain only letters, digits and _", printable(name, 200)));
            }
            if !["env:", "file:"].iter().any(|source| from.strip_prefix(source).is_some_and(|rest| !rest.is_empty())) {
                return Err(not_a_source(name));
            }
        }
        if self.hosts.is_empty() && !self.secrets.is_empty() {
            return Err("secrets are only sent to granted hosts, and none are granted".to_owned());
        }
        Ok(())
    }
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut granted = Vec::new();
        if !self.hosts.is_empty() {
            let secrets: Vec<String> = self.secrets.iter().map(|(name, from)| format!("{name} ({from})")).collect();
            let with = if secrets.is_empty() { String::new() } else { format!(" with the secrets {}", secrets.join(", ")) };
            granted.push(format!("requests to {}{with}", self.hosts.join(", ")));
        }
        granted.extend(self.folders.iter().map(|(name, path)| format!("to read {path} as /{name}")));
        f.write_str(&granted.join(" and "))
    }
}

/// Reads a list, or a single item.
pub(super) fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct StringOrListVisitor;
    impl<'de> Visitor<'de> for StringOrListVisitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a host, or a list of hosts")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<String>, E> {
            Ok(vec![text.to_owned()])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<String>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(seq)).map_err(A::Error::custom)
        }
    }
    deserializer.deserialize_any(StringOrListVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_granted_with_its_scheme_and_port() {
        let host = |text: &str| Host::parse(text).unwrap();
        assert!(host("judge.internal:8000").allows(true, "judge.internal", 8000));
        assert!(!host("judge.internal:8000").allows(false, "judge.internal", 8000), "plain text has to be granted");
        assert!(host("http://Judge.internal:8000/").allows(false, "judge.internal", 8000));
        assert!(!host("http://judge.internal").allows(true, "judge.internal", 80));
        assert!(host("api.openai.com").allows(true, "api.openai.com", 443));
        assert!(!host("api.openai.com").allows(true, "api.openai.com", 8443));
        assert!(!host("openai.com").allows(true, "api.openai.com", 443));
        for here in ["localhost:8", "127.0.0.1:8", "[::1]:8"] {
            let name = here.trim_end_matches(":8");
            assert!(host(here).allows(false, name, 8) && host(here).allows(true, name, 8), "{here}");
        }
        for wrong in ["", "*", "*.org", "a/b", "a:0", "a:99999", "a:b", "ftp://a", "u@a", "[::1", "a b", "https://", "::1"] {
            assert!(Host::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_named_by_its_place_and_never_printed() {
        let grants = |from: &str| Grants {
            hosts: vec!["a".into()],
            secrets: [("KEY".to_owned(), from.to_owned())].into(),
            ..Grants::default()
        };
        assert!(grants("env:A_KEY").check().is_ok());
        assert!(grants("file:/a/key").check().is_ok());
        let refused = grants("sk-1234567890").check().unwrap_err();
        assert!(refused.contains("env:VARIABLE") && !refused.contains("sk-1234"), "{refused}");
        let folders =
            |name: &str, path: &str| Grants { folders: [(name.to_owned(), path.to_owned())].into(), ..Grants::default() };
        assert_eq!(folders("words", "a/b").check(), Ok(()));
        assert_eq!(folders("words", "a/b").to_string(), "to read a/b as /words");
        assert!(folders("../words", "a").check().is_err() && folders("words", "").check().is_err());
        assert!(Grants { hosts: Vec::new(), ..grants("env:A") }.check().unwrap_err().contains("none are granted"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            Secret::read("KEY", &format!("file:{}", file.path().display()))
        };
        assert_eq!(read(" sk-12345678\n").ok().unwrap().reveal(), "sk-12345678");
        for wrong in ["", "short", "two\nlines-of-it", "sch\u{f6}n-genug"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(Secret::read("KEY", "env:RLHOST_NO_SUCH_VARIABLE").err().unwrap().contains("RLHOST_NO_SUCH_VARIABLE"));
    }
}
