//! The messages for wrong routes.

use super::*;

/// Returns the problems of a listener with these lines, each as its first line without the place.
fn problems(listener: &str) -> Vec<String> {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:80\"\n{listener}\n\
         [[group]]\nname = \"web\"\nmembers = [\"127.0.0.1:1\"]\n\
         [[group]]\nname = \"api\"\nmembers = [\"127.0.0.1:2\"]\n"
    );
    let shown = match read(&text) {
        Ok(file) => file.warnings.to_string(),
        Err(problems) => problems.to_string(),
    };
    let is_head = |line: &&str| line.starts_with("error:") || line.starts_with("warning:");
    let message = |line: &str| line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
    let unused = |message: &String| !message.starts_with("no listener sends clients");
    shown.lines().filter(is_head).map(message).filter(unused).collect()
}

#[test]
fn each_mistake_in_a_route_is_one_message() {
    for (route, expected) in [
        ("path = \"/a\"", "a route that leads nowhere"),
        ("group = \"web\"\nrespond = { status = 403 }", "either `group` or `respond`, not both"),
        ("group = \"wbe\"", "there is no group named `wbe`"),
        ("groups = [{ group = \"api\" }, { group = \"api\" }]", "group `api` is there twice"),
        ("groups = [{ group = \"api\", weight = 0 }]", "all weights are 0"),
        ("host = []\ngroup = \"web\"", "`host` is empty"),
        ("method = []\ngroup = \"web\"", "`method` is empty"),
        (
            "host = \"a:80\"\ngroup = \"web\"",
            "`host`: `a:80` has a port, which is not matched: write the host alone",
        ),
        ("host = \"::1\"\ngroup = \"web\"", "`host`: `::1` needs brackets: write \"[::1]\""),
        (
            "host = \".a.org\"\ngroup = \"web\"",
            "`host`: `.a.org` begins with a dot: write \"*.a.org\", and \"a.org\" besides",
        ),
        ("path = \"a\"\ngroup = \"web\"", "`path`: `a` does not begin with `/`"),
        (
            "path = \"/a/*\"\ngroup = \"web\"",
            "`path`: `/a/*` has `*`: `path` is a prefix already, and `path_regex` takes patterns",
        ),
        (
            "path = \"/a//b\"\ngroup = \"web\"",
            "`path`: `/a//b` is not in normal form, on which paths are matched: write \"/a/b\"",
        ),
        (
            "path = \"/a;b\"\ngroup = \"web\"",
            "`path`: `/a;b` has `;`, `\\` or an escaped slash, which servers read in several ways",
        ),
        (
            "path_regex = \"a.*\"\ngroup = \"web\"",
            "`path_regex`: `a.*` matches no path: each begins with `/`",
        ),
        (
            "path_regex = \"/(\"\ngroup = \"web\"",
            "`path_regex`: `/(` cannot be used: unclosed group, at byte 1",
        ),
        ("headers = { X-A = \"1\", x-a = \"2\" }\ngroup = \"web\"", "`x-a` is the header `X-A`, too"),
        ("headers = { Host = \"a\" }\ngroup = \"web\"", "a condition on `host` as a header"),
        ("headers = { a = { present = false } }\ngroup = \"web\"", "`present` can only be true"),
        ("redirect = { status = 200, path = \"/a\" }", "200 is not the status of a redirect"),
        ("redirect = {}", "a redirect to the request's own URL never ends"),
        ("redirect = { scheme = \"ftp\" }", "unknown scheme `ftp`"),
        (
            "path_exact = \"/a\"\nredirect = { prefix = \"/b\" }",
            "`prefix` replaces the prefix that `path` matched, so the route needs `path` alone",
        ),
        ("respond = { status = 302 }", "status 302 needs the URL to go to"),
        ("respond = { status = 204, body = \"x\" }", "a response with status 204 has no body"),
        ("respond = { body = \"x\", file = \"/x\" }", "either `body` or `file`, not both"),
    ] {
        assert_eq!(problems(&format!("group = \"api\"\n[[listener.route]]\n{route}")), [expected], "{route}");
    }
}

#[test]
fn routes_are_held_against_their_listener_and_each_other() {
    const TO_WEB: &str = "[[listener.route]]\npath = \"/a\"\ngroup = \"web\"\n";
    const NAMED: &str = "[[listener.route]]\nname = \"r\"\npath = \"/a\"\ngroup = \"web\"\n";
    for (listener, expected) in [
        (TO_WEB.to_owned(), vec![]),
        (
            format!("protocol = \"tcp\"\n{TO_WEB}"),
            vec!["a tcp listener has no routes: it cannot read requests"],
        ),
        (
            format!("binding = \"per_session\"\n{TO_WEB}"),
            vec!["a connection that is bound to a member cannot follow routes"],
        ),
        (
            "group = \"web\"\nhttps_redirect = true".to_owned(),
            vec!["no request reaches group `web`: all are redirected"],
        ),
        (
            format!("{TO_WEB}{TO_WEB}"),
            vec!["route `*/a#2` is never taken: it has the conditions of `*/a`, which comes first"],
        ),
        (format!("{NAMED}{}", NAMED.replace("\"/a\"", "\"/b\"")), vec!["a second route with the name `r`"]),
        (format!("{TO_WEB}[[listener.route]]\npath = \"/a\"\nmethod = \"GET\"\ngroup = \"api\"\n"), vec![]),
        (
            "[[listener.route]]\nname = \"no\"\npath = \"/admin\"\nrespond = { status = 403 }\n\
             [[listener.route]]\nname = \"site\"\nhost = \"a.org\"\ngroup = \"web\"\n"
                .to_owned(),
            vec![
                "route `no` does not apply to a.org: a host precedes a path, so `site` takes those requests",
            ],
        ),
    ] {
        assert_eq!(problems(&listener), expected, "{listener}");
    }
}

#[test]
fn a_listener_that_only_redirects_needs_a_group_in_the_file() {
    let shown = errors("[[listener]]\naddress = \"127.0.0.1:80\"\nhttps_redirect = true\n");
    assert!(
        shown.contains("the answers of this listener count at a group, and the file has no [[group]]"),
        "{shown}"
    );
}
