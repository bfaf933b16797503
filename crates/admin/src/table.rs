//! The table of a group's members, as the dashboard and `plimsoll top` show it alike: which columns there are, what stands in them,
//! and a member's load with its marks in one unit.
//!
//! Where it is known how many requests a second a member can do, its load is the part of that in use, and the load line stands at the
//! whole. The marks that strategies set by themselves or are given stand on the same scale: loads are taken to grow with the requests,
//! and a limit of requests at once is, by Little's law, so many requests a second at the response times of now. Where it is not known
//! the load is the one that is reported, or requests at once, on one scale for the whole group.

use std::collections::HashMap;

use plimsoll_brain::status::{GroupStatus, ListenerStatus, MemberExplanation, MemberRecent, MemberStatus};
use serde::Serialize;

/// Columns, from the left. Those of reports, bindings and sheds may be left out where no member has any.
pub const COLUMNS: [&str; 11] =
    ["Member", "State", "Load", "Report", "Bindings", "Rate", "p50", "p99", "Errors", "Sheds", "Why"];

/// How far beyond the load line a scale goes.
const BEYOND: f64 = 1.25;
/// So much of the room below and beside is not a load: marks are not computed from less.
const LEAST: f64 = 0.02;

/// How something stands; a class of the style sheet. A glyph and a word always say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// As it should be.
    Good,
    /// Out of use on purpose, or nothing is known.
    Off,
    /// On its way, or close to a limit.
    Fair,
    /// Not as it should be.
    Bad,
}

/// What the loads of a group are counted in, and how far their bars go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Parts of what each can do.
    Capacity,
    /// Reported loads, up to so much.
    Load(f64),
    /// Requests at once, up to so many.
    Flight(f64),
}

impl Scale {
    /// The one that fits most members that can be used.
    pub fn of(group: &GroupStatus, recent: &[MemberRecent]) -> Self {
        let usable: Vec<&MemberStatus> =
            group.members.iter().filter(|member| member.state.eligible()).collect();
        let known = usable.iter().filter(|member| used(member).is_some()).count();
        if known > 0 && 2 * known >= usable.len() {
            return Self::Capacity;
        }
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max) * 1.15;
        let loads = most(&mut group.members.iter().filter_map(|member| member.load_effective));
        if loads > 0.0 {
            let marks = recent.iter().flat_map(|member| [member.alert_above, member.reject_above]);
            // A mark far away would make bars of nothing.
            let marks = most(&mut marks.flatten().filter(|mark| *mark <= 5.0 * loads));
            return Self::Load(loads.max(marks));
        }
        let flights = group.members.iter().map(|member| f64::from(member.in_flight));
        let limits = group.members.iter().filter_map(|member| Some(f64::from(member.limit?)));
        let flights = most(&mut flights.chain(std::iter::once(1.0)));
        let limits = most(&mut limits.filter(|limit| *limit <= 50.0 * flights));
        Self::Flight(flights.max(limits))
    }

    /// For the heading of the column.
    pub fn about(self) -> &'static str {
        match self {
            Self::Capacity => "load now as a part of what the member is predicted to carry",
            Self::Load(_) => "load that the member reports; what it can carry is not known yet",
            Self::Flight(_) => "requests under way at once; what the member can carry is not known yet",
        }
    }

    /// How far bars go.
    pub fn most(self) -> f64 {
        match self {
            Self::Capacity => BEYOND,
            Self::Load(most) | Self::Flight(most) => most,
        }
    }
}

/// A member's load and its load line, all in the unit of the scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// None where it is not known.
    pub now: Option<f64>,
    /// From here on it gets nothing new.
    pub reject: Option<f64>,
    /// From here on it sheds.
    pub critical: Option<f64>,
    /// Where it is predicted to be saturated.
    pub saturation: Option<f64>,
    /// What it is predicted to carry, requests a second.
    pub capacity: Option<f64>,
    /// How it stands.
    #[serde(skip)]
    pub tone: Tone,
}

impl Load {
    /// Of a member of a group with that scale.
    pub fn of(member: &MemberStatus, recent: Option<&MemberRecent>, scale: Scale) -> Self {
        let load = member.load_effective;
        let [reject, critical] = match recent {
            Some(recent) => [recent.reject_above, recent.alert_above],
            None => [None, None],
        };
        let flight = recent.map_or(0.0, |recent| recent.in_flight);
        let nothing = Self {
            now: None,
            reject: None,
            critical: None,
            saturation: None,
            capacity: None,
            tone: Tone::Off,
        };
        let of = match (scale, used(member)) {
            (Scale::Capacity, Some((used, capacity))) => {
                let of_load = |mark: f64| {
                    let load = load.filter(|load| *load > 0.0 && used > LEAST)?;
                    Some(used * mark / load)
                };
                let of_limit = || {
                    let limit = f64::from(member.limit?);
                    (flight > LEAST && used > LEAST).then(|| used * limit / flight)
                };
                Self {
                    now: Some(used),
                    reject: reject.and_then(of_load).or_else(of_limit),
                    critical: critical.and_then(of_load),
                    saturation: Some(1.0),
                    capacity: Some(capacity),
                    ..nothing
                }
            }
            (Scale::Capacity, None) => nothing,
            (Scale::Load(_), _) if load.is_some() => Self { now: load, reject, critical, ..nothing },
            (Scale::Load(_), _) => nothing,
            (Scale::Flight(_), _) => Self {
                now: Some(f64::from(member.in_flight)),
                reject: member.limit.map(f64::from),
                ..nothing
            },
        };
        Self { tone: of.judged(member), ..of }
    }

    fn judged(&self, member: &MemberStatus) -> Tone {
        let Some(now) = self.now.filter(|_| member.state.eligible()) else { return Tone::Off };
        let over = |mark: Option<f64>, part: f64| mark.is_some_and(|mark| now >= mark * part);
        if over(self.saturation, 1.0) || over(self.reject, 1.0) {
            Tone::Bad
        } else if over(self.saturation, 0.8) || over(self.critical, 1.0) {
            Tone::Fair
        } else {
            Tone::Good
        }
    }
}

/// A part of what a member can do, and all of it.
fn used(member: &MemberStatus) -> Option<(f64, f64)> {
    let line = member.load_line.as_ref()?;
    Some((line.used?, line.capacity?))
}

/// A member with the limit that the strategy found for it by itself, where it has no other.
pub fn with_limit(member: &MemberStatus, explained: Option<&MemberExplanation>) -> MemberStatus {
    let figure = explained.and_then(|own| own.figures.iter().find(|figure| figure.name == "limit"));
    let found = figure.map(|figure| figure.value).filter(|limit| *limit >= 1.0 && *limit < 1e9);
    MemberStatus { limit: member.limit.or_else(|| found.map(|limit| limit.round() as u32)), ..member.clone() }
}

/// What stands in the other columns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Since its load was measured, or it said with an answer what it can do, seconds.
    pub report_age: Option<f64>,
    /// Sessions that are bound to it, and leases of it.
    pub bindings: u64,
    /// Requests that ended, a second, over the last ten seconds.
    pub rate: Option<f64>,
    /// Of about the last ten seconds, seconds; since the start where nobody counts the last ones.
    pub p50: Option<f64>,
    /// Likewise.
    pub p99: Option<f64>,
    /// Requests that failed, a second, over the last ten seconds.
    pub failing: f64,
    /// Those that failed since the start.
    pub failures: u64,
    /// Sessions that were sent elsewhere in the last minute.
    pub moved_lately: u64,
    /// And since the start.
    pub moved: u64,
    /// Part of its sessions that is to go now.
    pub alert_share: f64,
}

impl Figures {
    /// Of a member, and what is known of its last seconds.
    pub fn of(member: &MemberStatus, recent: Option<&MemberRecent>, bound: u64) -> Self {
        let all = member.latency;
        let since_start = |seconds: f64| (all.count > 0 && recent.is_none()).then_some(seconds);
        Self {
            report_age: match (member.load, member.said_age_seconds) {
                (Some(load), Some(said)) => Some(load.age_seconds.min(said)),
                (load, said) => load.map(|load| load.age_seconds).or(said),
            },
            bindings: bound + member.leases,
            rate: match recent {
                Some(recent) => Some(recent.requests_per_second),
                None => member.load_line.as_ref().map(|line| line.requests_per_second),
            },
            p50: recent.and_then(|recent| recent.p50).or_else(|| since_start(all.p50)),
            p99: recent.and_then(|recent| recent.p99).or_else(|| since_start(all.p99)),
            failing: recent.map_or(0.0, |recent| recent.failures_per_second),
            failures: member.failures,
            moved_lately: recent.map_or(0, |recent| recent.moved),
            moved: member.moved,
            alert_share: member.alert_share,
        }
    }
}

/// Sessions that listeners of a group have bound to its members, by name.
pub fn bound<'l>(listeners: impl Iterator<Item = &'l ListenerStatus>) -> HashMap<&'l str, u64> {
    let mut bound = HashMap::new();
    for binding in listeners.flat_map(|listener| &listener.bindings) {
        *bound.entry(&*binding.member).or_default() += binding.bound;
    }
    bound
}

/// Does a group bind sessions at all, or lend members?
pub fn binds<'l>(group: &GroupStatus, mut listeners: impl Iterator<Item = &'l ListenerStatus>) -> bool {
    group.members.iter().any(|member| member.leases > 0)
        || listeners.any(|listener| listener.binding != "per_request")
}
