//! The access log of a site that resembles the one of the AGS report: several hundred pages of very different
//! popularity, and a dynamic part (there a discussion area, by Perl).
//!
//! The popularity of pages follows Zipf's law: the n-th is requested in proportion to 1/n (Breslau, Cao, Fan,
//! Phillips and Shenker, "Web caching and Zipf-like distributions", INFOCOM 1999, found exponents a little
//! below 1 in such logs).

use std::fmt::Write as _;

use crate::rng::SplitMix64;

/// The parameters of a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyntheticSite {
    /// The number of static pages, and of dynamic ones beside them.
    pub pages: usize,
    /// The share of the requests for dynamic pages, from 0 to 1.
    pub dynamic: f64,
    /// The number of lines.
    pub requests: usize,
    /// The mean requests per second.
    pub rate: f64,
}

impl SyntheticSite {
    /// Returns the site of the report with this number of log lines: "several hundred" pages, and
    /// "approximately 10 percent" of the requests for dynamic pages.
    pub fn ags_report(requests: usize) -> Self {
        Self { pages: 400, dynamic: 0.1, requests, rate: 20.0 }
    }

    /// Returns a log in the common format. The same seed gives the same log.
    pub fn generate_log(&self, seed: u64) -> String {
        let mut rng = SplitMix64::new(seed);
        let mut cumulative_weights = Vec::with_capacity(self.pages);
        let mut total_weight = 0.0;
        for page in 1..=self.pages.max(1) {
            total_weight += 1.0 / page as f64;
            cumulative_weights.push(total_weight);
        }
        let (mut text, mut time) = (String::new(), 0.0);
        for _ in 0..self.requests {
            time += rng.exponential() / self.rate;
            let threshold = rng.uniform() * total_weight;
            let page =
                cumulative_weights.partition_point(|sum| *sum < threshold).min(cumulative_weights.len() - 1)
                    + 1;
            let path = match rng.bernoulli(self.dynamic) {
                true => format!("/cgi-bin/discuss?article={page}"),
                false => format!("/plays/page{page}.html"),
            };
            let host = rng.bits() % 250 + 1;
            let bytes = 500 + (rng.exponential() * 6000.0) as u64;
            let second = time as u64;
            let (day, hour, minute) = (second / 86_400, second / 3600 % 24, second / 60 % 60);
            // A month is enough for any log that is replayed.
            let (day, second) = (day % 31 + 1, second % 60);
            let _ = writeln!(
                text,
                "192.0.2.{host} - - [{day:02}/Oct/1997:{hour:02}:{minute:02}:{second:02} +0000] \"GET {path} \
                 HTTP/1.0\" 200 {bytes}"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{AccessLog, ReplayWorkload};

    #[test]
    fn the_log_has_the_mix_that_it_is_to_have() {
        let site = SyntheticSite::ags_report(20_000);
        let text = site.generate_log(1);
        assert_eq!(text, site.generate_log(1));
        assert_ne!(text, site.generate_log(2));
        let full_log = AccessLog::read(text.as_bytes(), ReplayWorkload::All, 1).unwrap();
        let static_log = AccessLog::read(text.as_bytes(), ReplayWorkload::Static, 1).unwrap();
        assert_eq!((full_log.entries.len(), full_log.skipped.len(), full_log.jumps.count), (20_000, 0, 0));
        let dynamic = (full_log.entries.len() - static_log.entries.len()) as f64 / 20_000.0;
        assert!((dynamic - 0.1).abs() < 0.01, "{dynamic}");
        let rate = 20_000.0 / full_log.entries[19_999].at.as_secs_f64();
        assert!((rate - 20.0).abs() < 1.0, "{rate}");
        // The first of 400 by Zipf's law: 1 / 6.57.
        let first_page_count =
            static_log.entries.iter().filter(|entry| entry.path == "/plays/page1.html").count();
        assert!(
            (first_page_count as f64 / static_log.entries.len() as f64 - 0.152).abs() < 0.02,
            "{first_page_count}"
        );
    }
}
