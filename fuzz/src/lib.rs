//! The laws that the targets check, shared with the tests. Laws beside a parser are in the `laws` of its
//! crate, which exists with `--cfg fuzzing` only.

#[path = "../../crates/wire/tests/laws/mod.rs"]
mod laws;
#[path = "../../crates/lqn/tests/laws/mod.rs"]
mod models;

/// Panics if these bytes break the law of that name.
pub fn check(law: &str, input: &[u8]) {
    match laws::ALL.iter().find(|known| known.name == law) {
        Some(law) => {
            (law.check)(input);
        }
        None => panic!("there is no law {law}"),
    }
}

/// Panics if these bytes are a model that changes when it is written and read again.
pub fn model(input: &[u8]) {
    models::check(input);
}
