//! Outgoing connections: an HTTP agent that contacts only servers that its [`NetworkGuard`] allows, and only at addresses that these may
//! have. It follows no redirects; callers send a separate request for each.

mod addresses;

use crate::config::{Address, Host, is_local, printable};
use addresses::{is_near, is_public};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Rules for which servers may be contacted, and at which addresses.
#[derive(Clone, Debug)]
pub struct NetworkGuard {
    /// Server that the user configured, wherever it is: scheme, name and port.
    own: Option<String>,
    /// Servers that the user granted by name. A name must not resolve to this machine or its link unless it says so.
    granted: Vec<Host>,
    /// Whether any server with a public address may be contacted over https.
    public: bool,
}

/// Reason why a server may be contacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContactReason {
    Own,
    Granted,
    Public,
}

impl NetworkGuard {
    /// Allows these servers only.
    pub fn for_granted_hosts(granted: Vec<Host>) -> Self {
        Self { own: None, granted, public: false }
    }

    /// Allows only the server that the user configured.
    pub fn for_own_server(own: &Address) -> Self {
        Self { own: Some(own.server()), granted: Vec::new(), public: false }
    }

    /// Allows a server, the servers that the user granted as targets of its redirects, and public servers over https.
    pub fn for_server_and_redirects(own: &Address, granted: Vec<Host>) -> Self {
        Self { own: Some(own.server()), granted, public: true }
    }

    /// Rejects servers that may not be contacted at any address.
    ///
    /// # Errors
    /// Says why, as words that follow the server's name.
    pub fn check(&self, to: &Address) -> Result<(), String> {
        if self.reason(to).is_some_and(|reason| reason != ContactReason::Public) {
            return Ok(());
        }
        if !self.public {
            return Err("is not granted".to_owned());
        }
        if !to.is_secure() {
            return Err("is another server and not encrypted (https)".to_owned());
        }
        let public = match literal(to.name()) {
            Some(ip) => is_public(ip),
            None => !is_local(to.name()) && !ends_in_a_number(to.name()),
        };
        if public { Ok(()) } else { Err("has no public address".to_owned()) }
    }

    fn reason(&self, to: &Address) -> Option<ContactReason> {
        if self.own.as_ref().is_some_and(|own| *own == to.server()) {
            Some(ContactReason::Own)
        } else if to.is_one_of(&self.granted) {
            Some(ContactReason::Granted)
        } else {
            self.public.then_some(ContactReason::Public)
        }
    }

    /// Rejects an address that the server may not have.
    fn check_address(&self, to: &Address, address: SocketAddr) -> Result<(), String> {
        let (name, ip) = (printable(to.name(), 200), address.ip().to_canonical());
        match self.reason(to) {
            Some(ContactReason::Own) => Ok(()),
            Some(ContactReason::Granted) if may_lead(to.name(), ip) => Ok(()),
            Some(ContactReason::Granted) => Err(format!(
                "the granted name {name} resolves to {ip}, which is this machine, a link-local address or a cloud's own service; \
                 grant {ip} itself if that is meant"
            )),
            Some(ContactReason::Public) if is_public(ip) => Ok(()),
            Some(ContactReason::Public) => Err(format!(
                "{server} resolves to {ip}, which is not a public address; if you trust it, name it in RLHOST_HUB_HOSTS, as in \
                 RLHOST_HUB_HOSTS={server}",
                server = to.server()
            )),
            None => Err(format!("{} is not granted", to.server())),
        }
    }

    /// Returns an agent that contacts only allowed servers. It follows no redirects, since their targets must be checked.
    pub fn agent(self, config: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>) -> Agent {
        let config = config.max_redirects(0).http_status_as_error(false).build();
        Agent::with_parts(
            config,
            DefaultConnector::default(),
            GuardedResolver { guard: Arc::new(self), names: DefaultResolver::default() },
        )
    }
}

/// Refusal by a guard, as opposed to an error of the operating system.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct GuardRefusal(String);

/// Returns the guard's refusal in an error of an agent, if it is one.
pub fn refusal(error: &ureq::Error) -> Option<String> {
    let ureq::Error::Io(e) = error else { return None };
    Some(e.get_ref()?.downcast_ref::<GuardRefusal>()?.to_string())
}

/// Resolver that rejects disallowed addresses just before a connection is made.
#[derive(Debug)]
struct GuardedResolver {
    guard: Arc<NetworkGuard>,
    names: DefaultResolver,
}

impl Resolver for GuardedResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.names.resolve(uri, config, timeout)?;
        // The user's own proxy, through which all requests go.
        if config.proxy().is_some_and(|proxy| proxy.uri() == uri) {
            return Ok(found);
        }
        let refused = |detail: String| ureq::Error::Io(io::Error::new(io::ErrorKind::PermissionDenied, GuardRefusal(detail)));
        let to = Address::parse(&uri.to_string()).map_err(refused)?;
        found.iter().try_for_each(|address| self.guard.check_address(&to, *address)).map_err(refused)?;
        Ok(found)
    }
}

/// Returns the IP address that a host name spells out, if it does.
fn literal(name: &str) -> Option<IpAddr> {
    let ip = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()?;
    Some(ip.to_canonical())
}

/// Returns whether resolvers may read a name as a number, as in `127.1` or `0x7f000001`. No server has such a name.
fn ends_in_a_number(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let hex = |digits: &str| digits.chars().all(|c| c.is_ascii_hexdigit());
    last.chars().all(|c| c.is_ascii_digit()) || last.strip_prefix("0x").is_some_and(hex)
}

/// Returns whether a granted name may resolve to an address. Loopback, link-local and multicast addresses must be granted explicitly, or as
/// localhost.
fn may_lead(name: &str, ip: IpAddr) -> bool {
    literal(name) == Some(ip) || !is_near(ip) || (ip.is_loopback() && is_local(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Address {
        Address::parse(url).unwrap()
    }

    #[test]
    fn a_name_may_not_lead_to_this_machine_unless_it_says_so() {
        let may = |name: &str, ip: &str| may_lead(name, ip.parse::<IpAddr>().unwrap().to_canonical());
        for inside in ["10.0.0.7", "192.168.1.1", "93.184.216.34", "2606:2800:220::1", "fd00::7"] {
            assert!(may("judge.internal", inside), "{inside}");
        }
        let metadata = ["169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"];
        let near = ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "fe80::1", "::ffff:127.0.0.1", "224.0.0.1"];
        for close in metadata.into_iter().chain(near) {
            assert!(!may("judge.internal", close), "{close}");
        }
        assert!(may("localhost", "127.0.0.1") && may("localhost", "::1") && may("127.0.0.1", "127.0.0.1"));
        assert!(may("169.254.169.254", "169.254.169.254") && may("[fe80::1]", "fe80::1"));
        assert!(!may("localhost", "169.254.169.254") && !may("127.1", "127.0.0.1"));
    }

    #[test]
    fn beside_the_users_own_server_only_public_ones_are_contacted_and_only_over_https() {
        let guard = NetworkGuard::for_server_and_redirects(
            &read("http://10.0.0.1:8080/hf"),
            vec![Host::parse("http://store.internal:9000").unwrap()],
        );
        for fine in
            ["http://10.0.0.1:8080/x", "http://store.internal:9000/x", "https://cdn.example/x", "https://93.184.216.34:8443/"]
        {
            assert_eq!(guard.check(&read(fine)), Ok(()), "{fine}");
        }
        for (plain, part) in [
            ("http://10.0.0.1/x", "https"),
            ("http://cdn.example/x", "https"),
            ("https://10.0.0.1:8080/x", "public"),
            ("https://127.0.0.1/x", "public"),
            ("https://[::1]/x", "public"),
            ("https://[::ffff:169.254.169.254]/x", "public"),
            ("https://localhost:8443/x", "public"),
            ("https://a.localhost/x", "public"),
            ("https://2130706433/x", "public"),
            ("https://0x7f000001/x", "public"),
            ("https://127.1/x", "public"),
        ] {
            let refused = guard.check(&read(plain)).unwrap_err();
            assert!(refused.contains(part), "{plain}: {refused}");
        }
        let at = |url: &str, ip: &str| guard.check_address(&read(url), SocketAddr::new(ip.parse().unwrap(), 443));
        assert_eq!(at("http://10.0.0.1:8080", "10.0.0.1"), Ok(()));
        assert_eq!(at("http://store.internal:9000", "10.0.0.9"), Ok(()));
        assert!(at("http://store.internal:9000", "127.0.0.1").unwrap_err().contains("grant 127.0.0.1 itself"));
        // This is not the granted server, so its address must be public.
        assert_eq!(guard.check(&read("https://store.internal.:9000/x")), Ok(()));
        assert!(at("https://store.internal.:9000", "10.0.0.9").unwrap_err().contains("not a public address"));
        assert_eq!(at("https://cdn.example", "93.184.216.34"), Ok(()));
        for inside in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1", "100.64.0.1"] {
            let refused = at("https://cdn.example", inside).unwrap_err();
            assert!(
                refused.contains("not a public address") && refused.contains("RLHOST_HUB_HOSTS=https://cdn.example"),
                "{refused}"
            );
        }
        let judges = NetworkGuard::for_granted_hosts(vec![Host::parse("judge:8").unwrap()]);
        assert!(judges.check(&read("https://judge:8")).is_ok() && judges.check(&read("https://other:8")).is_err());
    }

    #[test]
    fn an_agent_connects_to_nothing_else_whatever_it_is_asked_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let guard = NetworkGuard::for_server_and_redirects(&read("https://hub.example"), Vec::new());
        let agent = guard.agent(Agent::config_builder().proxy(None));
        for name in ["127.0.0.1", "localhost"] {
            for scheme in ["http", "https"] {
                let error = agent.get(format!("{scheme}://{name}:{port}/")).call().unwrap_err();
                assert!(refusal(&error).is_some_and(|detail| detail.contains("not a public address")), "{error}");
            }
        }
        assert_eq!(refusal(&ureq::Error::Io(io::ErrorKind::PermissionDenied.into())), None);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
