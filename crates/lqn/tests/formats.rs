//! Tests the parts of other tools' texts besides numbers: they are used, or ignored with a note.

use std::collections::BTreeMap;

use plimsoll_lqn::model::{Multiplicity, Successors};
use plimsoll_lqn::solve::ignored_parts;

use plimsoll_lqn::{Model, ParsedModel, SimulationEffort, read, simulate, solve};

fn whole(text: &str) -> ParsedModel {
    read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn model(text: &str) -> Model {
    whole(text).model
}

/// Returns a model with a client and a server, with text within section E, at its end, and after it.
fn small(entries: &str, after: &str) -> String {
    format!(
        "P 0 p pc f i p cpu f -1\nT 0 t cl r cl -1 pc m 3 t srv h srv other -1 cpu -1\n\
         E 0\n s cl 0 -1\n y cl srv 1 -1\n \
         y cl other 1 -1\n s srv 2 -1\n s other 1 -1\n{entries}\n-1\n{after}"
    )
}

#[test]
fn what_ends_with_no_mark_of_its_own_leaves_that_of_the_section() {
    let graph = "A srv\n s one 1 s two 1\n :\n one -> two; two[srv]\n-1\n";
    for own in [
        "p srv 3",
        "p srv 3 -1",
        "H srv 1 0 : 10",
        "H srv 1 0 : 10 20 log",
        "H srv 1 0 : 10 20 -1",
        "M srv 4 -1",
        "M srv 4 5 -1",
    ] {
        // The text is between others, at the end, and before a section.
        for (entries, after) in [
            (format!("{own}\n c srv 0.5 -1"), ""),
            (format!("c srv 0.5 -1\n {own}"), ""),
            (format!("c srv 0.5 -1\n A srv one\n {own}"), graph),
            (format!("c srv 0.5 -1\n {own}"), "R 0 $0 -1"),
        ] {
            let read = whole(&small(&entries, after));
            assert_eq!(read.model.entries.len(), 3, "{entries}{after}");
            let varied = read.model.activities.iter().any(|own| own.variation == 0.5);
            assert!(varied || after == graph, "{entries}{after}");
            let aside = read.notes.iter().filter(|note| note.contains("of an entry is left aside")).count();
            assert_eq!(aside, usize::from(!own.starts_with('p')), "{own}: {:?}", read.notes);
            assert_eq!(read.model.entries[1].priority, if own.starts_with('p') { 3 } else { 0 });
        }
    }
    let said = read(&small("H srv 1 0 10", ""), &BTreeMap::new()).unwrap_err();
    assert!(said.message.contains("expected `:`"), "{said}");
}

/// Returns LQNX with these attributes of the server's processor, of the server and of its activity.
fn lqnx(processor: &str, task: &str, activity: &str, more: &str) -> String {
    format!(
        "<lqn-model><parameters>$x = 1 <!-- one\n or two -->\n$y = $x + 1\n\
         $model_comment = \"a comment\"</parameters>\n\
         <processor name=\"pc\" scheduling=\"inf\"><task name=\"cl\" scheduling=\"ref\" multiplicity=\"3\">\
         <entry name=\"cl\" type=\"PH1PH2\"><entry-phase-activities><activity name=\"cl_1\" phase=\"1\">\
         <synch-call dest=\"srv\"/></activity></entry-phase-activities></entry></task></processor>\n\
         <processor name=\"cpu\" {processor}>\n<task name=\"srv\" {task}>\n\
         {more}<entry name=\"srv\" type=\"PH1PH2\" priority=\"2\">\
         <entry-phase-activities>\n<activity name=\"srv_1\" phase=\"1\" host-demand-mean=\"$y\" \
         {activity}/></entry-phase-activities></entry>\
         </task></processor></lqn-model>"
    )
}

#[test]
fn where_there_are_as_many_as_needed_the_number_does_not_matter() {
    for count in ["2147483647", "0", "1e300", "inf", "7"] {
        let own = format!("scheduling=\"inf\" multiplicity=\"{count}\"");
        let read = model(&lqnx(&own, &own, "", ""));
        assert_eq!(read.processors[1].copies, Multiplicity::Infinite, "{count}");
        assert_eq!(read.tasks[1].copies, Multiplicity::Infinite, "{count}");
    }
    let said = read(&lqnx("multiplicity=\"2147483647\"", "", "", ""), &BTreeMap::new()).unwrap_err();
    assert!(said.message.contains("there cannot be 2147483647 of it"), "{said}");
    let text = "P 0 p pc i m 2147483647 p cpu f -1 T 0 t cl r cl -1 pc t srv i srv -1 cpu m 2147483647 -1 E \
        0 s cl 1 -1 y cl srv 1 -1 s srv 1 -1 -1";
    assert_eq!(model(text).tasks[1].copies, Multiplicity::Infinite);
}

#[test]
fn what_is_written_in_another_way_is_refused_where_it_stands() {
    let right = lqnx("", "", "", "");
    assert!(read(&right, &BTreeMap::new()).is_ok(), "{right}");
    for (from, to, why) in [
        ("<synch-call dest", "<sync-call dest", "`sync-call` in `activity` is not supported"),
        (
            "<synch-call dest",
            "<synch-call calls_mean=\"7\" dest",
            "`synch-call` has no `calls_mean`; there are: dest, calls-mean",
        ),
        (
            "<entry-phase-activities>",
            "<entry-activity-graph/><entry-phase-activities>",
            "`entry-activity-graph` in `entry`",
        ),
        ("<entry name", "<entry prority=\"1\" name", "`entry` has no `prority`"),
        ("<entry name", "<entry priority=\"1.5\" name", "a priority is a whole number, not 1.5"),
        ("<task name", "<task think_time=\"1\" name", "`task` has no `think_time`"),
    ] {
        let text = right.replacen(from, to, 1);
        assert_ne!(text, right, "{from}");
        let trouble = read(&text, &BTreeMap::new()).unwrap_err();
        assert!(trouble.message.contains(why), "{to}: {trouble:?}");
        let line = 1 + text[..text.find(to).unwrap()].matches('\n').count();
        assert_eq!(trouble.line, line, "{to}");
    }
    // The position of a truncated text is its end.
    let cut = &right[..right.find("</lqn-model>").unwrap()];
    let trouble = read(cut, &BTreeMap::new()).unwrap_err();
    assert_eq!(trouble.line, 1 + cut.matches('\n').count(), "{trouble:?}");
}

#[test]
fn comments_and_texts_among_parameters() {
    let read = whole(&lqnx("", "", "", ""));
    assert_eq!(read.parameters, [("x".to_owned(), vec![1.0]), ("y".to_owned(), vec![2.0])]);
    assert_eq!((read.model.comment.as_str(), read.model.activities[1].demand), ("a comment", 2.0));
    let wrong = lqnx("", "", "", "").replace("$y = $x + 1", "$y = $z");
    let said = plimsoll_lqn::read(&wrong, &BTreeMap::new()).unwrap_err();
    assert_eq!((said.line, said.column), (3, 6), "{said}");
    let text = format!("$model_comment = \"of two\"\n$note = \"some\"\n$seed_value = 12\n{}", small("", ""));
    let read = whole(&text);
    assert_eq!(read.model.comment, "of two");
    assert!(read.notes.iter().any(|note| note.contains("line 2: `$note`")), "{:?}", read.notes);
}

#[test]
fn what_changes_no_number_is_said() {
    let read =
        whole(&lqnx("", "", "max-service-time=\"4\"", "<service-time-distribution min=\"0\" max=\"1\"/>"));
    for why in [
        "line 8: `service-time-distribution` is left aside",
        "line 9: `max-service-time` is left aside",
        "the priority of entry `srv` is not used",
    ] {
        assert!(read.notes.iter().any(|note| note.contains(why)), "{why}: {:?}", read.notes);
    }
    // Nothing that is used is noted as ignored.
    let read = whole(&lqnx("", "scheduling=\"hol\"", "max-service-time=\"0\"", ""));
    assert!(read.notes.is_empty(), "{:?}", read.notes);
    let read = whole(&small("p srv 3", "").replace("srv h srv", "srv n srv"));
    assert!(read.notes.iter().any(|note| note.contains("the priority of entry `srv`")), "{:?}", read.notes);
}

/// Returns a model with ten clients, half of which have priority, at a server that is always busy.
fn ranked(kind: &str, priorities: [u32; 2], entries: [u32; 2], think: f64) -> String {
    format!(
        "P 0 p pc f i p cpu f i -1\nT 0\n t one r one -1 pc {} m 5 z {think}\n t two r two -1 pc {} m 5 z \
         {think}\n t srv {kind} ea eb -1 cpu m 1\n-1\n\
         E 0\n s one 0 -1\n f one 1 -1\n y one ea 1 -1\n s two 0 -1\n f two 1 -1\n y two eb 1 -1\n s ea 1 \
         -1\n s eb 1 -1\n p ea {}\n p eb {}\n-1\n",
        priorities[0], priorities[1], entries[0], entries[1]
    )
}

#[test]
fn a_task_by_priority_goes_by_who_asks_and_for_what() {
    let effort = SimulationEffort { events: 1_000_000, precision: 0.005, ..SimulationEffort::default() };
    let played = |text: &str| {
        let found = simulate(&model(text), &effort).unwrap();
        [0, 1].map(|place: usize| found.tasks[place].response.unwrap().mean)
    };
    let plain = played(&ranked("h", [0, 0], [0, 0], 12.0));
    assert!((plain[0] / plain[1] - 1.0).abs() < 0.05, "{plain:?}");
    let by_task = played(&ranked("h", [3, 0], [0, 0], 12.0));
    // The exact values, from the balance equations.
    for (own, exact) in by_task.into_iter().zip([1.8548, 2.8285]) {
        assert!((own / exact - 1.0).abs() < 0.02, "{by_task:?}, {plain:?}");
    }
    let by_entry = played(&ranked("h", [0, 0], [3, 0], 12.0));
    assert_eq!(by_entry, by_task);
    // The priorities are added.
    assert_eq!(played(&ranked("h", [0, 3], [3, 0], 12.0)), plain);
    assert_eq!(played(&ranked("n", [0, 0], [3, 0], 12.0)), plain);
}

#[test]
fn formulas_know_priorities_at_tasks() {
    let effort = SimulationEffort { events: 2_000_000, precision: 0.003, ..SimulationEffort::default() };
    // The exact response times of one thread with a think time of 8, 12 and 20, from the balance equations.
    let exact = [(8.0, [2.2400, 4.8186]), (12.0, [1.8548, 2.8285]), (20.0, [1.4997, 1.7889])];
    for (think, exact) in exact {
        let own = model(&ranked("h", [3, 0], [0, 0], think));
        let (solved, how) = solve(&own);
        assert!(how.converged && ignored_parts(&own).is_empty(), "{:?}", ignored_parts(&own));
        let played = simulate(&own, &effort).unwrap();
        for (place, exact) in exact.into_iter().enumerate() {
            let [one, other] = [&solved, &played].map(|found| found.tasks[place].response.unwrap().mean);
            assert!((one / exact - 1.0).abs() < 0.06, "{think}: solved {one}, not {exact}");
            assert!((other / exact - 1.0).abs() < 0.02, "{think}: played {other}, not {exact}");
        }
    }
    // Two threads.
    let own = model(&ranked("h", [0, 0], [1, 0], 3.0).replace("cpu m 1", "cpu m 2"));
    let (solved, played) = (solve(&own).0, simulate(&own, &effort).unwrap());
    for (one, other) in solved.tasks.iter().zip(&played.tasks).take(2) {
        let (one, other) = (one.response.unwrap().mean, other.response.unwrap().mean);
        assert!((one / other - 1.0).abs() < 0.05, "two threads: {one}, not {other}");
    }
    // Requests from outside, by Cobham's formula.
    let open =
        "P 0 p cpu f i -1 T 0 t srv h ea eb -1 cpu -1 E 0 a ea 0.4 a eb 0.3 p ea 2 s ea 1 -1 s eb 1 -1 -1";
    let (solved, played) = (solve(&model(open)).0, simulate(&model(open), &effort).unwrap());
    for (place, exact) in [1.0 + 0.7 / 0.6, 1.0 + 0.7 / (0.6 * 0.3)].into_iter().enumerate() {
        for found in [&solved, &played] {
            let own = found.entries[place].response.unwrap().mean;
            assert!((own / exact - 1.0).abs() < 0.03, "from outside: {own}, not {exact}");
        }
    }
}

#[test]
fn formulas_say_where_they_do_not_know_how_far_priorities_go() {
    let said = |text: &str| ignored_parts(&model(text));
    let by_chance = ranked("h", [3, 0], [0, 0], 8.0).replace(" f one 1 -1\n", "");
    assert_eq!(said(&by_chance), ["that calls come in bunches to `srv`, which serves by priority"]);
    // Equal priorities have no effect.
    assert!(said(&by_chance.replace("pc 3", "pc 0")).is_empty());
    assert!(said(&by_chance.replace("srv h", "srv n")).is_empty());
    // The plan uses the simulation instead.
    let own = model(&by_chance);
    let run = simulate(&own, &SimulationEffort { events: 50_000, ..SimulationEffort::default() }).unwrap();
    let plan = plimsoll_lqn::combine_estimates(&own, std::slice::from_ref(&run));
    assert_eq!(plan.findings.tasks[0].response, run.tasks[0].response);
}

#[test]
fn a_fork_without_a_join_in_a_loop_is_one_round_of_it() {
    // The body `b` runs three times on average, followed by `c` and `d` in parallel; then `e`.
    let text = |more: &str| {
        format!(
            "P 0 p pc f i -1 T 0 t cl r cl -1 pc -1 E 0 A cl aa -1\n\
             A cl\n s aa 1 s bb 1 s cc 1 c cc 0 s dd 2 c dd 0 s ee 1 s ff 1 s gg 1\n:\n\
             aa -> 3 * bb, ee; bb -> cc & dd{more}\n-1\n"
        )
    };
    let effort = SimulationEffort { events: 1_000_000, precision: 0.01, ..SimulationEffort::default() };
    for (more, branch) in [
        ("", 2.0),
        // A nested fork of which one branch ends, and one whose branches join.
        ("; dd -> ff & gg", 2.0 + 1.5),
        ("; dd -> ff & gg; ff & gg -> hh", 2.0 + 1.5 + 1.0),
        // Only one of both continues; the other is not waited for.
        ("; cc & dd (1) -> ff", 1.0 + 1.0),
        ("; cc & dd -> ff", 2.0 + 1.0),
    ] {
        let text = text(more).replace("s gg 1", "s gg 1 s hh 1");
        let own = model(&text);
        assert!(own.activities.iter().any(|own| matches!(own.successors, Successors::And(_))));
        let found = simulate(&own, &effort).unwrap();
        let round = found.tasks[0].response.unwrap().mean;
        let expected = 1.0 + 3.0 * (1.0 + branch) + 1.0;
        assert!((round / expected - 1.0).abs() < 0.03, "{more}: {round}, not {expected}");
        let rate = |name: &str| found.activities.iter().find(|own| own.name == name).unwrap().throughput.mean;
        for name in ["bb", "cc", "dd"] {
            assert!(
                (rate(name) / rate("aa") - 3.0).abs() < 0.1,
                "{more}: {name} {}",
                rate(name) / rate("aa")
            );
        }
        let (solved, _) = solve(&own);
        let solved = solved.tasks[0].response.unwrap().mean;
        assert!((solved / expected - 1.0).abs() < 0.03, "{more}: solved {solved}, not {expected}");
    }
}
