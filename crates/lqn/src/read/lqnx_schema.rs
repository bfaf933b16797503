//! Refuses unknown elements and attributes of LQNX, which would otherwise be missing in the model without
//! notice.

use roxmltree::{Document, Node};

use super::{InputError, SourcePosition, limits};

/// An element with its allowed children, apart from results, and its attributes. `None` if the parser checks
/// the children itself.
type ElementSchema = (&'static str, Option<&'static [&'static str]>, &'static [&'static str]);

/// The schema, as in `lqn.xsd` of the LQNS distribution.
const ELEMENTS: &[ElementSchema] = &[
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
    let position_at = |start: usize| {
        let text_position = document.text_pos_at(start);
        SourcePosition { line: text_position.row as usize, column: text_position.col as usize }
    };
    for node in root.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        for attribute in
            node.attributes().filter(|candidate| candidate.namespace() == Some(limits::NAMESPACE))
        {
            let is_known = match name {
                "task" => attribute.name() == "queue-limit",
                "synch-call" | "asynch-call" => limits::RETRY_SETTINGS.contains(&attribute.name()),
                _ => false,
            };
            if !is_known {
                return Err(position_at(attribute.range().start).error(format!(
                    "`{}` of `{name}` is not known; there are queue-limit of a task, and timeout, retries \
                     and backoff of a \
                     synch-call",
                    attribute.name()
                )));
            }
        }
        let Some((_, children, attributes)) = ELEMENTS.iter().find(|schema| schema.0 == name) else {
            continue;
        };
        let is_unknown = |attribute: &roxmltree::Attribute<'_, '_>| {
            attribute.namespace().is_none() && !attributes.contains(&attribute.name())
        };
        if let Some(unknown) = node.attributes().find(is_unknown) {
            let allowed = if attributes.is_empty() { "none".to_owned() } else { attributes.join(", ") };
            let error = format!("`{name}` has no `{}`; there are: {allowed}", unknown.name());
            return Err(position_at(unknown.range().start).error(error));
        }
        let Some(children) = children else { continue };
        let is_unsupported = |element: &Node<'_, '_>| {
            let child = element.tag_name().name();
            element.is_element() && !child.starts_with("result-") && !children.contains(&child)
        };
        if let Some(unsupported) = node.children().find(is_unsupported) {
            let element_name = unsupported.tag_name().name();
            return Err(position_at(unsupported.range().start)
                .error(format!("`{element_name}` in `{name}` is not supported")));
        }
    }
    Ok(())
}
