//! Common random numbers: a separate random stream for each source of randomness.
//!
//! Two models that differ in one part are compared best with the same random numbers. So each source has its
//! own stream, which depends on the seed and the names of its object and nothing else. For example, the
//! hundredth slice of an activity has the same length (relative to its mean) in every model with that
//! activity. The same holds for the tenth think time of the third client, regardless of other events and of
//! the rest of the model. Draws are in the order of requests at their source (Glasserman and Yao, Some
//! guidelines and guarantees for common random numbers, 1992).

use std::collections::HashMap;

use super::rng::RandomStream;
use crate::Model;
use crate::model::{Activity, Multiplicity, Successors};

/// All streams of a run.
pub(super) struct RandomStreams {
    /// The lengths of slices and the next calls of each activity.
    pub(super) slices: Vec<SliceStreams>,
    /// The think time of each activity, and the branch after it.
    pub(super) executions: Vec<ExecutionStreams>,
    /// The runs of the bodies of each loop.
    pub(super) loops: Vec<RandomStream>,
    /// The think times of each client, ordered by task.
    pub(super) clients: Vec<RandomStream>,
    /// The key of each client, for session affinity.
    pub(super) keys: Vec<u64>,
    /// The entry with which a client of each task starts.
    pub(super) tasks: Vec<RandomStream>,
    /// The arrivals from outside at each entry.
    pub(super) arrivals: Vec<RandomStream>,
    /// The targets that each entry forwards to.
    pub(super) routes: Vec<RandomStream>,
    /// The order of service of each processor with random scheduling.
    pub(super) stations: Vec<RandomStream>,
}

/// The streams of an activity for each slice of work.
pub(super) struct SliceStreams {
    pub(super) work: RandomStream,
    pub(super) calls: RandomStream,
}

/// The streams of an activity for each execution.
pub(super) struct ExecutionStreams {
    pub(super) think: RandomStream,
    pub(super) next: RandomStream,
}

impl RandomStreams {
    /// Creates the streams of a model with expanded replicas.
    pub(super) fn new(model: &Model, seed: u64) -> Self {
        let mut factory = StreamFactory { seed, uses: HashMap::new() };
        let mut slices = Vec::with_capacity(model.activities.len());
        let mut executions = Vec::with_capacity(model.activities.len());
        let mut loops = Vec::new();
        for activity in &model.activities {
            let task = model.tasks[activity.task.0].name.as_str();
            let mut activity_stream = |purpose| factory.stream(&[purpose, task, &activity.name]);
            slices.push(SliceStreams { work: activity_stream("work"), calls: activity_stream("calls") });
            executions
                .push(ExecutionStreams { think: activity_stream("pause"), next: activity_stream("way") });
            loops.extend((0..loop_count(activity)).map(|_| activity_stream("turn")));
        }
        let (mut clients, mut keys) = (Vec::new(), Vec::new());
        for task in model.tasks.iter().filter(|candidate| candidate.is_client()) {
            let Multiplicity::Finite(count) = task.copies else { continue };
            let first_key = factory.key(&["client", &task.name]);
            for number in 0..count {
                let key = mix_bits(first_key ^ mix_bits(u64::from(number) + 1));
                keys.push(key);
                clients.push(RandomStream::new(key));
            }
        }
        let mut entry_streams =
            |purpose| model.entries.iter().map(|entry| factory.stream(&[purpose, &entry.name])).collect();
        let (arrivals, routes) = (entry_streams("arrival"), entry_streams("route"));
        let tasks = model.tasks.iter().map(|task| factory.stream(&["entry", &task.name])).collect();
        let stations = model
            .processors
            .iter()
            .map(|processor| factory.stream(&["processor", &processor.name]))
            .collect();
        Self { slices, executions, loops, clients, keys, tasks, arrivals, routes, stations }
    }
}

/// Returns the number of loops after an activity, in the order of the program's indices.
fn loop_count(activity: &Activity) -> usize {
    let mut successors = &activity.successors;
    loop {
        match successors {
            Successors::Join { then, .. } => successors = then,
            Successors::Loop { .. } => return 1,
            Successors::End | Successors::Or(_) | Successors::And(_) => return 0,
        }
    }
}

/// The generator of streams by name.
struct StreamFactory {
    seed: u64,
    /// The number of uses of each name: a second object with the same name gets another stream.
    uses: HashMap<u64, u64>,
}

impl StreamFactory {
    fn stream(&mut self, words: &[&str]) -> RandomStream {
        RandomStream::new(self.key(words))
    }

    fn key(&mut self, words: &[&str]) -> u64 {
        // FNV-1a (Fowler, Noll and Vo) with each word followed by a byte that occurs in no text.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in words.iter().flat_map(|word| word.bytes().chain([0xff])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let use_count = self.uses.entry(hash).or_insert(0);
        *use_count += 1;
        mix_bits(mix_bits(self.seed) ^ hash.wrapping_add(mix_bits(*use_count)))
    }
}

/// Mixes a number so that every bit depends on every bit (the finalizer of SplitMix64).
pub(super) fn mix_bits(number: u64) -> u64 {
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
        let mut factory = StreamFactory { seed: 1, uses: HashMap::new() };
        let mut other_factory = StreamFactory { seed: 1, uses: HashMap::new() };
        let first = factory.key(&["work", "server", "serve"]);
        other_factory.key(&["work", "another", "serve"]);
        assert_eq!(other_factory.key(&["work", "server", "serve"]), first);
        // The same name again, the same letters in other words, another seed.
        let mut keys =
            vec![first, factory.key(&["work", "server", "serve"]), factory.key(&["work", "serverserve"])];
        keys.push(StreamFactory { seed: 2, uses: HashMap::new() }.key(&["work", "server", "serve"]));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 4);
    }
}
