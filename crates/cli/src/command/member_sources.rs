//! The sources of members in the output of `status` and `members`.

use plimsoll_brain::status::{GroupStatus, SourceStatus};
use plimsoll_config::pluralize;

use crate::control::format::{TableCell, TextStyle, short_duration};

/// Returns a line for each source of these groups.
pub(super) fn source_rows<'a>(groups: impl IntoIterator<Item = &'a GroupStatus>) -> Vec<Vec<TableCell>> {
    groups
        .into_iter()
        .flat_map(|group| group.discovery.iter().map(|source| source_row(&group.name, source)))
        .collect()
}

fn source_row(group: &str, source: &SourceStatus) -> Vec<TableCell> {
    let (glyph, style) =
        if source.error.is_some() { ("‼", TextStyle::Bad) } else { ("↻", TextStyle::Good) };
    let age = match source.age_seconds {
        Some(age) => format!("{} ago", short_duration(age)),
        None => "no answer yet".into(),
    };
    let error = match (&source.error, source.failing_seconds) {
        (Some(error), Some(since)) => format!("failing for {}: {error}", short_duration(since)),
        (Some(error), None) => error.clone(),
        (None, _) => String::new(),
    };
    vec![
        TableCell::text(glyph).style(style),
        TableCell::text(group).style(TextStyle::Strong),
        TableCell::text(&source.kind),
        TableCell::text(&source.what),
        TableCell::text(&pluralize(source.members, "member")),
        TableCell::text(&age).style(TextStyle::Faint),
        TableCell::text(&error).style(TextStyle::Bad),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::format::table;

    #[test]
    fn each_source_has_a_line() {
        let source = |kind: &str, what: &str, members, age_seconds| SourceStatus {
            kind: kind.into(),
            what: what.into(),
            members,
            age_seconds,
            ..SourceStatus::default()
        };
        let mut failing = source("dns", "web.example.org:8080", 2, Some(75.0));
        (failing.error, failing.failing_seconds) = (Some("it failed (SERVFAIL)".into()), Some(70.0));
        let mut unanswered = source("http", "http://10.0.0.1:8500/v1/members", 0, None);
        unanswered.error = Some("cannot connect".into());
        let discovery = vec![source("file", "/etc/plimsoll/web.members", 1, Some(0.4)), failing, unanswered];
        let groups = [GroupStatus { name: "web".into(), discovery, ..GroupStatus::default() }];
        insta::assert_snapshot!(table(&source_rows(&groups), false), @r#"
        ↻  web  file  /etc/plimsoll/web.members        1 member   0s ago
        ‼  web  dns   web.example.org:8080             2 members  1m 15s ago     failing for 1m 10s: it failed (SERVFAIL)
        ‼  web  http  http://10.0.0.1:8500/v1/members  0 members  no answer yet  cannot connect
        "#);
    }
}
