//! Routes: the content of each request decides on its group, or the balancer responds itself. The member gets
//! the path that the routes have seen.

use std::net::{SocketAddr, TcpStream};

use tokio_tungstenite::tungstenite::{Message, client};

use crate::stage::{
    Answer, Authority, Balancer, Folder, Load, Member, PATIENCE, Run, Script, Wire, curl, curl_status, groups,
};

/// Starts a member that answers each request with its name and the request line.
fn named(name: &'static str) -> Script {
    Script::start(move |wire| {
        while let Some(head) = wire.head()? {
            wire.body(&head, false)?;
            let body = format!("{name}: {}", head.lines().next().unwrap_or_default());
            wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))?;
        }
        std::io::Result::Ok(())
    })
}

/// Returns a file with one listener, without a group of its own but for `listener`.
fn file(listener: &str, of: &[(&str, &[SocketAddr])]) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{listener}\n{}", groups(of, ""))
}

#[track_caller]
fn ask(wire: &mut Wire, method: &str, target: &str, host: &str, fields: &str) -> Answer {
    wire.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n"));
    wire.answer_to(method).unwrap()
}

const ROUTES: &str = r#"
[[listener.route]]
name = "api"
host = ["api.example.org", "*.api.example.org"]
path = "/v1/"
group = "api"

[[listener.route]]
name = "canary"
host = "api.example.org"
path = "/v1/"
headers = { X-Canary = "yes" }
group = "canary"

[[listener.route]]
name = "writes"
path = "/v1/"
method = ["POST", "PUT"]
group = "writes"

[[listener.route]]
name = "numbers"
path_regex = "/items/[0-9]+"
query = { full = { present = true } }
cookies = { tenant = { regex = "a.*" } }
group = "canary"

[[listener.route]]
name = "down"
path_exact = "/down"
respond = { status = 503, body = "closed until noon\n", content_type = "text/html" }

[[listener.route]]
name = "old"
path = "/old"
redirect = { prefix = "/new", status = 301 }
"#;

struct Rig {
    balancer: Balancer,
    text: String,
    _members: Vec<Script>,
}

impl Rig {
    fn start(own: &str, routes: &str) -> Self {
        Self::start_in(Folder::new(), own, routes, "")
    }

    fn start_in(folder: Folder, own: &str, routes: &str, rest: &str) -> Self {
        let members: Vec<Script> = ["web", "api", "canary", "writes"].into_iter().map(named).collect();
        let at = |index: usize| [members[index].address];
        let of: [(&str, &[SocketAddr]); 4] =
            [("web", &at(0)), ("api", &at(1)), ("canary", &at(2)), ("writes", &at(3))];
        let text = file(&format!("{own}{routes}"), &of) + rest;
        Self { balancer: Balancer::start_in(folder, &text), text, _members: members }
    }
}

#[test]
fn the_most_specific_route_takes_each_request_of_a_connection() {
    let rig = Rig::start("group = \"web\"\n", ROUTES);
    let mut wire = Wire::connect(rig.balancer.address());
    for (method, target, host, fields, expected) in [
        ("GET", "/v1/x", "api.example.org", "", "api"),
        ("GET", "/v1", "API.example.org:8080", "", "api"),
        ("GET", "/v1/x", "eu.api.example.org", "", "api"),
        ("GET", "/v10", "api.example.org", "", "web"),
        ("GET", "/v1/x", "api.example.org", "x-canary: yes\r\n", "canary"),
        ("GET", "/v1/x", "api.example.org", "x-canary: no\r\n", "api"),
        // A host precedes a method.
        ("POST", "/v1/x", "api.example.org", "Content-Length: 0\r\n", "api"),
        ("POST", "/v1/x", "other.example.org", "Content-Length: 0\r\n", "writes"),
        ("GET", "/v1/x", "other.example.org", "", "web"),
        ("GET", "/items/17?full", "x", "Cookie: a=b; tenant=acme\r\n", "canary"),
        ("GET", "/items/17?full", "x", "Cookie: tenant=b\r\n", "web"),
        ("GET", "/items/17", "x", "Cookie: tenant=acme\r\n", "web"),
        ("GET", "/items/17/more?full", "x", "Cookie: tenant=acme\r\n", "web"),
        ("GET", "http://api.example.org/v1/y", "ignored", "", "api"),
    ] {
        let answer = ask(&mut wire, method, target, host, fields);
        let path = target.strip_prefix("http://api.example.org").unwrap_or(target);
        assert_eq!(answer.text(), format!("{expected}: {method} {path} HTTP/1.1"), "{target} at {host}");
    }
}

#[test]
fn http2_requests_take_the_same_routes() {
    let rig = Rig::start("group = \"web\"\n", ROUTES);
    let port = rig.balancer.address().port().to_string();
    for (path, args, expected) in [
        ("/v1/x", &["-H", "x-canary: yes"][..], "canary: GET /v1/x HTTP/1.1"),
        ("/v1/x", &[], "api: GET /v1/x HTTP/1.1"),
        ("/else?q=1", &[], "web: GET /else?q=1 HTTP/1.1"),
        ("/down", &[], "closed until noon\n"),
    ] {
        let url = format!("http://api.example.org:{port}{path}");
        let resolve = format!("api.example.org:{port}:127.0.0.1");
        let curled = curl(&[&["--http2-prior-knowledge", "--resolve", &resolve, &url], args].concat(), b"");
        assert_eq!(String::from_utf8_lossy(&curled.body), expected, "{path}: {}", curled.talk);
    }
}

#[test]
fn the_balancer_responds_itself() {
    let rig = Rig::start("", ROUTES);
    let mut wire = Wire::connect(rig.balancer.address());
    let down = ask(&mut wire, "GET", "/down", "x", "");
    assert_eq!((down.status, down.text().as_str()), (503, "closed until noon\n"));
    assert_eq!(down.field("content-type"), Some("text/html"));
    let head = ask(&mut wire, "HEAD", "/down", "x", "");
    assert_eq!((head.status, head.field("content-length")), (503, Some("18")));
    let moved = ask(&mut wire, "GET", "/old/a%20b/?q=1", "shop.example:8080", "");
    assert_eq!(
        (moved.status, moved.field("location")),
        (301, Some("http://shop.example:8080/new/a%20b/?q=1"))
    );
    // Without a group of the listener's, no request goes anywhere unless a route says so.
    for _ in 0..2 {
        let lost = ask(&mut wire, "GET", "/else", "x", "");
        assert_eq!((lost.status, lost.reason()), (404, Some("no_route")));
    }
    assert_eq!(ask(&mut wire, "GET", "/v1/", "api.example.org", "").text(), "api: GET /v1/ HTTP/1.1");
}

#[test]
fn all_requests_are_redirected_to_https() {
    let rig = Rig::start("https_redirect = true\n", "");
    let url = format!("http://{}/a/b?c=d", rig.balancer.address());
    let curled = curl(&["-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "-d", "body", &url], b"");
    assert_eq!(String::from_utf8_lossy(&curled.body), "308 https://127.0.0.1/a/b?c=d", "{}", curled.talk);
}

#[test]
fn members_get_the_path_that_routes_have_seen() {
    const ADMIN: &str = "[[listener.route]]\npath = \"/admin\"\ngroup = \"writes\"\n\
         [[listener.route]]\npath = \"/public\"\ngroup = \"api\"\n";
    let rig = Rig::start("group = \"web\"\n", ADMIN);
    let mut wire = Wire::connect(rig.balancer.address());
    for (target, expected) in [
        ("/admin/x", "writes: GET /admin/x HTTP/1.1"),
        ("//admin/x", "writes: GET /admin/x HTTP/1.1"),
        ("/./admin/x", "writes: GET /admin/x HTTP/1.1"),
        ("/public/../admin/x?a=/../b", "writes: GET /admin/x?a=/../b HTTP/1.1"),
        ("/public/%2e%2E/admin", "writes: GET /admin HTTP/1.1"),
        ("/%61dmin", "writes: GET /admin HTTP/1.1"),
        ("/public/a%2fb", "api: GET /public/a%2Fb HTTP/1.1"),
        ("/public/a;v=1/b", "api: GET /public/a;v=1/b HTTP/1.1"),
        ("/Admin", "web: GET /Admin HTTP/1.1"),
        ("/public?../admin", "api: GET /public?../admin HTTP/1.1"),
        ("http://x?q", "web: GET /?q HTTP/1.1"),
    ] {
        assert_eq!(ask(&mut wire, "GET", target, "x", "").text(), expected, "{target}");
    }
    // Servers that decode a slash, or drop parameters, would serve these from `/admin`.
    for target in [
        "/public/..%2fadmin",
        "/public/..;/admin",
        "/x%2f..%2Fadmin",
        "/admin;x=1/y",
        "/%5cadmin",
        "/public%2f",
    ] {
        let answer = ask(&mut wire, "GET", target, "x", "");
        assert_eq!((answer.status, answer.reason()), (400, Some("ambiguous_path")), "{target}");
    }
    for target in ["/a%", "/a%zz", "/a%00", "/../x"] {
        let mut wire = Wire::connect(rig.balancer.address());
        let answer = ask(&mut wire, "GET", target, "x", "");
        assert_eq!((answer.status, answer.reason()), (400, Some("bad_request")), "{target}");
    }
    wire.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(wire.answer().unwrap().text(), "web: OPTIONS * HTTP/1.1");
}

#[test]
fn requests_are_split_by_weight() {
    const SPLIT: &str = "[[listener.route]]\npath = \"/\"\ngroups = [{ group = \"api\", weight = 95 }, \
         { group = \"canary\", weight = 5 }, { group = \"writes\", weight = 0 }]\n";
    let rig = Rig::start("group = \"web\"\n", SPLIT);
    let mut wire = Wire::connect(rig.balancer.address());
    let mut canary = 0;
    for _ in 0..400 {
        let text = ask(&mut wire, "GET", "/", "x", "").text();
        assert!(text.starts_with("api") || text.starts_with("canary"), "{text}");
        canary += u32::from(text.starts_with("canary"));
    }
    // The split is spread evenly, not drawn: 20 of 400, and at most one more or less.
    assert!((19..=21).contains(&canary), "{canary}");
}

#[test]
fn affinity_holds_in_each_group() {
    let members: Vec<Script> = ["one", "two", "three", "four"].into_iter().map(named).collect();
    let addresses: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let listener = "group = \"web\"\naffinity = {}\n[[listener.route]]\npath = \"/api\"\ngroup = \"api\"\n";
    let balancer = Balancer::start(&file(listener, &[("web", &addresses[..2]), ("api", &addresses[2..])]));
    let mut cookies: Vec<String> = Vec::new();
    let mut homes: [Option<String>; 2] = [None, None];
    for round in 0..12 {
        let (path, home) = if round % 2 == 0 { ("/", &mut homes[0]) } else { ("/api", &mut homes[1]) };
        let mut wire = Wire::connect(balancer.address());
        let sent = format!("Cookie: {}\r\n", cookies.join("; "));
        let answer = ask(&mut wire, "GET", path, "x", if cookies.is_empty() { "" } else { &sent });
        if let Some(set) = answer.field("set-cookie") {
            cookies.extend(set.split(';').next().map(str::to_owned));
        }
        let member = answer.text().split(':').next().unwrap_or_default().to_owned();
        assert_eq!(*home.get_or_insert(member.clone()), member, "{path} in round {round}");
    }
    assert_eq!(cookies.len(), 2, "a cookie for each group: {cookies:?}");
}

#[test]
fn the_access_log_names_the_route() {
    let folder = Folder::new();
    let path = folder.join("access.log");
    let log = format!("\n[access_log]\npath = \"{}\"\n", path.display());
    let mut rig = Rig::start_in(folder, "group = \"web\"\n", ROUTES, &log);
    let address = rig.balancer.address();
    let mut wire = Wire::connect(address);
    for (target, host) in [("/v1/x", "api.example.org"), ("/x/../%64own", "x"), ("/else", "x")] {
        ask(&mut wire, "GET", target, host, "");
    }
    drop(wire);
    rig.balancer.process.signal(rustix::process::Signal::TERM);
    assert_eq!(rig.balancer.process.end(), Some(0));
    let text = std::fs::read_to_string(&path).unwrap();
    let mut seen: Vec<_> =
        text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    seen.sort_by(|a, b| a["time"].as_f64().unwrap().total_cmp(&b["time"].as_f64().unwrap()));
    let names: Vec<_> = seen.iter().map(|line| (line["route"].as_str(), line["group"].as_str())).collect();
    assert_eq!(names, [(Some("api"), Some("api")), (Some("down"), Some("web")), (None, Some("web"))]);
    // The log has what the client sent.
    assert_eq!(seen[1]["target"], "/x/../%64own");
}

#[test]
fn routes_change_under_load_without_a_failure() {
    let members = Member::several(2, &[]);
    let addresses: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let text = |round: usize| {
        let group = if round.is_multiple_of(2) { "web" } else { "api" };
        let routes = format!(
            "group = \"{group}\"\n[[listener.route]]\nname = \"r{round}\"\npath = \"/\"\n\
             headers = {{ x-round = \"{round}\" }}\ngroup = \"web\"\n\
             [[listener.route]]\npath = \"/\"\ngroup = \"{group}\"\n"
        );
        // A machine that stands still must not cause overload: nothing is rejected for it.
        let of: [(&str, &[SocketAddr]); 2] = [("web", &addresses[..1]), ("api", &addresses[1..])];
        file(&routes, &of).replace("slow_start", "admission = false\nslow_start")
    };
    let balancer = Balancer::start(&text(0));
    let mut load = Load::start(balancer.address(), "GET", 500.0);
    for round in 1..=50 {
        balancer.hang_up(&text(round));
    }
    load.more(100);
    load.stop_unharmed();
}

#[test]
fn what_is_wrong_keeps_the_routes_that_are_in_force() {
    let rig = Rig::start("group = \"web\"\n", ROUTES);
    for (from, to, message) in [
        ("group = \"canary\"", "group = \"nobody\"", "there is no group named `nobody`"),
        ("/items/[0-9]+", "/items/[0-9", "cannot be used"),
        ("path = \"/old\"", "path = \"old\"", "does not begin with `/`"),
        ("method = [\"POST\", \"PUT\"]", "method = \"post\"", "write \"POST\""),
    ] {
        rig.balancer.write(&rig.text.replace(from, to));
        let run = rig.balancer.run(&["reload"]);
        assert!(run.code != Some(0) && run.err.contains(message), "{}{}", run.out, run.err);
        let check = rig.balancer.run(&["config", "check"]);
        assert!(check.code == Some(2) && check.err.contains("plimsoll.toml:"), "{}{}", check.out, check.err);
    }
    let url = format!("http://{}/down", rig.balancer.address());
    assert_eq!(curl_status(&[&url], b""), 503);
}

#[test]
fn new_routes_apply_to_open_connections_at_once() {
    let rig = Rig::start("group = \"web\"\n", "");
    let mut used = Wire::connect(rig.balancer.address());
    assert_eq!(ask(&mut used, "GET", "/admin", "x", "").text(), "web: GET /admin HTTP/1.1");
    let mut unused = Wire::connect(rig.balancer.address());
    const BLOCK: &str =
        "[[listener.route]]\npath = \"/admin\"\nrespond = { status = 403 }\n[[group]]\nname = \"web\"";
    rig.balancer.reload(&rig.text.replacen("[[group]]\nname = \"web\"", BLOCK, 1));
    for wire in [&mut used, &mut unused] {
        assert_eq!(ask(wire, "GET", "/admin", "x", "").status, 403);
        assert_eq!(ask(wire, "GET", "/", "x", "").status, 200);
    }
}

#[test]
fn a_group_of_a_server_name_and_of_a_route_is_one() {
    let members: Vec<Script> = ["web", "other"].into_iter().map(named).collect();
    let folder = Folder::new();
    let authority = Authority::new(&folder, "ca");
    authority.issue(&folder, "site", &["a.example", "b.example"]);
    let file = |routes: &str| {
        let listener = format!(
            "protocol = \"https\"\n[listener.tls]\n\
             certificates = [{{ certificate = \"site.pem\", key = \"site.key\" }}]\n\
             names = [{{ name = \"b.example\", group = \"other\" }}]\n\
             [[listener.route]]\npath = \"/o\"\ngroup = \"other\"\n{routes}"
        );
        file(&listener, &[("web", &[members[0].address]), ("other", &[members[1].address])])
    };
    let balancer = Balancer::start_in(folder, &file(""));
    let root = balancer.folder().join("ca.pem");
    let port = balancer.address().port();
    let get = |host: &str, path: &str| {
        let url = format!("https://{host}:{port}{path}");
        let resolve = format!("{host}:{port}:127.0.0.1");
        let curled = curl(&["--cacert", root.to_str().unwrap(), "--resolve", &resolve, &url], b"");
        String::from_utf8_lossy(&curled.body).into_owned()
    };
    // A name has a group, although the listener has none.
    assert_eq!(get("b.example", "/x"), "other: GET /x HTTP/1.1");
    assert_eq!(get("a.example", "/o"), "other: GET /o HTTP/1.1");
    assert!(get("a.example", "/x").contains("no route takes this request"));
    balancer
        .reload(&file("[[listener.route]]\npath = \"/admin\"\nrespond = { status = 403, body = \"no\" }\n"));
    for host in ["a.example", "b.example"] {
        assert_eq!(get(host, "/admin"), "no", "{host}");
    }
}

#[test]
fn conditions_read_only_headers_that_members_get() {
    const SECURE: &str = "[[listener.route]]\npath = \"/\"\nheaders = { x-forwarded-proto = \"https\" }\n\
         group = \"api\"\n[[listener.route]]\npath = \"/\"\nheaders = { x-canary = \"yes\" }\n\
         group = \"canary\"\n";
    let rig = Rig::start("group = \"web\"\n", SECURE);
    let mut wire = Wire::connect(rig.balancer.address());
    for (fields, expected) in [
        ("X-Forwarded-Proto: https\r\n", "web"),
        ("X-Canary: yes\r\nConnection: x-canary\r\n", "web"),
        ("X-Canary: yes\r\n", "canary"),
    ] {
        let text = ask(&mut wire, "GET", "/", "x", fields).text();
        assert!(text.starts_with(expected), "{fields}: {text}");
    }
    let trusting = Rig::start("group = \"web\"\ntrusted = [\"127.0.0.0/8\"]\n", SECURE);
    let mut wire = Wire::connect(trusting.balancer.address());
    let text = ask(&mut wire, "GET", "/", "x", "X-Forwarded-Proto: https\r\n").text();
    assert!(text.starts_with("api"), "{text}");
}

#[test]
fn large_responses_reach_slow_clients() {
    let folder = Folder::new();
    folder.write("down.html", vec![b'x'; 1 << 20]);
    let path = folder.join("down.html");
    let route = format!("[[listener.route]]\npath = \"/\"\nrespond = {{ file = \"{}\" }}\n", path.display());
    let rig = Rig::start_in(folder, "", &route, "");
    let mut wire = Wire::connect(rig.balancer.address());
    for _ in 0..2 {
        assert_eq!(ask(&mut wire, "GET", "/", "x", "").body.len(), 1 << 20);
    }
    // A pipe would keep the reload waiting.
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let run = rig.balancer.run(&["reload"]);
    assert!(run.code != Some(0) && run.err.contains("it is not a file"), "{}{}", run.out, run.err);
    assert_eq!(ask(&mut wire, "GET", "/", "x", "").body.len(), 1 << 20);
}

#[test]
fn a_websocket_goes_to_the_group_of_its_route_and_outlives_it() {
    let web = named("web");
    let echo = crate::websocket::echo();
    let text = |routes: &str| {
        let listener = format!("group = \"web\"\n{routes}");
        file(&listener, &[("web", &[web.address]), ("chat", &[echo])])
    };
    let balancer = Balancer::start(&text("[[listener.route]]\npath = \"/chat\"\ngroup = \"chat\"\n"));
    let stream = TcpStream::connect(balancer.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut socket, answer) = client(format!("ws://{}/chat", balancer.address()), stream).unwrap();
    assert_eq!(answer.status(), 101);
    for round in 0..2 {
        socket.send(Message::text("hello")).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text("hello"));
        if round == 0 {
            // The group stays; nothing leads there any more.
            balancer.reload(&text(""));
        }
    }
}

#[test]
fn explain_names_the_route_and_those_that_it_missed() {
    let folder = Folder::new();
    let text = "[[listener]]\naddress = \"127.0.0.1:8080\"\ngroup = \"web\"\n".to_owned()
        + ROUTES
        + "[[listener]]\naddress = \"127.0.0.1:8081\"\nhttps_redirect = true\n"
        + &groups(&[("web", &[]), ("api", &[]), ("canary", &[]), ("writes", &[])], "")
            .replace("members = []", "members = [\"127.0.0.1:1\"]");
    folder.write("plimsoll.toml", text);
    let explain = |args: &[&str]| Run::plimsoll(&[&["explain", "request"], args].concat(), folder.path());
    let json = |args: &[&str]| {
        let run = explain(&[args, &["--listener", "127.0.0.1:8080", "-o", "json"]].concat());
        serde_json::from_str::<serde_json::Value>(&run.out)
            .unwrap_or_else(|error| panic!("{error}: {}", run.err))
    };
    let canary = json(&["GET http://api.example.org//v1/%61", "-H", "X-Canary: yes"]);
    assert_eq!((&canary["route"], &canary["path"]), (&"canary".into(), &"/v1/a".into()));
    assert_eq!(canary["outcome"]["groups"], serde_json::json!([{ "group": "canary", "share": 1.0 }]));
    let head = canary["outcome"]["head"].as_str().unwrap();
    assert!(head.starts_with("GET /v1/a HTTP/1.1\r\nHost: api.example.org\r\n"), "{head}");
    assert_eq!(canary["also_match"], serde_json::json!(["api"]));
    let api = json(&["http://ignored/v1/a", "-H", "Host: api.example.org"]);
    let reason = "the header x-canary is absent or has another value";
    assert_eq!(api["route"], "api");
    assert_eq!(api["passed_over"], serde_json::json!([{ "route": "canary", "mismatch": reason }]));
    assert_eq!(json(&["http://x/old/b?c"])["outcome"]["location"], "http://x/new/b?c");
    assert_eq!(json(&["POST http://x/v1"])["route"], "writes");
    // The port of the URL selects the listener.
    let redirected = explain(&["http://x:8081/a"]);
    assert!(redirected.out.contains("308, Location: https://x/a"), "{}{}", redirected.out, redirected.err);
    let ambiguous = explain(&["http://x:8080/old/..%2Fdown"]);
    assert_eq!(ambiguous.code, Some(1), "{}", ambiguous.err);
    assert!(ambiguous.out.contains("400 (ambiguous_path)"), "{}", ambiguous.out);
    for (args, message) in [
        (&["http://x/"][..], "several http listeners"),
        (&["https://x/"], "no https listener"),
        (&["ftp://x/"], "is not an http or https URL"),
        (&["http://x/", "-H", "nothing"], "write NAME: VALUE"),
    ] {
        let run = explain(args);
        assert!(run.code == Some(2) && run.err.contains(message), "{}{}", run.out, run.err);
    }
}
