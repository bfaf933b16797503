//! Layered queueing networks: predicts the capacity of a system before it is built.
//!
//! Clients call servers, which call other servers while their own callers wait. Each has a number of threads
//! and runs on a processor, which it may share. The model ([`Model`]) is that of Franks and others (Enhanced
//! modeling and solution of layered queueing networks, 2009). It is read from the two formats that tools
//! exchange ([`read()`]), simulated ([`simulate()`]), solved analytically ([`solve()`]) or both
//! ([`combine_estimates`]). It answers questions ([`analysis`]), is fitted to measurements ([`fit()`]), drawn
//! ([`draw`]) and written ([`write`](mod@write)).
//!
//! The crate is pure: it uses no files and no clock. Random numbers come from a seed, and equal seeds give
//! results that are equal to the bit.

pub mod analysis;
pub mod draw;

pub mod combined;
pub mod fit;
mod markup;
pub mod model;
pub mod read;
mod replicas;
pub mod simulate;
pub mod solve;
pub mod write;

pub use combined::{CombinedEstimate, anchored_sweep, anchors, combine_estimates, is_reliable, solved_lines};
pub use fit::fit;
pub use model::Model;
pub use read::{InputError, ParsedModel, read};
pub use simulate::{
    Estimate, ModelResults, Replication, SimulationEffort, SimulationError, simulate, simulate_on,
    simulate_while,
};
pub use solve::{Convergence, solve};
