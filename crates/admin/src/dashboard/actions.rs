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
        let requested_name = text("do");
        let Some((action_name, operation, label)) = ACTIONS.iter().find(|(name, ..)| *name == requested_name)
        else {
            let names: Vec<&str> = ACTIONS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("do: there are {}", names.join(", ")));
        };
        let action = Self {
            name: action_name,
            operation: *operation,
            label,
            group: text("group"),
            member: text("member"),
            listener: text("listener"),
            value: text("value"),
        };
        let required = match *action_name {
            "disable-listener" | "enable-listener" => [("listener", &action.listener)].to_vec(),
            "disable-balancing" | "enable-balancing" => [("group", &action.group)].to_vec(),
            "set" => [("group", &action.group), ("value", &action.value)].to_vec(),
            _ => [("group", &action.group), ("member", &action.member)].to_vec(),
        };
        if let Some((name, _)) = required.iter().find(|(_, value)| value.is_empty()) {
            return Err(format!("{name} is missing"));
        }
        // A confirmed action contains all that is shown and nothing else: a crafted link must not look
        // harmless.
        let fields_given = [
            ("group", &action.group),
            ("member", &action.member),
            ("listener", &action.listener),
            ("value", &action.value),
        ];
        match fields_given.iter().find(|(name, value)| {
            !value.is_empty() && required.iter().all(|(required_name, _)| required_name != name)
        }) {
            Some((name, _)) => Err(format!("{action_name} takes no {name}")),
            None => Ok(action),
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
        let target_text = if self.value.is_empty() { String::new() } else { format!(" to {}", self.value) };
        format!("{} {}{target_text}", self.label, self.target())
    }

    /// Returns the same command for the command line.
    fn command(&self) -> String {
        let shell_quote = |text: &str| {
            let is_unquoted = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]/".contains(&byte);
            if !text.is_empty() && text.bytes().all(is_unquoted) {
                text.to_owned()
            } else {
                format!("'{}'", text.replace('\'', "'\\''"))
            }
        };
        let (group, member) = (shell_quote(&self.group), shell_quote(&self.member));
        match self.name {
            "drain" | "undrain" => format!("plimsoll {} {member} --group {group}", self.name),
            "disable" | "enable" => format!("plimsoll {} member {member} --group {group}", self.name),
            "disable-balancing" => format!("plimsoll disable balancing {group}"),
            "enable-balancing" => format!("plimsoll enable balancing {group}"),
            "disable-listener" => format!("plimsoll disable listener {}", shell_quote(&self.listener)),
            "enable-listener" => format!("plimsoll enable listener {}", shell_quote(&self.listener)),
            _ => format!(
                "plimsoll set group {}",
                shell_quote(&format!("{}.strategy={}", self.group, self.value))
            ),
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
    endpoint: &AdminEndpoint,
    caller: &Caller,
    operation: Operation,
    group: &str,
) -> Option<String> {
    if endpoint.capability != EndpointCapability::Command {
        return Some(
            "This listener only shows. To act: the command line on the balancer's host; or this dashboard \
             over control with TLS ([admin] control = \
             \"tls://…\"), with a client certificate or a token; or over the control socket, brought to your \
             own machine by ssh -L 9910:/run/plimsoll.sock HOST."
                .to_owned(),
        );
    }
    if endpoint.granted_scope(caller, operation).covers(group) {
        return None;
    }
    let target_text = if group.is_empty() { String::new() } else { format!(" in group {group}") };
    Some(format!(
        "{caller} may not {}{target_text}: no grant in [admin.access] gives it.",
        operation.description()
    ))
}

/// Returns the page that describes the effect of an action.
///
/// # Errors
/// There is no such group or member that the caller may see.
pub(super) fn confirm_page(
    page_context: &PageContext<'_>,
    action: &RequestedAction,
    path: &str,
) -> Result<ConfirmPage, String> {
    let effects = effects(page_context, action)?;
    let scope_group = if action.listener.is_empty() { &*action.group } else { "" };
    let how = unavailable_reason(page_context.endpoint, page_context.caller, action.operation, scope_group);
    let caller_name = page_context.caller.to_string();
    let shown_at = csrf::now_ms();
    let seal =
        ActionSeal { caller: &caller_name, action: &action.sealed_texts(), shown_at_ms: shown_at }.sign();
    let mut form = Vec::new();
    if let (None, Some(seal)) = (&how, seal) {
        let [action_name, group, member, listener, value] = action.sealed_texts();
        let seal_fields = [
            ("do", action_name),
            ("group", group),
            ("member", member),
            ("listener", listener),
            ("value", value),
        ];
        form.extend(seal_fields.map(|(name, value)| (name, value.to_owned())));
        form.extend([("at", shown_at.to_string()), ("seal", seal)]);
    }
    Ok(ConfirmPage {
        base: page_context.frame(&action.title(), &PageUrl::Action, path),
        title: action.title(),
        effects,
        command: action.command(),
        form,
        how,
        back: action.return_url(),
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
    let action = RequestedAction::parse(fields)?;
    let shown_at = first_field(fields, "at").and_then(|shown_at| shown_at.parse().ok()).unwrap_or(0);
    let caller_name = caller.to_string();
    let seal = ActionSeal { caller: &caller_name, action: &action.sealed_texts(), shown_at_ms: shown_at };
    let now = csrf::now_ms();
    if seal.is_valid(first_field(fields, "seal").unwrap_or_default(), now) {
        // A reloaded page submits its form again; meanwhile another operator may have undone the action.
        return if seal.mark_used(&csrf::USED_SEALS, now) {
            Ok(action)
        } else {
            Err("this was sent before, and done then: open the page again to do it once more".into())
        };
    }
    Err("this was not confirmed, or more than a quarter of an hour ago: open the page again and look at what \
        will happen".into())
}

/// Returns the page with the outcome.
pub(super) fn outcome_page(
    endpoint: &AdminEndpoint,
    caller: &Caller,
    action: &RequestedAction,
    outcome: &CommandOutcome,
) -> (StatusCode, ConfirmPage) {
    let (status, lines) = match outcome {
        Ok((_, value)) => (StatusCode::OK, outcome_lines(value)),
        Err((status, reason)) => (*status, vec![reason.clone()]),
    };
    let page = ConfirmPage {
        base: PageFrame::new(&action.title(), endpoint, caller),
        title: action.title(),
        effects: Vec::new(),
        command: action.command(),
        form: Vec::new(),
        how: None,
        back: action.return_url(),
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

fn effects(page_context: &PageContext<'_>, action: &RequestedAction) -> Result<Vec<String>, String> {
    if !action.listener.is_empty() {
        let matching =
            page_context.status.listeners.iter().find(|listener| listener.address == action.listener);
        let listener = matching.ok_or_else(|| format!("there is no listener {}", action.listener))?;
        return Ok(vec![if action.name == "disable-listener" {
            format!(
                "It refuses new clients at once. Of its {} those of HTTP end after the request under way, \
                 others by themselves.",
                count(listener.connections, "connection")
            )
        } else {
            "It accepts clients again.".to_owned()
        }]);
    }
    let group =
        page_context.group(&action.group).ok_or_else(|| format!("there is no group {}", action.group))?;
    let member = || {
        let matching = group.members.iter().find(|member| member.name == action.member);
        matching.ok_or_else(|| format!("group {} has no member {}", group.name, action.member))
    };
    Ok(match action.name {
        "drain" | "disable" => drain_effects(page_context, group, member()?, action.name == "drain"),
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
                action.value, group.strategy
            ),
            "No connection is closed, and no session is moved by this alone.".to_owned(),
        ],
    })
}

/// Describes the effect of draining or disabling a member.
fn drain_effects(
    page_context: &PageContext<'_>,
    group: &GroupStatus,
    member: &MemberStatus,
    drained: bool,
) -> Vec<String> {
    let mut effects = vec![if drained {
        "It gets no new work; work in flight may end. The drain hook is called first.".to_owned()
    } else {
        "It gets no new work, at once and without a call of the drain hook. Work in flight may end."
            .to_owned()
    }];
    let in_flight_text = if member.in_flight == 1 {
        "1 request is".into()
    } else {
        format!("{} requests are", member.in_flight)
    };
    effects.push(format!("{in_flight_text} under way there."));
    if member_table::has_bindings(group, page_context.listeners(&group.name)) {
        let bound_count = member_table::bound_sessions(page_context.listeners(&group.name))
            .get(&*member.name)
            .copied()
            .unwrap_or(0)
            + member.leases;
        let leases = member.leases;
        effects.push(format!(
            "{} bound to it, {leases} of them by leases.",
            if bound_count == 1 { "1 client is".into() } else { format!("{bound_count} clients are") }
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
    let (share, measured) = request_share(page_context, group, member);
    let extra_share = share / (1.0 - share).max(0.01);
    let measured_by = if measured { "recently" } else { "by its weight" };
    effects.push(format!(
        "It had {} of the requests {measured_by}: the {} will carry {} more.",
        percent(share),
        if others == 1 { "other one".into() } else { format!("{others} others") },
        percent(extra_share)
    ));
    let load_line = group.load_line.as_ref();
    let own_capacity = member.load_line.as_ref().and_then(|load_line| load_line.capacity);
    if let (Some(load_line), Some(own_capacity)) = (load_line, own_capacity)
        && let Some(capacity) = load_line.capacity
    {
        let remaining_capacity = capacity - own_capacity;
        if remaining_capacity > 0.0 {
            let headroom = 1.0 - load_line.requests_per_second / remaining_capacity;
            effects.push(if headroom < 0.0 {
                format!(
                    "‼ They are predicted to carry {} requests a second, and {} come: {} over the load line.",
                    rate(remaining_capacity),
                    rate(load_line.requests_per_second),
                    percent(-headroom)
                )
            } else {
                format!(
                    "They are predicted to carry {} requests a second: {} below the load line then.",
                    rate(remaining_capacity),
                    percent(headroom)
                )
            });
        }
    }
    effects
}

/// Returns a member's share of the requests to usable members, and whether it is measured; otherwise it
/// follows from the weights.
fn request_share(page_context: &PageContext<'_>, group: &GroupStatus, member: &MemberStatus) -> (f64, bool) {
    let recent = page_context.balancer.recent(&group.name).unwrap_or_default();
    let is_eligible =
        |name: &str| group.members.iter().any(|other| other.name == name && other.state.is_eligible());
    let rates = recent.members.iter().filter(|other| is_eligible(&other.name));
    let total_rate: f64 = rates.map(|other| other.requests_per_second).sum();
    let member_recent = recent.members.iter().find(|other| other.name == member.name);
    match member_recent {
        Some(member_recent) if total_rate > 0.0 => (member_recent.requests_per_second / total_rate, true),
        _ => {
            let weights =
                group.members.iter().filter(|other| other.state.is_eligible()).map(|other| other.weight);
            (member.weight / weights.sum::<f64>().max(f64::MIN_POSITIVE), false)
        }
    }
}

/// Describes the effect of undraining or enabling a member.
fn undrain_effects(group: &GroupStatus, member: &MemberStatus) -> Vec<String> {
    let (_, label, _) = format::state_words(member.state);
    let others = group.members.iter().filter(|other| other.state.is_eligible() && other.name != member.name);
    let weights: f64 = others.map(|other| other.weight).sum();
    let share = member.capacity / (weights + member.capacity).max(f64::MIN_POSITIVE);
    vec![
        format!(
            "It is {label} now, and takes part again as soon as its health checks pass, if it has any, at \
             first a growing part if the group has a slow start."
        ),
        format!(
            "By its capacity its share is {} of the requests; the strategy may give it more or less.",
            percent(share)
        ),
    ]
}
