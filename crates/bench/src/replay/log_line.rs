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
pub(super) fn parse(line: &[u8]) -> Option<LogLine> {
    let (second, rest) = date(line)?;
    let request = quoted(rest.trim_ascii_start().strip_prefix(b"\"")?)?;
    let mut words = request.split(|byte| *byte == b' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next());
    let known = version.is_none_or(|version| version.starts_with(b"HTTP/")) && words.next().is_none();
    let token = !method.is_empty() && method.iter().all(u8::is_ascii_alphabetic);
    if !known || !token {
        return None;
    }
    Some(LogLine { second, method: String::from_utf8_lossy(method).into_owned(), path: path_of(path)? })
}

/// Returns the date in brackets, and the rest of the line. Brackets without a date, as those of a virtual
/// host's IPv6 address, are skipped.
fn date(line: &[u8]) -> Option<(i64, &[u8])> {
    let mut rest = line;
    while let Some(open) = rest.iter().position(|byte| *byte == b'[') {
        rest = &rest[open + 1..];
        // `10/Oct/2000:13:55:36 -0700]`
        if let Some((text, after)) = rest.split_at_checked(27)
            && text[26] == b']'
            && let Some(second) = seconds(&text[..26])
        {
            return Some((second, after));
        }
    }
    None
}

/// Parses a date of the fixed length into seconds since 1970.
fn seconds(text: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8; 3]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let number = |from: usize, to: usize, most: i64| {
        let digits = text.get(from..to).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        let number = digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        (number <= most).then_some(number)
    };
    let marks = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if !marks.iter().all(|(at, mark)| text.get(*at) == Some(mark)) {
        return None;
    }
    let month = MONTHS.iter().position(|month| text[3..6] == month[..])? as i64 + 1;
    let (day, year) = (number(0, 2, 31).filter(|day| *day > 0)?, number(7, 11, 9999)?);
    // 60 is a leap second.
    let (hour, minute, second) = (number(12, 14, 23)?, number(15, 17, 59)?, number(18, 20, 60)?);
    let zone = number(22, 24, 23)? * 3600 + number(24, 26, 59)? * 60;
    let zone = match text[21] {
        b'+' => zone,
        b'-' => -zone,
        _ => return None,
    };
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - zone)
}

/// Returns the days since 1970-01-01 in the Gregorian calendar. Years begin in March here, so that the leap
/// day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    // The months from March on have 31, 30, 31, 30, 31 days, and again.
    let of_year = (153 * month + 2) / 5 + day - 1;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + of_year - 719_468
}

/// Returns the text up to the next quote, with backslash escapes resolved.
fn quoted(text: &[u8]) -> Option<Vec<u8>> {
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
fn path_of(target: &[u8]) -> Option<String> {
    let scheme = |name: &[u8]| {
        target
            .get(..name.len())
            .filter(|start| start.eq_ignore_ascii_case(name))
            .map(|_| &target[name.len()..])
    };
    let path = match scheme(b"http://").or_else(|| scheme(b"https://")) {
        Some(rest) => rest.iter().position(|byte| *byte == b'/').map_or(&b"/"[..], |at| &rest[at..]),
        None => target,
    };
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut text = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'#' => break,
            0x21..0x7f => text.push(*byte as char),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Option<(String, String)> {
        let line = format!("a b c [10/Oct/2000:13:55:36 -0700] {text}");
        parse(line.as_bytes()).map(|line| (line.method, line.path))
    }

    fn path(text: &str) -> Option<String> {
        request(text).map(|(_, path)| path)
    }

    #[test]
    fn dates_in_their_zones() {
        let date = |text: &str| date(format!("[{text}]").as_bytes()).map(|(second, _)| second);
        assert_eq!(date("10/Oct/2000:13:55:36 -0700"), Some(971_211_336));
        assert_eq!(date("01/Jan/1970:00:00:00 +0000"), Some(0));
        assert_eq!(date("01/Jan/1970:01:30:00 +0130"), Some(0));
        assert_eq!(date("29/Feb/2024:12:00:00 +0000"), Some(1_709_208_000));
        assert_eq!(date("31/Dec/1999:23:59:59 +0000"), Some(946_684_799));
        for wrong in [
            "10/oct/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:24:55:36 -0700",
            "10/Oct/2000:13:60:36 -0700",
            "10/Oct/2000 13:55:36 -0700",
            "10/Oct/2000:13:55:36 *0700",
            "1x/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55:36",
        ] {
            assert_eq!(date(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hosts_users_and_agents_of_all_kinds() {
        for start in
            ["::1 - -", "[2001:db8::1]:443 10.0.0.1 - a b", "www.example.org:80 h - [x]", "h \"u\" -"]
        {
            for end in ["", " 200 -", " 200 5 \"http://a/\" \"agent [x] \\\"y\\\"\" extra"] {
                let line = format!("{start} [10/Oct/2000:13:55:36 -0700] \"GET /a HTTP/1.1\"{end}");
                let got = parse(line.as_bytes());
                assert_eq!(
                    got.map(|line| (line.second, line.path)),
                    Some((971_211_336, "/a".into())),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn requests_as_they_were() {
        assert_eq!(request("\"HEAD /a?b=c HTTP/1.0\""), Some(("HEAD".into(), "/a?b=c".into())));
        assert_eq!(path("\"GET /old\" 200"), Some("/old".into()));
        assert_eq!(path("\"GET http://a.b/c HTTP/1.1\""), Some("/c".into()));
        assert_eq!(path("\"GET HTTPS://a.b HTTP/1.1\""), Some("/".into()));
        assert_eq!(path("\"GET /\\\"q\\\"\\\\ HTTP/1.1\""), Some("/\"q\"\\".into()));
        assert_eq!(path("\"GET /\\xe9\\xFF HTTP/1.1\""), Some("/%E9%FF".into()));
        assert_eq!(path("\"GET /a#b HTTP/1.1\""), Some("/a".into()));
        for wrong in [
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
            assert_eq!(request(wrong), None, "{wrong}");
        }
    }
}
