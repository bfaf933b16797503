//! Lists of members and their law, at the same relative paths as in the configuration, which belongs to a
//! program that no crate can depend on.

#[path = "../../crates/cli/src/config/address.rs"]
mod address;
#[path = "../../crates/cli/src/config/text/made.rs"]
mod text;

pub(crate) use address::MemberAddress;

mod root {
    pub(crate) fn one() -> f64 {
        1.0
    }
}

#[path = "../../crates/cli/src/config/members"]
pub(crate) mod members {
    mod json;
    pub(crate) mod law;
}
