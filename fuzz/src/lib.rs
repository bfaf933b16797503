//! What the targets check, from where the tests check it, too.

#[path = "../../crates/wire/tests/laws/mod.rs"]
mod laws;
#[path = "../../crates/lqn/tests/laws/mod.rs"]
mod models;

mod domain;
#[expect(dead_code, reason = "the target needs a part of it")]
mod lottery;

/// Panics if these bytes break the law of that name.
pub fn check(law: &str, input: &[u8]) {
    match laws::ALL.iter().find(|known| known.name == law) {
        Some(law) => {
            (law.check)(input);
        }
        None => panic!("there is no law {law}"),
    }
}

/// Panics if these bytes are a model that is another when it has been written and read again.
pub fn model(input: &[u8]) {
    models::check(input);
}

/// Panics if these bytes, sent to a DNS listener, break its law.
pub fn dns(input: &[u8]) {
    domain::law::check(input);
}

/// Panics if these bytes, said by a daemon of the lottery, break the law of gossip.
pub fn gossip(input: &[u8]) {
    lottery::law::check(input);
}
