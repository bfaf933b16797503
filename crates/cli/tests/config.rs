//! `plimsoll config`, `completions` and `man` as a shell sees them: exit codes, and what goes where.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use insta::assert_snapshot;
use serde_json::Value;

const GOOD: &str = r#"
[[listener]]
address = "127.0.0.1:8080"
group = "web"
[[group]]
name = "web"
members = ["no-such-host.invalid:80", "10.0.0.2:80"]
"#;

/// Runs the binary in the folder of the examples, with `input` on standard input.
fn plimsoll(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
        .env_remove("NO_COLOR")
        .env("COLUMNS", "100")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read ends before it is written to.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn check_talks_on_stderr_and_looks_no_name_up() {
    let ok = plimsoll(&["config", "check", "-"], GOOD);
    assert_eq!((ok.status.code(), out(&ok)), (Some(0), ""));
    assert_eq!(err(&ok), "<stdin>: ok (1 listener, 1 group, 2 members)\n");
    let ok = plimsoll(&["config", "check", "-c", "weighted.toml"], "");
    assert_eq!(err(&ok), "weighted.toml: ok (1 listener, 1 group, 3 members)\n");
    let silent = plimsoll(&["-q", "config", "check", "weighted.toml"], "");
    assert_eq!((silent.status.code(), out(&silent), err(&silent)), (Some(0), "", ""));
}

#[test]
fn what_is_wrong_exits_with_2() {
    let bad = plimsoll(&["config", "check", "-"], &GOOD.replace("\"web\"\n[[", "\"wbe\"\n[["));
    assert_eq!((bad.status.code(), out(&bad)), (Some(2), ""));
    assert_snapshot!(err(&bad), @r#"
    error: <stdin>:4:9: there is no group named `wbe`
        4 | group = "wbe"
          |         ^^^^^ did you mean `web`?   groups: web
    warning: <stdin>:6:8: no listener sends clients to group `web`
        6 | name = "web"
          |        ^^^^^
    1 error, 1 warning
    "#);
    let show = plimsoll(&["config", "show", "-"], "x = 1");
    assert_eq!((show.status.code(), out(&show)), (Some(2), ""));
    for args in [&["config", "check"][..], &["up"]] {
        let missing = plimsoll(args, "");
        assert_eq!((missing.status.code(), out(&missing)), (Some(2), ""));
        let said = err(&missing);
        assert!(said.starts_with("error: cannot read plimsoll.toml: No such file"), "{said}");
        assert!(said.contains("-c") && said.lines().count() == 1, "{said}");
    }
    for args in
        [&["confg"][..], &["config"], &["config", "check", "a", "-c", "b"], &["config", "check", "-vq"]]
    {
        assert_eq!(plimsoll(args, "").status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn check_for_programs_is_one_document() {
    let bad = plimsoll(&["-o", "json", "config", "check", "-"], &GOOD.replace("8080", "x"));
    assert_eq!((bad.status.code(), err(&bad)), (Some(2), ""));
    assert_snapshot!(out(&bad), @r#"
    {
      "file": "<stdin>",
      "ok": false,
      "problems": [
        {
          "column": 11,
          "end_column": 24,
          "end_line": 3,
          "hint": "an IP address and a port, such as \"0.0.0.0:8080\"",
          "line": 3,
          "message": "`address`: `127.0.0.1:x` has a port that is not a number from 0 to 65535",
          "severity": "error"
        }
      ],
      "schema": 1
    }
    "#);
    let ok = plimsoll(&["config", "check", "-", "-o", "json"], GOOD);
    assert_eq!((ok.status.code(), err(&ok)), (Some(0), ""));
    assert_eq!(serde_json::from_str::<Value>(out(&ok)).unwrap()["ok"], true);
}

#[test]
fn colour_only_on_a_terminal_or_on_demand() {
    assert!(!err(&plimsoll(&["config", "check", "-"], "x = 1")).contains('\u{1b}'));
    assert!(
        err(&plimsoll(&["config", "check", "-", "--color", "always"], "x = 1"))
            .contains("\u{1b}[1;31merror:")
    );
}

#[test]
fn show_fills_in_every_default_and_is_itself_valid() {
    let shown = plimsoll(&["config", "show", "-"], GOOD);
    assert_eq!(shown.status.code(), Some(0));
    let text = out(&shown);
    for line in ["binding = \"per_request\"", "strategy = \"adaptive\"", "idle = \"1m\"", "attempts = 2"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let again = plimsoll(&["config", "show", "-"], text);
    assert_eq!(out(&again), text);
    let json = plimsoll(&["config", "show", "-", "-o", "json"], GOOD);
    let json: Value = serde_json::from_str(out(&json)).unwrap();
    assert_eq!(json["group"][0]["outlier"]["consecutive"], 5);
}

#[test]
fn schema_is_json_schema() {
    let schema = plimsoll(&["config", "schema"], "");
    let schema: Value = serde_json::from_str(out(&schema)).unwrap();
    assert!(schema["$schema"].as_str().unwrap().contains("json-schema.org"));
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = plimsoll(&["completions", shell], "");
        assert_eq!(script.status.code(), Some(0), "{shell}");
        assert!(out(&script).contains("config") && err(&script).is_empty(), "{shell}");
    }
    assert_eq!(plimsoll(&["completions", "tcsh"], "").status.code(), Some(2));
}

#[test]
fn manual_pages_for_each_command() {
    let page = plimsoll(&["man"], "");
    assert!(out(&page).contains(".TH PLIMSOLL 1"), "{}", out(&page));
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    let written = plimsoll(&["man", "--dir", dir.to_str().unwrap()], "");
    assert_eq!((written.status.code(), out(&written)), (Some(0), ""));
    for name in ["plimsoll", "plimsoll-up", "plimsoll-config", "plimsoll-config-check", "plimsoll-man"] {
        let page = fs::read_to_string(dir.join(format!("{name}.1"))).expect(name);
        assert!(page.contains(&format!(".TH {} 1", name.to_uppercase())), "{page}");
    }
    fs::remove_dir_all(&dir).unwrap();
    let refused = plimsoll(&["man", "--dir", "/proc/no"], "");
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).starts_with("error: cannot write /proc/no"), "{}", err(&refused));
}

#[test]
fn help_says_what_and_how() {
    assert_snapshot!("help_up", out(&plimsoll(&["up", "--help"], "")));
    assert_snapshot!("help_config", out(&plimsoll(&["config", "--help"], "")));
    assert_snapshot!("help_config_check", out(&plimsoll(&["config", "check", "-h"], "")));
    let root = plimsoll(&["--help"], "");
    for word in ["up", "config", "completions", "man", "Exit codes: 0 success"] {
        assert!(out(&root).contains(word), "{word}");
    }
    let version = plimsoll(&["--version"], "");
    assert_eq!(out(&version), concat!("plimsoll ", env!("CARGO_PKG_VERSION"), "\n"));
}
