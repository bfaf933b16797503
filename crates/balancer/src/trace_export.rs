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
const MOST: usize = 512;

/// Sends for ever; after `stop` it sends the rest and ends.
pub(super) async fn export(running: Arc<BalancerRuntime>, stop: Arc<Notify>) {
    let Some(mut traced) = running.engine().traces() else { return };
    let counts = running.engine().span_counters();
    let mut collector = running.collector();
    let mut exporter = open(&mut collector);
    let mut ending = false;
    loop {
        let mut spans = Vec::new();
        if !ending {
            tokio::select! {
                batch = traced.recv() => add(&mut spans, batch.unwrap_or_default()),
                changed = collector.changed() => {
                    if changed.is_ok() {
                        exporter = open(&mut collector);
                    }
                    continue;
                }
                () = stop.notified() => ending = true,
            }
        }
        while spans.len() < MOST
            && let Ok(batch) = traced.try_recv()
        {
            add(&mut spans, batch);
        }
        if spans.is_empty() && ending {
            return;
        }
        let count = spans.len() as u64;
        let taken = match &mut exporter {
            Some(exporter) => exporter.send(spans).await as u64,
            None => 0,
        };
        counts.exported.fetch_add(taken, Relaxed);
        counts.dropped.fetch_add(count.saturating_sub(taken), Relaxed);
    }
}

fn add(spans: &mut Vec<Span>, batch: Vec<FinishedTrace>) {
    spans.extend(batch.iter().flat_map(FinishedTrace::spans));
}

fn open(collector: &mut watch::Receiver<Option<OtlpCollector>>) -> Option<SpanExporter> {
    let collector = collector.borrow_and_update().clone()?;
    let url = collector.url.to_string();
    SpanExporter::new(collector)
        .inspect_err(|why| tracing::error!("no spans can be sent to {url}: {why}"))
        .ok()
}
