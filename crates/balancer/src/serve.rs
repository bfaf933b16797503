//! The run of a balancer and its end: by a signal, by command, or because another process has taken over.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use plimsoll_admin::{AdminServer, AuditLog, BalancerBackend as _, UpgradeRequest};
use plimsoll_cluster::corba::LoadManager;
use plimsoll_config::pluralize;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::admin_endpoints::audit_signal;
use crate::error::BalancerError;
use crate::runtime::name_resolution;
use crate::runtime::{BalancerRuntime, notify_systemd};
use crate::scale::ScalerTasks;
use crate::{discovery, lottery_members, trace_export};

/// The time for sending the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

pub(super) struct BalancerSignals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    upgrade: Signal,
}

impl BalancerSignals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }
}

/// Waits for signals and for the end, and ends the balancer.
pub(super) async fn serve(
    running: &Arc<BalancerRuntime>,
    mut signals: BalancerSignals,
    load_manager: Option<LoadManager>,
    audit: Option<Arc<AuditLog>>,
    sources: discovery::DiscoveryTasks,
    admin: &mut Option<AdminServer>,
) -> Result<(), BalancerError> {
    let sources = tokio::spawn(sources.apply_changes(Arc::clone(running)));
    let ears = Arc::clone(running);
    let ears = tokio::spawn(async move { ears.forward_load_reports().await });
    let followers = tokio::spawn(lottery_members::follow_all(Arc::clone(running)));
    let names = tokio::spawn(name_resolution::run_lookups(Arc::clone(running)));
    let scalers = ScalerTasks::start(Arc::clone(running));
    let no_more = Arc::new(Notify::new());
    let exporter = tokio::spawn(trace_export::export(Arc::clone(running), Arc::clone(&no_more)));
    let handed_over = loop {
        tokio::select! {
            _ = signals.upgrade.recv() => {
                let (running, audit) = (Arc::clone(running), audit.clone());
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = running.hand_over(&UpgradeRequest::default());
                    if let Err(why) = &outcome {
                        tracing::warn!("SIGUSR2: {why}");
                    }
                    let done = outcome.as_ref().map(drop).map_err(String::as_str);
                    audit_signal(audit.as_deref(), "SIGUSR2", "upgrade", done);
                }));
            }
            () = wait_for_takeover(running) => break true,
            _ = signals.hangup.recv() => {
                let (running, audit) = (Arc::clone(running), audit.clone());
                // The result is an event, and so in the log.
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = running.reload();
                    let done = outcome.as_ref().map(drop).map_err(String::as_str);
                    audit_signal(audit.as_deref(), "SIGHUP", "reload", done);
                }));
            }
            _ = signals.terminate.recv() => {
                audit_signal(audit.as_deref(), "SIGTERM", "stop", Ok(()));
                break false;
            }
            _ = signals.interrupt.recv() => {
                audit_signal(audit.as_deref(), "SIGINT", "stop", Ok(()));
                break false;
            }
            () = running.stop_requested() => break false,
        }
    };
    // The message to end may have come at the same moment.
    let handed_over =
        handed_over || running.handoff_source().is_some_and(|elder| elder.successor_pid().is_some());
    if !handed_over {
        scalers.halt().await;
    }
    ears.abort();
    followers.abort();
    names.abort();
    sources.abort();
    running.store().close();
    if !handed_over {
        notify_systemd(&[NotifyState::Stopping]);
        let own = Arc::clone(running);
        // The sockets are released before anything is closed here. A panic there has been reported by the
        // panic hook.
        let _ = tokio::task::spawn_blocking(move || own.release_sockets()).await;
    }
    // No application creates a group at a process that is about to end.
    drop(load_manager);
    if handed_over && let Some(admin) = admin.take() {
        // The other process answers now.
        admin.hand_over();
    }
    let (scalers, left) = match handed_over {
        true => (None, Some(tokio::spawn(scalers.detach()))),
        false => (Some(scalers), None),
    };
    let cut = tokio::select! {
        cut = drain_connections(running, handed_over) => Some(cut),
        _ = signals.terminate.recv() => None,
        _ = signals.interrupt.recv() => None,
    };
    let cut = match cut {
        Some(cut) => cut,
        None if !handed_over => return Err(interrupted_failure()),
        None => {
            // A step that may take long after an upgrade may not when the process is to end.
            tracing::info!("told to end: connections have until the drain deadline");
            tokio::select! {
                cut = running.engine().stop() => cut,
                _ = signals.terminate.recv() => return Err(interrupted_failure()),
                _ = signals.interrupt.recv() => return Err(interrupted_failure()),
            }
        }
    };
    if cut > 0 {
        tracing::warn!(
            "{} cut at the drain deadline",
            pluralize(usize::try_from(cut).unwrap_or(usize::MAX), "connection")
        );
    }
    running.leave_fleet();
    no_more.notify_one();
    if tokio::time::timeout(LAST_SPANS, exporter).await.is_err() {
        tracing::warn!("the last spans cannot be sent; they are dropped");
    }
    if let Some(scalers) = scalers {
        // The members that the scalers started are not needed any more.
        scalers.stop_members().await;
    }
    if let Some(left) = left {
        // A panic there has been reported by the panic hook.
        let _ = left.await;
    }
    tracing::info!("stopped");
    Ok(())
}

fn interrupted_failure() -> BalancerError {
    BalancerError::Interrupted
}

/// Returns once another process has taken over.
async fn wait_for_takeover(running: &BalancerRuntime) {
    match running.handoff_source() {
        Some(elder) => elder.taken_over().await,
        None => std::future::pending().await,
    }
}

/// Lets connections end; returns the number that were cut. A process that took over still gets the counts.
async fn drain_connections(running: &Arc<BalancerRuntime>, handed_over: bool) -> u64 {
    if !handed_over {
        return running.engine().stop().await;
    }
    let (ended, over) = mpsc::channel::<()>();
    let teller = Arc::clone(running);
    let told = tokio::task::spawn_blocking(move || {
        if let Some(elder) = teller.handoff_source() {
            let over = |wait| over.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout);
            elder.send_remaining_counts(teller.engine(), over);
        }
    });
    let cut = running.engine().retire().await;
    // This process gets the counts of its predecessor, and passes them on to the next.
    running.predecessor_reported().await;
    drop(ended);
    let _ = told.await;
    cut
}
