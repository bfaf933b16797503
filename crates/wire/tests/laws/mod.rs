//! What must hold for any bytes a peer sends: the laws of the parsers.
//!
//! One function per parser, which panics where its law is broken. Fuzz targets (`fuzz/`) try them on invented
//! bytes; `tests/corpus.rs` tries them on the committed corpus, in which every byte string stays that has ever
//! broken one.

pub(crate) mod affinity;
pub(crate) mod chunked;
pub(crate) mod etcd;
mod fields;
pub(crate) mod fleet;
pub(crate) mod giop;
pub(crate) mod ior;
pub(crate) mod orca;
pub(crate) mod prometheus;
pub(crate) mod proxy_protocol;
pub(crate) mod request_head;
pub(crate) mod response_head;
pub(crate) mod rfs;
pub(crate) mod rfs_sealed;
pub(crate) mod trace_context;
pub(crate) mod urgency;
pub(crate) mod xds;

/// A parser's law, under the name of its fuzz target and corpus.
pub(crate) struct Law {
    /// Of the target and of the folder in `fuzz/corpus/`.
    pub(crate) name: &'static str,
    /// Panics if the law does not hold for these bytes.
    pub(crate) check: fn(&[u8]) -> Verdict,
}

/// What a parser said to some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// More has to come.
    Partial,
    /// They must not be passed on.
    Refused,
    /// They may.
    Accepted,
}

/// Every law there is.
pub(crate) const ALL: &[Law] = &[
    Law { name: "request_head", check: request_head::check },
    Law { name: "response_head", check: response_head::check },
    Law { name: "chunked", check: chunked::check },
    Law { name: "proxy_protocol", check: proxy_protocol::check },
    Law { name: "prometheus", check: prometheus::check },
    Law { name: "orca", check: orca::check },
    Law { name: "giop", check: giop::check },
    Law { name: "ior", check: ior::check },
    Law { name: "rfs", check: rfs::check },
    Law { name: "rfs_sealed", check: rfs_sealed::check },
    Law { name: "fleet", check: fleet::check },
    Law { name: "affinity", check: affinity::check },
    Law { name: "xds", check: xds::check },
    Law { name: "trace_context", check: trace_context::check },
    Law { name: "etcd", check: etcd::check },
    Law { name: "urgency", check: urgency::check },
];

/// Where to cut the input in two: everywhere if it is short, else near the ends of lines and here and there.
fn cuts(input: &[u8]) -> impl Iterator<Item = usize> {
    let near_line_end = |at: usize| input[at.saturating_sub(2)..(at + 2).min(input.len())].contains(&b'\n');
    (0..input.len()).filter(move |at| input.len() <= 512 || at % 61 == 0 || near_line_end(*at))
}
