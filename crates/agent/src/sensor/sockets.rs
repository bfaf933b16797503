//! Sockets: their number (`sockstat`), and the number of connections of a port.
//!
//! Counting a port's established connections reads a line for every connection of the host. So it is done
//! only if a port is configured, and once per time span. Both counts are of the agent's network namespace.

use std::time::Duration;

use super::{SensorContext, SensorPaths, SensorReader};

struct SocketSensor {
    port: Option<u16>,
    span: Duration,
    /// The time of the next count of connections.
    next_count: Duration,
    connections: Option<f64>,
}

pub(super) fn open(paths: &SensorPaths, count_interval: Duration) -> Box<dyn SensorReader> {
    Box::new(SocketSensor {
        port: paths.port,
        span: count_interval,
        next_count: Duration::ZERO,
        connections: None,
    })
}

impl SensorReader for SocketSensor {
    fn read_values(&mut self, context: &mut SensorContext<'_>) {
        if let Some(ipv4) = context.read_host("net/sockstat", parse_sockstat) {
            // The file is missing without IPv6.
            let ipv6 = if context.paths.proc.join("net/sockstat6").exists() {
                context.read_host("net/sockstat6", parse_sockstat).unwrap_or_default()
            } else {
                SocketCounts::default()
            };
            context.record_number("tcp_sockets", ipv4.tcp + ipv6.tcp);
            context.record_number("tcp_time_wait", ipv4.time_wait);
            context.record_number("udp_sockets", ipv4.udp + ipv6.udp);
        }
        let Some(port) = self.port else { return };
        if context.now >= self.next_count {
            self.next_count = context.now + self.span;
            let ipv4 = context.read_host("net/tcp", |text| established_connections(text, port));
            let ipv6 = if context.paths.proc.join("net/tcp6").exists() {
                context.read_host("net/tcp6", |text| established_connections(text, port))
            } else {
                Some(0.0)
            };
            self.connections = ipv4.zip(ipv6).map(|(ipv4_count, ipv6_count)| ipv4_count + ipv6_count);
        }
        if let Some(connections) = self.connections {
            context.record_number("connections", connections);
        }
    }
}

/// The counts in `sockstat` or `sockstat6`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SocketCounts {
    tcp: f64,
    time_wait: f64,
    udp: f64,
}

fn parse_sockstat(text: &str) -> Option<SocketCounts> {
    let mut counts = SocketCounts::default();
    let mut has_tcp = false;
    for line in text.lines() {
        let Some((protocol, rest)) = line.split_once(':') else { continue };
        let count = |key| {
            let mut words = rest.split_ascii_whitespace().skip_while(|word| *word != key);
            words.nth(1)?.parse::<u32>().ok().map(f64::from)
        };
        match protocol {
            "TCP" | "TCP6" => {
                counts.tcp = count("inuse")?;
                counts.time_wait = count("tw").unwrap_or(0.0);
                has_tcp = true;
            }
            "UDP" | "UDP6" => counts.udp = count("inuse")?,
            _ => {}
        }
    }
    has_tcp.then_some(counts)
}

/// Returns the number of connections in the state ESTABLISHED (01) with this local port, in `/proc/net/tcp`
/// or `tcp6`.
fn established_connections(text: &str, port: u16) -> Option<f64> {
    let mut lines = text.lines();
    lines.next().filter(|heading| heading.contains("local_address"))?;
    let established = lines.filter(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let local_port =
            words.next().and_then(|local| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok());
        local_port == Some(port) && words.nth(1) == Some("01")
    });
    Some(established.count() as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
        \x20  0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n\
        \x20  1: 0100007F:0050 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0\n\
        \x20  2: 0100007F:D431 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0\n\
        \x20  3: 0100007F:0050 0100007F:D432 06 00000000:00000000 00:00000000 00000000     0\n";

    #[test]
    fn what_kernels_say() {
        let text = "sockets: used 14\nTCP: inuse 7 orphan 0 tw 3 alloc 1 mem 130\nUDP: inuse 2 mem 267\n\
            RAW: inuse 0\n";
        assert_eq!(parse_sockstat(text), Some(SocketCounts { tcp: 7.0, time_wait: 3.0, udp: 2.0 }));
        assert_eq!(
            parse_sockstat("TCP6: inuse 4\nUDP6: inuse 1\n"),
            Some(SocketCounts { tcp: 4.0, time_wait: 0.0, udp: 1.0 })
        );
        for wrong in ["", "TCP: inuse x", "UDP: inuse 3", "TCP: inuse"] {
            assert_eq!(parse_sockstat(wrong), None, "{wrong}");
        }
        assert_eq!(established_connections(TCP, 80), Some(1.0));
        assert_eq!(established_connections(TCP, 0xd431), Some(1.0));
        assert_eq!(established_connections(TCP, 443), Some(0.0));
        assert_eq!(established_connections("", 80), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(TCP: |UDP: |inuse |tw |local_address|01 |:0050 |[0-9]{1,12} \
            |\\n|.){0,30}") {
            let _ = parse_sockstat(&text);
            let _ = established_connections(&text, 80);
        }
    }
}
