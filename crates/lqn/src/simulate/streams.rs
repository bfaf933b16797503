//! Chance, apart for each thing that is drawn: common random numbers.
//!
//! Two models that differ in one thing are compared best by what they do with the same luck. So each source of chance has a
//! stream of its own, that follows from the seed and the names of what it belongs to, and from nothing else: the hundredth
//! piece of work of an activity is as long (before its mean) in every model with that activity, and the tenth time that the
//! third client thinks, whatever happened in between and whatever else the model has. Draws are made in the order in which
//! they are asked for at their source (Glasserman and Yao, Some guidelines and guarantees for common random numbers, 1992).

use std::collections::HashMap;

use super::dice::Dice;
use crate::Model;
use crate::model::{Activity, Copies, Next};

/// All streams of a run.
pub(super) struct Streams {
    /// Of each activity: how long pieces of work are, and whom it calls next.
    pub(super) activities: Vec<Acts>,
    /// Of each activity: the time to think in it, and the way that is gone after it.
    pub(super) ways: Vec<Ways>,
    /// Of each loop, whether there is one more turn, and of what.
    pub(super) loops: Vec<Dice>,
    /// Of each client: how long it thinks. Those of the first task of clients come first.
    pub(super) clients: Vec<Dice>,
    /// Of each client, what makes it another than all others; for what it is bound to.
    pub(super) keys: Vec<u64>,
    /// Of each task of clients, which of its entries they begin with.
    pub(super) tasks: Vec<Dice>,
    /// Of each entry, when the next request comes from outside.
    pub(super) arrivals: Vec<Dice>,
    /// Of each entry, to whom it forwards.
    pub(super) routes: Vec<Dice>,
    /// Of each processor, who is next where that is chance.
    pub(super) stations: Vec<Dice>,
}

/// Of an activity, for its pieces of work.
pub(super) struct Acts {
    pub(super) work: Dice,
    pub(super) calls: Dice,
}

/// Of an activity, once for each time that it is done.
pub(super) struct Ways {
    pub(super) think: Dice,
    pub(super) next: Dice,
}

impl Streams {
    /// Of a model in which every replica stands.
    pub(super) fn new(model: &Model, seed: u64) -> Self {
        let mut names = Names { seed, known: HashMap::new() };
        let mut activities = Vec::with_capacity(model.activities.len());
        let mut ways = Vec::with_capacity(model.activities.len());
        let mut loops = Vec::new();
        for own in &model.activities {
            let task = model.tasks[own.task.0].name.as_str();
            let mut of = |what| names.dice(&[what, task, &own.name]);
            activities.push(Acts { work: of("work"), calls: of("calls") });
            ways.push(Ways { think: of("pause"), next: of("way") });
            loops.extend((0..turns(own)).map(|_| of("turn")));
        }
        let (mut clients, mut keys) = (Vec::new(), Vec::new());
        for own in model.tasks.iter().filter(|own| own.is_client()) {
            let Copies::Some(count) = own.copies else { continue };
            let first = names.key(&["client", &own.name]);
            for number in 0..count {
                let key = mixed(first ^ mixed(u64::from(number) + 1));
                keys.push(key);
                clients.push(Dice::new(key));
            }
        }
        let mut entries = |what| model.entries.iter().map(|own| names.dice(&[what, &own.name])).collect();
        let (arrivals, routes) = (entries("arrival"), entries("route"));
        let tasks = model.tasks.iter().map(|own| names.dice(&["entry", &own.name])).collect();
        let stations = model.processors.iter().map(|own| names.dice(&["processor", &own.name])).collect();
        Self { activities, ways, loops, clients, keys, tasks, arrivals, routes, stations }
    }
}

/// How many loops an activity leads to: in the order in which a program numbers them.
fn turns(activity: &Activity) -> usize {
    let mut next = &activity.next;
    loop {
        match next {
            Next::Join { then, .. } => next = then,
            Next::Loop { .. } => return 1,
            Next::End | Next::Or(_) | Next::And(_) => return 0,
        }
    }
}

/// Streams by name.
struct Names {
    seed: u64,
    /// How often each was asked for: of two things with one name the second has another stream.
    known: HashMap<u64, u64>,
}

impl Names {
    fn dice(&mut self, words: &[&str]) -> Dice {
        Dice::new(self.key(words))
    }

    fn key(&mut self, words: &[&str]) -> u64 {
        // FNV-1a (Fowler, Noll and Vo), each word ended by what stands in no text.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in words.iter().flat_map(|word| word.bytes().chain([0xff])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let again = self.known.entry(hash).or_insert(0);
        *again += 1;
        mixed(mixed(self.seed) ^ hash.wrapping_add(mixed(*again)))
    }
}

/// Every bit of it depends on every bit (the end of SplitMix64).
pub(super) fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_stream_wherever_it_stands() {
        let mut some = Names { seed: 1, known: HashMap::new() };
        let mut others = Names { seed: 1, known: HashMap::new() };
        let first = some.key(&["work", "server", "serve"]);
        others.key(&["work", "another", "serve"]);
        assert_eq!(others.key(&["work", "server", "serve"]), first);
        // The same name once more, the same letters in other words, another seed.
        let mut all = vec![first, some.key(&["work", "server", "serve"]), some.key(&["work", "serverserve"])];
        all.push(Names { seed: 2, known: HashMap::new() }.key(&["work", "server", "serve"]));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
    }
}
