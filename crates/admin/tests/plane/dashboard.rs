//! The dashboard over real sockets: who gets pages, by what, and what browsers cannot be made to do.

use std::io::{Read, Write};

use plimsoll_brain::MemberState;
use serde_json::json;

use crate::script::{Answer, Open, open, open_as, tcp, unix, until};
use crate::stage::{Shows, Stage, bearer, certificate};

fn raw(mut stream: impl Read + Write, method: &str, target: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    Answer::read(stream)
}

fn show(open: &Open, target: &str, headers: &str) -> Answer {
    raw(tcp(open.addr()), "GET", target, headers, "")
}

const LOCAL: &str = "Host: 127.0.0.1:9900\r\n";

#[test]
fn browsers_get_pages_and_programs_the_index() {
    let open = open();
    let browser = format!("{LOCAL}Accept: text/html,application/xhtml+xml\r\n");
    let answer = show(&open, "/", &browser);
    assert_eq!(answer.status, 303);
    assert!(answer.head.contains("location: /dashboard\r\n"), "{}", answer.head);
    let index = show(&open, "/", &format!("{LOCAL}Accept: */*\r\n"));
    assert!(index.status == 200 && index.body.contains("/dashboard"), "{}", index.body);
    let home = show(&open, "/dashboard", &browser);
    assert_eq!(home.status, 200);
    assert!(home.body.contains("1 of 2 members serves (1 ejected)"), "{}", home.body);
    assert!(home.head.contains("content-security-policy: default-src 'none'"), "{}", home.head);
    assert!(home.body.contains("a&quot;b\\c\nd"), "names are text");
    for (path, status) in [
        ("/dashboard/groups/web", 200),
        ("/dashboard/groups/odd%20%22%5C%0A%20one", 200),
        ("/dashboard/groups/nobody", 404),
        ("/dashboard/events", 200),
        ("/dashboard/events/99", 404),
        ("/dashboard/process", 200),
        ("/dashboard/groups/web/what-if", 200),
        ("/dashboard/act?do=nothing", 400),
        ("/dashboard/sign-in", 404),
        ("/dashboard/assets/style.css", 200),
        ("/dashboard/assets/x", 404),
        ("/dashboard/x", 404),
    ] {
        assert_eq!(show(&open, path, LOCAL).status, status, "{path}");
    }
    assert_eq!(show(&open, "/dashboardx", LOCAL).status, 404);
    let head = raw(tcp(open.addr()), "HEAD", "/dashboard", LOCAL, "");
    assert_eq!((head.status, &*head.body), (200, ""));
    let delete = raw(tcp(open.addr()), "DELETE", "/dashboard", LOCAL, "");
    assert!(delete.status == 405 && delete.head.contains("allow: get, head"), "{}", delete.head);
    assert!(open.tell("GET", "/dashboard", "").status == 404, "not at the door for reports");
}

#[test]
fn a_name_that_somebody_else_leads_here_gets_nothing() {
    let open = open();
    for host in [
        "Host: evil.example\r\n",
        "Host: evil.example:9900\r\n",
        "Host: 127.0.0.1\r\nHost: evil.example\r\n",
        "",
    ] {
        let answer = show(&open, "/dashboard", host);
        assert!(matches!(answer.status, 400 | 421), "{host} {}", answer.status);
        assert!(!answer.body.contains("members"), "{}", answer.body);
        let act = raw(unix(&open.control), "POST", "/dashboard/act", host, "do=drain&group=web&member=a");
        assert!(matches!(act.status, 400 | 421), "{host} {}", act.status);
    }
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn nor_does_it_get_anything_of_what_programs_read() {
    let open = open_as(&["lb1.example.org"]);
    let paths = [
        "/",
        "/status",
        "/metrics",
        "/events?follow=0",
        "/v1/openapi.json",
        "/v1/groups/web/explain",
        "/nothing",
    ];
    for path in paths {
        for host in ["Host: evil.example\r\n", "Host: lb1.example.org.evil.example\r\n", ""] {
            let answer = show(&open, path, host);
            assert!(matches!(answer.status, 400 | 421), "{path} {host} {}", answer.status);
            assert!(!answer.body.contains("web"), "{}", answer.body);
        }
        for host in [LOCAL, "Host: localhost\r\n", "Host: LB1.example.org:9900\r\n"] {
            assert_ne!(show(&open, path, host).status, 421, "{path} {host}");
        }
    }
    // Checks of health come by any name; no browser gets to a unix socket, or changes anything at the
    // endpoint for reports.
    assert_eq!(show(&open, "/healthz", "Host: evil.example\r\n").status, 200);
    let control = raw(unix(&open.control), "GET", "/status", "Host: plimsoll\r\n", "");
    let reports = raw(tcp(open.admin.reports().unwrap()), "GET", "/nothing", "Host: lb\r\n", "");
    assert_eq!((control.status, reports.status), (200, 404));
}

/// The fields of the form of a page.
fn form(page: &str) -> Vec<(String, String)> {
    let field = |part: &str| {
        let (name, rest) = part.split_once("\" value=\"")?;
        Some((name.to_owned(), rest.split('"').next()?.to_owned()))
    };
    page.split("type=\"hidden\" name=\"").skip(1).filter_map(field).collect()
}

fn encoded(fields: &[(String, String)]) -> String {
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", value.replace("&#x2f;", "/")));
    pairs.collect::<Vec<_>>().join("&")
}

#[test]
fn what_was_confirmed_on_a_page_is_done_and_nothing_else() {
    let open = open();
    let ask = "/dashboard/act?do=drain&group=web&member=10.0.0.1:80";
    let page = raw(unix(&open.control), "GET", ask, "Host: localhost\r\n", "");
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(page.body.contains("3 requests are under way there."), "{}", page.body);
    let fields = form(&page.body);
    let names: Vec<&str> = fields.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["do", "group", "member", "listener", "value", "at", "seal"]);
    let own = "Host: localhost\r\nOrigin: http://localhost\r\n";
    let post = |headers: &str, fields: &[(String, String)]| {
        raw(unix(&open.control), "POST", "/dashboard/act", headers, &encoded(fields))
    };
    let calls = || open.script.calls.lock().unwrap().clone();
    for headers in [
        "Host: localhost\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
        "Host: localhost\r\nOrigin: https://evil.example\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
    ] {
        assert_eq!(post(headers, &fields).status, 403, "{headers}");
    }
    for (name, value) in [
        ("member", "10.0.0.3:80"),
        ("do", "disable"),
        ("seal", "00"),
        ("seal", ""),
        ("at", "1"),
        ("group", "x"),
    ] {
        let mut other = fields.clone();
        other.iter_mut().filter(|(own, _)| own == name).for_each(|(_, own)| *own = value.into());
        assert_eq!(post(own, &other).status, 403, "{name} {value}");
    }
    assert_eq!(calls(), Vec::<String>::new());
    let done = post(own, &fields);
    assert_eq!(done.status, 200, "{}", done.body);
    assert!(done.body.contains("done</h1>"), "{}", done.body);
    assert_eq!(calls(), [r#"drain Some("web") 10.0.0.1:80"#]);
    // Loaded again, or with its seal spelt in another way, it does nothing any more.
    let mut spelt = fields.clone();
    spelt.iter_mut().filter(|(name, _)| name == "seal").for_each(|(_, seal)| seal.make_ascii_uppercase());
    for again in [&fields, &spelt] {
        let again = post(own, again);
        assert_eq!(again.status, 403, "{}", again.body);
    }
    assert_eq!(calls().len(), 1);
    // The listener that only looks has no form, and takes none.
    let looked = show(&open, ask, LOCAL);
    assert!(looked.body.contains("This listener only shows") && form(&looked.body).is_empty());
    let told = "Host: 127.0.0.1:9900\r\nOrigin: http://127.0.0.1:9900\r\n";
    assert!(matches!(
        raw(tcp(open.addr()), "POST", "/dashboard/act", told, &encoded(&fields)).status,
        403 | 405
    ));
    assert_eq!(calls().len(), 1);
}

#[test]
fn each_action_is_asked_for_on_a_page_and_then_done() {
    let open = open();
    let own = "Host: localhost\r\nOrigin: http://localhost\r\n";
    for (ask, title, begins, says) in [
        (
            "set&group=web&value=random",
            "Change the strategy of web to random",
            "set web strategy random",
            "random",
        ),
        ("disable&group=web&member=10.0.0.1:80", "Disable 10.0.0.1:80", "disable Member", "10.0.0.1:80"),
        ("enable&group=web&member=10.0.0.1:80", "Enable 10.0.0.1:80", "enable Member", "10.0.0.1:80"),
        ("undrain&group=web&member=10.0.0.1:80", "Undrain 10.0.0.1:80", "undrain", "10.0.0.1:80"),
        ("disable-balancing&group=web", "Disable balancing of web", "disable Balancing", "web"),
        ("enable-balancing&group=web", "Enable balancing of web", "enable Balancing", "web"),
        ("disable-listener&listener=%5B::%5D:80", "Disable listener [::]:80", "disable Listener", "[::]:80"),
        ("enable-listener&listener=%5B::%5D:80", "Enable listener [::]:80", "enable Listener", "[::]:80"),
    ] {
        let page =
            raw(unix(&open.control), "GET", &format!("/dashboard/act?do={ask}"), "Host: localhost\r\n", "");
        assert_eq!(page.status, 200, "{ask}: {}", page.body);
        assert!(page.body.contains(&format!("{title}?</h1>")), "{ask}: {}", page.body);
        assert!(open.script.calls.lock().unwrap().is_empty(), "nothing is done by asking");
        let done = raw(unix(&open.control), "POST", "/dashboard/act", own, &encoded(&form(&page.body)));
        assert_eq!(done.status, 200, "{ask}: {}", done.body);
        assert!(done.body.contains(": done</h1>"), "{ask}: {}", done.body);
        let calls = std::mem::take(&mut *open.script.calls.lock().unwrap());
        assert!(
            calls.len() == 1 && calls[0].starts_with(begins) && calls[0].contains(says),
            "{ask}: {calls:?}"
        );
    }
    // What is not there is said before anything is asked.
    let ask = "/dashboard/act?do=disable-listener&listener=nowhere:1";
    let page = raw(unix(&open.control), "GET", ask, "Host: localhost\r\n", "");
    assert!(page.status == 400 && page.body.contains("there is no listener nowhere:1"), "{}", page.body);
}

#[test]
fn a_page_changes_as_the_balancer_does() {
    let open = open();
    let mut stream = tcp(open.addr());
    write!(stream, "GET /dashboard/live?page=/dashboard HTTP/1.0\r\n{LOCAL}\r\n").unwrap();
    let mut stream = std::io::BufReader::new(stream);
    until(&mut stream, "event: page");
    assert!(until(&mut stream, "data: ").starts_with("<main"));
    open.script.status.lock().unwrap().groups[0].members[1].state = MemberState::Up;
    // The pages before it say otherwise.
    loop {
        let line = until(&mut stream, "data: ");
        if line.contains("2 of 2 members serve") {
            break;
        }
    }
    for bad in ["/dashboard/live", "/dashboard/live?page=/status", "/dashboard/live?page=/dashboard/act"] {
        assert_eq!(show(&open, bad, LOCAL).status, 400, "{bad}");
    }
}

fn cookie(token: &str) -> Shows {
    Shows { headers: format!("Cookie: __Host-plimsoll-token={token}\r\n"), ..Shows::default() }
}

#[test]
fn over_tls_a_token_is_given_once_and_counts_for_pages_alone() {
    let stage = Stage::open();
    let nobody = Shows::default();
    let page = stage.ask(&nobody, "GET", "/dashboard/groups/web", "").unwrap();
    assert_eq!(page.status, 401);
    assert!(
        page.body.contains("name=\"token\"") && page.head.contains("www-authenticate: bearer"),
        "{}",
        page.body
    );
    assert!(!page.body.contains("web"), "even what there is is not told: {}", page.body);
    assert_eq!(stage.ask(&nobody, "GET", "/dashboard/assets/style.css", "").unwrap().status, 200);
    let browser = Shows { headers: "Accept: text/html\r\n".into(), ..Shows::default() };
    assert_eq!(stage.ask(&browser, "GET", "/", "").unwrap().status, 303);
    let token = stage.token("olga", json!({"groups": "ops"}));
    // The test's client is at Host: a.
    let sign_in = |token: &str, origin: &str| {
        let shows = Shows { headers: format!("Origin: {origin}\r\n"), ..Shows::default() };
        stage.ask(&shows, "POST", "/dashboard/sign-in", &format!("token={token}")).unwrap()
    };
    assert_eq!(sign_in(&token, "https://evil.example").status, 403);
    assert_eq!(sign_in("x.y.z", "https://a").status, 401);
    let kept = sign_in(&token, "https://a");
    assert_eq!(kept.status, 303, "{}", kept.body);
    assert!(kept.head.contains("httponly; samesite=strict"), "{}", kept.head);

    let home = stage.ask(&cookie(&token), "GET", "/dashboard", "").unwrap();
    assert!(home.status == 200 && home.body.contains("jwt:olga"), "{}", home.body);
    for (method, path) in [("GET", "/status"), ("POST", "/v1/drain"), ("POST", "/v1/reload"), ("GET", "/")] {
        let body = r#"{"group":"web","member":"10.0.0.1:80"}"#;
        assert_eq!(stage.ask(&cookie(&token), method, path, body).unwrap().status, 401, "{path}");
    }
    // What is confirmed by one is not done by another.
    let ask = "/dashboard/act?do=drain&group=web&member=10.0.0.1:80";
    let confirm = stage.ask(&cookie(&token), "GET", ask, "").unwrap();
    let fields = encoded(&form(&confirm.body));
    assert!(fields.contains("seal="), "{}", confirm.body);
    let post = |token: &str| {
        let shows = Shows {
            headers: format!("Cookie: __Host-plimsoll-token={token}\r\nOrigin: https://a\r\n"),
            ..Shows::default()
        };
        stage.ask(&shows, "POST", "/dashboard/act", &fields).unwrap()
    };
    let rita = stage.token("rita", json!({}));
    assert_eq!((post(&rita).status, stage.calls()), (403, 0));
    assert_eq!((post(&token).status, stage.calls()), (200, 1));
    let audited = stage.audited();
    let drains = audited.iter().filter(|line| line["verb"] == "drain" && line["who"] == "olga");
    let results: Vec<_> = drains.map(|line| line["result"].clone()).collect();
    assert_eq!(results, ["begun", "done"], "{audited:?}");

    // Who may not is told so, before and after.
    let victor = stage.token("victor", json!({}));
    let told = stage.ask(&cookie(&victor), "GET", ask, "").unwrap();
    assert!(told.body.contains("jwt:victor may not drain in group web"), "{}", told.body);
    assert!(form(&told.body).is_empty());
    let agent = certificate(stage.ours.issue(&["spiffe://example.org/agent/a"], 1));
    let refused = stage.ask(&agent, "GET", "/dashboard", "").unwrap();
    assert!(refused.status == 403 && refused.body.contains("no grant"), "{}", refused.body);
    // A token sent as programs do counts, too.
    assert_eq!(stage.ask(&bearer(&token), "GET", "/dashboard", "").unwrap().status, 200);
}
