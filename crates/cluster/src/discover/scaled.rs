//! Members that the group's scaler started. The scaler's owner reports them; this source only states that
//! they are unchanged.

use std::time::Duration;

use super::{Answer, Asking, Source, Told, Way};

/// The settings of the scaler's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledSettings {
    /// The name of the provider: `process`, `docker`, …
    pub provider: &'static str,
}

impl Way for ScaledSettings {
    fn kind(&self) -> &'static str {
        "scaler"
    }

    fn what(&self) -> String {
        self.provider.to_owned()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn again(&self, _: u32) -> Duration {
        ASKED
    }

    fn open(&self) -> Box<dyn Source> {
        Box::new(Pushed)
    }
}

struct Pushed;

impl Source for Pushed {
    fn ask(&mut self) -> Asking<'_> {
        Box::pin(async { Ok(Answer { told: Told { members: None, note: None }, good_for: ASKED }) })
    }
}

/// The interval of queries, which change nothing.
const ASKED: Duration = Duration::from_secs(5);
