//! What a system can carry, predicted before it is built: layered queueing networks.
//!
//! Clients call servers, which call others while their own callers wait; each has so many threads and runs on a
//! processor that it may share. That is a model ([`Model`]), as defined by Franks and others (Enhanced modeling and
//! solution of layered queueing networks, 2009). It is read from the two formats that tools exchange ([`read()`]),
//! simulated ([`simulate()`]), solved by formulas ([`solve()`]) or both ([`plan()`]), asked ([`ask`]), fitted to
//! measurements ([`fit()`]), drawn ([`draw`]) and written ([`write`](mod@write)).
//!
//! Pure: no files, no clock. Chance comes from a seed, and the same seed gives the same numbers to the bit.

pub mod ask;
pub mod draw;

pub mod fit;
mod markup;
pub mod model;
pub mod plan;
pub mod read;
mod replicas;
pub mod simulate;
pub mod solve;
pub mod write;

pub use fit::fit;
pub use model::Model;
pub use plan::{Plan, anchored_sweep, anchors, is_sure, plan, solved_lines};
pub use read::{Read, Trouble, read};
pub use simulate::{Effort, Estimate, Findings, Replication, Stuck, simulate, simulate_on, simulate_while};
pub use solve::{Convergence, solve};
