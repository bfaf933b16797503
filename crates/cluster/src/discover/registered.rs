//! Members that agents or operators registered with a balancer. Whoever has the store tells of them: there is nobody to be asked here.

use std::time::Duration;

use super::{Answer, Asking, Source, Told, Way};

/// Members that were registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredSettings {
    /// Where they are kept, for people.
    pub store: String,
}

impl Way for RegisteredSettings {
    fn kind(&self) -> &'static str {
        "registered"
    }

    fn what(&self) -> String {
        self.store.clone()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn again(&self, _: u32) -> Duration {
        Duration::from_secs(60)
    }

    fn open(&self) -> Box<dyn Source> {
        Box::new(Silent)
    }
}

struct Silent;

impl Source for Silent {
    fn ask(&mut self) -> Asking<'_> {
        Box::pin(async { Ok(Answer { told: Told::default(), good_for: Duration::from_secs(3600) }) })
    }
}
