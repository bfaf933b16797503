//! Actions: a page with a form first describes the effect; submitting the form executes the action in the
//! same way as `POST /v1/…`.

use hyper::StatusCode;
use plimsoll_brain::status::{GroupStatus, MemberStatus};
use serde::Serialize;
use serde_json::{Value, json};

use super::csrf::{self, ActionSeal};
use super::format::{self, count, percent, rate};
use super::urls::{self, PageUrl, first_field};
use super::view_models::{PageContext, PageFrame};
use crate::access::Caller;
use crate::api::Operation;
use crate::commands::CommandOutcome;
use crate::endpoint::{AdminEndpoint, EndpointCapability};
use crate::member_table;

/// The actions of forms: the name in the form, the operation, and its label.
const ACTIONS: &[(&str, Operation, &str)] = &[
    ("drain", Operation::Drain, "Drain"),
    ("undrain", Operation::Undrain, "Undrain"),
    ("disable", Operation::Disable, "Disable"),
    ("enable", Operation::Enable, "Enable"),
    ("disable-balancing", Operation::Disable, "Disable balancing of"),
    ("enable-balancing", Operation::Enable, "Enable balancing of"),
    ("disable-listener", Operation::Disable, "Disable listener"),
    ("enable-listener", Operation::Enable, "Enable listener"),
    ("set", Operation::Set, "Change the strategy of"),
];

/// A requested action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestedAction {
    name: &'static str,
    pub(crate) operation: Operation,
    label: &'static str,
    group: String,
    member: String,
    listener: String,
    value: String,
}

impl RequestedAction {
    /// Parses an action from a query or a form.
    ///
    /// # Errors
    /// It does not describe an existing action.
    pub(super) fn parse(fields: &[(String, String)]) -> Result<Self, String> {
        let text = |name| first_field(fields, name).unwrap_or_default().to_owned();
        let asked = text("do");
        let Some((deed, verb, word)) = ACTIONS.iter().find(|(name, ..)| *name == asked) else {
            let names: Vec<&str> = ACTIONS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("do: there are {}", names.join(", ")));
        };
        let wanted = Self {
            name: deed,
            operation: *verb,
            label: word,
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

    fn sealed_texts(&self) -> [&str; 5] {
        [self.name, &self.group, &self.member, &self.listener, &self.value]
    }

    /// Returns the body of the same command for `POST /v1/…`.
    pub(crate) fn body(&self) -> Value {
        match self.name {
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
    fn return_url(&self) -> String {
        if !self.listener.is_empty() {
            format!("{}/process", urls::ROOT)
        } else if self.member.is_empty() {
            urls::group_url(&self.group)
        } else {
            urls::member_url(&self.group, &self.member)
        }
    }

    fn title(&self) -> String {
        let to = if self.value.is_empty() { String::new() } else { format!(" to {}", self.value) };
        format!("{} {}{to}", self.label, self.target())
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
        match self.name {
            "drain" | "undrain" => format!("plimsoll {} {member} --group {group}", self.name),
            "disable" | "enable" => format!("plimsoll {} member {member} --group {group}", self.name),
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
pub(super) struct ConfirmPage {
    base: PageFrame,
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
pub(super) fn unavailable_reason(
    plane: &AdminEndpoint,
    caller: &Caller,
    verb: Operation,
    group: &str,
) -> Option<String> {
    if plane.capability != EndpointCapability::Command {
        return Some(
            "This listener only shows. To act: the command line on the balancer's host; or this dashboard \
             over control with TLS ([admin] control = \
             \"tls://…\"), with a client certificate or a token; or over the control socket, brought to your \
             own machine by ssh -L 9910:/run/plimsoll.sock HOST."
                .to_owned(),
        );
    }
    if plane.granted_scope(caller, verb).covers(group) {
        return None;
    }
    let to = if group.is_empty() { String::new() } else { format!(" in group {group}") };
    Some(format!("{caller} may not {}{to}: no grant in [admin.access] gives it.", verb.description()))
}

/// Returns the page that describes the effect of an action.
///
/// # Errors
/// There is no such group or member that the caller may see.
pub(super) fn confirm_page(
    eye: &PageContext<'_>,
    wanted: &RequestedAction,
    path: &str,
) -> Result<ConfirmPage, String> {
    let effects = effects(eye, wanted)?;
    let reach = if wanted.listener.is_empty() { &*wanted.group } else { "" };
    let how = unavailable_reason(eye.endpoint, eye.caller, wanted.operation, reach);
    let who = eye.caller.to_string();
    let at = csrf::now_ms();
    let seal = ActionSeal { caller: &who, action: &wanted.sealed_texts(), shown_at_ms: at }.sign();
    let mut form = Vec::new();
    if let (None, Some(seal)) = (&how, seal) {
        let [deed, group, member, listener, value] = wanted.sealed_texts();
        let named =
            [("do", deed), ("group", group), ("member", member), ("listener", listener), ("value", value)];
        form.extend(named.map(|(name, value)| (name, value.to_owned())));
        form.extend([("at", at.to_string()), ("seal", seal)]);
    }
    Ok(ConfirmPage {
        base: eye.frame(&wanted.title(), &PageUrl::Action, path),
        title: wanted.title(),
        effects,
        command: wanted.command(),
        form,
        how,
        back: wanted.return_url(),
        done: None,
        lines: Vec::new(),
    })
}

/// Reads the action of a submitted form.
///
/// # Errors
/// This caller has not confirmed it, or too long ago.
pub(super) fn read_confirmed(
    fields: &[(String, String)],
    caller: &Caller,
) -> Result<RequestedAction, String> {
    let wanted = RequestedAction::parse(fields)?;
    let at = first_field(fields, "at").and_then(|at| at.parse().ok()).unwrap_or(0);
    let who = caller.to_string();
    let told = ActionSeal { caller: &who, action: &wanted.sealed_texts(), shown_at_ms: at };
    let now = csrf::now_ms();
    if told.is_valid(first_field(fields, "seal").unwrap_or_default(), now) {
        // A reloaded page submits its form again; meanwhile another operator may have undone the action.
        return if told.mark_used(&csrf::USED_SEALS, now) {
            Ok(wanted)
        } else {
            Err("this was sent before, and done then: open the page again to do it once more".into())
        };
    }
    Err("this was not confirmed, or more than a quarter of an hour ago: open the page again and look at what \
        will happen".into())
}

/// Returns the page with the outcome.
pub(super) fn outcome_page(
    plane: &AdminEndpoint,
    caller: &Caller,
    wanted: &RequestedAction,
    outcome: &CommandOutcome,
) -> (StatusCode, ConfirmPage) {
    let (status, lines) = match outcome {
        Ok((_, value)) => (StatusCode::OK, outcome_lines(value)),
        Err((status, why)) => (*status, vec![why.clone()]),
    };
    let page = ConfirmPage {
        base: PageFrame::new(&wanted.title(), plane, caller),
        title: wanted.title(),
        effects: Vec::new(),
        command: wanted.command(),
        form: Vec::new(),
        how: None,
        back: wanted.return_url(),
        done: Some(outcome.is_ok()),
        lines,
    };
    (status, page)
}

fn outcome_lines(value: &Value) -> Vec<String> {
    match value["changes"].as_array() {
        Some(changes) if changes.is_empty() => vec!["It was so already; nothing has changed.".to_owned()],
        Some(changes) => changes.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => vec!["It is in force.".to_owned()],
    }
}

fn effects(eye: &PageContext<'_>, wanted: &RequestedAction) -> Result<Vec<String>, String> {
    if !wanted.listener.is_empty() {
        let found = eye.status.listeners.iter().find(|listener| listener.address == wanted.listener);
        let listener = found.ok_or_else(|| format!("there is no listener {}", wanted.listener))?;
        return Ok(vec![if wanted.name == "disable-listener" {
            format!(
                "It refuses new clients at once. Of its {} those of HTTP end after the request under way, \
                 others by themselves.",
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
    Ok(match wanted.name {
        "drain" | "disable" => drain_effects(eye, group, member()?, wanted.name == "drain"),
        "undrain" | "enable" => undrain_effects(group, member()?),
        "disable-balancing" => vec![
            "Members take equal turns, whatever their loads and capacities, until it is enabled again or the \
             configuration is reloaded.".to_owned(),
            "No connection is closed; members that are down still get nothing.".to_owned(),
        ],
        "enable-balancing" => vec![
            "Members get again what the strategy of the configuration \
         says."
                .to_owned(),
        ],
        _ => vec![
            format!(
                "Members are chosen by {} instead of {} from the next choice on, until the next \
                reload.",
                wanted.value, group.strategy
            ),
            "No connection is closed, and no session is moved by this alone.".to_owned(),
        ],
    })
}

/// Describes the effect of draining or disabling a member.
fn drain_effects(
    eye: &PageContext<'_>,
    group: &GroupStatus,
    member: &MemberStatus,
    drained: bool,
) -> Vec<String> {
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
    if member_table::has_bindings(group, eye.listeners(&group.name)) {
        let bound =
            member_table::bound_sessions(eye.listeners(&group.name)).get(&*member.name).copied().unwrap_or(0)
                + member.leases;
        let leases = member.leases;
        effects.push(format!(
            "{} bound to it, {leases} of them by leases.",
            if bound == 1 { "1 client is".into() } else { format!("{bound} clients are") }
        ));
    }
    if !member.state.is_eligible() {
        effects.push("It gets nothing now as it is: the others carry no more than they do.".to_owned());
        return effects;
    }
    let others =
        group.members.iter().filter(|other| other.name != member.name && other.state.is_eligible()).count();
    if others == 0 {
        effects.push("‼ Nobody else can serve: requests of this group will be refused.".to_owned());
        return effects;
    }
    let (share, measured) = request_share(eye, group, member);
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
fn request_share(eye: &PageContext<'_>, group: &GroupStatus, member: &MemberStatus) -> (f64, bool) {
    let recent = eye.balancer.recent(&group.name).unwrap_or_default();
    let usable =
        |name: &str| group.members.iter().any(|other| other.name == name && other.state.is_eligible());
    let rates = recent.members.iter().filter(|other| usable(&other.name));
    let all: f64 = rates.map(|other| other.requests_per_second).sum();
    let own = recent.members.iter().find(|other| other.name == member.name);
    match own {
        Some(own) if all > 0.0 => (own.requests_per_second / all, true),
        _ => {
            let weights =
                group.members.iter().filter(|other| other.state.is_eligible()).map(|other| other.weight);
            (member.weight / weights.sum::<f64>().max(f64::MIN_POSITIVE), false)
        }
    }
}

/// Describes the effect of undraining or enabling a member.
fn undrain_effects(group: &GroupStatus, member: &MemberStatus) -> Vec<String> {
    let (_, word, _) = format::state_words(member.state);
    let others = group.members.iter().filter(|other| other.state.is_eligible() && other.name != member.name);
    let weights: f64 = others.map(|other| other.weight).sum();
    let share = member.capacity / (weights + member.capacity).max(f64::MIN_POSITIVE);
    vec![
        format!(
            "It is {word} now, and takes part again as soon as its health checks pass, if it has any, at \
             first a growing part if the group has a slow start."
        ),
        format!(
            "By its capacity its share is {} of the requests; the strategy may give it more or less.",
            percent(share)
        ),
    ]
}
