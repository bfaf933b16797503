//! Groups on the same hosts: they chase each other if each uses the whole load of a host, and do not if the
//! load is divided.

#[expect(dead_code, reason = "other tests draw more")]
mod dice;

use std::time::Duration;

use dice::Dice;
use plimsoll_brain::shared_hosts::{HostWork, LoadAttribution, SharedHosts};
use plimsoll_brain::{Event, Time};

/// Groups that spread their work over two hosts. At each report each moves the amount that would equalize the
/// loads it sees.
struct Groups {
    /// The work of each at the first host and at the second.
    work: Vec<[f64; 2]>,
    apart: Vec<[LoadAttribution; 2]>,
    told_apart: bool,
}

impl Groups {
    fn new(work: &[[f64; 2]], told_apart: bool) -> Self {
        Self { work: work.to_vec(), apart: vec![[LoadAttribution::default(); 2]; work.len()], told_apart }
    }

    /// Returns the excess of the first host.
    fn error(&self) -> f64 {
        self.work.iter().map(|[first, second]| first - second).sum()
    }

    /// Runs a report of both hosts, as each group sees it, and the response of each.
    fn step(&mut self) {
        let loads = [0, 1].map(|host: usize| self.work.iter().map(|work| work[host]).sum::<f64>());
        let groups = self.work.len() as u32;
        for (work, apart) in self.work.iter_mut().zip(&mut self.apart) {
            let mut seen = loads;
            if self.told_apart {
                for host in 0..2 {
                    apart[host].set_share((work[host] / loads[host].max(1e-9), groups));
                    seen[host] = apart[host].attributed_load(loads[host]);
                }
            }
            let moved = ((seen[0] - seen[1]) / 2.0).clamp(-work[1], work[0]);
            *work = [work[0] - moved, work[1] + moved];
        }
    }
}

/// Returns the greatest error among the last of many steps, and the number of its sign changes.
fn run(mut groups: Groups) -> (f64, u32) {
    let (mut last, mut turns, mut worst) = (groups.error(), 0, 0.0_f64);
    for step in 0..200 {
        groups.step();
        let error = groups.error();
        turns += u32::from(error * last < -1e-9);
        if step >= 150 {
            worst = worst.max(error.abs());
        }
        last = error;
    }
    (worst, turns)
}

#[test]
fn groups_that_go_by_all_that_is_told_chase_each_other_and_those_that_tell_it_apart_do_not() {
    let mut dice = Dice::new(1, 1);
    for count in [2, 3, 5] {
        for _ in 0..20 {
            let work: Vec<[f64; 2]> =
                (0..count).map(|_| [dice.between(40.0, 80.0), dice.between(20.0, 60.0)]).collect();
            let begun = Groups::new(&work, false).error().abs();
            let (worst, turns) = run(Groups::new(&work, false));
            assert!(
                worst >= 0.99 * begun && turns > 190,
                "{count} groups: {worst} of {begun}, {turns} turns"
            );
            let (worst, turns) = run(Groups::new(&work, true));
            // The first report corrects too much once: the others' responses are unknown yet.
            assert!(worst < 0.02 * begun && turns <= 2, "{count} groups: {worst} of {begun}, {turns} turns");
        }
    }
}

#[test]
fn who_is_alone_goes_by_what_is_told() {
    let mut apart = LoadAttribution::default();
    assert_eq!((apart.attributed_load(0.7), apart.attributed_load(0.2)), (0.7, 0.2));
    apart.set_share((0.5, 2));
    assert_eq!(apart.attributed_load(0.8), 0.8);
    // Its own part counts at once, a quarter of the others' with each report.
    assert!((apart.attributed_load(0.4) - (0.2 + 0.4 - 0.05)).abs() < 1e-12);
    apart.set_share((1.0, 1));
    assert_eq!(apart.attributed_load(0.3), 0.3);
}

fn stake(host: &str, group: &str, busy: f64) -> HostWork {
    HostWork { host: host.into(), group: group.into(), mean_in_progress: busy }
}

fn at(second: u64) -> Time {
    Time(1) + Duration::from_secs(second)
}

fn events(neighbours: &mut SharedHosts) -> Vec<Event> {
    std::iter::from_fn(|| neighbours.poll_event()).collect()
}

#[test]
fn parts_go_by_what_is_at_work_and_each_group_is_told_of_the_others() {
    let mut neighbours = SharedHosts::default();
    let busy = [stake("h1", "web", 1.0), stake("h1", "batch", 3.0), stake("h2", "web", 5.0)];
    for second in 0..60 {
        neighbours.observe(&busy, at(second));
    }
    let (share, groups) = neighbours.share("h1", "web");
    assert!((share - 0.25).abs() < 0.01 && groups == 2, "{share}");
    assert_eq!(neighbours.share("h2", "web"), (1.0, 1), "nobody else is there");
    let told = events(&mut neighbours);
    let whys: Vec<(&str, &str)> = told.iter().map(|event| (&*event.group, &*event.why)).collect();
    assert_eq!(
        whys,
        [
            ("batch", "shares h1 with other groups, which do much of the work there: web 25%"),
            ("web", "shares h1 with other groups, which do much of the work there: batch 75%"),
        ]
    );
    assert!(told[1].inputs.iter().any(|(name, part)| name == "share_of_batch" && (part - 0.75).abs() < 0.01));
    // Once, until it is over.
    for second in 60..120 {
        neighbours.observe(&[stake("h1", "web", 4.0), stake("h1", "batch", 0.0)], at(second));
    }
    let told = events(&mut neighbours);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].why.starts_with("shares h1 with other groups, which do little") && &*told[0].group == "web"
    );
    neighbours.observe(&[stake("h1", "web", 4.0)], at(121));
    let told = events(&mut neighbours);
    assert_eq!((told.len(), &*told[0].why), (1, "has h1 to itself again"), "{told:?}");
    assert_eq!((&*told[0].group, neighbours.share("h1", "web")), ("batch", (1.0, 1)));
}

#[test]
fn several_members_of_one_group_are_no_neighbours_and_who_is_idle_has_no_more_than_others() {
    let mut neighbours = SharedHosts::default();
    neighbours.observe(&[stake("h1", "web", 1.0), stake("h1", "web", 2.0)], at(0));
    assert_eq!(neighbours.share("h1", "web"), (1.0, 1));
    neighbours
        .observe(&[stake("h1", "web", 0.0), stake("h1", "mail", 0.0), stake("h1", "odd", f64::NAN)], at(1));
    assert_eq!(neighbours.share("h1", "web"), (0.5, 2));
    assert!(events(&mut neighbours).is_empty(), "nothing is done that could matter");
    let parts: f64 = ["web", "mail"].iter().map(|group| neighbours.share("h1", group).0).sum();
    assert!((parts - 1.0).abs() < 1e-9, "a host counts once");
}
