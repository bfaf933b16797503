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
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

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
    balancer: &Arc<BalancerRuntime>,
    mut signals: BalancerSignals,
    load_manager: Option<LoadManager>,
    audit: Option<Arc<AuditLog>>,
    discovery_tasks: discovery::DiscoveryTasks,
    admin: &mut Option<AdminServer>,
) -> Result<(), BalancerError> {
    let discovery_task = tokio::spawn(discovery_tasks.apply_changes(Arc::clone(balancer)));
    let report_balancer = Arc::clone(balancer);
    let report_task = tokio::spawn(async move { report_balancer.forward_load_reports().await });
    let lottery_task = tokio::spawn(lottery_members::follow_all(Arc::clone(balancer)));
    let lookup_task = tokio::spawn(name_resolution::run_lookups(Arc::clone(balancer)));
    let scalers = ScalerTasks::start(Arc::clone(balancer));
    let export_stop = Arc::new(Notify::new());
    let export_task = tokio::spawn(trace_export::export(Arc::clone(balancer), Arc::clone(&export_stop)));
    let handed_over = loop {
        tokio::select! {
            _ = signals.upgrade.recv() => {
                let (balancer, audit) = (Arc::clone(balancer), audit.clone());
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = balancer.hand_over(&UpgradeRequest::default());
                    if let Err(error) = &outcome {
                        tracing::warn!("SIGUSR2: {error}");
                    }
                    let done = outcome.as_ref().map(drop).map_err(String::as_str);
                    audit_signal(audit.as_deref(), "SIGUSR2", "upgrade", done);
                }));
            }
            () = wait_for_takeover(balancer) => break true,
            _ = signals.hangup.recv() => {
                let (balancer, audit) = (Arc::clone(balancer), audit.clone());
                // The result is an event, and so in the log.
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = balancer.reload();
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
            () = balancer.stop_requested() => break false,
        }
    };
    // The message to end may have come at the same moment.
    let handed_over =
        handed_over || balancer.handoff_source().is_some_and(|source| source.successor_pid().is_some());
    if !handed_over {
        scalers.halt().await;
    }
    report_task.abort();
    lottery_task.abort();
    lookup_task.abort();
    discovery_task.abort();
    balancer.store().close();
    if !handed_over {
        notify_systemd(&[NotifyState::Stopping]);
        let socket_owner = Arc::clone(balancer);
        // The sockets are released before anything is closed here. A panic there has been reported by the
        // panic hook.
        let _ = tokio::task::spawn_blocking(move || socket_owner.release_sockets()).await;
    }
    // No application creates a group at a process that is about to end.
    drop(load_manager);
    if handed_over && let Some(admin) = admin.take() {
        // The other process answers now. The last answers of this one may take a moment.
        drop(tokio::task::spawn_blocking(move || admin.hand_over()));
    }
    let (scalers, detached) = match handed_over {
        true => (None, Some(tokio::spawn(scalers.detach()))),
        false => (Some(scalers), None),
    };
    let cut_connections = tokio::select! {
        cut = drain_connections(balancer, handed_over) => Some(cut),
        _ = signals.terminate.recv() => None,
        _ = signals.interrupt.recv() => None,
    };
    let cut_connections = match cut_connections {
        Some(count) => count,
        None if !handed_over => return Err(interrupted_failure()),
        None => {
            // A step that may take long after an upgrade may not when the process is to end.
            tracing::info!("stop requested: connections have until the drain deadline");
            tokio::select! {
                cut = balancer.engine().stop() => cut,
                _ = signals.terminate.recv() => return Err(interrupted_failure()),
                _ = signals.interrupt.recv() => return Err(interrupted_failure()),
            }
        }
    };
    if cut_connections > 0 {
        tracing::warn!(
            "{} cut at the drain deadline",
            pluralize(usize::try_from(cut_connections).unwrap_or(usize::MAX), "connection")
        );
    }
    balancer.leave_fleet();
    export_stop.notify_one();
    if tokio::time::timeout(EXPORT_TIMEOUT, export_task).await.is_err() {
        tracing::warn!("the last spans cannot be sent; they are dropped");
    }
    if let Some(scalers) = scalers {
        // The members that the scalers started are not needed any more.
        scalers.stop_members().await;
    }
    if let Some(detached) = detached {
        // A panic there has been reported by the panic hook.
        let _ = detached.await;
    }
    tracing::info!("stopped");
    Ok(())
}

fn interrupted_failure() -> BalancerError {
    BalancerError::Interrupted
}

/// Returns once another process has taken over.
async fn wait_for_takeover(balancer: &BalancerRuntime) {
    match balancer.handoff_source() {
        Some(source) => source.taken_over().await,
        None => std::future::pending().await,
    }
}

/// Lets connections end; returns the number that were cut. A process that took over still gets the counts.
async fn drain_connections(balancer: &Arc<BalancerRuntime>, handed_over: bool) -> u64 {
    if !handed_over {
        return balancer.engine().stop().await;
    }
    let (finished_sender, finished_receiver) = mpsc::channel::<()>();
    let reporter = Arc::clone(balancer);
    let report_task = tokio::task::spawn_blocking(move || {
        if let Some(source) = reporter.handoff_source() {
            let is_over = |wait| finished_receiver.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout);
            source.send_remaining_counts(reporter.engine(), is_over);
        }
    });
    let cut_connections = balancer.engine().retire().await;
    // This process gets the counts of its predecessor, and passes them on to the next.
    balancer.predecessor_reported().await;
    drop(finished_sender);
    let _ = report_task.await;
    cut_connections
}
