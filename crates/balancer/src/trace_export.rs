//! The export of spans: traced requests become spans for the collector, beside the data plane, which never
//! waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_admin::{OtlpCollector, SpanExporter};
use plimsoll_proxy::FinishedTrace;
use plimsoll_wire::otlp::Span;
use tokio::sync::{Notify, watch};

use crate::runtime::BalancerRuntime;

/// The approximate number of spans that are sent at once.
const MAX_BATCH: usize = 512;

/// Sends for ever; after `stop` it sends the rest and ends.
pub(super) async fn export(balancer: Arc<BalancerRuntime>, stop: Arc<Notify>) {
    let Some(mut traces) = balancer.engine().traces() else { return };
    let counts = balancer.engine().span_counters();
    let mut collector = balancer.collector();
    let mut exporter = open_exporter(&mut collector);
    let mut is_stopping = false;
    loop {
        let mut spans = Vec::new();
        if !is_stopping {
            tokio::select! {
                batch = traces.recv() => append_spans(&mut spans, batch.unwrap_or_default()),
                changed = collector.changed() => {
                    if changed.is_ok() {
                        exporter = open_exporter(&mut collector);
                    }
                    continue;
                }
                () = stop.notified() => is_stopping = true,
            }
        }
        while spans.len() < MAX_BATCH
            && let Ok(batch) = traces.try_recv()
        {
            append_spans(&mut spans, batch);
        }
        if spans.is_empty() && is_stopping {
            return;
        }
        let count = spans.len() as u64;
        let exported = match &mut exporter {
            Some(exporter) => exporter.send(spans).await as u64,
            None => 0,
        };
        counts.exported.fetch_add(exported, Relaxed);
        counts.dropped.fetch_add(count.saturating_sub(exported), Relaxed);
    }
}

fn append_spans(spans: &mut Vec<Span>, batch: Vec<FinishedTrace>) {
    spans.extend(batch.iter().flat_map(FinishedTrace::spans));
}

fn open_exporter(collector: &mut watch::Receiver<Option<OtlpCollector>>) -> Option<SpanExporter> {
    let collector = collector.borrow_and_update().clone()?;
    let url = collector.url.to_string();
    SpanExporter::new(collector)
        .inspect_err(|error| tracing::error!("no spans can be sent to {url}: {error}"))
        .ok()
}
