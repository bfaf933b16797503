//! Processes under supervision, in virtual time.

use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::supervision::{
    ExitCause, ProcessAction, ProcessPhase, ProcessSupervision, RestartPolicy,
};
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn orders(ward: &mut ProcessSupervision) -> Vec<ProcessAction> {
    std::iter::from_fn(|| ward.poll_action()).collect()
}

fn running() -> ProcessSupervision {
    let mut ward = ProcessSupervision::new(RestartPolicy::default(), Time(0));
    ward.start(Time(0));
    assert_eq!(orders(&mut ward), [ProcessAction::Start]);
    ward
}

/// Returns one that has failed once and was started again at once.
fn again() -> ProcessSupervision {
    let mut ward = running();
    ward.record_exit(ExitCause::Signal(9), 0, Time(0));
    assert_eq!(
        (orders(&mut ward), ward.phase(), ward.poll_timeout()),
        (vec![ProcessAction::Start], ProcessPhase::Running, None)
    );
    assert_eq!((ward.failures(), ward.restarts()), (1, 1));
    ward
}

#[test]
fn a_crash_loop_backs_off_from_a_second_to_a_minute() {
    let (mut ward, mut now, mut pauses) = (again(), Time(0), Vec::new());
    for _ in 0..10 {
        now = now + Duration::from_millis(10);
        ward.record_exit(ExitCause::Signal(11), 0, now);
        assert_eq!(ward.phase(), ProcessPhase::BackingOff);
        let due = ward.poll_timeout().unwrap();
        pauses.push(due.since(now).as_secs());
        ward.handle_timeout(Time(due.0 - 1));
        assert_eq!(orders(&mut ward), [], "too early");
        now = due;
        ward.handle_timeout(now);
        assert_eq!(orders(&mut ward), [ProcessAction::Start]);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    assert_eq!((ward.failures(), ward.restarts()), (11, 11));
}

#[test]
fn who_ran_a_while_begins_anew() {
    let mut ward = again();
    ward.record_exit(ExitCause::Code(1), 0, Time(0) + SECOND);
    let mut now = ward.poll_timeout().unwrap();
    ward.handle_timeout(now);
    now = now + SECOND * 59;
    ward.record_exit(ExitCause::Code(1), 0, now);
    assert_eq!((ward.failures(), ward.poll_timeout().unwrap().since(now)), (3, SECOND * 2));
    now = ward.poll_timeout().unwrap();
    ward.handle_timeout(now);
    orders(&mut ward);
    now = now + SECOND * 60;
    ward.record_exit(ExitCause::Code(1), 0, now);
    assert_eq!(
        (ward.failures(), ward.phase(), orders(&mut ward)),
        (1, ProcessPhase::Running, vec![ProcessAction::Start])
    );
    ward.record_exit(ExitCause::Code(1), 0, now);
    assert_eq!((ward.failures(), ward.poll_timeout().unwrap().since(now)), (2, SECOND));
}

#[test]
fn what_is_wrong_waits_until_it_changes() {
    let mut ward = running();
    orders(&mut ward);
    ward.record_exit(ExitCause::Code(2), 0, Time(0) + SECOND);
    assert_eq!((ward.phase(), ward.poll_timeout()), (ProcessPhase::Failed, None));
    ward.handle_timeout(Time(0) + SECOND * 1_000_000);
    assert_eq!(orders(&mut ward), []);
    let later = Time(0) + SECOND * 100;
    ward.record_config_change(later);
    assert_eq!((orders(&mut ward), ward.phase()), (vec![ProcessAction::Start], ProcessPhase::Running));
    ward.record_config_change(later);
    assert_eq!(orders(&mut ward), [], "it runs already");
    ward.record_exit(ExitCause::Code(2), 0, later);
    ward.start(later);
    assert_eq!(orders(&mut ward), [ProcessAction::Start], "told to");
}

#[test]
fn a_stop_is_final() {
    for ending in
        [ExitCause::Code(0), ExitCause::Code(1), ExitCause::Code(2), ExitCause::Signal(9), ExitCause::Unknown]
    {
        let mut ward = running();
        ward.stop(Time(5));
        assert_eq!(
            (orders(&mut ward), ward.phase()),
            (vec![ProcessAction::Terminate], ProcessPhase::Stopping)
        );
        ward.record_exit(ending, 0, Time(6));
        ward.record_config_change(Time(7));
        ward.handle_timeout(Time(u64::MAX));
        assert_eq!(
            (orders(&mut ward), ward.phase(), ward.poll_timeout()),
            (vec![], ProcessPhase::Stopped, None)
        );
    }
    // Told to end by another program.
    for ending in [ExitCause::Code(0), ExitCause::Code(130), ExitCause::Signal(15), ExitCause::Signal(2)] {
        let mut ward = running();
        ward.record_exit(ending, 0, Time(6));
        assert_eq!(
            (ward.phase(), ward.is_wanted(), orders(&mut ward)),
            (ProcessPhase::Stopped, false, vec![])
        );
    }
}

/// A start command that crosses an orderly end is not lost, once; one long before it does not count.
#[test]
fn a_start_command_for_a_process_that_is_ending_starts_the_next() {
    for (ended, starts) in [(SECOND, 1), (SECOND * 6, 0)] {
        let mut ward = running();
        ward.start(Time(1));
        assert_eq!(orders(&mut ward), []);
        ward.record_exit(ExitCause::Code(0), 0, Time(1) + ended);
        assert_eq!(orders(&mut ward), vec![ProcessAction::Start; starts]);
        ward.record_exit(ExitCause::Code(0), 0, Time(2) + ended);
        assert_eq!(
            (orders(&mut ward), ward.phase(), ward.is_wanted()),
            (vec![], ProcessPhase::Stopped, false)
        );
    }
}

#[test]
fn who_does_not_end_is_killed_once() {
    let mut ward = running();
    ward.stop(Time(0));
    assert_eq!(orders(&mut ward), [ProcessAction::Terminate]);
    assert_eq!(ward.poll_timeout(), Some(Time(0) + SECOND * 30));
    ward.handle_timeout(Time(0) + SECOND * 29);
    assert_eq!(orders(&mut ward), []);
    ward.handle_timeout(Time(0) + SECOND * 30);
    assert_eq!((orders(&mut ward), ward.poll_timeout()), (vec![ProcessAction::Kill], None));
}

#[test]
fn a_restart_ends_before_it_begins() {
    let mut ward = running();
    ward.restart(Time(1));
    assert_eq!((orders(&mut ward), ward.phase()), (vec![ProcessAction::Terminate], ProcessPhase::Stopping));
    ward.restart(Time(2));
    assert_eq!(orders(&mut ward), [], "it is on its way");
    ward.record_exit(ExitCause::Code(0), 0, Time(3));
    assert_eq!((orders(&mut ward), ward.restarts()), (vec![ProcessAction::Start], 1));
    // One that does not run has nothing to end.
    ward.record_exit(ExitCause::Code(1), 0, Time(4));
    assert_eq!(orders(&mut ward), [ProcessAction::Start]);
    ward.record_exit(ExitCause::Code(1), 0, Time(4));
    ward.restart(Time(5));
    assert_eq!((orders(&mut ward), ward.phase()), (vec![ProcessAction::Start], ProcessPhase::Running));
    // The last command counts.
    ward.restart(Time(6));
    ward.stop(Time(7));
    ward.record_exit(ExitCause::Code(0), 0, Time(8));
    assert_eq!(
        (orders(&mut ward), ward.phase()),
        (vec![], ProcessPhase::Stopped),
        "nobody is left to be told"
    );
}

#[test]
fn who_was_found_running_is_left_alone() {
    let mut ward = ProcessSupervision::new(RestartPolicy::default(), Time(0)).with_history(5, 7);
    let now = Time(0) + SECOND * 1000;
    ward.adopt(SECOND * 50, now);
    assert_eq!((orders(&mut ward), ward.phase(), ward.restarts()), (vec![], ProcessPhase::Running, 7));
    assert_eq!(ward.since(), Time(0) + SECOND * 950);
    ward.record_exit(ExitCause::Unknown, 0, now + SECOND);
    assert_eq!(ward.failures(), 6, "51 seconds are not settled");
    let mut missed = ProcessSupervision::new(RestartPolicy::default(), now).with_history(2, 2);
    missed.record_missed_exit(0, now);
    assert_eq!((missed.phase(), missed.failures()), (ProcessPhase::BackingOff, 3));
    assert_eq!(missed.poll_timeout(), Some(now + SECOND * 2));
    let mut missed = ProcessSupervision::new(RestartPolicy::default(), now);
    missed.record_missed_exit(0, now);
    assert_eq!((missed.phase(), orders(&mut missed)), (ProcessPhase::Running, vec![ProcessAction::Start]));
}

#[derive(Clone, Debug)]
enum Call {
    Start,
    Stop,
    Restart,
    Changed,
    Ended(ExitCause, u64),
    /// Milliseconds pass.
    Wait(u64),
    /// Time passes until its next timeout.
    Due,
}

fn any_call() -> impl Strategy<Value = Call> {
    let ending = prop_oneof![
        (-1..140).prop_map(ExitCause::Code),
        (1..32).prop_map(ExitCause::Signal),
        Just(ExitCause::Unstarted),
        Just(ExitCause::Unknown),
    ];
    prop_oneof![
        2 => Just(Call::Start),
        1 => Just(Call::Stop),
        1 => Just(Call::Restart),
        1 => Just(Call::Changed),
        6 => (ending, any::<u64>()).prop_map(|(ending, chance)| Call::Ended(ending, chance)),
        3 => (0_u64..100_000).prop_map(Call::Wait),
        4 => Just(Call::Due),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checks that there is never a second process beside the first, none after a stop, and never an end of
    /// restarts.
    #[test]
    fn a_ward_keeps_its_promises(calls in prop::collection::vec(any_call(), 1..80)) {
        let rules = RestartPolicy::default();
        let (mut ward, mut now) = (ProcessSupervision::new(rules, Time(0)), Time(0));
        // The shell's state: a process, or none.
        let (mut alive, mut wanted) = (false, false);
        // The last start command for a process that runs.
        let mut confirmed = None;
        for call in calls {
            match call {
                Call::Start => {
                    confirmed = Some(now);
                    ward.start(now);
                    wanted = true
                }
                Call::Stop => { ward.stop(now); wanted = false }
                Call::Restart => { ward.restart(now); wanted = true }
                Call::Changed => ward.record_config_change(now),
                Call::Ended(ending, chance) if alive => {
                    let stopping = ward.phase() == ProcessPhase::Stopping;
                    alive = false;
                    ward.record_exit(ending, chance, now);
                    match ward.phase() {
                        ProcessPhase::BackingOff => {
                            let whole = rules.first * (1 << ward.failures().saturating_sub(2).min(20));
                            let whole = whole.min(rules.max_backoff);
                            let pause = ward.poll_timeout().unwrap().since(now);
                            prop_assert!(pause <= whole && pause >= whole / 2, "{pause:?} of {whole:?}");
                        }
                        ProcessPhase::Stopped => {
                            prop_assert!(!wanted || !stopping);
                            wanted = false;
                        }
                        ProcessPhase::Failed => prop_assert_eq!(ending, ExitCause::Code(2)),
                        // Told to restart, failed for the first time, or just told to start.
                        ProcessPhase::Running => {
                            let crossed = confirmed.is_some_and(|at| now.since(at) <= SECOND * 5);
                            prop_assert!(wanted && (stopping || ward.failures() == 1 || crossed));
                        }
                        ProcessPhase::Stopping => prop_assert!(false, "nobody is left to end"),
                    }
                }
                Call::Ended(..) => {}
                Call::Wait(millis) => now = now + Duration::from_millis(millis),
                Call::Due => now = ward.poll_timeout().unwrap_or(now).max(now),
            }
            ward.handle_timeout(now);
            prop_assert!(ward.poll_timeout().is_none_or(|due| due > now), "it would be called for ever");
            while let Some(order) = ward.poll_action() {
                match order {
                    ProcessAction::Start => {
                        prop_assert!(!alive, "one is there already");
                        prop_assert!(wanted, "nobody wants it");
                        alive = true;
                    }
                    ProcessAction::Terminate | ProcessAction::Kill => prop_assert!(alive, "nobody is there"),
                }
            }
            prop_assert_eq!(alive, matches!(ward.phase(), ProcessPhase::Running | ProcessPhase::Stopping));
            prop_assert_eq!(ward.is_wanted(), wanted);
            // Wanted and not running: a timeout, or a change of its configuration, will start it.
            let waits = ward.poll_timeout().is_some() || ward.phase() == ProcessPhase::Failed;
            prop_assert!(!wanted || alive || waits);
        }
    }
}
