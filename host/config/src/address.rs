//! URLs of servers that receive requests, and URLs that they redirect to.

use super::{Host, is_local, printable};
use ureq::http::Uri;

/// Maximum length of a URL, in bytes.
const LONGEST: usize = 8 << 10;

/// A parsed URL with its server.
#[derive(Clone, Debug)]
pub struct Address {
    /// The URL as given.
    pub url: String,
    https: bool,
    name: String,
    port: u16,
}

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// If its scheme is not http or https, it contains a user name, or it is longer than 8 KiB.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong = |detail: &str| format!("{} {detail}", printable(&without_secrets(url), 200));
        if url.len() > LONGEST {
            return Err(wrong("is longer than a URL may be"));
        }
        let uri: Uri = url.parse().map_err(|_| wrong("is not a URL"))?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("is neither an https nor an http URL")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no server"))?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(wrong("has a user's name or no server; secrets go into headers"));
        }
        let port = match (authority.port_u16(), authority.as_str().len() > authority.host().len()) {
            (Some(port), _) => port,
            (None, true) => return Err(wrong("has no valid port")),
            (None, false) if https => 443,
            (None, false) => 80,
        };
        Ok(Self { url: url.to_owned(), https, name: authority.host().to_ascii_lowercase(), port })
    }

    /// Returns whether one of these hosts allows the URL's server.
    pub fn is_one_of(&self, hosts: &[Host]) -> bool {
        hosts.iter().any(|host| host.allows(self.https, &self.name, self.port))
    }

    /// Returns whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.https
    }

    /// Returns the server's name or address, in lower case; an IPv6 address in brackets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the server is on this machine, by its name.
    pub fn is_local(&self) -> bool {
        is_local(&self.name)
    }

    /// Returns the server's scheme, name and port, in the form of a grant.
    pub fn server(&self) -> String {
        format!("{}://{}:{}", if self.https { "https" } else { "http" }, self.name, self.port)
    }

    /// Resolves a redirect's location against this URL (RFC 3986, 5.2, except that dot segments are left to the server).
    pub fn joined(&self, location: &str) -> String {
        let path = self.url.split(['?', '#']).next().unwrap_or_default();
        if has_scheme(location) {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", if self.https { "https" } else { "http" })
        } else if location.starts_with('/') {
            format!("{}{location}", self.server())
        } else if location.starts_with('?') {
            format!("{path}{location}")
        } else if location.starts_with('#') {
            format!("{}{location}", self.url.split('#').next().unwrap_or_default())
        } else {
            let folder = path.rsplit_once('/').filter(|(before, _)| !before.ends_with('/')).map_or(path, |(before, _)| before);
            format!("{folder}/{location}")
        }
    }
}

/// Returns whether a reference begins with a scheme, which makes it absolute.
fn has_scheme(reference: &str) -> bool {
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let before = reference.split(['/', '?', '#']).next().and_then(|first| first.split_once(':'));
    before.is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// Returns a URL without its user's name and password.
fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let server = authority.rsplit_once('@').map_or(authority, |(_, server)| server);
    format!("{scheme}://{server}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_one_server_and_redirects_are_joined() {
        let read = |url: &str| Address::parse(url).unwrap();
        assert_eq!(read("https://Judge.internal/v1").server(), "https://judge.internal:443");
        assert_eq!(read("http://[::1]:8/").server(), "http://[::1]:8");
        for wrong in
            ["", "judge", "/v1", "file:///etc/passwd", "http://u:p@judge/", "http:///x", "http://judge:99999/", "http://a b/"]
        {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
        for (url, shown) in [("http://u:p@ss@judge:8/a@b", "http://judge:8/a@b"), ("http://u:p@judge?a@b", "http://judge?a@b")] {
            let refused = Address::parse(url).unwrap_err();
            assert!(refused.starts_with(&format!("{shown} ")) && !refused.contains("ss@"), "{refused}");
        }
        let from = read("http://judge:8/v1/a?b=/c");
        assert_eq!(from.joined("/d"), "http://judge:8/d");
        assert_eq!(from.joined("d"), "http://judge:8/v1/d");
        assert_eq!(from.joined("//evil/x"), "http://evil/x");
        assert_eq!(from.joined("https://evil/x"), "https://evil/x");
        assert_eq!(read("http://judge:8").joined("d"), "http://judge:8/d");
        for relative in ["/login?next=https://x", "/a:b/c"] {
            assert_eq!(from.joined(relative), format!("http://judge:8{relative}"));
        }
        assert_eq!(from.joined("login?next=https://x"), "http://judge:8/v1/login?next=https://x");
        assert_eq!(from.joined("?next=https://x"), "http://judge:8/v1/a?next=https://x");
        assert_eq!(from.joined("#c"), "http://judge:8/v1/a?b=/c#c");
        assert!(Address::parse(&from.joined("mailto:a@evil")).is_err());
        let hosts = [Host::parse("http://judge:8").unwrap()];
        assert!(
            from.is_one_of(&hosts) && !read("http://judge:9/").is_one_of(&hosts) && !read("https://judge:8/").is_one_of(&hosts)
        );
        assert!(!read("http://judge.evil:8/").is_one_of(&hosts));
    }
}
