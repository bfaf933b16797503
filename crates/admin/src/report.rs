//! Parses load reports: forms that one line of curl sends, or JSON.
//!
//! ```text
//! member=10.0.0.1:80&name=cpu&value=0.4
//! member=10.0.0.1:80&cpu=0.4&in_flight=7&group=web&age_seconds=0.2
//! {"member": "10.0.0.1:80", "name": "cpu", "value": 0.4}
//! {"group": "web", "member": "10.0.0.1:80", "values": {"cpu": 0.4, "in_flight": 7}, "age_seconds": 0.2}
//! ```
//!
//! The first byte distinguishes the two: curl's default content type for JSON is that of a form. The receiver
//! of the report validates names and numbers.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::LoadReport;

/// Parses the body of a report; the text of an error is for its sender. `named` means that the member is
/// required; a lottery daemon's is the server beside it.
pub(crate) fn parse(body: &[u8], needs_member: bool) -> Result<LoadReport, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is not UTF-8 text".to_owned())?.trim();
    let body = if text.starts_with('{') { json(text)? } else { form(text)? };
    let member = body.member.unwrap_or_default();
    if needs_member && member.is_empty() {
        return Err(format!("the report names no member: {GIVE}"));
    }
    let mut values: Vec<(String, f64)> = body.values.into_iter().collect();
    match (body.name, body.value) {
        (Some(name), Some(value)) => values.push((name, value)),
        (None, None) if !values.is_empty() => {}
        (Some(name), None) => {
            return Err(format!("the report has no value for {}: {GIVE}", quote_short(&name)));
        }
        (None, Some(_)) => return Err(format!("the report has a value without a name: {GIVE}")),
        (None, None) => return Err(format!("the report has no value: {GIVE}")),
    }
    // The receiver handles NaN; -0 is 0.
    if let Some(age) = body.age_seconds.filter(|age| *age < 0.0) {
        return Err(format!("age_seconds is {age}: give how many seconds ago the values were, 0 or more"));
    }
    Ok(LoadReport { group: body.group, member, values, age_seconds: body.age_seconds })
}

const GIVE: &str =
    "give member=HOST:PORT&name=NAME&value=NUMBER, or {\"member\": …, \"values\": {NAME: NUMBER}}";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportBody {
    group: Option<String>,
    member: Option<String>,
    name: Option<String>,
    value: Option<f64>,
    #[serde(default)]
    values: BTreeMap<String, f64>,
    age_seconds: Option<f64>,
}

fn json(text: &str) -> Result<ReportBody, String> {
    crate::json_body::parse(text.as_bytes(), GIVE)
}

fn form(text: &str) -> Result<ReportBody, String> {
    let mut body = ReportBody::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!("the body: `{}` has no `=`; {GIVE}", quote_short(pair)));
        };
        let (name, value) = (unescaped(name)?, unescaped(value)?);
        match &*name {
            "group" => body.group = Some(value),
            "member" => body.member = Some(value),
            "name" => body.name = Some(value),
            "value" => body.value = Some(number(&name, &value)?),
            "age_seconds" => body.age_seconds = Some(number(&name, &value)?),
            _ => {
                let number = number(&name, &value)?;
                body.values.insert(name, number);
            }
        }
    }
    Ok(body)
}

fn number(name: &str, value: &str) -> Result<f64, String> {
    value
        .trim()
        .parse()
        .map_err(|_| format!("{}: `{}` is not a number", quote_short(name), quote_short(value)))
}

/// Decodes the escapes of a form.
fn unescaped(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first_byte, tail @ ..] = rest {
        rest = tail;
        match first_byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = rest.split_at_checked(2).and_then(|(digits, tail)| {
                    rest = tail;
                    // Two hexadecimal digits are ASCII, and therefore text; a sign is not a digit.
                    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.contains('+'))?;
                    u8::from_str_radix(digits, 16).ok()
                });
                bytes.push(
                    digits.ok_or_else(|| format!("the body: `{}` has a broken escape", quote_short(text)))?,
                );
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("the body: `{}` is not UTF-8 text", quote_short(text)))
}

/// Shortens external text for a message.
fn quote_short(text: &str) -> String {
    text.chars().take(80).map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_report(body: &str) -> Result<LoadReport, String> {
        parse(body.as_bytes(), true)
    }

    fn cpu(value: f64) -> LoadReport {
        let values = vec![("cpu".into(), value)];
        LoadReport { group: None, member: "10.0.0.1:80".into(), values, age_seconds: None }
    }

    #[test]
    fn forms_and_json_say_the_same() {
        for body in [
            "member=10.0.0.1:80&name=cpu&value=0.4",
            "member=10.0.0.1%3A80&cpu=+0.4\n",
            "&cpu=4e-1&&member=10.0.0.1:80&",
            r#"{"member": "10.0.0.1:80", "name": "cpu", "value": 0.4}"#,
            r#" {"member": "10.0.0.1:80", "values": {"cpu": 0.4}}"#,
        ] {
            assert_eq!(parse_report(body), Ok(cpu(0.4)), "{body}");
        }
        let body = r#"{"group":"web","member":"10.0.0.1:80","values":{"b":2,"a":1},"age_seconds":0.2}"#;
        let values = vec![("a".into(), 1.0), ("b".into(), 2.0)];
        let report = LoadReport { group: Some("web".into()), values, age_seconds: Some(0.2), ..cpu(0.0) };
        assert_eq!(parse_report(body), Ok(report));
    }

    #[test]
    fn what_is_missing_or_broken_is_said() {
        for (body, why) in [
            ("", "names no member"),
            ("member=", "names no member"),
            ("member=a:1", "has no value"),
            ("member=a:1&name=cpu", "no value for cpu"),
            ("member=a:1&value=1", "without a name"),
            ("member=a:1&cpu=high", "cpu: `high` is not a number"),
            ("member=a:1&cpu", "`cpu` has no `=`"),
            ("member=%zz", "broken escape"),
            ("member=%+1", "broken escape"),
            ("member=%4", "broken escape"),
            ("member=%ff", "not UTF-8"),
            ("{", "the body: "),
            (r#"{"member": "a:1", "cpu": 1}"#, "unknown field `cpu`"),
            (r#"{"member": "a:1", "values": {"cpu": "1"}}"#, "invalid type"),
            (r#"{"member": "a:1", "values": {"cpu": 1e999}}"#, "out of range"),
            ("member=a:1&cpu=1&age_seconds=-5", "age_seconds is -5: give how many seconds ago"),
            (r#"{"member": "a:1", "values": {"cpu": 1}, "age_seconds": -1e9}"#, "age_seconds is -1000000000"),
        ] {
            let error = parse_report(body).expect_err(body);
            assert!(error.contains(why), "{body}: {error}");
        }
        assert!(parse(b"\xff", true).is_err());
        assert_eq!(parse_report("member=a:1&cpu=1&age_seconds=-0").unwrap().age_seconds, Some(0.0));
        // The server beside a daemon needs no name.
        assert_eq!(parse(b"cpu=1", false).unwrap().member, "");
        // The receiver validates it.
        assert!(parse_report("member=a:1&cpu=NaN").unwrap().values[0].1.is_nan());
    }
}
