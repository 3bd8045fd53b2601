//! Checks which `Host` a request to an endpoint may name.

use super::host_name;
use hyper::http::uri::Authority;
use std::net::IpAddr;

/// The host names that an endpoint answers to. A web page can point its own name at this address and read the responses (DNS rebinding),
/// but it can't change the `Host` that the browser sends.
#[derive(Debug)]
pub struct AllowedHosts {
    /// Address as configured.
    name: String,
    bound: IpAddr,
    /// Host name of this machine, possibly with a domain.
    machine: String,
}

/// Returns a name's first label, without the domain.
fn first_label(name: &str) -> &str {
    name.split('.').next().unwrap_or_default()
}

impl AllowedHosts {
    /// Creates the host names of an endpoint that is configured as `name` and listens on this address.
    pub fn new(name: String, bound: IpAddr) -> Self {
        Self { name, bound, machine: host_name() }
    }

    /// Returns whether a name is this machine's, with or without a domain. `localhost` never counts: anyone can have it as a label in their
    /// own domain.
    fn is_machine(&self, name: &str) -> bool {
        let (asked, own) = (first_label(name), first_label(&self.machine));
        name.eq_ignore_ascii_case(&self.machine)
            || (!own.is_empty() && !own.eq_ignore_ascii_case("localhost") && asked.eq_ignore_ascii_case(own))
    }

    /// Returns whether a request with this `Host` is addressed to the endpoint.
    pub fn allows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        // A name may end with the root's dot.
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let same = |other: &str| name.eq_ignore_ascii_case(other);
        // When bound to all addresses, the endpoint answers to all of this machine's addresses and its name, with or without a domain.
        let open = self.bound.is_unspecified();
        let allowed = match name.parse::<IpAddr>() {
            Ok(address) => open || address == self.bound,
            Err(_) => open && self.is_machine(name),
        };
        allowed || same("localhost") || same(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_asked_for_by_its_own_name_alone() {
        let hosts =
            |name: &str, bound: &str| AllowedHosts { name: name.into(), bound: bound.parse().unwrap(), machine: "node7".into() };
        let local = hosts("127.0.0.1", "127.0.0.1");
        for (host, fine) in [
            ("localhost", true),
            ("LOCALHOST:9400", true),
            ("127.0.0.1:1", true),
            ("127.0.0.2", false),
            ("evil.example:9400", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("node7", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(local.allows(host), fine, "{host}");
        }
        let open = hosts("0.0.0.0", "0.0.0.0");
        for (host, fine) in
            [("10.0.0.7:9400", true), ("[::1]:9400", true), ("node7:9400", true), ("node7.lan", true), ("node8", false)]
        {
            assert_eq!(open.allows(host), fine, "{host}");
        }
        // A machine's name may be fully qualified.
        let named = |machine: &str| AllowedHosts { machine: machine.into(), ..hosts("0.0.0.0", "0.0.0.0") };
        for (machine, host, fine) in [
            ("node7.lan", "node7.lan:9400", true),
            ("node7.lan", "NODE7.LAN.", true),
            ("node7.lan", "node7", true),
            ("node7.lan", "node7.example.org", true),
            ("node7.lan", "node8.lan", false),
            ("node7.lan", "lan", false),
            ("node7.lan", "evil.example", false),
            ("node7.lan", "node7-evil.example", false),
            ("localhost.localdomain", "localhost.localdomain", true),
            ("localhost.localdomain", "localhost.evil.example", false),
            ("localhost", "localhost.evil.example", false),
            ("", "evil.example", false),
            ("", ".evil.example", false),
        ] {
            assert_eq!(named(machine).allows(host), fine, "{host} of {machine}");
        }
        assert!(hosts("metrics.lan", "10.0.0.7").allows("metrics.lan:9400"));
        assert!(hosts("::1", "::1").allows("[::1]:9400"));
    }
}
