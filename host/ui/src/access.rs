//! Access control: requests need the secret address and must come from a page of this server.

use crate::api::ApiRefusal;
use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};
use rand::TryRng;
use rand::rngs::SysRng;
use rlhost_records::metrics::AllowedHosts;
use std::fmt::Write;
use std::io;
use subtle::ConstantTimeEq;

/// Header in which requests that change something repeat the token; a page of another origin can't send it.
pub(crate) const TOKEN: &str = "x-rlhost-token";

/// Returns a random token of 128 bits.
pub(crate) fn new_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Credentials that a request needs.
pub(crate) struct PageAccess {
    pub token: String,
    pub hosts: AllowedHosts,
}

impl PageAccess {
    /// Rejects a request for a host name that is not the server's, as from a web page whose name resolves to this machine (DNS rebinding).
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiRefusal> {
        if self.hosts.allows(host(headers)) {
            return Ok(());
        }
        Err(ApiRefusal::new(403, "this server does not answer to this Host; use the address that rlhost ui printed"))
    }

    /// Returns the path after the token; rejects a path without it.
    pub fn path<'a>(&self, path: &'a str) -> Result<&'a str, ApiRefusal> {
        let rest = path.strip_prefix('/').unwrap_or(path);
        let (token, rest) = rest.split_once('/').map_or((rest, None), |(token, rest)| (token, Some(rest)));
        if !self.is_token(token.as_bytes()) {
            return Err(ApiRefusal::new(403, "open the address that rlhost ui printed: it has a token, which this one lacks"));
        }
        rest.ok_or_else(|| ApiRefusal::new(308, format!("/{token}/")))
    }

    /// Rejects a request to change something unless the page itself sent it.
    pub fn check_act(&self, headers: &HeaderMap) -> Result<(), ApiRefusal> {
        let given = headers.get(TOKEN).map_or(&[][..], |value| value.as_bytes());
        if !self.is_token(given) {
            return Err(ApiRefusal::new(403, format!("a request that changes a run repeats the token in the header {TOKEN}")));
        }
        let text = |value: &hyper::header::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        let origin = headers.get(ORIGIN).map(text);
        let is_own = origin.is_none_or(|origin| origin == format!("http://{}", host(headers)));
        let site = headers.get("sec-fetch-site").map(text);
        if is_own && site.is_none_or(|site| site == "same-origin" || site == "none") {
            return Ok(());
        }
        Err(ApiRefusal::new(403, "other pages can't change a run"))
    }

    fn is_token(&self, given: &[u8]) -> bool {
        bool::from(self.token.as_bytes().ct_eq(given))
    }
}

/// Returns the host name by which a request reached the server.
fn host(headers: &HeaderMap) -> &str {
    headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    fn access() -> PageAccess {
        PageAccess { token: "abcd".into(), hosts: AllowedHosts::new("127.0.0.1".into(), [127, 0, 0, 1].into()) }
    }

    #[test]
    fn tokens_are_long_and_new_each_time() {
        let [a, b] = [new_token().unwrap(), new_token().unwrap()];
        assert!(a.len() == 32 && a != b && a.bytes().all(|byte| byte.is_ascii_hexdigit()), "{a} {b}");
    }

    #[test]
    fn only_paths_with_the_token_lead_anywhere() {
        let access = access();
        assert_eq!(access.path("/abcd/api/runs").unwrap(), "api/runs");
        assert_eq!(access.path("/abcd/").unwrap(), "");
        assert_eq!(access.path("/abcd").unwrap_err().status, 308);
        for path in ["/", "", "/abc/", "/abcde/", "/api/runs", "//abcd/", "/ABCD/", "/favicon.ico"] {
            assert_eq!(access.path(path).unwrap_err().status, 403, "{path}");
        }
    }

    #[test]
    fn acts_come_from_the_page_itself() {
        let access = access();
        let allowed = |pairs: &[(&str, &str)]| access.check_act(&headers(pairs)).is_ok();
        let [host, token] = [("host", "127.0.0.1:7"), (TOKEN, "abcd")];
        assert!(allowed(&[host, token]));
        assert!(allowed(&[host, token, ("origin", "http://127.0.0.1:7"), ("sec-fetch-site", "same-origin")]));
        assert!(!allowed(&[host]) && !allowed(&[host, (TOKEN, "abce")]));
        assert!(!allowed(&[host, token, ("origin", "http://evil.example")]));
        assert!(!allowed(&[host, token, ("origin", "http://127.0.0.1:8")]));
        assert!(!allowed(&[host, token, ("origin", "null")]));
        assert!(!allowed(&[host, token, ("sec-fetch-site", "cross-site")]));
        assert!(access.check_host(&headers(&[host])).is_ok());
        assert!(access.check_host(&headers(&[("host", "evil.example:7")])).is_err());
    }
}
