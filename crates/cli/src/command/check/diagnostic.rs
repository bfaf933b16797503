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
        installed(&program).unwrap_or_else(|| "docs/guide".into())
    });
    &GUIDE
}

/// Returns the guide that was installed with a program, if there is one.
fn installed(program: &Path) -> Option<PathBuf> {
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

    pub(super) fn ok(&mut self, what: impl Into<String>) {
        self.add(CheckOutcome::Ok, what.into(), None, None);
    }

    pub(super) fn skip(&mut self, what: impl Into<String>) {
        self.add(CheckOutcome::Skip, what.into(), None, None);
    }

    pub(super) fn warn(&mut self, what: impl Into<String>, hint: impl Into<String>, see: GuidePage) {
        self.add(CheckOutcome::Warn, what.into(), Some(hint.into()), Some(see));
    }

    pub(super) fn fail(&mut self, what: impl Into<String>, hint: impl Into<String>, see: GuidePage) {
        self.add(CheckOutcome::Fail, what.into(), Some(hint.into()), Some(see));
    }

    fn add(&mut self, outcome: CheckOutcome, what: String, hint: Option<String>, see: Option<GuidePage>) {
        self.findings.push(CheckDiagnostic {
            outcome,
            what,
            hint,
            see: see.map(|see| format!("{}/{}", guide().display(), see.guide_path())),
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

fn total(parts: &[CheckSection], outcome: CheckOutcome) -> usize {
    parts.iter().map(|part| part.count(outcome)).sum()
}

/// Returns one document, for programs.
pub(super) fn render_json(parts: &[CheckSection]) -> Value {
    let shown: Vec<&CheckSection> = parts.iter().filter(|part| !part.findings.is_empty()).collect();
    json!({
        "schema": 1,
        "ok": total(parts, CheckOutcome::Fail) == 0,
        "counts": {
            "ok": total(parts, CheckOutcome::Ok),
            "warn": total(parts, CheckOutcome::Warn),
            "fail": total(parts, CheckOutcome::Fail),
            "skip": total(parts, CheckOutcome::Skip),
        },
        "parts": shown,
    })
}

/// Returns the page, for people.
pub(super) fn render_text(parts: &[CheckSection], short: bool, color: bool) -> String {
    let mut out = String::new();
    for part in parts {
        let bad =
            |finding: &&CheckDiagnostic| matches!(finding.outcome, CheckOutcome::Warn | CheckOutcome::Fail);
        let shown: Vec<&CheckDiagnostic> = part.findings.iter().filter(|one| !short || bad(one)).collect();
        if shown.is_empty() {
            continue;
        }
        out.push_str(&format!("{}\n", TextStyle::Strong.paint(part.name, color)));
        for finding in shown {
            let (glyph, word, tone) = finding.outcome.presentation();
            let mark = tone.paint(&format!("{glyph} {word:<4}"), color);
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
    let (fails, warns) = (total(parts, CheckOutcome::Fail), total(parts, CheckOutcome::Warn));
    let tone = match (fails, warns) {
        (0, 0) => TextStyle::Good,
        (0, _) => TextStyle::Fair,
        _ => TextStyle::Bad,
    };
    let failed = if fails == 0 { "nothing failed".to_owned() } else { format!("{fails} failed") };
    let summary = format!("{failed}, {}, {} ok", pluralize(warns, "warning"), total(parts, CheckOutcome::Ok));
    out.push_str(&format!("{}\n", tone.paint(&summary, color)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_leads_to_a_page_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
        for see in GuidePage::ALL {
            let (file, heading) = see.guide_path().split_once('#').unwrap_or_else(|| (see.guide_path(), ""));
            let text =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let slug = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let found =
                heading.is_empty() || text.lines().any(|line| line.starts_with('#') && slug(line) == heading);
            assert!(found, "{file} has no heading {heading}");
        }
    }

    #[test]
    fn the_guide_of_a_package_is_beside_the_program() {
        let root = std::env::temp_dir().join(format!("plimsoll-guide-{}", std::process::id()));
        let program = root.join("bin/plimsoll");
        assert_eq!(installed(&program), None);
        std::fs::create_dir_all(root.join("share/doc/plimsoll/guide")).unwrap();
        assert_eq!(installed(&program), Some(root.join("share/doc/plimsoll/guide")));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(installed(Path::new("plimsoll")), None);
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
