//! Access logs as load: the requests of real users, at their times or at any multiple of the rate.
//!
//! The module reads the common log format and formats that begin like it (combined, with or without a leading
//! virtual host). A log keeps whole seconds. The module divides each second into as many equal parts as it
//! has requests and places one at random in each part. The count of every second is thus that of the log, and
//! no burst stands at its beginning.
//!
//! Only GET and HEAD are replayed: a log has no bodies, and changes to the server must not be repeated.
//! Omitted lines are counted by reason, and times that jump are noted.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::str::FromStr;
use std::time::Duration;

use crate::rng::SplitMix64;

mod log_line;
mod synthetic_log;
mod time_jumps;

pub use synthetic_log::SyntheticSite;
pub use time_jumps::{TimeJump, TimeJumps};

use log_line::LogLine;

/// The maximum length of a line; longer ones are malformed and not kept in memory.
const MAX_LINE: usize = 64 * 1024;

/// The requests of an access log, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    /// The requests that can be replayed.
    pub entries: Vec<LogEntry>,
    /// The number of omitted lines, by reason: `malformed`, `method`, `dynamic`.
    pub skipped: BTreeMap<&'static str, u64>,
    /// The jumps of the times, over all lines with a time, replayed or not.
    pub jumps: TimeJumps,
}

/// A request of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The time since the second of the first request.
    pub at: Duration,
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path with the query, if any; begins with a slash, and is printable ASCII without spaces.
    pub path: String,
}

/// The requests of a log to keep; the report on the Autonomous Growing Server replayed these two workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayWorkload {
    /// All requests.
    All,
    /// The requests without dynamic pages: a query, a `cgi-bin`, or the name of a script in the path.
    Static,
}

impl FromStr for ReplayWorkload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "static" => Ok(Self::Static),
            _ => Err(format!("`{text}` is not a workload: expected `all` or `static`")),
        }
    }
}

impl AccessLog {
    /// Reads a log to its end. The same seed spreads the requests of a second in the same way.
    ///
    /// # Errors
    /// Fails if reading fails; an unreadable line is counted and is no error.
    pub fn read(mut reader: impl BufRead, workload: ReplayWorkload, seed: u64) -> io::Result<Self> {
        let mut log = Self::default();
        let mut lines = Vec::new();
        let mut bytes = Vec::new();
        for number in 1.. {
            bytes.clear();
            reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes)?;
            if bytes.is_empty() {
                break;
            }
            if bytes.len() == MAX_LINE && bytes.last() != Some(&b'\n') {
                reader.skip_until(b'\n')?;
                log.skip("malformed");
                continue;
            }
            let bytes = bytes.trim_ascii();
            if bytes.is_empty() {
                continue;
            }
            let parsed = log_line::parse_line(bytes);
            if let Some(line) = &parsed {
                log.jumps.check_line(number, line.second);
            }
            match parsed {
                None => log.skip("malformed"),
                Some(line) if !matches!(line.method.as_str(), "GET" | "HEAD") => log.skip("method"),
                Some(line) if workload == ReplayWorkload::Static && is_dynamic(&line.path) => {
                    log.skip("dynamic")
                }
                Some(line) => lines.push(line),
            }
        }
        // A server logs a request when it has ended, with the time at which it began.
        lines.sort_by_key(|line| line.second);
        log.spread_within_seconds(lines, seed);
        Ok(log)
    }

    /// Returns the due times of the entries at `speed` times the rate of the log. A speed of 0 or below gives
    /// none.
    pub fn due_times(&self, speed: f64) -> Vec<Duration> {
        if !(speed > 0.0 && speed.is_finite()) {
            return Vec::new();
        }
        let due_at = |entry: &LogEntry| Duration::try_from_secs_f64(entry.at.as_secs_f64() / speed);
        self.entries.iter().map(|entry| due_at(entry).unwrap_or(Duration::MAX)).collect()
    }

    fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_default() += 1;
    }

    /// Adds lines in the order of their seconds.
    fn spread_within_seconds(&mut self, lines: Vec<LogLine>, seed: u64) {
        let mut rng = SplitMix64::new(seed);
        let Some(first_second) = lines.first().map(|line| line.second) else { return };
        let counts: Vec<usize> =
            lines.chunk_by(|line, next| line.second == next.second).map(<[LogLine]>::len).collect();
        self.entries.reserve_exact(lines.len());
        let mut lines = lines.into_iter();
        for count in counts {
            for (index, line) in lines.by_ref().take(count).enumerate() {
                let interval = 1e9 / count as f64;
                // At most the whole second: its end belongs to the next one.
                let nanos_in_second = ((index as f64 + rng.uniform()) * interval).min(999_999_999.0);
                let second = Duration::from_secs(line.second.abs_diff(first_second));
                let offset = second + Duration::from_nanos(nanos_in_second as u64);
                self.entries.push(LogEntry { at: offset, method: line.method, path: line.path });
            }
        }
    }
}

/// Returns `true` if the path belongs to a dynamic page.
pub(crate) fn is_dynamic(path: &str) -> bool {
    const SCRIPTS: [&str; 12] =
        ["cgi", "pl", "php", "php3", "php4", "php5", "phtml", "asp", "aspx", "jsp", "do", "cfm"];
    let is_script = |segment: &str| {
        let extension = segment.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| SCRIPTS.iter().any(|script| script.eq_ignore_ascii_case(extension)))
    };
    path.contains('?')
        || path.split('/').any(|segment| segment.eq_ignore_ascii_case("cgi-bin") || is_script(segment))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, workload: ReplayWorkload) -> AccessLog {
        AccessLog::read(text.as_bytes(), workload, 1).unwrap()
    }

    const LOG: &str = "\
127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] \"GET /apache_pb.gif HTTP/1.0\" 200 2326
2001:db8::1 - - [10/Oct/2000:20:55:37 +0000] \"HEAD / HTTP/1.1\" 200 0 \"-\" \"Mozilla \\\"x\\\" [en]\"
::1 - - [10/Oct/2000:13:55:36 -0700] \"GET /search?q=1 HTTP/1.0\" 200 1
::1 - - [10/Oct/2000:13:55:40 -0700] \"POST /form HTTP/1.0\" 200 1
::1 - - [10/Oct/2000:13:55:41 -0700] \"GET /cgi-bin/x HTTP/1.0\" 200 1
nonsense

::1 - - [10/Oct/2000:13:55:42 -0700] \"GET /a/b.PHP/info HTTP/1.1\" 200 1
";

    #[test]
    fn all_and_static() {
        let log = read(LOG, ReplayWorkload::All);
        let paths: Vec<&str> = log.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["/apache_pb.gif", "/search?q=1", "/", "/cgi-bin/x", "/a/b.PHP/info"]);
        let seconds: Vec<u64> = log.entries.iter().map(|entry| entry.at.as_secs()).collect();
        assert_eq!(seconds, [0, 0, 1, 5, 6]);
        assert_eq!(log.entries[2].method, "HEAD");
        assert_eq!(log.skipped, [("malformed", 1), ("method", 1)].into());

        let log = read(LOG, ReplayWorkload::Static);
        let paths: Vec<&str> = log.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["/apache_pb.gif", "/"]);
        assert_eq!(log.skipped, [("dynamic", 3), ("malformed", 1), ("method", 1)].into());
    }

    #[test]
    fn a_jump_is_found_by_its_line() {
        let log = read(&LOG.replace("10/Oct/2000:13:55:42", "10/Oct/2001:13:55:42"), ReplayWorkload::All);
        assert_eq!(log.jumps.worst, Some(TimeJump { line: 8, seconds: 365 * 86_400 + 1 }));
        assert_eq!(read(LOG, ReplayWorkload::All).jumps.count, 0);
        // The wrong line may be one that is not replayed.
        let log = read(&LOG.replace("10/Oct/2000:13:55:40", "10/Oct/2001:13:55:40"), ReplayWorkload::Static);
        assert_eq!((log.jumps.count, log.jumps.worst.map(|jump| jump.line)), (2, Some(4)));
    }

    #[test]
    fn a_second_is_filled_evenly() {
        let line =
            |second: u32| format!("::1 - - [10/Oct/2000:13:55:{second:02} -0700] \"GET / HTTP/1.0\" 200 1\n");
        let log = read(&(line(0).repeat(1000) + &line(1)), ReplayWorkload::All);
        for (index, entry) in log.entries[..1000].iter().enumerate() {
            assert_eq!(entry.at.as_micros() / 1000, index as u128, "{entry:?}");
        }
        assert_eq!(log.entries[1000].at.as_secs(), 1);
        let due_times = log.due_times(10.0);
        assert!(due_times.is_sorted() && due_times[999] < Duration::from_millis(100));
        assert!(due_times[1000] >= Duration::from_millis(100));
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(log.due_times(speed).is_empty());
        }
        assert_eq!(log.due_times(1e-30).len(), 1001);
    }

    #[test]
    fn an_endless_line_is_one_bad_line() {
        let valid_line = "::1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 1";
        let log = read(
            &format!("{}\n{valid_line}\n{}", "x".repeat(5 * MAX_LINE), "y".repeat(MAX_LINE)),
            ReplayWorkload::All,
        );
        assert_eq!((log.entries.len(), &log.skipped), (1, &[("malformed", 2)].into()));
        assert_eq!(read("", ReplayWorkload::All), AccessLog::default());
    }

    #[test]
    fn reading_that_fails_is_an_error() {
        struct FailingReader;
        impl Read for FailingReader {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        assert!(AccessLog::read(io::BufReader::new(FailingReader), ReplayWorkload::All, 1).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_no_line_is_lost(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let log = AccessLog::read(bytes.as_slice(), ReplayWorkload::All, 1).unwrap();
            let lines = bytes.split(|byte| *byte == b'\n');
            let lines = lines.filter(|line| !line.trim_ascii().is_empty()).count();
            prop_assert_eq!(log.entries.len() as u64 + log.skipped.values().sum::<u64>(), lines as u64);
        }

        #[test]
        fn entries_are_in_order_and_can_be_sent(
            lines in prop::collection::vec((0u32..120, "[ -~]{0,20}", "[^\n]{0,10}"), 0..40),
        ) {
            let text: String = lines.iter().map(|(second, path, rest)| format!(
                "::1 - - [10/Oct/2000:13:{:02}:{:02} -0700] \"GET /{path} HTTP/1.0\" \
                 {rest}\n", second / 60, second % 60,
            )).collect();
            let log = read(&text, ReplayWorkload::All);
            prop_assert!(log.entries.is_sorted_by_key(|entry| entry.at));
            for entry in &log.entries {
                let path = &entry.path;
                prop_assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
