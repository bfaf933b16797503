//! Balancers, by name and strategy.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::units;

/// A balancer and its strategy.
///
/// | text | balancer |
/// |---|---|
/// | `none` | no balancer |
/// | `plimsoll:round_robin` | plimsoll with a strategy |
/// | `haproxy:leastconn` | HAProxy with its own strategy |
/// | `nginx:random two least_conn` | nginx with its own strategy |
/// | `lottery:referral` | the lottery, and the way in which clients ask it |
/// | `plimsoll:adaptive+agents` | plimsoll before members that send load reports |
/// | `plimsoll:adaptive@on_demand` | plimsoll with a session binding |
/// | `plimsoll:least_loaded+hidden` | plimsoll that does not learn which members share a host |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerSpec {
    /// The kind.
    pub kind: BalancerKind,
    /// A strategy of plimsoll, which may have settings: `least_request(choices=3)`. For the others a strategy
    /// as in their own configuration, or `round_robin` or `least_connections`, the default.
    pub strategy: String,
    /// The session binding (plimsoll); as the listener is configured if `None`.
    pub binding: Option<SessionBinding>,
    /// Whether the members send a load report with each answer, as those with agents do.
    pub has_agents: bool,
    /// The report interval of several plimsoll balancers; `None` if they do not know one another.
    pub fleet_interval: Option<Duration>,
    /// Whether plimsoll does not learn that members of its groups share hosts.
    pub hides_hosts: bool,
    /// Whether plimsoll follows a lottery, with daemons beside the members, rather than a strategy of its
    /// own.
    pub follows_lottery: bool,
}

/// The duration of a session binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionBinding {
    /// One request.
    PerRequest,
    /// One session.
    PerSession,
    /// One session, unless the member is overloaded.
    OnDemand,
}

impl SessionBinding {
    /// Returns the name as in plimsoll's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerRequest => "per_request",
            Self::PerSession => "per_session",
            Self::OnDemand => "on_demand",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::PerRequest, Self::PerSession, Self::OnDemand]
            .into_iter()
            .find(|binding| binding.name() == name)
    }
}

/// The kind of a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerKind {
    /// No balancer: clients connect directly to the only member.
    None,
    /// This program.
    Plimsoll,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// Envoy.
    Envoy,
    /// No balancer: daemons beside the members direct the clients.
    Lottery,
}

impl BalancerKind {
    /// Returns the name as in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Plimsoll => "plimsoll",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
            Self::Lottery => "lottery",
        }
    }
}

/// The strategies of each balancer; the first two stand for `round_robin` and `least_connections`.
const HAPROXY: &[&str] = &["roundrobin", "leastconn", "static-rr", "first", "source"];
const NGINX: &[&str] = &["", "least_conn", "random", "random two", "random two least_conn", "ip_hash"];
const ENVOY: &[&str] = &["ROUND_ROBIN", "LEAST_REQUEST", "RANDOM"];
/// The ways in which clients ask the lottery: one daemon, all by multicast, or all one by one.
const LOTTERY: &[&str] = &["referral", "multicast", "unicast"];

impl BalancerSpec {
    /// Returns the strategy as in the balancer's own configuration: `leastconn`, `random two least_conn`,
    /// `LEAST_REQUEST`; empty for nginx's round robin.
    pub fn algorithm(&self) -> &str {
        let algorithms = match self.kind {
            BalancerKind::None | BalancerKind::Plimsoll | BalancerKind::Lottery => return &self.strategy,
            BalancerKind::Haproxy => HAPROXY,
            BalancerKind::Nginx => NGINX,
            BalancerKind::Envoy => ENVOY,
        };
        match self.strategy.as_str() {
            "round_robin" => algorithms[0],
            "least_connections" => algorithms[1],
            algorithm => algorithm,
        }
    }

    /// Returns the way in which the daemons beside the members are asked, if there are any: by clients, or by
    /// plimsoll that follows them.
    pub fn lottery_query(&self) -> Option<&str> {
        match self.kind {
            BalancerKind::Lottery => Some(&self.strategy),
            BalancerKind::Plimsoll if self.follows_lottery => Some(LOTTERY[0]),
            _ => None,
        }
    }

    /// Returns a strategy of plimsoll without its settings, and the settings.
    pub fn strategy_settings(&self) -> (&str, BTreeMap<&str, f64>) {
        let (name, parameters) = split_parentheses(&self.strategy);
        let settings = parameters.unwrap_or_default().split(',').filter_map(parse_setting);
        (name, settings.collect())
    }

    /// Returns `true` if the strategy is known. Of plimsoll's only the form is checked.
    fn is_known(&self) -> bool {
        let algorithm = self.algorithm();
        let is_listed = |algorithms: &[&str]| !self.strategy.is_empty() && algorithms.contains(&algorithm);
        match self.kind {
            BalancerKind::None => matches!(algorithm, "round_robin" | "least_connections"),
            BalancerKind::Plimsoll => {
                let (name, parameters) = split_parentheses(algorithm);
                is_identifier(name)
                    && parameters.is_none_or(|parameters| {
                        parameters.split(',').all(|parameter| parse_setting(parameter).is_some())
                    })
            }
            BalancerKind::Lottery => LOTTERY.contains(&algorithm),
            BalancerKind::Haproxy => is_listed(HAPROXY) || is_random_algorithm(algorithm),
            BalancerKind::Nginx => is_listed(NGINX),
            BalancerKind::Envoy => is_listed(ENVOY),
        }
    }
}

/// Splits a name from the text in parentheses after it.
fn split_parentheses(text: &str) -> (&str, Option<&str>) {
    match text.split_once('(').and_then(|(name, parameters)| Some((name, parameters.strip_suffix(')')?))) {
        Some((name, parameters)) => (name, Some(parameters)),
        None => (text, None),
    }
}

/// Parses a setting such as `choices=3`.
fn parse_setting(text: &str) -> Option<(&str, f64)> {
    let (name, value) = text.split_once('=')?;
    let value = value.trim().parse().ok().filter(|value: &f64| value.is_finite())?;
    is_identifier(name.trim()).then_some((name.trim(), value))
}

/// Parses the text after `+fleet`: empty for the usual report interval, or an interval in parentheses.
fn parse_fleet_interval(text: &str) -> Option<Duration> {
    const ALLOWED_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(1);
    if text.is_empty() {
        return Some(Duration::from_millis(10));
    }
    let duration_text = text.strip_prefix('(')?.strip_suffix(')')?;
    units::parse_duration(duration_text).ok().filter(|interval| ALLOWED_INTERVALS.contains(interval))
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
}

/// Returns `true` for HAProxy's `random(N)`.
fn is_random_algorithm(algorithm: &str) -> bool {
    let draw_count = algorithm.strip_prefix("random(").and_then(|tail| tail.strip_suffix(')'));
    draw_count.and_then(|number| number.parse().ok()).is_some_and(|number: u32| (1..=1000).contains(&number))
}

impl Default for BalancerSpec {
    fn default() -> Self {
        Self {
            kind: BalancerKind::Plimsoll,
            strategy: "least_connections".to_owned(),
            binding: None,
            has_agents: false,
            fleet_interval: None,
            hides_hosts: false,
            follows_lottery: false,
        }
    }
}

impl FromStr for BalancerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (spec, hides_hosts) = text.strip_suffix("+hidden").map_or((text, false), |rest| (rest, true));
        let (spec, fleet_interval) = match spec.rsplit_once("+fleet") {
            Some((spec, interval_text)) => match parse_fleet_interval(interval_text) {
                Some(interval) => (spec, Some(interval)),
                None => {
                    return Err(format!("`{text}`: expected `+fleet`, or `+fleet(100ms)` from 5 ms to 1 s"));
                }
            },
            None => (spec, None),
        };
        let (spec, has_agents) = spec.strip_suffix("+agents").map_or((spec, false), |rest| (rest, true));
        let (spec, binding) = match spec.split_once('@') {
            Some((spec, name)) => match SessionBinding::from_name(name) {
                Some(binding) => (spec, Some(binding)),
                None => {
                    return Err(format!(
                        "`{text}`: after @ expected `per_request`, `per_session` or `on_demand`"
                    ));
                }
            },
            None => (spec, None),
        };
        let default_strategy = if spec == "lottery" { LOTTERY[0] } else { "least_connections" };
        // plimsoll has a strategy of the name, so that this is not plimsoll:lottery.
        let (spec, follows_lottery) =
            if spec == "lottery:plimsoll" { ("plimsoll", true) } else { (spec, false) };
        let (kind, strategy) = spec.split_once(':').unwrap_or((spec, default_strategy));
        let kind = match kind {
            "none" => BalancerKind::None,
            "plimsoll" => BalancerKind::Plimsoll,
            "haproxy" => BalancerKind::Haproxy,
            "nginx" => BalancerKind::Nginx,
            "envoy" => BalancerKind::Envoy,
            "lottery" => BalancerKind::Lottery,
            _ => {
                return Err(format!(
                    "`{text}` is not a balancer: expected `none`, `plimsoll`, `haproxy`, `nginx`, `envoy` or \
                     `lottery`, with a strategy as in `plimsoll:round_robin`"
                ));
            }
        };
        if binding.is_some() && kind != BalancerKind::Plimsoll {
            return Err(format!("`{text}`: only plimsoll can be told how long clients stay with a member"));
        }
        if fleet_interval.is_some() && kind != BalancerKind::Plimsoll {
            return Err(format!("`{text}`: only plimsoll's balancers can be told of one another"));
        }
        if hides_hosts && kind != BalancerKind::Plimsoll {
            return Err(format!("`{text}`: only from plimsoll it can be hidden who shares a host"));
        }
        let balancer = Self {
            kind,
            strategy: strategy.to_owned(),
            binding,
            has_agents,
            fleet_interval,
            hides_hosts,
            follows_lottery,
        };
        if balancer.is_known() {
            return Ok(balancer);
        }
        if kind == BalancerKind::Lottery {
            return Err(format!("`{text}`: expected `{}`, `plimsoll`", LOTTERY.join("`, `")));
        }
        let own_strategies = match kind {
            BalancerKind::None | BalancerKind::Plimsoll | BalancerKind::Lottery => String::new(),
            BalancerKind::Haproxy => format!(", `random(2)`, `{}`", HAPROXY.join("`, `")),
            BalancerKind::Nginx => format!(", `{}`", NGINX[1..].join("`, `")),
            BalancerKind::Envoy => format!(", `{}`", ENVOY.join("`, `")),
        };
        Err(format!("`{text}`: expected the strategy `round_robin`, `least_connections`{own_strategies}"))
    }
}

impl<'de> Deserialize<'de> for BalancerSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_in_everyones_own_words() {
        let algorithm_of =
            |text: &str| text.parse::<BalancerSpec>().map(|balancer| balancer.algorithm().to_owned());
        for (text, expected) in [
            ("haproxy", "leastconn"),
            ("haproxy:leastconn", "leastconn"),
            ("haproxy:round_robin", "roundrobin"),
            ("haproxy:random(2)", "random(2)"),
            ("nginx:round_robin", ""),
            ("nginx:least_conn", "least_conn"),
            ("nginx:random two least_conn", "random two least_conn"),
            ("envoy", "LEAST_REQUEST"),
            ("envoy:ROUND_ROBIN", "ROUND_ROBIN"),
            ("plimsoll:peak_ewma", "peak_ewma"),
            ("lottery", "referral"),
            ("lottery:unicast", "unicast"),
            ("plimsoll:least_request(choices=3)", "least_request(choices=3)"),
        ] {
            assert_eq!(algorithm_of(text).as_deref(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "pound",
            "haproxy:",
            "haproxy:random",
            "haproxy:random(0)",
            "haproxy:random(2); bad",
            "nginx:",
            "nginx:random two }",
            "envoy:least_request",
            "plimsoll:",
            "plimsoll:+agents",
            "plimsoll:adaptive+agent",
            "plimsoll:adaptive+agents+agents",
            "plimsoll:adaptive+fleet(2s)",
            "plimsoll:adaptive+fleet()",
            "plimsoll:adaptive+fleets",
            "plimsoll:adaptive+fleet+agents",
            "haproxy:leastconn+fleet",
            "haproxy:leastconn+hidden",
            "plimsoll:adaptive+hidden+agents",
            "plimsoll:a b",
            "plimsoll:a(",
            "plimsoll:a()",
            "plimsoll:a(b)",
            "plimsoll:a(b=c)",
            "plimsoll:a(b=1)c",
            "none:x",
            "lottery:broadcast",
            "lottery:",
            "lottery@per_session",
            "lottery:plimsoll(a=1)",
            "plimsoll:adaptive@",
            "plimsoll:adaptive@sometimes",
            "plimsoll:adaptive+agents@on_demand",
            "haproxy:leastconn@per_session",
        ] {
            assert!(algorithm_of(text).is_err(), "{text}");
        }
        let with_settings: BalancerSpec = "plimsoll:least_loaded(reject=0.5, critical=2)".parse().unwrap();
        assert_eq!(
            with_settings.strategy_settings(),
            ("least_loaded", BTreeMap::from([("reject", 0.5), ("critical", 2.0)]))
        );
        let with_agents: BalancerSpec = "plimsoll:adaptive+agents".parse().unwrap();
        assert_eq!(
            (with_agents.algorithm(), with_agents.has_agents, with_settings.has_agents),
            ("adaptive", true, false)
        );
        let fleet_interval = |text: &str| {
            text.parse::<BalancerSpec>().unwrap().fleet_interval.map(|interval| interval.as_millis())
        };
        assert_eq!(
            (fleet_interval("plimsoll+fleet"), fleet_interval("plimsoll:adaptive+agents+fleet(1s)")),
            (Some(10), Some(1000))
        );
        let hidden: BalancerSpec = "plimsoll:least_loaded(per_balance_load=1)+hidden".parse().unwrap();
        assert_eq!(
            (hidden.strategy_settings().0, hidden.hides_hosts, with_agents.hides_hosts),
            ("least_loaded", true, false)
        );
        let with_binding: BalancerSpec = "plimsoll:least_loaded(reject=2)@on_demand+agents".parse().unwrap();
        assert_eq!(
            (with_binding.strategy_settings().0, with_binding.binding, with_binding.has_agents),
            ("least_loaded", Some(SessionBinding::OnDemand), true)
        );
        let lottery_query =
            |text: &str| text.parse::<BalancerSpec>().unwrap().lottery_query().map(str::to_owned);
        assert_eq!(lottery_query("lottery:multicast").as_deref(), Some("multicast"));
        assert_eq!(
            (lottery_query("lottery:plimsoll").as_deref(), lottery_query("plimsoll:lottery")),
            (Some("referral"), None)
        );
        assert_eq!("lottery:plimsoll".parse::<BalancerSpec>().unwrap().kind, BalancerKind::Plimsoll);
        assert_eq!(BalancerSpec::default().strategy_settings(), ("least_connections", BTreeMap::new()));
    }
}
