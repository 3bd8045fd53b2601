//! Checks where a request goes: its server against the granted ones, and the server's name against the addresses that it resolves
//! to.

use crate::config::{Host, is_here, printable};
use std::io;
use std::net::{IpAddr, SocketAddr};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Maximum length of a URL, in bytes.
const LONGEST: usize = 8 << 10;

/// A URL whose server is known.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub url: String,
    https: bool,
    name: String,
    port: u16,
}

impl Address {
    /// Parses a URL.
    pub(super) fn read(url: &str) -> Result<Self, String> {
        let wrong = |detail: &str| format!("{} {detail}", printable(url, 200));
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
            return Err(wrong("has a user name or no server; put secrets into headers"));
        }
        let port = match (authority.port_u16(), authority.as_str().len() > authority.host().len()) {
            (Some(port), _) => port,
            (None, true) => return Err(wrong("has no valid port")),
            (None, false) if https => 443,
            (None, false) => 80,
        };
        Ok(Self { url: url.to_owned(), https, name: authority.host().to_ascii_lowercase(), port })
    }

    /// Returns whether its server is one of these.
    pub(super) fn is_one_of(&self, hosts: &[Host]) -> bool {
        hosts.iter().any(|host| host.allows(self.https, &self.name, self.port))
    }

    /// Returns its scheme, name and port, as it would be granted.
    pub(super) fn server(&self) -> String {
        format!("{}://{}:{}", if self.https { "https" } else { "http" }, self.name, self.port)
    }

    /// Returns the URL that a redirect from here leads to (RFC 3986, 5.2, except that the server resolves dots in a path).
    pub(super) fn joined(&self, location: &str) -> String {
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

/// Returns whether a reference begins with a scheme, and so is absolute.
fn has_scheme(reference: &str) -> bool {
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let before = reference.split(['/', '?', '#']).next().and_then(|first| first.split_once(':'));
    before.is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// Resolves names, and refuses those that resolve to this machine or a link-local address without saying so.
#[derive(Debug)]
pub(super) struct Guarded(pub DefaultResolver);

impl Resolver for Guarded {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        let name = uri.host().unwrap_or_default();
        match found.iter().find(|address| !may_lead(name, address)) {
            None => Ok(found),
            Some(address) => Err(ureq::Error::Io(io::Error::new(io::ErrorKind::PermissionDenied, leads_here(name, address)))),
        }
    }
}

fn leads_here(name: &str, address: &SocketAddr) -> String {
    let (name, address) = (printable(name, 200), address.ip());
    format!(
        "the granted name {name} resolves to {address}, which is this machine or a link-local address; grant {address} itself if \
         that is meant"
    )
}

/// Returns whether a granted name may resolve to an address. This machine's own, link-local and multicast addresses must be
/// granted themselves, or as localhost.
fn may_lead(name: &str, address: &SocketAddr) -> bool {
    let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let ip = address.ip().to_canonical();
    if literal.is_ok_and(|literal| literal.to_canonical() == ip) {
        return true;
    }
    let close = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_link_local(ip);
    !close || (ip.is_loopback() && is_here(name))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_not_lead_to_this_machine_unless_it_says_so() {
        let may = |name: &str, ip: &str| may_lead(name, &SocketAddr::new(ip.parse().unwrap(), 80));
        for inside in ["10.0.0.7", "192.168.1.1", "93.184.216.34", "2606:2800:220::1", "fd00::7"] {
            assert!(may("judge.internal", inside), "{inside}");
        }
        for close in
            ["127.0.0.1", "127.9.9.9", "169.254.169.254", "0.0.0.0", "::1", "::", "fe80::1", "::ffff:127.0.0.1", "224.0.0.1"]
        {
            assert!(!may("judge.internal", close), "{close}");
        }
        assert!(may("localhost", "127.0.0.1") && may("localhost", "::1") && may("127.0.0.1", "127.0.0.1"));
        assert!(may("169.254.169.254", "169.254.169.254") && may("[fe80::1]", "fe80::1"));
        assert!(!may("localhost", "169.254.169.254") && !may("127.1", "127.0.0.1"));
    }

    #[test]
    fn a_url_has_one_server_and_redirects_are_joined() {
        let read = |url: &str| Address::read(url).unwrap();
        assert_eq!(read("https://Judge.internal/v1").server(), "https://judge.internal:443");
        assert_eq!(read("http://[::1]:8/").server(), "http://[::1]:8");
        for wrong in
            ["", "judge", "/v1", "file:///etc/passwd", "http://u:p@judge/", "http:///x", "http://judge:99999/", "http://a b/"]
        {
            assert!(Address::read(wrong).is_err(), "{wrong}");
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
        assert!(Address::read(&from.joined("mailto:a@evil")).is_err());
        let hosts = [Host::read("http://judge:8").unwrap()];
        assert!(
            from.is_one_of(&hosts) && !read("http://judge:9/").is_one_of(&hosts) && !read("https://judge:8/").is_one_of(&hosts)
        );
        assert!(!read("http://judge.evil:8/").is_one_of(&hosts));
    }
}
