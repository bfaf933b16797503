//! Random tables and requests against the second implementation.

use std::sync::LazyLock;

use plimsoll_brain::route::{
    FieldCondition, FieldTest, HostPattern, Mismatch, PathPattern, RequestFields, RouteConflict,
    RouteExplanation, RouteRule, RouteTable, ValueRegex,
};
use proptest::prelude::*;
use proptest::sample::select;

use super::naive::{self, FakeRequest};

const LONG_PATH: &str = "/a/path/of/more/than/sixty-three/bytes/in/all/which/share/one/bit/of/the/set";

static PATH_REGEXES: LazyLock<Vec<ValueRegex>> = LazyLock::new(|| {
    ["/v[0-9]+", "/v1/.*", ".*/x", "/(?i)V1"].map(|text| ValueRegex::new(text).unwrap()).to_vec()
});
static VALUE_REGEXES: LazyLock<Vec<ValueRegex>> =
    LazyLock::new(|| ["1|2", "[0-9]*"].map(|text| ValueRegex::new(text).unwrap()).to_vec());

fn any_host() -> impl Strategy<Value = HostPattern> {
    prop_oneof![
        select(vec!["a.test", "A.TEST.", "b.a.test", "c.b.a.test", "long-name.b.a.test", "[::1]", "z"])
            .prop_map(|name| HostPattern::Exact(name.into())),
        select(vec![".test", ".a.test", ".B.a.test", ".org"])
            .prop_map(|name| HostPattern::Suffix(name.into())),
    ]
}

fn any_path() -> impl Strategy<Value = PathPattern> {
    let long_parent = LONG_PATH.rsplit_once('/').unwrap().0;
    let texts = vec!["/", "/v1", "/v1/", "/v1/x", "/v10", "/v1/x/y", "", "v1", LONG_PATH, long_parent];
    prop_oneof![
        select(texts.clone()).prop_map(|text| PathPattern::Prefix(text.into())),
        select(texts).prop_map(|text| PathPattern::Exact(text.into())),
        select(&**PATH_REGEXES).prop_map(PathPattern::Regex),
    ]
}

fn any_condition() -> impl Strategy<Value = FieldCondition> {
    let test = prop_oneof![
        Just(FieldTest::Present),
        select(vec!["1", "2"]).prop_map(|value| FieldTest::Exact(value.into())),
        select(&**VALUE_REGEXES).prop_map(FieldTest::Regex),
    ];
    (select(vec!["x", "X", "y"]), test).prop_map(|(name, test)| FieldCondition { name: name.into(), test })
}

fn any_conditions() -> impl Strategy<Value = Vec<FieldCondition>> {
    prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(any_condition(), 1..3)]
}

prop_compose! {
    fn any_rule()(
        hosts in prop::collection::vec(any_host(), 0..3),
        paths in prop::collection::vec(any_path(), 0..3),
        methods in prop::collection::vec(select(vec!["GET", "POST"]), 0..2),
        headers in any_conditions(),
        queries in any_conditions(),
        cookies in any_conditions(),
    ) -> RouteRule {
        let methods = methods.into_iter().map(Box::from).collect();
        RouteRule { hosts, paths, methods, headers, queries, cookies }
    }
}

fn any_fields() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = select(vec!["x", "X", "y"]).prop_map(String::from);
    let value = select(vec!["1", "2", "", "three"]).prop_map(|value| value.as_bytes().to_vec());
    prop::collection::vec((name, value), 0..4)
}

prop_compose! {
    fn any_request()(
        host in select(vec![
            "a.test", "a.test", "B.a.test:80", "c.b.a.test.", "long-name.B.A.Test", "z", "", ".test",
            "x.org.:1", "[::1]:80", "*",
        ]),
        path in select(vec![
            "/", "/v1", "/v1", "/v1/", "/v1/x", "/v1/x", "/v10", "/v1/x/y/z", "/V1", "", "*", "v1/x",
            LONG_PATH, &LONG_PATH[..LONG_PATH.len() - 4],
        ]),
        method in select(vec!["GET", "POST", "PUT"]),
        headers in any_fields(),
        queries in any_fields(),
        cookies in any_fields(),
    ) -> FakeRequest {
        FakeRequest {
            host: host.into(), path: path.into(), method: method.into(), headers, queries, cookies,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Checks that the table and its explanation give the rule that filtering and sorting gives, and that a
    /// rule in a conflict takes no request.
    #[test]
    fn a_table_agrees_with_filtering_and_sorting(
        rules in prop::collection::vec(any_rule(), 0..12),
        requests in prop::collection::vec(any_request(), 20),
    ) {
        let table = RouteTable::new(rules.clone());
        let conflicts = table.conflicts();
        for request in &requests {
            let expected = naive::find(&rules, request);
            prop_assert_eq!(table.find(request), expected, "{:?}", request);
            let elsewhere = FakeRequest { path: b"/v1/x".to_vec(), ..request.clone() };
            prop_assert_eq!(table.find_with_path(request, b"/v1/x"), naive::find(&rules, &elsewhere));
            check_explanation(&table.explain(request), &rules, request, expected);
            for conflict in &conflicts {
                let (RouteConflict::Unreachable { route, by } | RouteConflict::Equal { route, first: by }) =
                    *conflict;
                prop_assert_ne!(Some(route), expected);
                // The other rule matches whatever this one matches, and comes before it.
                if let Some(rank) = naive::rank(route, &rules[route], request) {
                    prop_assert!(naive::rank(by, &rules[by], request).is_some_and(|by| by < rank));
                }
            }
        }
    }

    /// Checks that no bytes of a request make the table fail.
    #[test]
    fn any_bytes_are_a_request(
        host in prop::collection::vec(select(b"a.:*[]1\xff".to_vec()), 0..12),
        path in prop::collection::vec(select(b"/v1x\xff\0".to_vec()), 0..12),
        rules in prop::collection::vec(any_rule(), 0..8),
    ) {
        let request = FakeRequest { host, path, method: vec![0xff], ..FakeRequest::default() };
        let table = RouteTable::new(rules.clone());
        prop_assert_eq!(table.find(&request), naive::find(&rules, &request));
        check_explanation(&table.explain(&request), &rules, &request, table.find(&request));
    }
}

/// Checks that an explanation names the rule and that each reason is true.
fn check_explanation(
    explanation: &RouteExplanation<'_>,
    rules: &[RouteRule],
    request: &FakeRequest,
    expected: Option<usize>,
) {
    assert_eq!(explanation.taken_by.map(|taken| taken.route), expected);
    let mut best = None;
    if let Some(taken) = explanation.taken_by {
        let rule = &rules[taken.route];
        let only = RouteRule {
            hosts: taken.host.into_iter().cloned().collect(),
            paths: taken.path.into_iter().cloned().collect(),
            ..rule.clone()
        };
        best = naive::rank(taken.route, rule, request);
        assert_eq!(naive::rank(taken.route, &only, request), best, "the host and path are its best");
    } else {
        assert_eq!(explanation.preceding.len(), rules.len(), "each rule has a reason");
    }
    for preceding in &explanation.preceding {
        let rule = &rules[preceding.route];
        let place = naive::place(preceding.route, rule, request);
        let is_before = || best.is_none() || place < best;
        match preceding.mismatch {
            Mismatch::Host => assert!(naive::best_host(rule, request).is_none()),
            Mismatch::Path => {
                assert!(
                    naive::best_host(rule, request).is_some() && naive::best_path(rule, request).is_none()
                );
            }
            Mismatch::Method => assert!(place.is_some() && is_before() && !naive::has_method(rule, request)),
            Mismatch::Header(name) => {
                assert!(place.is_some() && is_before() && fails(&rule.headers, name, request.header(name)));
            }
            Mismatch::Query(name) => {
                assert!(
                    place.is_some()
                        && is_before()
                        && fails(&rule.queries, name, request.query(name).as_deref())
                );
            }
            Mismatch::Cookie(name) => {
                assert!(place.is_some() && is_before() && fails(&rule.cookies, name, request.cookie(name)));
            }
        }
    }
    for (index, rule) in rules.iter().enumerate() {
        let place = naive::place(index, rule, request);
        if place.is_some() && place < best {
            assert!(explanation.preceding.iter().any(|preceding| preceding.route == index), "{index}");
        }
    }
}

fn fails(conditions: &[FieldCondition], name: &str, value: Option<&[u8]>) -> bool {
    let mut named = conditions.iter().filter(|condition| condition.name.eq_ignore_ascii_case(name));
    named.any(|condition| !naive::holds(&condition.test, value))
}
