//! Where a request goes: the server's name against the addresses that it resolves to.

use crate::config::{is_here, printable};
use std::io;
use std::net::{IpAddr, SocketAddr};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Resolves names, and refuses those that lead to this machine or its link without saying so.
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
}
