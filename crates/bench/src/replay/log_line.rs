//! One line of an access log: `host ident user [day/month/year:time zone] "method path version" …`.

/// The parts of a line that a replay needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogLine {
    /// The seconds since 1970, UTC.
    pub(super) second: i64,
    pub(super) method: String,
    pub(super) path: String,
}

/// Parses a line; `None` if it is malformed.
pub(super) fn parse_line(line: &[u8]) -> Option<LogLine> {
    let (second, request_and_rest) = find_timestamp(line)?;
    let request = unquote(request_and_rest.trim_ascii_start().strip_prefix(b"\"")?)?;
    let mut fields = request.split(|byte| *byte == b' ');
    let (method, path, version) = (fields.next()?, fields.next()?, fields.next());
    let has_known_version =
        version.is_none_or(|version| version.starts_with(b"HTTP/")) && fields.next().is_none();
    let is_valid_method = !method.is_empty() && method.iter().all(u8::is_ascii_alphabetic);
    if !has_known_version || !is_valid_method {
        return None;
    }
    Some(LogLine {
        second,
        method: String::from_utf8_lossy(method).into_owned(),
        path: normalized_path(path)?,
    })
}

/// Returns the date in brackets, and the rest of the line. Brackets without a date, as those of a virtual
/// host's IPv6 address, are skipped.
fn find_timestamp(line: &[u8]) -> Option<(i64, &[u8])> {
    let mut remaining = line;
    while let Some(bracket) = remaining.iter().position(|byte| *byte == b'[') {
        remaining = &remaining[bracket + 1..];
        // `10/Oct/2000:13:55:36 -0700]`
        if let Some((text, tail)) = remaining.split_at_checked(27)
            && text[26] == b']'
            && let Some(second) = parse_timestamp(&text[..26])
        {
            return Some((second, tail));
        }
    }
    None
}

/// Parses a date of the fixed length into seconds since 1970.
fn parse_timestamp(text: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8; 3]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let parse_number = |start: usize, end: usize, max: i64| {
        let digits = text.get(start..end).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        let number = digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        (number <= max).then_some(number)
    };
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if !separators.iter().all(|(position, separator)| text.get(*position) == Some(separator)) {
        return None;
    }
    let month = MONTHS.iter().position(|month| text[3..6] == month[..])? as i64 + 1;
    let (day, year) = (parse_number(0, 2, 31).filter(|day| *day > 0)?, parse_number(7, 11, 9999)?);
    // 60 is a leap second.
    let (hour, minute, second) =
        (parse_number(12, 14, 23)?, parse_number(15, 17, 59)?, parse_number(18, 20, 60)?);
    let offset_magnitude = parse_number(22, 24, 23)? * 3600 + parse_number(24, 26, 59)? * 60;
    let zone_offset = match text[21] {
        b'+' => offset_magnitude,
        b'-' => -offset_magnitude,
        _ => return None,
    };
    Some(days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - zone_offset)
}

/// Returns the days since 1970-01-01 in the Gregorian calendar. Years begin in March here, so that the leap
/// day is the last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    // The months from March on have 31, 30, 31, 30, 31 days, and again.
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - 719_468
}

/// Returns the text up to the next quote, with backslash escapes resolved.
fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    let mut bytes = text.iter().copied();
    loop {
        match bytes.next()? {
            b'"' => return Some(content),
            b'\\' => match bytes.next()? {
                b'x' => {
                    let mut digit = || (bytes.next()? as char).to_digit(16);
                    content.push((digit()? * 16 + digit()?) as u8);
                }
                b'n' => content.push(b'\n'),
                b'r' => content.push(b'\r'),
                b't' => content.push(b'\t'),
                other => content.push(other),
            },
            other => content.push(other),
        }
    }
}

/// Returns the path of a request target, without scheme and host. Bytes that a path cannot have are
/// percent-encoded.
fn normalized_path(request_target: &[u8]) -> Option<String> {
    let strip_scheme = |name: &[u8]| {
        request_target
            .get(..name.len())
            .filter(|start| start.eq_ignore_ascii_case(name))
            .map(|_| &request_target[name.len()..])
    };
    let path = match strip_scheme(b"http://").or_else(|| strip_scheme(b"https://")) {
        Some(rest) => {
            rest.iter().position(|byte| *byte == b'/').map_or(&b"/"[..], |position| &rest[position..])
        }
        None => request_target,
    };
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut normalized = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'#' => break,
            0x21..0x7f => normalized.push(*byte as char),
            _ => normalized += &format!("%{byte:02X}"),
        }
    }
    Some(normalized)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_request(text: &str) -> Option<(String, String)> {
        let line = format!("a b c [10/Oct/2000:13:55:36 -0700] {text}");
        parse_line(line.as_bytes()).map(|line| (line.method, line.path))
    }

    fn parse_path(text: &str) -> Option<String> {
        parse_request(text).map(|(_, path)| path)
    }

    #[test]
    fn dates_in_their_zones() {
        let date = |text: &str| find_timestamp(format!("[{text}]").as_bytes()).map(|(second, _)| second);
        assert_eq!(date("10/Oct/2000:13:55:36 -0700"), Some(971_211_336));
        assert_eq!(date("01/Jan/1970:00:00:00 +0000"), Some(0));
        assert_eq!(date("01/Jan/1970:01:30:00 +0130"), Some(0));
        assert_eq!(date("29/Feb/2024:12:00:00 +0000"), Some(1_709_208_000));
        assert_eq!(date("31/Dec/1999:23:59:59 +0000"), Some(946_684_799));
        for invalid in [
            "10/oct/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:24:55:36 -0700",
            "10/Oct/2000:13:60:36 -0700",
            "10/Oct/2000 13:55:36 -0700",
            "10/Oct/2000:13:55:36 *0700",
            "1x/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55:36",
        ] {
            assert_eq!(date(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn hosts_users_and_agents_of_all_kinds() {
        for prefix in
            ["::1 - -", "[2001:db8::1]:443 10.0.0.1 - a b", "www.example.org:80 h - [x]", "h \"u\" -"]
        {
            for suffix in ["", " 200 -", " 200 5 \"http://a/\" \"agent [x] \\\"y\\\"\" extra"] {
                let line = format!("{prefix} [10/Oct/2000:13:55:36 -0700] \"GET /a HTTP/1.1\"{suffix}");
                let parsed = parse_line(line.as_bytes());
                assert_eq!(
                    parsed.map(|line| (line.second, line.path)),
                    Some((971_211_336, "/a".into())),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn requests_as_they_were() {
        assert_eq!(parse_request("\"HEAD /a?b=c HTTP/1.0\""), Some(("HEAD".into(), "/a?b=c".into())));
        assert_eq!(parse_path("\"GET /old\" 200"), Some("/old".into()));
        assert_eq!(parse_path("\"GET http://a.b/c HTTP/1.1\""), Some("/c".into()));
        assert_eq!(parse_path("\"GET HTTPS://a.b HTTP/1.1\""), Some("/".into()));
        assert_eq!(parse_path("\"GET /\\\"q\\\"\\\\ HTTP/1.1\""), Some("/\"q\"\\".into()));
        assert_eq!(parse_path("\"GET /\\xe9\\xFF HTTP/1.1\""), Some("/%E9%FF".into()));
        assert_eq!(parse_path("\"GET /a#b HTTP/1.1\""), Some("/a".into()));
        for invalid in [
            "",
            "-",
            "\"-\"",
            "\"\"",
            "\"GET\"",
            "\"GET /a",
            "\"GET /a b HTTP/1.1\"",
            "\"GET /a FTP/1.1\"",
            "\"GET a HTTP/1.1\"",
            "\"GET * HTTP/1.1\"",
            "\"\\x16\\x03 /a\"",
            "\"GET /\\xz\"",
            "\"GET /\\",
        ] {
            assert_eq!(parse_request(invalid), None, "{invalid}");
        }
    }
}
