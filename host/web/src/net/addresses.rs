//! Classes of IP addresses, by the registries of special-purpose addresses (RFC 6890 and its updates).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services of clouds, which give a machine its credentials, at addresses that are not link-local: Amazon's, Alibaba's and
/// Azure's.
const METADATA: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// Returns whether an address is loopback, unspecified, link-local, broadcast, multicast, or a cloud's metadata service.
pub(super) fn is_near(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local || METADATA.contains(&ip)
}

/// Returns whether an address is public: any machine on the internet may have it.
pub(super) fn is_public(ip: IpAddr) -> bool {
    if is_near(ip) {
        return false;
    }
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = match (a, b, c) {
        // This network; carrier-grade NAT; protocol assignments; 6to4 relays; benchmarks; reserved.
        (0, ..) | (100, 64..=127, _) | (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) | (240.., ..) => true,
        _ => false,
    };
    !(special || ip.is_private() || ip.is_documentation())
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let within = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        // Embedded IPv4: mapped, translated (NAT64), or tunnelled (6to4).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            let ip = within(high, low);
            !is_near(IpAddr::V4(ip)) && is_public_v4(ip)
        }
        // Teredo, identifiers, benchmarks, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Global unicast (2000::/3).
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_any_machine_may_have_is_public() {
        let public = |ip: &str| is_public(ip.parse().unwrap());
        for ip in ["93.184.216.34", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.1.0.1", "2606:2800:220::1", "2a00:1450::5"] {
            assert!(public(ip), "{ip}");
        }
        assert!(public("64:ff9b::5db8:d822") && public("2002:5db8:d822::1") && public("::ffff:93.184.216.34"));
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2002:a00:1::1",
            "::7f00:1",
            "168.63.129.16",
            "2002:a83f:8110::1",
            "100::1",
        ] {
            assert!(!public(ip), "{ip}");
        }
    }
}
