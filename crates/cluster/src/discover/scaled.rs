//! Members that the group's scaler started. Whoever runs the scaler says who they are; asked as other sources are, it says that it is as
//! before.

use std::time::Duration;

use super::{Answer, Asking, Source, Told, Way};

/// Members that the group's scaler started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledSettings {
    /// Who starts them: `process`, `docker`, …
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

/// Between two times that it is asked for nothing.
const ASKED: Duration = Duration::from_secs(5);
