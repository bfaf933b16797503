//! When a group begins to refuse requests because its members have as many as they can work on, and when that is over.

use std::time::Duration;

use plimsoll_brain::{Event, EventKind, Time};

use crate::reason::Reason;

/// It is over when none was refused for so long.
const CALM: Duration = Duration::from_secs(10);

/// Requests of a group that were refused for want of room, as far as events told of them.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Up to the last look.
    seen: u64,
    spell: Option<Spell>,
}

/// A time of refusals.
#[derive(Debug)]
struct Spell {
    since: Time,
    last: Time,
    count: u64,
}

impl Refusals {
    /// Which of the reasons counts here.
    pub(crate) const REASON: Reason = Reason::Shed;

    /// Its kinds of events: it begins, and it is over.
    pub(crate) const KINDS: [EventKind; 2] = [EventKind::Shedding, EventKind::ShedEnded];

    /// Goes on where a process before this one stopped, by the last event that it wrote: it told that it has begun, and this one tells
    /// the end.
    pub(crate) fn recall(&mut self, last: Option<EventKind>, now: Time) {
        if last == Some(EventKind::Shedding) {
            self.spell.get_or_insert(Spell { since: now, last: now, count: 0 });
        }
    }

    /// Returns when the refusals began that go on.
    pub(crate) fn since(&self) -> Option<Time> {
        self.spell.as_ref().map(|spell| spell.since)
    }

    /// So many were refused so far; what there is to be told of it. `in_flight`: requests that the members work on.
    pub(crate) fn look(&mut self, refused: u64, in_flight: u32, group: &str, now: Time) -> Option<Event> {
        let new = refused.saturating_sub(std::mem::replace(&mut self.seen, refused));
        let event = |kind, why, inputs: [(&str, f64); 2]| {
            let inputs = inputs.map(|(name, value)| (name.to_owned(), value)).to_vec();
            Some(Event { kind, group: group.into(), member: None, why, inputs })
        };
        match &mut self.spell {
            None if new == 0 => None,
            None => {
                self.spell = Some(Spell { since: now, last: now, count: new });
                let requests =
                    if new == 1 { "1 request was".to_owned() } else { format!("{new} requests were") };
                let why = format!("{requests} refused: its members have as many as they can work on");
                event(
                    EventKind::Shedding,
                    why,
                    [("refused", new as f64), ("in_flight", f64::from(in_flight))],
                )
            }
            Some(spell) if new > 0 => {
                spell.last = now;
                spell.count += new;
                None
            }
            Some(spell) if now.since(spell.last) >= CALM => {
                let lasted = spell.last.since(spell.since).as_secs_f64() + 1.0;
                let count = spell.count;
                self.spell = None;
                let calm = CALM.as_secs();
                let before = match count {
                    // Those that the process before this one has refused are not known.
                    0 => String::new(),
                    1 => format!("; 1 was in {lasted:.0} s before"),
                    _ => format!("; {count} were in {lasted:.0} s before"),
                };
                let why = format!("no request was refused for {calm} s{before}");
                event(EventKind::ShedEnded, why, [("refused", count as f64), ("seconds", lasted)])
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_that_it_begins_and_once_that_it_is_over() {
        let mut refusals = Refusals::default();
        let mut said = Vec::new();
        let mut refused = 0;
        for second in 0..40 {
            refused += match second {
                3 => 7,
                4 | 9 => 1,
                _ => 0,
            };
            let now = Time(0) + Duration::from_secs(second);
            said.extend(refusals.look(refused, 12, "web", now).map(|event| (second, event.kind, event.why)));
            let goes_on = (3..19).contains(&second).then_some(Time(0) + Duration::from_secs(3));
            assert_eq!(refusals.since(), goes_on, "at {second} s");
        }
        let why = |text: &str| text.to_owned();
        assert_eq!(
            said,
            [
                (
                    3,
                    EventKind::Shedding,
                    why("7 requests were refused: its members have as many as they can work on")
                ),
                (19, EventKind::ShedEnded, why("no request was refused for 10 s; 9 were in 7 s before")),
            ]
        );
    }

    #[test]
    fn what_the_process_before_has_begun_this_one_ends() {
        let at = |second| Time(0) + Duration::from_secs(second);
        let mut refusals = Refusals::default();
        refusals.recall(Some(EventKind::ShedEnded), at(0));
        assert_eq!(refusals.look(0, 0, "web", at(60)), None);
        refusals.recall(Some(EventKind::Shedding), at(60));
        assert_eq!(refusals.look(0, 0, "web", at(69)), None);
        let over = refusals.look(0, 0, "web", at(70)).map(|event| (event.kind, event.why));
        assert_eq!(over, Some((EventKind::ShedEnded, "no request was refused for 10 s".to_owned())));
    }
}
