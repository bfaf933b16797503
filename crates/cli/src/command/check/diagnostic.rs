//! The findings, and their forms for people and programs.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use plimsoll_config::pluralize;
use serde::Serialize;
use serde_json::{Value, json};

use crate::control::format::{TextStyle, sanitize};

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckOutcome {
    /// All is well.
    Ok,
    /// Something is wrong, but it works.
    Warn,
    /// It does not work.
    Fail,
    /// The check was not possible, and need not be.
    Skip,
}

impl CheckOutcome {
    /// Returns glyph, word and tone.
    fn presentation(self) -> (&'static str, &'static str, TextStyle) {
        match self {
            Self::Ok => ("✓", "ok", TextStyle::Good),
            Self::Warn => ("!", "warn", TextStyle::Fair),
            Self::Fail => ("✗", "fail", TextStyle::Bad),
            Self::Skip => ("-", "skip", TextStyle::Faint),
        }
    }
}

/// The page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuidePage {
    Config,
    Unreachable,
    MemberUnreachable,
    MemberOut,
    Refusals,
    Health,
    Clock,
    Limits,
    Permissions,
    Certificates,
    Access,
    Reports,
    Discovery,
    Reload,
    Versions,
}

impl GuidePage {
    #[cfg(test)]
    const ALL: [Self; 15] = [
        Self::Config,
        Self::Unreachable,
        Self::MemberUnreachable,
        Self::MemberOut,
        Self::Refusals,
        Self::Health,
        Self::Clock,
        Self::Limits,
        Self::Permissions,
        Self::Certificates,
        Self::Access,
        Self::Reports,
        Self::Discovery,
        Self::Reload,
        Self::Versions,
    ];

    /// Returns a page of the guide with its heading.
    fn guide_path(self) -> &'static str {
        match self {
            Self::Config => "troubleshooting.md#the-configuration-is-refused",
            Self::Unreachable => "troubleshooting.md#commands-cannot-reach-the-balancer",
            Self::MemberUnreachable => "troubleshooting.md#a-member-cannot-be-connected-to",
            Self::MemberOut => "troubleshooting.md#a-member-is-down-or-ejected",
            Self::Refusals => "strategies.md#admission",
            Self::Health => "health-and-ejection.md#active-checks",
            Self::Clock => "troubleshooting.md#the-clock-is-wrong-or-slow",
            Self::Limits => "getting-started.md#limits-of-the-machine",
            Self::Permissions => "troubleshooting.md#it-may-not-listen-or-write",
            Self::Certificates => "tls.md",
            Self::Access => "access.md",
            Self::Reports => "troubleshooting.md#loads-are-old-or-missing",
            Self::Discovery => "discovery.md",
            Self::Reload => "troubleshooting.md#a-reload-changes-nothing",
            Self::Versions => "troubleshooting.md#versions-differ",
        }
    }
}

/// Returns the folder of the guide: beside the program if a package installed both, else in the source.
fn guide() -> &'static Path {
    static GUIDE: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = std::env::current_exe().unwrap_or_default();
        installed_guide(&program).unwrap_or_else(|| "docs/guide".into())
    });
    &GUIDE
}

/// Returns the guide that was installed with a program, if there is one.
fn installed_guide(program: &Path) -> Option<PathBuf> {
    let guide = program.parent()?.parent()?.join("share/doc/plimsoll/guide");
    guide.is_dir().then_some(guide)
}

/// One thing that was checked.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckDiagnostic {
    pub(super) outcome: CheckOutcome,
    /// The finding on one line.
    pub(super) what: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
    /// The page to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) see: Option<String>,
}

/// Findings of one kind.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckSection {
    pub(super) name: &'static str,
    pub(super) findings: Vec<CheckDiagnostic>,
}

impl CheckSection {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, findings: Vec::new() }
    }

    pub(super) fn ok(&mut self, message: impl Into<String>) {
        self.add(CheckOutcome::Ok, message.into(), None, None);
    }

    pub(super) fn skip(&mut self, message: impl Into<String>) {
        self.add(CheckOutcome::Skip, message.into(), None, None);
    }

    pub(super) fn warn(&mut self, message: impl Into<String>, hint: impl Into<String>, page: GuidePage) {
        self.add(CheckOutcome::Warn, message.into(), Some(hint.into()), Some(page));
    }

    pub(super) fn fail(&mut self, message: impl Into<String>, hint: impl Into<String>, page: GuidePage) {
        self.add(CheckOutcome::Fail, message.into(), Some(hint.into()), Some(page));
    }

    fn add(&mut self, outcome: CheckOutcome, message: String, hint: Option<String>, page: Option<GuidePage>) {
        self.findings.push(CheckDiagnostic {
            outcome,
            what: message,
            hint,
            see: page.map(|page| format!("{}/{}", guide().display(), page.guide_path())),
        });
    }

    /// Returns `true` if a check failed.
    pub(super) fn has_failure(&self) -> bool {
        self.count(CheckOutcome::Fail) > 0
    }

    /// Returns `true` if there is neither a failure nor a warning.
    pub(super) fn is_clean(&self) -> bool {
        !self.has_failure() && self.count(CheckOutcome::Warn) == 0
    }

    fn count(&self, outcome: CheckOutcome) -> usize {
        self.findings.iter().filter(|finding| finding.outcome == outcome).count()
    }
}

fn total(sections: &[CheckSection], outcome: CheckOutcome) -> usize {
    sections.iter().map(|section| section.count(outcome)).sum()
}

/// Returns one document, for programs.
pub(super) fn render_json(sections: &[CheckSection]) -> Value {
    let shown_sections: Vec<&CheckSection> =
        sections.iter().filter(|section| !section.findings.is_empty()).collect();
    json!({
        "schema": 1,
        "ok": total(sections, CheckOutcome::Fail) == 0,
        "counts": {
            "ok": total(sections, CheckOutcome::Ok),
            "warn": total(sections, CheckOutcome::Warn),
            "fail": total(sections, CheckOutcome::Fail),
            "skip": total(sections, CheckOutcome::Skip),
        },
        "parts": shown_sections,
    })
}

/// Returns the page, for people.
pub(super) fn render_text(sections: &[CheckSection], short: bool, color: bool) -> String {
    let mut out = String::new();
    for section in sections {
        let is_problem =
            |finding: &&CheckDiagnostic| matches!(finding.outcome, CheckOutcome::Warn | CheckOutcome::Fail);
        let shown_findings: Vec<&CheckDiagnostic> =
            section.findings.iter().filter(|finding| !short || is_problem(finding)).collect();
        if shown_findings.is_empty() {
            continue;
        }
        out.push_str(&format!("{}\n", TextStyle::Strong.paint(section.name, color)));
        for finding in shown_findings {
            let (glyph, label, style) = finding.outcome.presentation();
            let mark = style.paint(&format!("{glyph} {label:<4}"), color);
            out.push_str(&format!("  {mark}  {}\n", sanitize(&finding.what)));
            if let Some(hint) = &finding.hint {
                out.push_str(&format!("          {}\n", sanitize(hint)));
            }
            if let Some(see) = &finding.see {
                out.push_str(&format!(
                    "          {}\n",
                    TextStyle::Faint.paint(&format!("see {see}"), color)
                ));
            }
        }
        out.push('\n');
    }
    let (fails, warns) = (total(sections, CheckOutcome::Fail), total(sections, CheckOutcome::Warn));
    let style = match (fails, warns) {
        (0, 0) => TextStyle::Good,
        (0, _) => TextStyle::Fair,
        _ => TextStyle::Bad,
    };
    let failed = if fails == 0 { "nothing failed".to_owned() } else { format!("{fails} failed") };
    let summary =
        format!("{failed}, {}, {} ok", pluralize(warns, "warning"), total(sections, CheckOutcome::Ok));
    out.push_str(&format!("{}\n", style.paint(&summary, color)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_leads_to_a_page_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
        for page in GuidePage::ALL {
            let (file, heading) =
                page.guide_path().split_once('#').unwrap_or_else(|| (page.guide_path(), ""));
            let text =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let slug = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let is_present =
                heading.is_empty() || text.lines().any(|line| line.starts_with('#') && slug(line) == heading);
            assert!(is_present, "{file} has no heading {heading}");
        }
    }

    #[test]
    fn the_guide_of_a_package_is_beside_the_program() {
        let root = std::env::temp_dir().join(format!("plimsoll-guide-{}", std::process::id()));
        let program = root.join("bin/plimsoll");
        assert_eq!(installed_guide(&program), None);
        std::fs::create_dir_all(root.join("share/doc/plimsoll/guide")).unwrap();
        assert_eq!(installed_guide(&program), Some(root.join("share/doc/plimsoll/guide")));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(installed_guide(Path::new("plimsoll")), None);
    }

    #[test]
    fn what_was_found_is_told_in_groups() {
        let mut file = CheckSection::new("configuration");
        file.ok("plimsoll.toml: 1 listener");
        let mut members = CheckSection::new("members");
        members.warn("web: slow\x1b[2J", "do this", GuidePage::Health);
        members.fail("web a:80: refused", "start it", GuidePage::MemberUnreachable);
        members.skip("udp");
        let parts = [file, CheckSection::new("empty"), members];
        insta::assert_snapshot!(render_text(&parts, false, false), @r"
        configuration
          ✓ ok    plimsoll.toml: 1 listener

        members
          ! warn  web: slow�[2J
                  do this
                  see docs/guide/health-and-ejection.md#active-checks
          ✗ fail  web a:80: refused
                  start it
                  see docs/guide/troubleshooting.md#a-member-cannot-be-connected-to
          - skip  udp

        1 failed, 1 warning, 1 ok
        ");
        assert!(!render_text(&parts, true, false).contains("configuration"));
        let document = render_json(&parts);
        assert_eq!(document["ok"], false);
        assert_eq!(document["parts"][1]["findings"][1]["outcome"], "fail");
        assert_eq!(document["counts"]["warn"], 1);
        assert_eq!(document["parts"].as_array().unwrap().len(), 2);
    }
}
