//! Refuses unknown elements and attributes of LQNX, which would otherwise be missing in the model without
//! notice.

use roxmltree::{Document, Node};

use super::{InputError, SourcePosition, limits};

/// An element with its allowed children, apart from results, and its attributes. `None` if the parser checks
/// the children itself.
type ElementSchema = (&'static str, Option<&'static [&'static str]>, &'static [&'static str]);

/// The schema, as in `lqn.xsd` of the LQNS distribution.
const KNOWN: &[ElementSchema] = &[
    ("processor", None, &["name", "multiplicity", "speed-factor", "scheduling", "replication", "quantum"]),
    (
        "task",
        None,
        &[
            "name",
            "multiplicity",
            "replication",
            "scheduling",
            "think-time",
            "priority",
            "queue-length",
            "activity-graph",
            "initially",
        ],
    ),
    (
        "entry",
        Some(&["entry-phase-activities", "forwarding", "service-time-distribution"]),
        &["name", "type", "open-arrival-rate", "priority", "semaphore", "rwlock"],
    ),
    ("entry-phase-activities", Some(&["activity"]), &[]),
    (
        "activity",
        Some(&["synch-call", "asynch-call", "service-time-distribution"]),
        &[
            "name",
            "phase",
            "host-demand-mean",
            "host-demand-cvsq",
            "think-time",
            "max-service-time",
            "call-order",
            "bound-to-entry",
            "prob",
            "count",
        ],
    ),
    ("synch-call", Some(&[]), &["dest", "calls-mean", "fan-in", "fan-out"]),
    ("asynch-call", Some(&[]), &["dest", "calls-mean", "fan-in", "fan-out"]),
    ("forwarding", Some(&[]), &["dest", "prob", "fan-in", "fan-out"]),
    ("fan-in", Some(&[]), &["source", "value"]),
    ("fan-out", Some(&[]), &["dest", "value"]),
    ("reply-entry", Some(&["reply-activity"]), &["name"]),
    ("reply-activity", Some(&[]), &["name"]),
    ("pre", Some(&["activity"]), &[]),
    ("pre-OR", Some(&["activity"]), &[]),
    ("pre-AND", Some(&["activity"]), &["quorum"]),
    ("post", Some(&["activity"]), &[]),
    ("post-OR", Some(&["activity"]), &[]),
    ("post-AND", Some(&["activity"]), &[]),
    ("post-LOOP", Some(&["activity"]), &["end"]),
];

/// Checks a whole model.
///
/// # Errors
/// Returns the first unknown part with its position.
pub(super) fn check_document(document: &Document<'_>, root: Node<'_, '_>) -> Result<(), InputError> {
    let at = |start: usize| {
        let place = document.text_pos_at(start);
        SourcePosition { line: place.row as usize, column: place.col as usize }
    };
    for node in root.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        for own in node.attributes().filter(|own| own.namespace() == Some(limits::NAMESPACE)) {
            let known = match name {
                "task" => own.name() == "queue-limit",
                "synch-call" | "asynch-call" => limits::RETRY_SETTINGS.contains(&own.name()),
                _ => false,
            };
            if !known {
                return Err(at(own.range().start).error(format!(
                    "`{}` of `{name}` is not known; there are queue-limit of a task, and timeout, retries \
                     and backoff of a \
                     synch-call",
                    own.name()
                )));
            }
        }
        let Some((_, children, attributes)) = KNOWN.iter().find(|known| known.0 == name) else { continue };
        let strange = |own: &roxmltree::Attribute<'_, '_>| {
            own.namespace().is_none() && !attributes.contains(&own.name())
        };
        if let Some(own) = node.attributes().find(strange) {
            let there = if attributes.is_empty() { "none".to_owned() } else { attributes.join(", ") };
            let why = format!("`{name}` has no `{}`; there are: {there}", own.name());
            return Err(at(own.range().start).error(why));
        }
        let Some(children) = children else { continue };
        let strange = |own: &Node<'_, '_>| {
            let child = own.tag_name().name();
            own.is_element() && !child.starts_with("result-") && !children.contains(&child)
        };
        if let Some(own) = node.children().find(strange) {
            let what = own.tag_name().name();
            return Err(at(own.range().start).error(format!("`{what}` in `{name}` is not supported")));
        }
    }
    Ok(())
}
