//! Tests replicas against models in which all of them are expanded.

use std::collections::BTreeMap;

use plimsoll_lqn::analysis::OverallResults;
use plimsoll_lqn::draw::Diagram;
use plimsoll_lqn::simulate::TaskResults;
use plimsoll_lqn::write::{self, ResultOrigin};
use plimsoll_lqn::{Estimate, Model, SimulationEffort, read, simulate, solve};

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model
}

fn trouble(text: &str) -> String {
    read(text, &BTreeMap::new()).map(|_| ()).expect_err(text).to_string()
}

/// A model in which four clients call two front ends, each of which calls two of four stores; stores share
/// two hosts.
const SHORT: &str = "P 0\n p users f i r 4\n p web s r 2\n p host f r 2\n-1\n\
    T 0\n t people r people -1 users z 2 m 3 r 4\n t front n front -1 web m 2 r 2\n t store n get put -1 \
    host r 4\n\
    I people front 2\n O front store 2\n-1\n\
    E 0\n s people 0 -1\n y people front 1 -1\n s front 0.2 0.1 -1\n y front get 0.5 -1\n z front put 0.25 \
    -1\n \
    s get 0.3 -1\n s put 0.4 -1\n a put 0.05\n-1\n";

/// Returns the same model expanded by hand.
fn long() -> String {
    let mut text = "P 0\n".to_owned();
    (0..4).for_each(|own| text += &format!(" p users{own} f i\n"));
    (0..2).for_each(|own| text += &format!(" p web{own} s\n"));
    (0..2).for_each(|own| text += &format!(" p host{own} f\n"));
    text += "-1\nT 0\n";
    (0..4).for_each(|own| text += &format!(" t people{own} r people{own} -1 users{own} z 2 m 3\n"));
    (0..2).for_each(|own| text += &format!(" t front{own} n front{own} -1 web{own} m 2\n"));
    (0..4).for_each(|own| text += &format!(" t store{own} n get{own} put{own} -1 host{}\n", own / 2));
    text += "-1\nE 0\n";
    for own in 0..4 {
        text += &format!(" s people{own} 0 -1\n y people{own} front{} 1 -1\n", own % 2);
    }
    for own in 0..2 {
        text += &format!(" s front{own} 0.2 0.1 -1\n");
        for letter in ["y front{} get{} 0.5", "z front{} put{} 0.25"] {
            for store in [2 * own, 2 * own + 1] {
                let line = letter.replacen("{}", &own.to_string(), 1).replacen("{}", &store.to_string(), 1);
                text += &format!(" {line} -1\n");
            }
        }
    }
    (0..4).for_each(|own| text += &format!(" s get{own} 0.3 -1\n s put{own} 0.4 -1\n a put{own} 0.05\n"));
    text + "-1\n"
}

/// Renames the objects like replicas, and so gives them the same random streams: `store2_1` becomes `store_1`
/// of the third replica.
fn alike(mut model: Model) -> Model {
    let named = |name: &mut String| {
        let at = name.find(|c: char| c.is_ascii_digit()).expect("all are numbered");
        let number = name.remove(at).to_digit(10).expect("it is a digit");
        if number > 0 {
            *name += &format!("#{}", number + 1);
        }
    };
    model.processors.iter_mut().for_each(|own| named(&mut own.name));
    model.tasks.iter_mut().for_each(|own| named(&mut own.name));
    model.entries.iter_mut().for_each(|own| named(&mut own.name));
    model.activities.iter_mut().for_each(|own| named(&mut own.name));
    model
}

fn near(what: &str, one: f64, those: &[Estimate]) {
    let mean = those.iter().map(|own| own.mean).sum::<f64>() / those.len() as f64;
    assert!((one - mean).abs() <= 1e-9 * mean.abs(), "{what}: {one}, not {mean}");
}

#[test]
fn replicas_are_as_if_each_were_written_out() {
    let (short, long) = (model(SHORT), alike(model(&long())));
    let effort = SimulationEffort { events: 200_000, precision: 0.001, ..SimulationEffort::default() };
    for (one, all) in [
        (solve(&short).0, solve(&long).0),
        (simulate(&short, &effort).unwrap(), simulate(&long, &effort).unwrap()),
    ] {
        assert_eq!((one.tasks.len(), one.entries.len(), one.processors.len()), (3, 4, 3));
        assert_eq!(one.events, all.events);
        for own in &one.tasks {
            let those: Vec<_> = all.tasks.iter().filter(|other| other.name.starts_with(&own.name)).collect();
            assert!(those.len() > 1);
            let each = |of: &dyn Fn(&TaskResults) -> Estimate| -> Vec<Estimate> {
                those.iter().map(|own| of(own)).collect()
            };
            near(&own.name, own.throughput.mean, &each(&|own| own.throughput));
            near(&own.name, own.busy.mean, &each(&|own| own.busy));
        }
        // The overall results are the same in both forms.
        let [own, other] = [OverallResults::of(&short, &one), OverallResults::of(&long, &all)];
        assert!((own.throughput / other.throughput - 1.0).abs() < 1e-9, "{own:?} {other:?}");
        // The simulated time of one is the mean over all, weighted by their counts.
        assert!((own.response / other.response - 1.0).abs() < 1e-3, "{own:?} {other:?}");
        for own in &one.processors {
            let those = all.processors.iter().filter(|other| other.name.starts_with(&own.name));
            near(&own.name, own.busy.mean, &those.map(|own| own.busy).collect::<Vec<_>>());
        }
        for own in &one.entries {
            let those = all.entries.iter().filter(|other| other.name.starts_with(&own.name));
            near(&own.name, own.throughput.mean, &those.map(|own| own.throughput).collect::<Vec<_>>());
        }
    }
}

#[test]
fn intervals_of_one_are_those_of_all_together() {
    let effort = SimulationEffort { events: 400_000, precision: 0.0001, ..SimulationEffort::default() };
    let (one, all) = (simulate(&model(SHORT), &effort).unwrap(), simulate(&model(&long()), &effort).unwrap());
    // The interval is based on four times as many observations.
    let (own, each) = (one.tasks[0].throughput, all.tasks[0].throughput);
    assert!(own.half_width > 0.0 && own.half_width < 0.9 * each.half_width, "{own:?} {each:?}");
    let response = one.tasks[0].response.unwrap().mean;
    let (least, most) = (all.tasks[..4].iter().map(|own| own.response.unwrap().mean))
        .fold((f64::INFINITY, 0.0_f64), |(least, most), own| (least.min(own), most.max(own)));
    assert!((least..=most).contains(&response), "{response}, not from {least} to {most}");
    let late = one.tasks[0].percentiles.unwrap().p95;
    assert!((late / all.tasks[0].percentiles.unwrap().p95 - 1.0).abs() < 0.1, "{late}");
    let (one, _) = solve(&model(SHORT));
    assert!(one.tasks[0].response.unwrap().mean > 0.0);
}

#[test]
fn replicas_stand_in_what_is_written() {
    let own = model(SHORT);
    let lqn = write::lqn(&own).unwrap();
    for line in
        ["p host f r 2\n", "t store n get put -1 host r 4\n", "I people front 2\n", "O front store 2\n"]
    {
        assert!(lqn.contains(line), "{line}{lqn}");
    }
    let found = simulate(&own, &SimulationEffort { events: 20_000, ..SimulationEffort::default() }).unwrap();
    let origin = ResultOrigin { program: "a test", is_accurate: true, convergence: 0.5, iterations: 1 };
    let lqxo = write::lqxo(&own, &found, &origin).unwrap();
    for part in [
        "<processor name=\"host\" scheduling=\"fcfs\" replication=\"2\">",
        "<task name=\"store\" scheduling=\"fcfs\" replication=\"4\">",
        "<fan-out dest=\"store\" value=\"2\"/>",
        "<fan-in source=\"people\" value=\"2\"/>",
    ] {
        assert!(lqxo.contains(part), "{part}\n{lqxo}");
    }
    assert_eq!(lqxo.matches("<result-task ").count(), 3, "{lqxo}");
    let again = model(&lqxo);
    assert_eq!(
        simulate(&again, &SimulationEffort { events: 20_000, ..SimulationEffort::default() })
            .unwrap()
            .tasks
            .len(),
        3
    );
    assert_eq!(write::lqn(&again).unwrap().matches(" r ").count(), lqn.matches(" r ").count());
}

#[test]
fn a_picture_shows_how_many_there_are() {
    let picture = Diagram::of(&model(SHORT));
    let (text, svg) = (picture.text(), picture.svg());
    assert!(text.contains("store {1} <4>") && text.contains("○ host {1} <2>"), "{text}");
    assert!(svg.contains("{3} &lt;4> Z=2") && svg.contains("{1} &lt;2>"), "{svg}");
    roxmltree::Document::parse(&svg).expect("it is XML");
}

#[test]
fn a_fan_that_is_not_given_follows() {
    let fans = "I people front 2\n O front store 2\n";
    let own = solve(&model(SHORT)).0;
    for other in
        ["O front store 2\n", "O front store 2\n I front store 1\n", "I front store 1\n O people front 1\n"]
    {
        assert_eq!(solve(&model(&SHORT.replace(fans, other))).0, own, "{other}");
    }
}

#[test]
fn what_does_not_fit_is_said_with_its_place() {
    let fans = "I people front 2\n O front store 2\n";
    for (from, to, why) in [
        (fans, "O front store 1\n", "10:9: 2 replicas of `front` that ask 1 each, and 4 of `store`"),
        (fans, "O front store 2\n I front store 2\n", "2 * fan-out is 4 * fan-in"),
        (fans, "", "8:4: 2 replicas of `front` that ask 1 each"),
        (fans, "O front store 8\n", "asks 8 replicas of `store`, of which there are 4"),
        (fans, "O front stores 2\n", "10:9: no task `stores`"),
        (fans, "O front store 2\n O front store 4\n", "11:10: two fans from `front` to `store`"),
        ("host r 4", "host r 3", "there are 3 replicas of `store`, and 2 of its processor `host`"),
        ("host r 4", "host r 1.5", "of replicas there is a whole number"),
        ("y front get 0.5", "F front get 0.5", "a request goes to one replica of it, not to 2"),
    ] {
        let wrong = SHORT.replace(from, to);
        let said = trouble(&wrong);
        assert!(said.contains(why), "{from} -> {to}: {said}");
    }
    let many = "P 0 p pc f i -1 T 0 t cl r cl -1 pc r 100000 t sv i sv -1 pc -1 E 0 s cl 1 -1 y cl sv 1 -1 s \
        sv 1 -1 -1";
    assert!(
        trouble(many).starts_with("1:23: with all replicas the model has more than 100000"),
        "{}",
        trouble(many)
    );
    let xml = "<lqn-model>\n<processor name=\"p\" scheduling=\"inf\">\n<task name=\"c\" scheduling=\"ref\">\n\
               <fan-out dest=\"s\" value=\"3\"/>\n\
               <entry name=\"c\" type=\"PH1PH2\"><entry-phase-activities><activity name=\"c_1\" \
               phase=\"1\"><synch-call dest=\"s\"/></activity>\
               </entry-phase-activities></entry></task>\n<task name=\"s\" replication=\"2\"><entry \
               name=\"s\" type=\"PH1PH2\">\
               <entry-phase-activities><activity name=\"s_1\" phase=\"1\" \
               host-demand-mean=\"1\"/></entry-phase-activities></entry></task>\n</processor></lqn-model>";
    assert!(trouble(xml).starts_with("4:10: 1 replicas of `c`"), "{}", trouble(xml));
    assert_eq!(model(&xml.replace("\"3\"", "\"2\"")).tasks.len(), 2);
}
