//! The table of HTTP routes: the Gateway API's semantics, a second implementation, and odd input.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "routes/cases.rs"]
mod cases;
#[path = "routes/laws.rs"]
mod laws;
#[path = "routes/naive.rs"]
mod naive;

use naive::{FakeRequest, request, rules};
use plimsoll_brain::route::{
    HostPattern, Mismatch, PathPattern, PatternError, PrecedingRoute, RouteConflict, RouteTable, ValueRegex,
};

#[test]
fn requests_take_the_routes_of_the_gateway_api() {
    let mut count = 0;
    for (texts, requests) in cases::CASES {
        let table = RouteTable::new(rules(texts));
        for (text, expected) in *requests {
            count += 1;
            assert_eq!(table.find(&request(text)), *expected, "{text} with {texts:?}");
            assert_eq!(naive::find(&rules(texts), &request(text)), *expected, "naive: {text} with {texts:?}");
        }
    }
    assert!(count >= 90, "{count} cases");
}

#[test]
fn another_path_can_be_tried() {
    let table = RouteTable::new(rules(&["a.test /v1", "a.test /a%2Fb"]));
    let encoded = request("GET a.test/%76%31");
    assert_eq!(table.find(&encoded), None);
    assert_eq!(table.find_with_path(&encoded, b"/v1"), Some(0));
}

#[test]
fn ten_thousand_routes_answer_like_the_second_implementation() {
    let suffixes = ["", " /api/v1 GET", " /api", " =/health", " ~/api/v[0-9]/users", " /api/v1/users h:x=1"];
    let texts: Vec<String> = (0..10_000)
        .map(|number| {
            let (host, variant) = (number % 1000, number / 1000);
            let wildcard = if variant == 7 { "*." } else { "" };
            let tail =
                suffixes.get(variant).map_or_else(|| format!(" /v{variant}/part"), |tail| (*tail).to_owned());
            format!("{wildcard}host{host}.example.org{tail}")
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let rules = rules(&texts);
    let table = RouteTable::new(rules.clone());
    assert_eq!(table.conflicts(), []);
    let paths = ["/", "/api/v1/users", "/api/v2/users", "/health", "/v6/part/x", "/v7/part", "/v9/part"];
    for number in 0..420 {
        let host = number * 37 % 1005;
        let label = if number % 3 == 0 { "www." } else { "" };
        let method = if number % 2 == 0 { "GET" } else { "PUT" };
        let field = if number % 5 == 0 { " h:x=1" } else { "" };
        let text = format!("{method} {label}Host{host}.example.org{}{field}", paths[number % paths.len()]);
        let request = request(&text);
        assert_eq!(table.find(&request), naive::find(&rules, &request), "{text}");
    }
}

#[test]
fn an_explanation_names_the_patterns_and_the_reasons() {
    let table = RouteTable::new(rules(&[
        "/v1/x",
        "a.test /v1/ h:X-User=1",
        "*.test /v1",
        "a.test /v1 POST",
        "a.test =/v1 q:debug",
        "b.test",
        "*.test /v1 c:beta=1",
        "a.test /v2",
    ]));
    let get = request("GET A.test:80/v1");
    let explanation = table.explain(&get);
    let taken = explanation.taken_by.unwrap();
    assert_eq!(taken.route, 2);
    assert_eq!(taken.host, Some(&HostPattern::Suffix(".test".into())));
    assert_eq!(taken.path, Some(&PathPattern::Prefix("/v1".into())));
    let preceding = |route, mismatch| PrecedingRoute { route, mismatch };
    assert_eq!(
        explanation.preceding,
        [
            preceding(4, Mismatch::Query("debug")),
            preceding(3, Mismatch::Method),
            preceding(1, Mismatch::Header("x-user")),
            preceding(7, Mismatch::Path),
            preceding(5, Mismatch::Host),
            preceding(6, Mismatch::Cookie("beta")),
        ]
    );
    let nowhere = request("GET c.org/");
    assert_eq!(table.explain(&nowhere).taken_by, None);
    assert_eq!(table.explain(&nowhere).preceding.len(), 8);
    let everywhere = RouteTable::new(rules(&["/"]));
    let taken = everywhere.explain(&nowhere).taken_by.unwrap();
    assert_eq!((taken.host, taken.path), (None, None));
}

#[test]
fn known_conflicts_are_reported() {
    let equal = |route, first| RouteConflict::Equal { route, first };
    let unreachable = |route, by| RouteConflict::Unreachable { route, by };
    let cases: &[(&[&str], &[RouteConflict])] = &[
        (&["", "/"], &[equal(1, 0)]),
        (&["a.test b.test /v1", "B.test a.test. /v1/", "a.test /v1"], &[equal(1, 0), unreachable(2, 0)]),
        (&["h:X=1 GET PUT", "PUT GET h:x=1"], &[equal(1, 0)]),
        (&["a.test b.test", "b.test"], &[unreachable(1, 0)]),
        (&["/a /b", "/b"], &[unreachable(1, 0)]),
        (&["~/a.* GET PUT", "~/a.* PUT"], &[unreachable(1, 0)]),
        (&["h:x", "h:x=1"], &[unreachable(1, 0)]),
        (&["h:x~[0-9]+", "h:x=1"], &[unreachable(1, 0)]),
        // Written later, but before in precedence.
        (&["h:x=1", "h:x=1 h:x"], &[unreachable(0, 1)]),
        // Each of these takes some request.
        (&["h:x=1", "h:x"], &[]),
        (&["h:x~[0-9]+", "h:x=a"], &[]),
        (&["", "GET"], &[]),
        (&["GET", ""], &[]),
        (&["a.test", "*.test", ""], &[]),
        (&["/a", "/a/b", "=/a/b"], &[]),
        (&["h:x", "q:x", "c:x"], &[]),
        (&["/v1 GET", "/v1 POST"], &[]),
        (&["a.test b.test /v1 h:x", "a.test /v1"], &[]),
        (&["*.test /v1", "a.test *.test /v1"], &[]),
    ];
    for (texts, expected) in cases {
        assert_eq!(RouteTable::new(rules(texts)).conflicts(), *expected, "{texts:?}");
    }
}

#[test]
fn odd_requests_find_the_rule_without_conditions() {
    let hosts: [&[u8]; 13] = [
        b"",
        b".",
        b"..",
        b":",
        b":80",
        b"[",
        b"[::1",
        b"[::1]:80",
        b"[::1]:",
        b"::1",
        b"\xff\xfe",
        b"*",
        b"*.a.test.",
    ];
    let paths: [&[u8]; 7] = [b"", b"*", b"/", b"//", b"/\xff", b"v1", b"/a%"];
    let table = RouteTable::new(rules(&["b.test /v1", "*.b.test", "=/v2", "~/x.y", "h:x", ""]));
    for host in hosts {
        for path in paths {
            let odd = FakeRequest { host: host.to_vec(), path: path.to_vec(), ..FakeRequest::default() };
            assert_eq!(table.find(&odd), Some(5), "{odd:?}");
            assert_eq!(table.explain(&odd).taken_by.unwrap().route, 5);
        }
    }
    let bytes = FakeRequest { path: b"/x\xffy".to_vec(), ..FakeRequest::default() };
    assert_eq!(table.find(&bytes), Some(3), "a dot is any byte");
}

#[test]
fn long_paths_and_hosts_are_found() {
    let host = format!("{}a.test", "label.".repeat(30));
    let path = "/segment".repeat(40);
    let table = RouteTable::new(rules(&[&host, &format!("*.{host} {path}"), &format!("{path}/x")]));
    assert_eq!(table.find(&request(&format!("GET {host}/"))), Some(0));
    assert_eq!(table.find(&request(&format!("GET x.{host}{path}/y"))), Some(1));
    assert_eq!(table.find(&request(&format!("GET x.{host}{path}y"))), None);
    assert_eq!(table.find(&request(&format!("GET z{path}/x/y"))), Some(2));
    assert_eq!(table.find(&request(&format!("GET z{path}/y"))), None);
}

#[test]
fn regular_expressions_match_whole_values_of_bytes() {
    let matches = |pattern: &str, value: &str| ValueRegex::new(pattern).unwrap().matches(value.as_bytes());
    assert!(matches("a|ab", "ab") && !matches("a|ab", "abc") && !matches("b", "ab"));
    assert!(matches("", "") && !matches("", "a"));
    assert!(matches("^a$", "a") && matches("(?i)straße", "STRAße"));
    assert!(matches(r"\w+", "abc_1") && !matches(r"\w+", "é") && matches("é", "é"));
    assert!(matches("(?x) a b # comment", "ab"));
    assert!(matches("[^/]*/b", "\u{fffd}/b") && !matches(".*", "a\nb"));
    assert!(matches(r"a.*\bc", "a c") && !matches(r"a.*\bc", "abc"));
    assert_eq!(ValueRegex::new("a+").unwrap(), ValueRegex::new("a+").unwrap());
    assert_eq!(ValueRegex::new("a+").unwrap().as_str(), "a+");
}

#[test]
fn a_wrong_regular_expression_is_refused_with_the_place() {
    let offset = |pattern| match ValueRegex::new(pattern) {
        Err(PatternError::Syntax { offset, reason }) => (offset, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(offset("/a(b").0, 2);
    assert_eq!(offset("/a)(b").0, 2, "parentheses cannot leave the frame");
    assert_eq!(offset("/ab[z-a]").0, 4);
    assert_eq!(offset(r"/x\1").0, 2);
    assert!(offset("*").1.contains("repetition"));
    assert_eq!(ValueRegex::new(".*a.{30}"), Err(PatternError::TooLarge));
    assert_eq!(ValueRegex::new("(a{1000}){1000}"), Err(PatternError::TooLarge));
    assert!(matches!(ValueRegex::new(r"(?u:\b)a"), Err(PatternError::Unsupported { .. })));
    assert_eq!(offset("/a(b").1 + ", at byte 2", ValueRegex::new("/a(b").unwrap_err().to_string());
}
