//! The Gateway API's core semantics, case by case: rules, then requests with the index of their rule.

/// Rules and requests in the notation of [`super::naive`].
pub(crate) type RouteCase = (&'static [&'static str], &'static [(&'static str, Option<usize>)]);

pub(crate) const CASES: &[RouteCase] = &[
    // No rule, and a rule without conditions.
    (&[], &[("GET a.test/", None)]),
    (&[""], &[("GET a.test/", Some(0)), ("PUT /x", Some(0))]),
    // Hosts.
    (
        &["*.test", "*.a.test", "b.a.test", ""],
        &[
            ("GET b.a.test/", Some(2)),
            ("GET B.A.TEST/", Some(2)),
            ("GET b.a.test:8080/", Some(2)),
            ("GET b.a.test./", Some(2)),
            ("GET b.a.test.:8080/", Some(2)),
            ("GET c.a.test/", Some(1)),
            ("GET d.c.a.test/", Some(1)),
            ("GET a.test/", Some(0)),
            ("GET x.y.z.test/", Some(0)),
            ("GET test/", Some(3)),
            ("GET .test/", Some(3)),
            ("GET xa.test/", Some(0)),
            ("GET other.org/", Some(3)),
        ],
    ),
    (&["a.test b.test"], &[("GET a.test/", Some(0)), ("GET b.test/", Some(0)), ("GET c.test/", None)]),
    (&["A.Test."], &[("GET a.test/", Some(0))]),
    (&["[::1]"], &[("GET [::1]/", Some(0)), ("GET [::1]:80/", Some(0)), ("GET [::2]/", None)]),
    (&["10.0.0.1"], &[("GET 10.0.0.1/", Some(0)), ("GET 10.0.0.1:80/", Some(0)), ("GET 10.0.0.11/", None)]),
    // A specific host whose rules do not match leaves the request to the others.
    (
        &["b.a.test /v1", "*.a.test /v2", "*.test /v3", "/v4"],
        &[
            ("GET b.a.test/v1", Some(0)),
            ("GET b.a.test/v2", Some(1)),
            ("GET b.a.test/v3", Some(2)),
            ("GET b.a.test/v4", Some(3)),
            ("GET b.a.test/v5", None),
        ],
    ),
    // The host counts before the path, and the path before all else.
    (&["=/v1 GET h:x=1", "*.test /"], &[("GET a.test/v1 h:x=1", Some(1)), ("GET a.org/v1 h:x=1", Some(0))]),
    (&["/ GET h:x=1 q:y=2", "/v1"], &[("GET a.test/v1 h:x=1 q:y=2", Some(1))]),
    // Paths.
    (
        &["/v1"],
        &[
            ("GET a.test/v1", Some(0)),
            ("GET a.test/v1/", Some(0)),
            ("GET a.test/v1/x", Some(0)),
            ("GET a.test/v10", None),
            ("GET a.test/V1", None),
            ("GET a.test/", None),
            ("GET a.test/x/v1", None),
        ],
    ),
    (&["/v1/"], &[("GET a.test/v1", Some(0)), ("GET a.test/v1/x", Some(0)), ("GET a.test/v10", None)]),
    (&["=/v1"], &[("GET a.test/v1", Some(0)), ("GET a.test/v1/", None), ("GET a.test/v1/x", None)]),
    (&["=/v1/"], &[("GET a.test/v1", None), ("GET a.test/v1/", Some(0))]),
    (
        &["/", "/a", "/a/b", "/a/b/c", "=/a/b"],
        &[
            ("GET a.test/", Some(0)),
            ("GET a.test/x", Some(0)),
            ("GET a.test/a", Some(1)),
            ("GET a.test/a/x", Some(1)),
            ("GET a.test/a/bc", Some(1)),
            ("GET a.test/a/b", Some(4)),
            ("GET a.test/a/b/", Some(2)),
            ("GET a.test/a/b/x/c", Some(2)),
            ("GET a.test/a/b/c/d", Some(3)),
        ],
    ),
    (
        &["~/v[0-9]+", "/v1", "=/v2", ""],
        &[
            ("GET a.test/v1", Some(1)),
            ("GET a.test/v2", Some(2)),
            ("GET a.test/v3", Some(0)),
            ("GET a.test/v3/x", Some(3)),
            ("GET a.test/x/v3", Some(3)),
            ("GET a.test/v", Some(3)),
        ],
    ),
    (&["~/a|/ab"], &[("GET a.test/a", Some(0)), ("GET a.test/ab", Some(0)), ("GET a.test/abc", None)]),
    (
        &["~/a ~/b =/c"],
        &[("GET x/a", Some(0)), ("GET x/b", Some(0)), ("GET x/c", Some(0)), ("GET x/d", None)],
    ),
    // No path is the prefix `/`, and the order of writing decides.
    (&["", "/"], &[("GET a.test/x", Some(0))]),
    (&["/", ""], &[("GET a.test/x", Some(0))]),
    // Methods.
    (
        &["", "GET", "POST PUT"],
        &[
            ("GET a.test/", Some(1)),
            ("POST a.test/", Some(2)),
            ("PUT a.test/", Some(2)),
            ("DELETE a.test/", Some(0)),
            ("get a.test/", Some(0)),
        ],
    ),
    (&["h:x h:y", "GET"], &[("GET a.test/ h:x=1 h:y=1", Some(1)), ("PUT a.test/ h:x=1 h:y=1", Some(0))]),
    // Headers and cookies.
    (
        &["", "h:x=1", "h:X=1 h:y=1", "h:z", "h:w~[ab]+"],
        &[
            ("GET a.test/", Some(0)),
            ("GET a.test/ h:x=1", Some(1)),
            ("GET a.test/ h:X=1", Some(1)),
            ("GET a.test/ h:x=12", Some(0)),
            ("GET a.test/ h:x=1 h:y=1", Some(2)),
            ("GET a.test/ h:z=", Some(3)),
            ("GET a.test/ h:w=abba", Some(4)),
            ("GET a.test/ h:w=abc", Some(0)),
            ("GET a.test/ h:x=1 h:z=1", Some(1)),
        ],
    ),
    (&["h:x", "c:s=1 c:t"], &[("GET a.test/ h:x=1 c:s=1 c:t=2", Some(1)), ("GET a.test/ h:x=1", Some(0))]),
    (&["c:S=1"], &[("GET a.test/ c:S=1", Some(0)), ("GET a.test/ c:s=1", None), ("GET a.test/ h:S=1", None)]),
    // Queries count after headers.
    (
        &["q:a=1 q:b=1", "h:x", "q:a"],
        &[
            ("GET a.test/ h:x=1 q:a=1 q:b=1", Some(1)),
            ("GET a.test/ q:a=1 q:b=1", Some(0)),
            ("GET a.test/ q:a=2", Some(2)),
            ("GET a.test/ q:A=2", None),
        ],
    ),
    // The order of writing.
    (&["h:x", "h:y", "h:z"], &[("GET a.test/ h:y=1 h:z=1", Some(1)), ("GET a.test/ h:x=1 h:z=1", Some(0))]),
    // Of several hosts and paths the best pair counts.
    (
        &["*.test /a", "a.test *.org /a /a/b", "*.a.org /a"],
        &[
            ("GET a.test/a", Some(1)),
            ("GET b.test/a/b", Some(0)),
            ("GET b.a.org/a/b", Some(2)),
            ("GET a.org/a/b", Some(1)),
        ],
    ),
    // A repeated condition counts once.
    (&["h:x=1 h:X=1", "h:x h:x=1"], &[("GET a.test/ h:x=1", Some(1))]),
];
