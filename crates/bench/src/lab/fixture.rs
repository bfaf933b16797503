//! A small experiment for tests.

use super::experiment::Experiment;

pub(super) const TEXT: &str = r#"
title = "A test"
about = "Nothing"

[members]
service = "const:1ms"

[load]
keep_alive = false

[plan]
repetitions = { full = 2, quick = 1 }
batches = { full = 3, quick = 5 }
warmup = { full = "1s", quick = "100ms" }
duration = { full = "3s", quick = "1s" }

[[factor]]
vary = "endpoints"
full = [0, 2]
quick = [1]

[[factor]]
vary = "balancer"
full = ["plimsoll:round_robin", "haproxy"]
quick = ["plimsoll"]

[[factor]]
vary = "concurrency"
full = [10, 20]
quick = [10]

[[figure]]
name = "response"
title = "Response time"
x = "seconds"
y = "response"
paper = "It grows."

[[claim]]
says = "No request fails"
test = { at_least = { metric = "success", value = 1 } }
"#;

pub(super) fn experiment() -> Experiment {
    Experiment::parse(TEXT).unwrap_or_else(|errors| panic!("{errors:?}"))
}
