//! Redirects: clients get a member's reference and connect to it directly (LOCATION_FORWARD).
//!
//! From then on the balancer does not see them until they return: because the member shed them, because it is
//! gone, or because they have another reference to the group. Therefore:
//!
//! - A member's presence is verified first ([`super::liveness`]).
//! - A client that returns is not redirected to the same member if there is another.
//! - While members are under alert, a client that returns at once is delayed: an ORB follows redirects as
//!   fast as it gets them, and would otherwise circle thousands of times per second.
//! - A client is delayed as well if members send clients away on their own, and all of them do.

use std::rc::Rc;
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};

use super::call::GiopCall;
use super::liveness::MemberPresence;
use super::redirect_rate::RedirectBucket;
use crate::BindingMode;
use crate::listener::session_binding::SessionBinding;
use crate::net::reason::Reason;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::admission::{self, admit};
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{GroupPool, WorkKind};

/// A client that returns after a longer time has not fled from its member.
const FLEE_WINDOW: Duration = Duration::from_secs(10);

/// The delay of a client while all members send theirs away, and the interval of checking the members
/// meanwhile.
const ALL_SHEDDING_DELAY: Duration = Duration::from_millis(250);
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A connection's memory of its client's redirects.
#[derive(Default)]
pub(super) struct RedirectState {
    binding: SessionBinding,
    /// Counts the client with its member while its connection shows that it is there.
    in_flight: Option<InFlight>,
    last_redirect: Option<(MemberId, Time)>,
    bucket: RedirectBucket,
}

/// Answers with a member's reference.
pub(super) async fn redirect(call: GiopCall, redirect_state: &mut RedirectState, timer: &Timer) {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    let mut tried: Vec<MemberId> = Vec::new();
    // While the client asks, it is at no member.
    redirect_state.in_flight = None;
    pool.begin_session_choice();
    let reads_key = pool.view().published.plan.strategy().reads_key;
    let mut avoided_member = None;
    if let Some((member, since)) = redirect_state.last_redirect {
        pool.iiop.liveness.mark_doubtful(member);
        // A key binds the client to that member, if it is there.
        avoided_member = Some(member).filter(|_| !reads_key && call.started_at.since(since) < FLEE_WINDOW);
        tried.extend(avoided_member);
    }
    if pool.view().alert {
        let delay = redirect_state.redirect_delay(&pool, &call);
        if !delay.is_zero() {
            core.wheel.sleep(delay).await;
        }
    }
    let key = if reads_key { crate::settings::hash_key::client_key(session.peer.client.ip()) } else { 0 };
    let deadline = core.tick() + pool.view().published.settings.queue_timeout;
    let on_demand = matches!(session.listener.settings().binding, BindingMode::OnDemand(_));
    let mut last_reason = Reason::NoMember;
    let mut any_shedding = false;
    let (mut any_silent, mut accept_silent) = (false, false);
    loop {
        let view = pool.view();
        let returning = match on_demand && tried.len() == usize::from(avoided_member.is_some()) {
            true => admission::admit_returning(core, &pool, &view, core.now())
                .filter(|in_flight| !tried.contains(&in_flight.member())),
            false => None,
        };
        let admitted = match returning {
            Some(in_flight) => Ok(in_flight),
            None => admit(core, &pool, timer, key, &tried, WorkKind::Session, deadline).await,
        };
        let mut in_flight = match admitted {
            Ok(in_flight) => in_flight,
            Err(Reason::NoMember) => match avoided_member.take() {
                // There is no other member: this one may be there all the same.
                Some(member) => {
                    tried.retain(|other| *other != member);
                    continue;
                }
                // All members that are there send their clients away.
                None if std::mem::take(&mut any_shedding) && !session.write_queue.is_closed() => {
                    tried.clear();
                    core.wheel.sleep(CHECK_INTERVAL).await;
                    core.tick();
                    continue;
                }
                // None answers: all may be busy.
                None if std::mem::take(&mut any_silent) => {
                    accept_silent = true;
                    tried.clear();
                    continue;
                }
                None => return call.reply_failure(last_reason),
            },
            Err(reason) => return call.reply_failure(reason),
        };
        let chosen_view = Rc::clone(in_flight.view());
        let iiop = chosen_view.published.settings.iiop.as_ref();
        let Some(object) = iiop.and_then(|iiop| iiop.objects.get(in_flight.name())) else {
            tried.push(in_flight.member());
            continue;
        };
        match pool.iiop.liveness.verify(core, &in_flight, object.key()).await {
            MemberPresence::Present => {}
            // A client that has waited is redirected there all the same: the member will decide.
            MemberPresence::Shedding if core.now() >= call.started_at + ALL_SHEDDING_DELAY => {}
            MemberPresence::Silent if accept_silent => {}
            presence => {
                last_reason =
                    if presence == MemberPresence::Shedding { Reason::Shed } else { Reason::ConnectFailed };
                any_silent |= presence == MemberPresence::Silent;
                any_shedding |= presence == MemberPresence::Shedding;
                tried.push(in_flight.member());
                avoided_member = avoided_member.filter(|member| *member != in_flight.member());
                continue;
            }
        }
        let now = core.now();
        // Otherwise the client may have another reference, or its member may be gone.
        if on_demand
            && view.alert
            && redirect_state.last_redirect.is_some_and(|(member, _)| member != in_flight.member())
        {
            redirect_state.binding.record_move(Some(&in_flight));
        }
        redirect_state.binding.hold(&session.listener, &in_flight);
        redirect_state.last_redirect = Some((in_flight.member(), now));
        in_flight.record_redirect(now);
        in_flight.release_plan();
        redirect_state.in_flight = Some(in_flight);
        return call.reply_forward(object.ior());
    }
}

impl RedirectState {
    /// Returns the delay of a client that returns while members are under alert: by its connection, and for a
    /// new connection also by its address.
    fn redirect_delay(&mut self, pool: &GroupPool, call: &GiopCall) -> Duration {
        let connection_delay = self.bucket.take_token(call.started_at, CONNECTION_BURST, 1);
        if self.last_redirect.is_some() {
            return connection_delay;
        }
        let mut buckets = pool.iiop.redirect_buckets.borrow_mut();
        let address = call.session.peer.client.ip();
        if !buckets.contains_key(&address) {
            // Full buckets hold no information. They are not removed each time, but whenever the number of
            // entries has doubled.
            if buckets.len() >= BUCKET_SWEEP_SIZE && buckets.len().is_power_of_two() {
                buckets.retain(|_, bucket| !bucket.is_full(call.started_at));
            }
            if buckets.len() >= MAX_BUCKETS {
                return connection_delay;
            }
        }
        let bucket = buckets.entry(address).or_default();
        let cores = pool.group.counters.len() as u32;
        connection_delay.max(bucket.take_token(call.started_at, ADDRESS_BURST, cores))
    }
}

/// The number of addresses from which full buckets are removed, and the maximum.
const BUCKET_SWEEP_SIZE: usize = 1024;
const MAX_BUCKETS: usize = 65_536;

/// The burst of redirects for a connection, and for all from one address; further ones come at 40 per second.
const CONNECTION_BURST: u32 = 4;
const ADDRESS_BURST: u32 = 64;
