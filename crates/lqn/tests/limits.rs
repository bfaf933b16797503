//! Tests queue limits, timeouts and retries against formulas.

use std::collections::BTreeMap;

use plimsoll_lqn::solve::ignored_parts;
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, combine_estimates, read, simulate, write};

mod laws;

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model
}

fn run(model: &Model) -> ModelResults {
    simulate(model, &SimulationEffort { events: 2_000_000, precision: 0.004, ..SimulationEffort::default() })
        .expect("it ends")
}

/// Runs requests from outside through a front end that calls a server of rate 1 with this number of threads.
fn fronted(pragmas: &str, arrivals: f64, threads: u32) -> ModelResults {
    run(&model(&format!(
        "{pragmas}\nP 0\n p pc f i\n p cpu f m {threads}\n-1\nT 0\n t front i front -1 pc\n t srv n srv -1 \
         cpu m {threads}\n-1\n\
         E 0\n a front {arrivals}\n s front 0 -1\n f front 1 -1\n y front srv 1 -1\n s srv 1 -1\n-1\n"
    )))
}

fn close(found: f64, truth: f64, part: f64, what: &str) {
    assert!((found / truth - 1.0).abs() < part, "{what}: {found}, not {truth}");
}

#[test]
fn a_queue_at_its_limit_refuses_as_often_as_formulas_say() {
    // M/M/1/5 at 90 %: four requests may wait.
    let found = fronted("#pragma queue.srv=4", 0.9, 1);
    let lost = 0.1 * 0.9_f64.powi(5) / (1.0 - 0.9_f64.powi(6));
    let own = found.entries[1].failures.expect("there are limits");
    close(own.refusals.mean / own.offered.mean, lost, 0.03, "refused of M/M/1/5");
    close(found.entries[0].goodput.unwrap().mean, 0.9 * (1.0 - lost), 0.01, "goodput of M/M/1/5");
    // No request waits: Erlang's loss formula for three servers and an offered load of 2.
    let found = fronted("#pragma queue.srv=0", 2.0, 3);
    let loss = (8.0 / 6.0) / (1.0 + 2.0 + 2.0 + 8.0 / 6.0);
    let own = found.entries[1].failures.unwrap();
    close(own.refusals.mean / own.offered.mean, loss, 0.02, "Erlang's loss");
    assert_eq!((own.timeouts.mean, own.retries.mean), (0.0, 0.0));
    assert_eq!(found.entries[1].waiting.mean, 0.0);
}

#[test]
fn who_gives_up_does_not_stop_the_server() {
    // Requests that timed out are served all the same: times are those of M/M/1, and a share of exp(-(1 -
    // 0.5) 2) of them exceeds 2.
    let found = fronted("#pragma call.front.srv=timeout(2)", 0.5, 1);
    let late = (-1.0_f64).exp();
    let own = found.entries[1].failures.unwrap();
    close(own.timeouts.mean / own.offered.mean, late, 0.03, "given up");
    close(found.entries[0].goodput.unwrap().mean, 0.5 * (1.0 - late), 0.02, "goodput");
    close(found.processors[1].busy.mean, 0.5, 0.02, "the server works on");
    // No caller waits longer than the timeout: the mean of the minimum of the time and 2.
    close(found.entries[0].response.unwrap().mean, (1.0 - late) / 0.5, 0.02, "response");
    close(found.entries[1].waiting.mean, 1.0, 0.05, "waiting of M/M/1");
}

#[test]
fn retries_are_counted_and_make_an_overload_worse() {
    let found = fronted("#pragma queue.srv=1\n#pragma call.front.srv=retries(2) backoff(0.5)", 0.8, 1);
    let (front, own) = (&found.entries[0], found.entries[1].failures.unwrap());
    // A call has failed if it was refused and not retried.
    let failed = front.throughput.mean - front.goodput.unwrap().mean;
    close(failed, own.refusals.mean - own.retries.mean, 0.02, "failed");
    close(own.offered.mean, front.throughput.mean + own.retries.mean, 0.005, "offered");
    let never = fronted("#pragma queue.srv=1", 0.8, 1).entries[0].goodput.unwrap().mean;
    assert!(front.goodput.unwrap().mean > 1.05 * never, "where there is room, trying again helps");
    let storm = |retries: u32| {
        let pragma = format!("#pragma queue.srv=10\n#pragma call.front.srv=timeout(3) retries({retries})");
        fronted(&pragma, 1.2, 1).entries[0].goodput.unwrap().mean
    };
    let (once, thrice) = (storm(0), storm(3));
    assert!(thrice < 0.8 * once, "{thrice} of {once}: where there is none, it takes from others");
}

#[test]
fn pauses_between_tries_are_as_long_as_was_said() {
    // One client returns at once and always has the only thread; the other one is refused three times.
    let found = run(&model(
        "#pragma queue.srv=0\n#pragma call.other.srv=retries(2) backoff(0.25)\nP 0\n p pc f i\n p cpu f\n-1\n\
         T 0\n t hog r hog -1 pc\n t other r other -1 pc z 1\n t srv n srv -1 cpu\n-1\n\
         E 0\n s hog 0 -1\n f hog 1 -1\n y hog srv 1 -1\n s other 0 -1\n f other 1 -1\n y other srv 1 -1\n s \
         srv 1 -1\n-1\n",
    ));
    close(found.tasks[1].response.unwrap().mean, 0.75, 1e-6, "response of who is refused");
    assert_eq!(found.tasks[1].goodput.unwrap().mean, 0.0);
    close(found.tasks[0].goodput.unwrap().mean, 1.0, 0.02, "goodput of the other");
}

/// A failure ends the activity that made the call. Its caller gets the failure in a reply and does not retry.
#[test]
fn a_failure_goes_up_to_who_began() {
    let found = run(&model(
        "#pragma queue.low=0\n#pragma call.cl.mid=retries(5)\nP 0\n p pc f i\n p cpu f\n p end f i\n-1\n\
         T 0\n t cl r cl -1 pc z 1 m 5\n t mid i mid -1 pc\n t low n low -1 cpu\n t last i last -1 end\n-1\n\
         E 0\n s cl 0 -1\n f cl 1 -1\n y cl mid 1 -1\n s mid 0 -1\n f mid 1 -1\n y mid low 1 -1\n\
         s low 1 -1\n F low last 1 -1\n s last 0.5 -1\n-1\n",
    ));
    let own = found.entries[2].failures.unwrap();
    assert!(own.refusals.mean > 0.5, "{own:?}");
    assert_eq!(found.entries[1].failures.unwrap().retries.mean, 0.0);
    let (all, good) = (found.tasks[0].throughput.mean, found.tasks[0].goodput.unwrap().mean);
    close(all - good, own.refusals.mean, 0.02, "failed rounds");
    close(found.entries[3].throughput.mean, good, 0.02, "what was not refused goes on");
}

#[test]
fn formulas_say_what_they_leave_out_and_plans_do_without_them() {
    let text = "#pragma queue.srv=2\n#pragma call.cl.srv=timeout(1)\nP 0\n p pc f i\n p cpu f\n-1\n\
                T 0\n t cl r cl -1 pc m 5\n\
                t srv n srv -1 cpu\n-1\nE 0\n s cl 1 -1\n y cl srv 1 -1\n s srv 1 -1\n-1\n";
    let own = model(text);
    let said = ignored_parts(&own);
    assert_eq!(said, ["the limit of the queue of `srv`", "the patience of the calls from `cl` to `srv`"]);
    let second = text
        .replace("s srv 1 -1", "s srv 1 1 -1")
        .replace("y cl srv 1 -1\n", "y cl srv 1 -1\n y srv end 0 1 -1\n");
    let second = second.replace("t srv n srv -1 cpu\n", "t srv n srv -1 cpu\n t end i end -1 pc\n");
    let second = second.replace("s srv 1 1 -1\n", "s srv 1 1 -1\n s end 1 -1\n");
    let second = second.replace("#pragma queue.srv=2", "#pragma call.srv.2.end=retries(1)");
    assert_eq!(
        ignored_parts(&model(&second)),
        [
            "the patience of the calls from `cl` to `srv`",
            "the patience of the calls from phase 2 of `srv` to `end`"
        ]
    );
    let found = run(&own);
    let both = combine_estimates(&own, std::slice::from_ref(&found));
    assert_eq!(both.findings.tasks[0].response.unwrap(), found.tasks[0].response.unwrap());
    assert_eq!(both.simulated_parts, [1.0, 1.0]);
}

#[test]
fn limits_are_read_and_written_in_each_format() {
    let own = model(
        "$limit = 3\n#pragma queue.srv=$limit\n#pragma call.cl.srv=timeout(0.5) retries(2) backoff(0.1)\n\
         #pragma call.srv.2.end=retries(1)\nP 0\n p pc f i\n p cpu f\n-1\n\
         T 0\n t cl r cl -1 pc m 5\n t srv n srv -1 cpu m 2\n\
         t end i end -1 pc\n-1\nE 0\n s cl 1 -1\n y cl srv 1 -1\n s srv 1 1 -1\n y srv end 1 1 -1\n s end 1 \
         -1\n-1\n",
    );
    let lqnx = write::lqnx(&own).unwrap();
    for part in [
        "xmlns:plimsoll=\"urn:plimsoll:lqn\"",
        "plimsoll:queue-limit=\"3\"",
        "plimsoll:timeout=\"0.5\" plimsoll:retries=\"2\" plimsoll:backoff=\"0.1\"",
    ] {
        assert!(lqnx.contains(part), "{part}: {lqnx}");
    }
    let lqn = write::lqn(&own).unwrap();
    assert!(lqn.contains("#pragma call.srv.2.end=retries(1)\n") && !lqn.contains("call.srv.1"), "{lqn}");
    for text in [lqnx, lqn] {
        let again = model(&text);
        assert_eq!(laws::described(&again), laws::described(&own));
    }
    // A model without limits is written in the standard format.
    let plain = own.tasks.iter().cloned().map(|task| plimsoll_lqn::model::Task { queue_limit: None, ..task });
    let mut plain = Model { tasks: plain.collect(), ..own };
    plain.activities.iter_mut().flat_map(|own| &mut own.calls).for_each(|call| call.retry_policy = None);
    assert!(!write::lqnx(&plain).unwrap().contains("plimsoll"));
}

#[test]
fn what_is_wrong_with_a_limit_is_said_with_its_place() {
    let text = |pragma: &str| {
        format!(
            "# a model\n  {pragma}\nP 0 p pc f i -1 T 0 t cl r cl -1 pc t srv n srv -1 pc t two i two -1 pc \
             -1 E 0 s cl 1 -1 \
             y cl srv 1 -1 z cl two 1 -1 s srv 1 -1 s two 1 -1 -1"
        )
    };
    for (pragma, why) in [
        ("#pragma queue.srv=many", "2:21: expected a number, not `many`"),
        ("#pragma queue.srv=1.5", "2:21: a limit of a queue is a whole number from 0 to 1000000, not 1.5"),
        ("#pragma queue.srv=1\n#pragma queue.srv=2", "3:15: the queue of `srv` has a limit already"),
        ("#pragma queue.svr=1", "2:17: no task `svr`"),
        ("#pragma queue.cl=1", "2:17: `cl` is a reference task"),
        ("#pragma queue.two=1", "2:17: nothing ever waits for a thread of `two`"),
        ("#pragma queue.srv=$x", "`$x` has no value"),
        ("#pragma call.cl.svr=timeout(1)", "2:16: `cl` makes no call to `svr`"),
        ("#pragma call.cl.two=timeout(1)", "2:16: `cl` makes no call to `two` whose answer it waits for"),
        ("#pragma call.cl.2.srv=timeout(1)", "2:16: `cl` makes no call to `srv`"),
        ("#pragma call.cl=timeout(1)", "2:16: expected `call.FROM.TO`"),
        ("#pragma call.cl.srv=timeout(0)", "2:23: a timeout is a time above 0, not 0"),
        ("#pragma call.cl.srv=retries(1) timeout(0)", "2:34: a timeout is a time above 0, not 0"),
        ("#pragma call.cl.srv=retries(1) retries(2)", "2:34: `retries` stands there twice"),
        ("#pragma call.cl.srv=retries(101)", "2:23: retries are a whole number from 0 to 100"),
        ("#pragma call.cl.srv=backoff(-1)", "2:23: a backoff is a time from 0 on, not -1"),
        ("#pragma call.cl.srv=patience(1)", "2:23: expected timeout(TIME)"),
        ("#pragma call.cl.srv=", "2:23: expected timeout(TIME)"),
    ] {
        let said = read(&text(pragma), &BTreeMap::new()).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(why), "{pragma}: {said}");
    }
    let xml = |attributes: &str| {
        format!(
            "<lqn-model xmlns:plimsoll=\"urn:plimsoll:lqn\">\n<processor name=\"p\"><task name=\"t\" \
             {attributes}>\n\
             <entry name=\"e\" type=\"PH1PH2\"/></task></processor></lqn-model>"
        )
    };
    let said = |text: &str| read(text, &BTreeMap::new()).map(|_| ()).unwrap_err().to_string();
    assert!(said(&xml("plimsoll:queue=\"1\"")).starts_with("2:36: `queue` of `task` is not known"));
    assert!(said(&xml("plimsoll:queue-limit=\"x\"")).starts_with("2:36: expected a number, not `x`"));
    assert!(said(&xml("queue-length=\"3\"")).contains("write `plimsoll:queue-limit`"));
}
