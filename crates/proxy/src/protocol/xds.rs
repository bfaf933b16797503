//! xDS: gRPC clients that choose members themselves get the members' weights, and report their requests.
//!
//! A listener serves groups by their names: `xds:///web` is group `web`. All resources derive from the name
//! (`resource`), except for the endpoints. Each member in use is a locality of its own, as gRPC's round robin
//! weighs localities; its weight is its share of the requests by the group's strategy (`weights`).
//!
//! A client gets an update when that has changed: at once, but at most twenty times per second (`cache`), and
//! never before it has acknowledged the last one (`ads`). So no updates queue up for a slow client, and
//! it delays no other.
//!
//! By its reports (`load_reports`), a client's requests count as work of the members, in flight and
//! completed, as if they had passed through this process. Requests of other listeners are not involved here.

mod ads;
mod cache;
mod discover;
mod grpc_call;
mod load_reports;
mod resource;
mod serve;
mod weights;

pub(crate) use cache::CacheHandle;
pub(crate) use serve::serve;

/// The maximum size of a client's message in bytes: the names of a thousand groups, a report on two thousand
/// members. Decoded, it takes at most a hundred times as much, one at a time on each core.
const MAX_MESSAGE: usize = 256 * 1024;

/// Returns a client's text for people: its beginning, on one line.
fn printable(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut printed: String = text.chars().take(MAX_CHARS).map(visible).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        printed.push('…');
    }
    printed
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_clients_say_stays_on_a_line_and_ends() {
        assert_eq!(super::printable("a\nb\u{1b}[0m"), "a b [0m");
        assert_eq!(super::printable(&"ä".repeat(1000)).chars().count(), 301);
    }
}
