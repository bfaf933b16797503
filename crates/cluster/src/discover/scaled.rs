//! Members that the group's scaler started. The scaler's owner reports them; this source only states that
//! they are unchanged.

use std::time::Duration;

use super::{MemberList, MemberSource, QueryFuture, QueryOutcome, SourceConfig};

/// The settings of the scaler's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledSettings {
    /// The name of the provider: `process`, `docker`, …
    pub provider: &'static str,
}

impl SourceConfig for ScaledSettings {
    fn kind(&self) -> &'static str {
        "scaler"
    }

    fn target(&self) -> String {
        self.provider.to_owned()
    }

    fn query_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn retry_delay(&self, _: u32) -> Duration {
        QUERY_INTERVAL
    }

    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(ScalerSource)
    }
}

struct ScalerSource;

impl MemberSource for ScalerSource {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async {
            Ok(QueryOutcome { list: MemberList { members: None, note: None }, valid_for: QUERY_INTERVAL })
        })
    }
}

/// The interval of queries, which change nothing.
const QUERY_INTERVAL: Duration = Duration::from_secs(5);
