//! Actions: a page with a form first describes the effect; submitting the form executes the action in the
//! same way as `POST /v1/…`.

use hyper::StatusCode;
use plimsoll_brain::status::{GroupStatus, MemberStatus};
use serde::Serialize;
use serde_json::{Value, json};

use super::door::{self, Confirmed};
use super::place::{self, Place, field};
use super::view::{Base, Eye};
use super::words::{self, count, percent, rate};
use crate::access::Caller;
use crate::act::Outcome;
use crate::plane::{Plane, Powers};
use crate::table;
use crate::verb::Verb;

/// The actions of forms: the name in the form, the operation, and its label.
const DEEDS: &[(&str, Verb, &str)] = &[
    ("drain", Verb::Drain, "Drain"),
    ("undrain", Verb::Undrain, "Undrain"),
    ("disable", Verb::Disable, "Disable"),
    ("enable", Verb::Enable, "Enable"),
    ("disable-balancing", Verb::Disable, "Disable balancing of"),
    ("enable-balancing", Verb::Enable, "Enable balancing of"),
    ("disable-listener", Verb::Disable, "Disable listener"),
    ("enable-listener", Verb::Enable, "Enable listener"),
    ("set", Verb::Set, "Change the strategy of"),
];

/// A requested action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    deed: &'static str,
    pub(crate) verb: Verb,
    word: &'static str,
    group: String,
    member: String,
    listener: String,
    value: String,
}

impl Wanted {
    /// Parses an action from a query or a form.
    ///
    /// # Errors
    /// It does not describe an existing action.
    pub(super) fn read(fields: &[(String, String)]) -> Result<Self, String> {
        let text = |name| field(fields, name).unwrap_or_default().to_owned();
        let asked = text("do");
        let Some((deed, verb, word)) = DEEDS.iter().find(|(name, ..)| *name == asked) else {
            let names: Vec<&str> = DEEDS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("do: there are {}", names.join(", ")));
        };
        let wanted = Self {
            deed,
            verb: *verb,
            word,
            group: text("group"),
            member: text("member"),
            listener: text("listener"),
            value: text("value"),
        };
        let needs = match *deed {
            "disable-listener" | "enable-listener" => [("listener", &wanted.listener)].to_vec(),
            "disable-balancing" | "enable-balancing" => [("group", &wanted.group)].to_vec(),
            "set" => [("group", &wanted.group), ("value", &wanted.value)].to_vec(),
            _ => [("group", &wanted.group), ("member", &wanted.member)].to_vec(),
        };
        if let Some((name, _)) = needs.iter().find(|(_, value)| value.is_empty()) {
            return Err(format!("{name} is missing"));
        }
        // A confirmed action contains all that is shown and nothing else: a crafted link must not look
        // harmless.
        let given = [
            ("group", &wanted.group),
            ("member", &wanted.member),
            ("listener", &wanted.listener),
            ("value", &wanted.value),
        ];
        match given
            .iter()
            .find(|(name, value)| !value.is_empty() && needs.iter().all(|(needed, _)| needed != name))
        {
            Some((name, _)) => Err(format!("{deed} takes no {name}")),
            None => Ok(wanted),
        }
    }

    fn texts(&self) -> [&str; 5] {
        [self.deed, &self.group, &self.member, &self.listener, &self.value]
    }

    /// Returns the body of the same command for `POST /v1/…`.
    pub(crate) fn body(&self) -> Value {
        match self.deed {
            "disable-listener" | "enable-listener" => json!({"listener": self.listener}),
            "disable-balancing" | "enable-balancing" => json!({"balancing": self.group}),
            "set" => json!({"group": self.group, "key": "strategy", "value": self.value}),
            _ => json!({"group": self.group, "member": self.member}),
        }
    }

    /// Returns the target of the action.
    fn target(&self) -> &str {
        [&self.member, &self.listener].into_iter().find(|name| !name.is_empty()).unwrap_or(&self.group)
    }

    /// Returns the address of the page to return to.
    fn back(&self) -> String {
        if !self.listener.is_empty() {
            format!("{}/process", place::ROOT)
        } else if self.member.is_empty() {
            place::of_group(&self.group)
        } else {
            place::of_member(&self.group, &self.member)
        }
    }

    fn title(&self) -> String {
        let to = if self.value.is_empty() { String::new() } else { format!(" to {}", self.value) };
        format!("{} {}{to}", self.word, self.target())
    }

    /// Returns the same command for the command line.
    fn command(&self) -> String {
        let shell = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]/".contains(&byte);
            if !text.is_empty() && text.bytes().all(plain) {
                text.to_owned()
            } else {
                format!("'{}'", text.replace('\'', "'\\''"))
            }
        };
        let (group, member) = (shell(&self.group), shell(&self.member));
        match self.deed {
            "drain" | "undrain" => format!("plimsoll {} {member} --group {group}", self.deed),
            "disable" | "enable" => format!("plimsoll {} member {member} --group {group}", self.deed),
            "disable-balancing" => format!("plimsoll disable balancing {group}"),
            "enable-balancing" => format!("plimsoll enable balancing {group}"),
            "disable-listener" => format!("plimsoll disable listener {}", shell(&self.listener)),
            "enable-listener" => format!("plimsoll enable listener {}", shell(&self.listener)),
            _ => format!("plimsoll set group {}", shell(&format!("{}.strategy={}", self.group, self.value))),
        }
    }
}

/// The contents of a confirmation page.
#[derive(Debug, Serialize)]
pub(super) struct Confirm {
    base: Base,
    title: String,
    /// The effects, one sentence each.
    effects: Vec<String>,
    command: String,
    /// The fields of the form; empty if the action is not possible here.
    form: Vec<(&'static str, String)>,
    how: Option<String>,
    back: String,
    /// Whether the action succeeded, once it is done.
    done: Option<bool>,
    lines: Vec<String>,
}

/// Returns the reason why a caller cannot act here, and an alternative; `None` if it can.
pub(super) fn how(plane: &Plane, caller: &Caller, verb: Verb, group: &str) -> Option<String> {
    if plane.powers != Powers::Act {
        return Some(
            "This listener only shows. To act: the command line on the balancer's host; or this dashboard over control with TLS ([admin] control = \
             \"tls://…\"), with a client certificate or a token; or over the control socket, brought to your own machine by ssh -L 9910:/run/plimsoll.sock HOST."
                .to_owned(),
        );
    }
    if plane.permit(caller, verb).admits(group) {
        return None;
    }
    let to = if group.is_empty() { String::new() } else { format!(" in group {group}") };
    Some(format!("{caller} may not {}{to}: no grant in [admin.access] gives it.", verb.deed()))
}

/// Returns the page that describes the effect of an action.
///
/// # Errors
/// There is no such group or member that the caller may see.
pub(super) fn confirm(eye: &Eye<'_>, wanted: &Wanted, path: &str) -> Result<Confirm, String> {
    let effects = effects(eye, wanted)?;
    let reach = if wanted.listener.is_empty() { &*wanted.group } else { "" };
    let how = how(eye.plane, eye.caller, wanted.verb, reach);
    let who = eye.caller.to_string();
    let at = door::now();
    let seal = Confirmed { who: &who, what: &wanted.texts(), at }.seal();
    let mut form = Vec::new();
    if let (None, Some(seal)) = (&how, seal) {
        let [deed, group, member, listener, value] = wanted.texts();
        let named =
            [("do", deed), ("group", group), ("member", member), ("listener", listener), ("value", value)];
        form.extend(named.map(|(name, value)| (name, value.to_owned())));
        form.extend([("at", at.to_string()), ("seal", seal)]);
    }
    Ok(Confirm {
        base: eye.base(&wanted.title(), &Place::Act, path),
        title: wanted.title(),
        effects,
        command: wanted.command(),
        form,
        how,
        back: wanted.back(),
        done: None,
        lines: Vec::new(),
    })
}

/// Reads the action of a submitted form.
///
/// # Errors
/// This caller has not confirmed it, or too long ago.
pub(super) fn confirmed(fields: &[(String, String)], caller: &Caller) -> Result<Wanted, String> {
    let wanted = Wanted::read(fields)?;
    let at = field(fields, "at").and_then(|at| at.parse().ok()).unwrap_or(0);
    let who = caller.to_string();
    let told = Confirmed { who: &who, what: &wanted.texts(), at };
    let now = door::now();
    if told.holds(field(fields, "seal").unwrap_or_default(), now) {
        // A reloaded page submits its form again; meanwhile another operator may have undone the action.
        return if told.first(&door::USED, now) {
            Ok(wanted)
        } else {
            Err("this was sent before, and done then: open the page again to do it once more".into())
        };
    }
    Err("this was not confirmed, or more than a quarter of an hour ago: open the page again and look at what will happen".into())
}

/// Returns the page with the outcome.
pub(super) fn done(
    plane: &Plane,
    caller: &Caller,
    wanted: &Wanted,
    outcome: &Outcome,
) -> (StatusCode, Confirm) {
    let (status, lines) = match outcome {
        Ok((_, value)) => (StatusCode::OK, said(value)),
        Err((status, why)) => (*status, vec![why.clone()]),
    };
    let page = Confirm {
        base: Base::of(&wanted.title(), plane, caller),
        title: wanted.title(),
        effects: Vec::new(),
        command: wanted.command(),
        form: Vec::new(),
        how: None,
        back: wanted.back(),
        done: Some(outcome.is_ok()),
        lines,
    };
    (status, page)
}

fn said(value: &Value) -> Vec<String> {
    match value["changes"].as_array() {
        Some(changes) if changes.is_empty() => vec!["It was so already; nothing has changed.".to_owned()],
        Some(changes) => changes.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => vec!["It is in force.".to_owned()],
    }
}

fn effects(eye: &Eye<'_>, wanted: &Wanted) -> Result<Vec<String>, String> {
    if !wanted.listener.is_empty() {
        let found = eye.status.listeners.iter().find(|listener| listener.address == wanted.listener);
        let listener = found.ok_or_else(|| format!("there is no listener {}", wanted.listener))?;
        return Ok(vec![if wanted.deed == "disable-listener" {
            format!(
                "It refuses new clients at once. Of its {} those of HTTP end after the request under way, others by themselves.",
                count(listener.connections, "connection")
            )
        } else {
            "It accepts clients again.".to_owned()
        }]);
    }
    let group = eye.group(&wanted.group).ok_or_else(|| format!("there is no group {}", wanted.group))?;
    let member = || {
        let found = group.members.iter().find(|member| member.name == wanted.member);
        found.ok_or_else(|| format!("group {} has no member {}", group.name, wanted.member))
    };
    Ok(match wanted.deed {
        "drain" | "disable" => leaving(eye, group, member()?, wanted.deed == "drain"),
        "undrain" | "enable" => coming(group, member()?),
        "disable-balancing" => vec![
            "Members take equal turns, whatever their loads and capacities, until it is enabled again or the configuration is reloaded.".to_owned(),
            "No connection is closed; members that are down still get nothing.".to_owned(),
        ],
        "enable-balancing" => vec!["Members get again what the strategy of the configuration says.".to_owned()],
        _ => vec![
            format!("Members are chosen by {} instead of {} from the next choice on, until the next reload.", wanted.value, group.strategy),
            "No connection is closed, and no session is moved by this alone.".to_owned(),
        ],
    })
}

/// Describes the effect of draining or disabling a member.
fn leaving(eye: &Eye<'_>, group: &GroupStatus, member: &MemberStatus, drained: bool) -> Vec<String> {
    let mut effects = vec![if drained {
        "It gets nothing new. What it has ends in its own time; who is to be told is told first.".to_owned()
    } else {
        "It gets nothing new, at once and without anybody being told. What it has ends in its own time."
            .to_owned()
    }];
    let under_way = if member.in_flight == 1 {
        "1 request is".into()
    } else {
        format!("{} requests are", member.in_flight)
    };
    effects.push(format!("{under_way} under way there."));
    if table::binds(group, eye.listeners(&group.name)) {
        let bound =
            table::bound(eye.listeners(&group.name)).get(&*member.name).copied().unwrap_or(0) + member.leases;
        let leases = member.leases;
        effects.push(format!(
            "{} bound to it, {leases} of them by leases.",
            if bound == 1 { "1 client is".into() } else { format!("{bound} clients are") }
        ));
    }
    if !member.state.eligible() {
        effects.push("It gets nothing now as it is: the others carry no more than they do.".to_owned());
        return effects;
    }
    let others =
        group.members.iter().filter(|other| other.name != member.name && other.state.eligible()).count();
    if others == 0 {
        effects.push("‼ Nobody else can serve: requests of this group will be refused.".to_owned());
        return effects;
    }
    let (share, measured) = share(eye, group, member);
    let more = share / (1.0 - share).max(0.01);
    let how = if measured { "of late" } else { "by its weight" };
    effects.push(format!(
        "It had {} of the requests {how}: the {} will carry {} more.",
        percent(share),
        if others == 1 { "other one".into() } else { format!("{others} others") },
        percent(more)
    ));
    let line = group.load_line.as_ref();
    let own = member.load_line.as_ref().and_then(|own| own.capacity);
    if let (Some(line), Some(own)) = (line, own)
        && let Some(capacity) = line.capacity
    {
        let left = capacity - own;
        if left > 0.0 {
            let room = 1.0 - line.requests_per_second / left;
            effects.push(if room < 0.0 {
                format!(
                    "‼ They are predicted to carry {} requests a second, and {} come: {} over the load line.",
                    rate(left),
                    rate(line.requests_per_second),
                    percent(-room)
                )
            } else {
                format!(
                    "They are predicted to carry {} requests a second: {} below the load line then.",
                    rate(left),
                    percent(room)
                )
            });
        }
    }
    effects
}

/// Returns a member's share of the requests to usable members, and whether it is measured; otherwise it
/// follows from the weights.
fn share(eye: &Eye<'_>, group: &GroupStatus, member: &MemberStatus) -> (f64, bool) {
    let recent = eye.subject.recent(&group.name).unwrap_or_default();
    let usable = |name: &str| group.members.iter().any(|other| other.name == name && other.state.eligible());
    let rates = recent.members.iter().filter(|other| usable(&other.name));
    let all: f64 = rates.map(|other| other.requests_per_second).sum();
    let own = recent.members.iter().find(|other| other.name == member.name);
    match own {
        Some(own) if all > 0.0 => (own.requests_per_second / all, true),
        _ => {
            let weights =
                group.members.iter().filter(|other| other.state.eligible()).map(|other| other.weight);
            (member.weight / weights.sum::<f64>().max(f64::MIN_POSITIVE), false)
        }
    }
}

/// Describes the effect of undraining or enabling a member.
fn coming(group: &GroupStatus, member: &MemberStatus) -> Vec<String> {
    let (_, word, _) = words::state(member.state);
    let others = group.members.iter().filter(|other| other.state.eligible() && other.name != member.name);
    let weights: f64 = others.map(|other| other.weight).sum();
    let share = member.capacity / (weights + member.capacity).max(f64::MIN_POSITIVE);
    vec![
        format!(
            "It is {word} now, and takes part again as soon as its health checks pass, if it has any, at first a growing part if the group has a slow start."
        ),
        format!(
            "By its capacity its share is {} of the requests; the strategy may give it more or less.",
            percent(share)
        ),
    ]
}
