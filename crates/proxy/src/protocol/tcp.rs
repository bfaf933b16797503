//! TCP byte streams: a choice per connection.
//!
//! If a connection to a member cannot be made, other members are tried. Nothing was sent yet, so that is
//! always safe. From then on the session belongs to its member, whatever the plan; a member that is drained,
//! ejected or down keeps its sessions.
//!
//! Where clients are bound on demand and the listener allows it, an idle session leaves a member under alert:
//! both connections are closed, and the client reconnects.
//!
//! A session without a member is reset and not closed regularly: an end would look like a response.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};

use crate::listener::Listener;
use crate::listener::relay::{self, IdlePolicy, RelayOutcome, RelaySide};
use crate::listener::session_binding::SessionBinding;
use crate::net::byte_stream::ByteStream;
use crate::net::connection::PeerConnection;
use crate::net::reason::Reason;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::admission::{self, admit};
use crate::upstream::connect::{PeerAddresses, connect_member};
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{GroupPool, WorkKind};
use crate::upstream::side_car::{AlertState, MeterGuard};
use crate::upstream::thread_context::ThreadContext;
use crate::{BindingMode, RebindMode};

/// Serves one client connection until it ends. `ahead` are bytes that were already read from it.
pub(crate) async fn serve<S: ByteStream>(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    mut client: S,
    peer: PeerAddresses,
    unread: Vec<u8>,
) {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let pool = listener.pool();
    let started_at = core.tick();
    let mut binding = SessionBinding::default();
    let mut meter = MeterGuard::default();
    let mut alert_state = AlertState::default();
    if let Some(side_car) = &pool.group.side_car {
        let refuse = pool.view().published.settings.side_car.as_ref().is_some_and(|settings| settings.refuse);
        (meter, alert_state) =
            (MeterGuard::begin(side_car, refuse, started_at), AlertState::begin(Some(side_car)));
        if !meter.rejection_header().is_empty() {
            pool.group.record_rejection(core.index, Reason::Shed);
            client.abort();
            return;
        }
    }
    // On the heap: a session needs it only once, and it would enlarge the session for its whole life.
    let connected = Box::pin(connect_session(&core, &listener, &pool, &timer, &peer, started_at)).await;
    let (mut in_flight, mut member) = match connected {
        Ok(connected) => connected,
        Err(reason) => {
            pool.group.record_rejection(core.index, reason);
            pool.counters().latency.record(core.tick().since(started_at));
            client.abort();
            return;
        }
    };
    binding.hold(&listener, &in_flight);
    in_flight.release_plan();
    let idle = listener.settings().timeouts.idle;
    let shed_idle = in_flight.settings().side_car.as_ref().and_then(|settings| settings.shed_idle);
    let mut leave_check = |now| {
        should_leave(&core, &listener, &mut binding, now)
            || (shed_idle.is_some() && alert_state.should_leave(|| core.random_bits()))
    };
    let idle_policy = IdlePolicy {
        idle,
        move_check: move_idle(&listener)
            .or(shed_idle)
            .map(|interval| (interval, &mut leave_check as &mut dyn FnMut(Time) -> bool)),
    };
    let outcome =
        relay::copy(&core, &timer, idle_policy, (&mut client, &mut member), unread, &in_flight.upstream)
            .await;
    if outcome.should_move {
        binding.record_move(None);
        relay::part(&core, &timer, (&mut client, &mut member)).await;
    }
    if outcome.reset {
        client.abort();
        member.abort();
    }
    let now = core.tick();
    pool.counters().latency.record(now.since(started_at));
    meter.end(outcome.broken_side != Some(RelaySide::Member), now);
    record_outcome(in_flight, outcome, now);
}

/// Returns a place for a session while a member is under alert, where clients are bound on demand: its
/// previous connection may have been closed to be bound anew.
fn admit_returning(
    core: &ThreadContext,
    listener: &Listener,
    pool: &GroupPool,
    now: Time,
) -> Option<InFlight> {
    match listener.settings().binding {
        BindingMode::OnDemand(_) => admission::admit_returning(core, pool, &pool.view(), now),
        BindingMode::PerRequest | BindingMode::PerSession => None,
    }
}

/// Returns the idle time after which a connection may be closed to be bound anew; `None` for never.
fn move_idle(listener: &Listener) -> Option<Duration> {
    let settings = listener.settings();
    match settings.binding {
        BindingMode::OnDemand(RebindMode::Silent) => Some(settings.move_idle).filter(|idle| !idle.is_zero()),
        _ => None,
    }
}

/// Returns `true` if this idle session is due to leave its member.
fn should_leave(core: &ThreadContext, listener: &Listener, binding: &mut SessionBinding, now: Time) -> bool {
    let view = listener.pool().view();
    view.alert && move_idle(listener).is_some() && binding.should_leave(&view, core.random_bits(), now)
}

/// Returns a connection to a member that accepts this session.
async fn connect_session(
    core: &ThreadContext,
    listener: &Listener,
    pool: &GroupPool,
    timer: &Timer,
    peer: &PeerAddresses,
    started_at: Time,
) -> Result<(InFlight, PeerConnection), Reason> {
    pool.deposit(started_at);
    pool.begin_session_choice();
    let reads_key = pool.view().published.plan.strategy().reads_key;
    let key = if reads_key { crate::settings::hash_key::client_key(peer.client.ip()) } else { 0 };
    let no_deadline = Time(u64::MAX);
    let mut tried: Vec<MemberId> = Vec::new();
    let mut last_reason = Reason::NoMember;
    loop {
        let returning =
            if tried.is_empty() { admit_returning(core, listener, pool, started_at) } else { None };
        let in_flight = match returning {
            Some(in_flight) => Ok(in_flight),
            None => admit(core, pool, timer, key, &tried, WorkKind::Session, no_deadline).await,
        };
        let in_flight = match in_flight {
            Ok(in_flight) => in_flight,
            Err(Reason::NoMember) => return Err(last_reason),
            Err(reason) => return Err(reason),
        };
        match connect_member(core, &in_flight, timer, no_deadline, peer).await {
            Ok(stream) => return Ok((in_flight, stream)),
            // Further attempts would only blame the other members, too.
            Err(Reason::Exhausted) => {
                in_flight.abandon();
                return Err(Reason::Exhausted);
            }
            Err(reason) => last_reason = reason,
        }
        let now = core.tick();
        let attempts = in_flight.settings().retry.attempts as usize;
        let member = in_flight.member();
        in_flight.finish_failure(FailureCause::Reason(last_reason), now);
        if tried.len() >= attempts || !pool.withdraw(now) {
            return Err(last_reason);
        }
        tried.push(member);
    }
}

/// Records a session's finding about its member: one that breaks off has failed; one that sends nothing may
/// have had nothing to send.
fn record_outcome(in_flight: InFlight, outcome: RelayOutcome, now: Time) {
    match outcome.broken_side {
        Some(RelaySide::Member) => in_flight.finish_failure(FailureCause::IncompleteResponse, now),
        _ if outcome.heard => in_flight.finish_success(now),
        _ => in_flight.finish_neutral(now),
    }
}
