//! The run of a balancer and its end: by a signal, by command, or because another process has taken over.

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use plimsoll_admin::{Admin, Audit, Subject as _, UpgradeWish};
use plimsoll_cluster::corba::LoadManager;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::scale::Scalers;
use super::{Exit, Failure, discover, follow, spans};
use crate::config::count;
use crate::doors::note;
use crate::running::names;
use crate::running::{Running, notify};

/// The time for sending the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    upgrade: Signal,
}

impl Signals {
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
    running: &Arc<Running>,
    mut signals: Signals,
    load_manager: Option<LoadManager>,
    audit: Option<Arc<Audit>>,
    sources: discover::Followers,
    admin: &mut Option<Admin>,
) -> Result<ExitCode, Failure> {
    let sources = tokio::spawn(sources.all(Arc::clone(running)));
    let ears = Arc::clone(running);
    let ears = tokio::spawn(async move { ears.listen().await });
    let followers = tokio::spawn(follow::all(Arc::clone(running)));
    let names = tokio::spawn(names::all(Arc::clone(running)));
    let scalers = Scalers::start(Arc::clone(running));
    let no_more = Arc::new(Notify::new());
    let exporter = tokio::spawn(spans::export(Arc::clone(running), Arc::clone(&no_more)));
    let handed_over = loop {
        tokio::select! {
            _ = signals.upgrade.recv() => {
                let (running, audit) = (Arc::clone(running), audit.clone());
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = running.hand_over(&UpgradeWish::default());
                    if let Err(why) = &outcome {
                        tracing::warn!("SIGUSR2: {why}");
                    }
                    note(audit.as_deref(), "SIGUSR2", "upgrade", outcome.as_ref().map(drop).map_err(String::as_str));
                }));
            }
            () = taken(running) => break true,
            _ = signals.hangup.recv() => {
                let (running, audit) = (Arc::clone(running), audit.clone());
                // The result is an event, and so in the log.
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = running.reload();
                    note(audit.as_deref(), "SIGHUP", "reload", outcome.as_ref().map(drop).map_err(String::as_str));
                }));
            }
            _ = signals.terminate.recv() => {
                note(audit.as_deref(), "SIGTERM", "stop", Ok(()));
                break false;
            }
            _ = signals.interrupt.recv() => {
                note(audit.as_deref(), "SIGINT", "stop", Ok(()));
                break false;
            }
            () = running.stopped() => break false,
        }
    };
    // The message to end may have come at the same moment.
    let handed_over = handed_over || running.elder().is_some_and(|elder| elder.heir().is_some());
    if !handed_over {
        scalers.halt().await;
    }
    ears.abort();
    followers.abort();
    names.abort();
    sources.abort();
    running.store().close();
    if !handed_over {
        notify(&[NotifyState::Stopping]);
        let own = Arc::clone(running);
        // The sockets are released before anything is closed here. A panic there has been reported by the
        // panic hook.
        let _ = tokio::task::spawn_blocking(move || own.release_sockets()).await;
    }
    // No application creates a group at a process that is about to end.
    drop(load_manager);
    if handed_over && let Some(admin) = admin.take() {
        // The other process answers now.
        admin.leave();
    }
    let (scalers, left) = match handed_over {
        true => (None, Some(tokio::spawn(scalers.leave()))),
        false => (Some(scalers), None),
    };
    let cut = tokio::select! {
        cut = end(running, handed_over) => Some(cut),
        _ = signals.terminate.recv() => None,
        _ = signals.interrupt.recv() => None,
    };
    let cut = match cut {
        Some(cut) => cut,
        None if !handed_over => return Err(at_once()),
        None => {
            // A step that may take long after an upgrade may not when the process is to end.
            tracing::info!("told to end: connections have until the drain deadline");
            tokio::select! {
                cut = running.engine().stop() => cut,
                _ = signals.terminate.recv() => return Err(at_once()),
                _ = signals.interrupt.recv() => return Err(at_once()),
            }
        }
    };
    if cut > 0 {
        tracing::warn!(
            "{} cut at the drain deadline",
            count(usize::try_from(cut).unwrap_or(usize::MAX), "connection")
        );
    }
    running.leave_fleet();
    no_more.notify_one();
    if tokio::time::timeout(LAST_SPANS, exporter).await.is_err() {
        tracing::warn!("the last spans cannot be sent; they are dropped");
    }
    if let Some(scalers) = scalers {
        // The members that the scalers started are not needed any more.
        scalers.end().await;
    }
    if let Some(left) = left {
        // A panic there has been reported by the panic hook.
        let _ = left.await;
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn at_once() -> Failure {
    Failure::new(Exit::Interrupted, "stopped at once")
}

/// Returns once another process has taken over.
async fn taken(running: &Running) {
    match running.elder() {
        Some(elder) => elder.taken().await,
        None => std::future::pending().await,
    }
}

/// Lets connections end; returns the number that were cut. A process that took over still gets the counts.
async fn end(running: &Arc<Running>, handed_over: bool) -> u64 {
    if !handed_over {
        return running.engine().stop().await;
    }
    let (ended, over) = mpsc::channel::<()>();
    let teller = Arc::clone(running);
    let told = tokio::task::spawn_blocking(move || {
        if let Some(elder) = teller.elder() {
            let over = |wait| over.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout);
            elder.tell_the_rest(teller.engine(), over);
        }
    });
    let cut = running.engine().retire().await;
    // This process gets the counts of its predecessor, and passes them on to the next.
    running.predecessor_told().await;
    drop(ended);
    let _ = told.await;
    cut
}
