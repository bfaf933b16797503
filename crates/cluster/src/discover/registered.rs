//! Members that agents or operators registered with a balancer. The owner of the store reports them; this
//! source only states that they are unchanged.

use std::time::Duration;

use super::{Answer, Asking, Source, Told, Way};

/// The settings of registered members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredSettings {
    /// The name of the store, for people.
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
