//! Errors in experiment files, and their messages.

use super::*;
use crate::lab::fixture::TEXT;

/// Returns the messages for the changed text, with the pieces of the text they point at.
fn errors_after(original: &str, replacement: &str) -> Vec<(String, String)> {
    assert!(TEXT.contains(original), "{original}");
    let text = TEXT.replacen(original, replacement, 1);
    let errors = Experiment::parse(&text).map(drop).unwrap_err();
    errors.into_iter().map(|error| (text[error.span].to_owned(), error.message)).collect()
}

#[test]
fn mistakes_are_pointed_at() {
    let cases = [
        ("service = \"const:1ms\"", "servise = \"const:1ms\"", "servise", "unknown field"),
        ("\"const:1ms\"", "\"const:1\"", "\"const:1\"", "not a duration"),
        ("vary = \"concurrency\"", "vary = \"speed\"", "\"speed\"", "unknown variant"),
        ("x = \"seconds\"", "x = \"rate\"", "\"rate\"", "not varied"),
        ("full = [10, 20]", "full = []", "[]", "no level"),
        ("full = [10, 20]", "full = [\"ten\"]", "[\"ten\"]", "takes numbers"),
        ("quick = 1 }", "quick = 0 }", "0", "5 or more"),
        ("\"haproxy\"", "\"pound\"", "[\"plimsoll:round_robin\", \"pound\"]", "not a balancer"),
        ("\"haproxy\"", "\"haproxy:random\"", "[\"plimsoll:round_robin\", \"haproxy:random\"]", "strategy"),
    ];
    for (original, replacement, expected_span, expected_message) in cases {
        let errors = errors_after(original, replacement);
        assert!(
            errors.iter().any(|(span, message)| span == expected_span && message.contains(expected_message)),
            "{replacement}: {errors:?}"
        );
    }
}

/// Returns all messages for the changed text.
fn messages_after(original: &str, replacement: &str) -> String {
    errors_after(original, replacement).into_iter().map(|(_, message)| message + "\n").collect()
}

#[test]
fn numbers_out_of_bounds_are_refused() {
    let cases = [
        ("batches = { full = 3", "batches = { full = 4294967296", "from 1 to 1000"),
        ("repetitions = { full = 2", "repetitions = { full = 1001", "from 1 to 1000"),
        ("duration = { full = \"3s\"", "duration = { full = \"1ms\"", "for each batch"),
        ("const:1ms\"", "const:1ms\"\nsession = { integers = 0, swaps = 9 }", "integers"),
        ("const:1ms\"", "const:1ms\"\nsession = { integers = 4611686018427387904, swaps = 9 }", "integers"),
        ("const:1ms\"", "const:1ms\"\nsession = { integers = 3, swaps = 4000000000 }", "swaps"),
        ("const:1ms\"", "const:1ms\"\nworkers = 18446744073709", "workers"),
        ("keep_alive", "rate = -5\nkeep_alive", "[load] rate: `-5`"),
        ("keep_alive", "rate = inf\nkeep_alive", "[load] rate: `inf`"),
        ("keep_alive", "share = nan\nkeep_alive", "[load] share: `NaN`"),
        ("keep_alive", "concurrency = 0\nkeep_alive", "[load] concurrency: `0`"),
        ("full = [0, 2]", "full = [-1, 2]", "`-1`"),
    ];
    for (original, replacement, message) in cases {
        assert!(
            messages_after(original, replacement).contains(message),
            "{replacement}: {}",
            messages_after(original, replacement)
        );
    }
}

/// Levels that only the quick form lacks are not tested there; levels that no form has are an error.
#[test]
fn claims_are_about_levels_that_are_there() {
    let claim = "{ at_least = { metric = \"success\", value = 1 } }";
    let ratio_test = |tested: &str, compared: &str| {
        format!(
            "{{ ratio_to_best = {{ metric = \"p99\", series = \"balancer\", of = \"{tested}\", among = \
             [\"{compared}\"], at_most = 1 }} }}"
        )
    };
    for (tested, compared) in [("plimsoll:round_robin", "nginx"), ("plimsoll:random", "haproxy")] {
        let messages = messages_after(claim, &ratio_test(tested, compared));
        assert!(messages.contains("no point has the levels"), "{messages}");
    }
    let text = TEXT.replace(claim, &ratio_test("plimsoll:round_robin", "haproxy"));
    let experiment = Experiment::parse(&text).unwrap();
    let is_decidable =
        |mode| experiment.claims[0].is_decidable_by(&crate::lab::plan::points(&experiment, mode));
    assert_eq!([is_decidable(RunLength::Full), is_decidable(RunLength::Quick)], [true, false]);
}

/// An error in an application points at the key, or at its table.
#[test]
fn mistakes_in_an_application_are_pointed_at() {
    const APPLICATION: &str = "\n[application]\narchitecture = \"handle\"\nagent = \"1ms\"\nclient = \
                               \"2ms\"\nclones = 3\n\
                               length = \"150B\"\ndelay = \"20ms\"\n";
    let base_text = TEXT
        .replace("[members]\n", "[members]\ncount = 4\nworkers = 1\n")
        .replace("keep_alive = false", "keep_alive = true")
        .replace("[[factor]]\nvary = \"endpoints\"\nfull = [0, 2]\nquick = [1]\n", "")
        .replace(
            "[[factor]]\nvary = \"balancer\"\nfull = [\"plimsoll:round_robin\", \"haproxy\"]\nquick = \
             [\"plimsoll\"]\n",
            "",
        );
    let errors_after = |original: &str, replacement: &str| -> Vec<(String, String)> {
        let text = format!("{base_text}{APPLICATION}");
        assert!(text.contains(original), "{original}");
        let text = text.replacen(original, replacement, 1);
        let errors = Experiment::parse(&text).map(drop).err().unwrap_or_default();
        errors.into_iter().map(|error| (text[error.span].to_owned(), error.message)).collect()
    };
    assert_eq!(errors_after("title", "title"), []);
    for (original, replacement, expected_span, expected_message) in [
        ("agent = \"1ms\"", "agent = \"101s\"", "\"101s\"", "`agent` is 100 s at most"),
        ("client = \"2ms\"", "client = \"200s\"", "\"200s\"", "`client` is 100 s at most"),
        ("clones = 3", "clones = 0", "0", "`clones` are from 1 to 1000"),
        ("\"150B\"", "\"300kB\"", "\"300kB\"", "`length` is 200000 bytes at most"),
        ("count = 4", "count = 3", "[application]", "has 4 members"),
        (
            APPLICATION,
            "\n[[factor]]\nvary = \"clones\"\nfull = [1]\nquick = [1]\n",
            "\"clones\"",
            "only of an",
        ),
    ] {
        let errors = errors_after(original, replacement);
        assert!(
            errors
                .iter()
                .any(|(span, message)| span.starts_with(expected_span) && message.contains(expected_message)),
            "{replacement}: {errors:?}"
        );
    }
}

#[test]
fn faults_that_cannot_happen_are_refused() {
    let fault = |act: &str, member: usize, at: &str| {
        format!(
            "[[fault]]\nact = \"{act}\"\nmember = {member}\nat = {{ full = \"{at}\", quick = \"100ms\" }}\n"
        )
    };
    // Members 1 and 2 behind plimsoll, for four seconds (quick: 1.1 s).
    let text = TEXT.replace("quick = [1]", "quick = [2]").replace("full = [0, 2]", "full = [2]");
    let text = text.replace(", \"haproxy\"", "");
    let messages = |faults: &[String]| match Experiment::parse(&(text.clone() + &faults.concat())) {
        Ok(_) => String::new(),
        Err(errors) => errors.into_iter().map(|error| error.message + "\n").collect(),
    };
    assert_eq!(messages(&[fault("kill", 2, "1s"), fault("start", 2, "3900ms")]), "");
    assert!(messages(&[fault("kill", 2, "4s")]).contains("never happens"));
    assert!(messages(&[fault("kill", 7, "1s")]).contains("no member 7"));
    assert!(messages(&[fault("stop", 3, "1s")]).contains("no member 3"));
    assert_eq!(messages(&[fault("add", 1, "500ms"), fault("stop", 3, "1s")]), "");
    assert!(messages(&[fault("start", 1, "1s")]).contains("runs already"));
    assert!(messages(&[fault("kill", 1, "1s"), fault("stop", 1, "2s")]).contains("does not run"));
}

#[test]
fn a_member_is_cut_off_only_where_it_has_a_cable() {
    let fault =
        |act: &str| format!("[[fault]]\nact = \"{act}\"\nat = {{ full = \"1s\", quick = \"100ms\" }}\n");
    let messages = |network: &str, actions: &[&str]| {
        let faults: String = actions.iter().map(|action| fault(action)).collect();
        match Experiment::parse(&format!("{TEXT}{faults}{network}")) {
            Ok(_) => String::new(),
            Err(errors) => errors.into_iter().map(|error| error.message + "\n").collect(),
        }
    };
    let hosts = "[network]\nnamespaces = true\n";
    assert_eq!(messages(hosts, &["cut_off", "join", "cut_off"]), "");
    // The member may be killed while it is cut off, and join again afterwards.
    assert_eq!(messages(hosts, &["cut_off", "kill", "join"]), "");
    assert!(messages("", &["cut_off"]).contains("needs [network]"));
    assert!(messages(hosts, &["join"]).contains("not cut off"));
    assert!(messages(hosts, &["cut_off", "cut_off"]).contains("cut off already"));
    assert_eq!(messages(&format!("{hosts}delay = \"10s\"\n"), &[]), "");
    assert!(messages(&format!("{hosts}delay = \"11s\"\n"), &[]).contains("10 s at most"));
    assert!(messages("[network]\ndelay = \"1ms\"\n", &[]).contains("namespaces = true"));
}

#[test]
fn levels_are_not_mixed() {
    let text = TEXT.replace("x = \"seconds\"", "x = \"concurrency\"\nseries = \"endpoints\"");
    let test = "{ falls_with = { metric = \"response\", along = \"concurrency\", by = \"endpoints\" } }";
    let text = text.replace("{ at_least = { metric = \"success\", value = 1 } }", test);
    let errors = Experiment::parse(&text).unwrap_err();
    let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
    assert!(
        messages.iter().any(|message| message.contains("figure would mix the levels of `balancer`")),
        "{messages:?}"
    );
    assert!(
        messages.iter().any(|message| message.contains("claim would mix the levels of `balancer`")),
        "{messages:?}"
    );
    // With one balancer there is nothing to mix.
    let text = text.replace(", \"haproxy\"", "");
    assert!(Experiment::parse(&text).is_ok());
}

#[test]
fn the_load_must_be_one_kind() {
    let errors = errors_after("keep_alive = false", "rate = 5");
    assert!(errors.iter().any(|(_, message)| message.contains("exactly one of")), "{errors:?}");
    let errors = errors_after(
        "vary = \"concurrency\"\nfull = [10, 20]\nquick = [10]",
        "vary = \"rate\"\nfull = [1]\nquick = [0]",
    );
    assert!(errors.iter().any(|(_, message)| message.contains("above 0")), "{errors:?}");
}

/// Parses the fixture with groups of clients, over one balancer.
fn sessions(groups: &str) -> Result<Experiment, Vec<(String, String)>> {
    let text = TEXT.replace("keep_alive = false", &format!("timeout = \"2s\"\n{groups}"));
    let text = text.replace(", \"haproxy\"", "");
    let span_text = |error: &ExperimentError| text[error.span.clone()].to_owned();
    Experiment::parse(&text)
        .map_err(|errors| errors.iter().map(|error| (span_text(error), error.message.clone())).collect())
}

#[test]
fn groups_of_clients_are_of_one_kind() {
    const HALVES: &str = "[[load.clients]]\nshare = 0.5\nthink = \"1ms\"\n[[load.clients]]\nshare = 0.5\n";
    let load = sessions(HALVES).unwrap().load;
    assert!(load.is_by_share() && load.is_closed_loop());
    let errors_after = |original: &str, replacement: &str| {
        assert!(HALVES.contains(original), "{original}");
        sessions(&HALVES.replacen(original, replacement, 1)).unwrap_err()
    };
    let cases = [
        ("share = 0.5\nthink", "share = 0.5\ncount = 2\nthink", "either a `count`"),
        ("share = 0.5\nthink", "share = -0.5\nthink", "above 0"),
        ("think = \"1ms\"", "rate = 5", "no `rate`"),
        ("think = \"1ms\"", "rate = 5\nthink = \"1ms\"", "either a `rate`"),
        ("share = 0.5\nthink", "count = 2\nthink", "all of one kind"),
    ];
    for (original, replacement, expected_message) in cases {
        let errors = errors_after(original, replacement);
        let is_expected = |(span, message): &(String, String)| {
            span == "[[load.clients]]" && message.contains(expected_message)
        };
        assert!(errors.iter().any(is_expected), "{replacement}: {errors:?}");
    }
    assert!(errors_after("0.5", "0.25").iter().any(|(_, message)| message.contains("1 together, not 0.75")));
    let errors = errors_after("think = \"1ms\"", "think = \"1\"");
    assert!(errors[0].0 == "\"1\"" && errors[0].1.contains("not a duration"), "{errors:?}");
    let with_counts = HALVES.replace("share = 0.5", "count = 2");
    assert!(
        sessions(&with_counts).unwrap_err().iter().any(|(_, message)| message.contains("exactly one of"))
    );
}

#[test]
fn what_cannot_go_over_iiop_is_said() {
    const IIOP: &str = "protocol = \"iiop\"\n";
    assert!(sessions(IIOP).is_ok());
    let errors = sessions("protocol = \"ftp\"\n").unwrap_err();
    assert!(errors[0].0 == "\"ftp\"" && errors[0].1.contains("unknown variant"), "{errors:?}");
    let factor = format!("{IIOP}[[factor]]\nvary = \"protocol\"\nfull = [\"iiop\"]\nquick = [\"tcp\"]\n");
    let errors = sessions(&factor).unwrap_err();
    assert!(
        errors.contains(&("\"iiop\"".to_owned(), "`protocol` is a factor already".to_owned())),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|(span, message)| span == "[\"tcp\"]" && message.contains("`http` or `iiop`")),
        "{errors:?}"
    );
    let iiop_text = TEXT.replace("keep_alive = false", IIOP);
    let errors = Experiment::parse(&iiop_text).unwrap_err();
    assert!(errors[0].message.contains("haproxy cannot be had over iiop"), "{errors:?}");
    let plimsoll_only = iiop_text.replace(", \"haproxy\"", "");
    assert!(Experiment::parse(&plimsoll_only).is_ok());
    let errors =
        Experiment::parse(&plimsoll_only.replace("const:1ms\"", "const:1ms\"\nmeter = true")).unwrap_err();
    assert!(errors[0].message.contains("`meter`"), "{errors:?}");
}

#[test]
fn a_part_of_the_points_is_named() {
    let messages_with = |only: &str| {
        let text =
            TEXT.replace("x = \"seconds\"", &format!("x = \"concurrency\"\nseries = \"endpoints\"\n{only}"));
        match Experiment::parse(&text) {
            Ok(_) => String::new(),
            Err(errors) => errors.into_iter().map(|error| error.message + "\n").collect(),
        }
    };
    assert!(messages_with("").contains("mix the levels of `balancer`"));
    assert_eq!(messages_with("only = [{ factor = \"balancer\", among = [\"haproxy\"] }]"), "");
    assert!(messages_with("only = [{ factor = \"balancer\" }]").contains("mix the levels"));
    assert!(messages_with("only = [{ factor = \"share\", from = 1 }]").contains("`share` is not varied"));
    let messages = messages_after("[\"plimsoll:round_robin\", \"haproxy\"]", "[\"none\", \"plimsoll\"]");
    assert!(messages.contains("write no balancer as 0 endpoints"), "{messages}");
}

#[test]
fn members_come_and_go_by_a_curve_and_before_plimsoll_alone() {
    let valid_text = r#"
title = "A day"
about = "Nothing"
[members]
cores = 1
service = "exp:40ms"
[scaler]
min = 2
max = 9
start = "3s"
headroom = 0.25
response = "160ms"
stabilize = "5s"
cool_down = "2s"
step = { scale_out = 4, scale_in = 1 }
[load]
rate = 100
curve = [[0, 0.5], [1, 1]]
[plan]
repetitions = { full = 1, quick = 1 }
batches = { full = 5, quick = 5 }
warmup = { full = "1s", quick = "1s" }
duration = { full = "100s", quick = "50s" }
[[factor]]
vary = "scaler"
full = ["headroom", "reactive:0.7"]
quick = ["headroom"]
[[claim]]
says = "The goal is met"
test = { at_least = { metric = "met", value = 0.99 } }
"#;
    let messages_after = |original: &str, replacement: &str| {
        let text = valid_text.replacen(original, replacement, 1);
        assert_ne!(text, valid_text, "{original}");
        let errors = Experiment::parse(&text).err().unwrap_or_default();
        errors.into_iter().map(|error| error.message).collect::<Vec<_>>().join("; ")
    };
    let experiment = Experiment::parse(valid_text).unwrap_or_else(|errors| panic!("{errors:?}"));
    let points = crate::lab::plan::points(&experiment, RunLength::Full);
    // Both points have the same day.
    assert_eq!(points.iter().map(|point| point.seed).collect::<Vec<_>>(), [1, 1]);
    let quick_scaler = crate::lab::plan::points(&experiment, RunLength::Quick).remove(0).scaler.unwrap();
    assert_eq!(
        (quick_scaler.member_rate, quick_scaler.settings.start.0),
        (25.0, Duration::from_millis(1500))
    );
    for (original, replacement, message) in [
        ("[[0, 0.5], [1, 1]]", "[[0, 0.5], [2, 1]]", "from 0 to 1"),
        ("[[0, 0.5], [1, 1]]", "[[0.5, 0.5], [0.5, 1]]", "grow from pair to pair"),
        ("rate = 100", "concurrency = 100", "`curve` is of a `rate`"),
        ("cores = 1\n", "", "`cores` and a `service`"),
        ("\"headroom\", \"reactive:0.7\"", "\"keda\"", "expected `headroom`"),
        ("max = 9", "max = 1", "`min` and `max`"),
        ("[load]\n", "[balancer]\nkind = \"haproxy\"\n[load]\n", "is plimsoll's"),
        ("\"met\"", "\"dispersion\"", "members that stay"),
        (
            "quick = \"1s\" }\nduration",
            "quick = \"1s\" }\ntick = { full = \"1s\", quick = \"1ms\" }\nduration",
            "the tick",
        ),
    ] {
        let messages = messages_after(original, replacement);
        assert!(messages.contains(message), "{replacement}: {messages}");
    }
    let [scaler_start, load_start] =
        [valid_text.find("[scaler]").unwrap(), valid_text.find("[load]").unwrap()];
    let without_scaler = format!("{}{}", &valid_text[..scaler_start], &valid_text[load_start..]);
    let errors = Experiment::parse(&without_scaler).unwrap_err();
    assert!(errors.iter().any(|error| error.message.contains("there is no [scaler]")), "{errors:?}");
}
