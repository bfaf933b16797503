//! Clients that return to their members by a signed cookie, over any connection, and leave overloaded
//! members.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binding::report;
use crate::stage::{Authority, Balancer, Folder, Script, Wire, curl, found, get, listening, until};

fn named(name: &str) -> Script {
    Script::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
}

/// A client and its cookie, if it has one.
#[derive(Clone, Default)]
struct Browser(Option<String>);

impl Browser {
    /// Sends a request on a new connection; returns the name of the member, and the whole of `Set-Cookie` if
    /// there was one.
    #[track_caller]
    fn visit(&mut self, balancer: SocketAddr) -> (String, Option<String>) {
        let mut client = Wire::connect(balancer);
        let cookie = self.0.as_ref().map_or_else(String::new, |it| format!("Cookie: a=b; {it}; c=d\r\n"));
        client.send(format!("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{cookie}\r\n"));
        let answer = client.answer().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let set = answer.field("set-cookie").map(str::to_owned);
        if let Some(set) = &set {
            self.0 = set.split(';').next().map(str::to_owned);
        }
        (answer.text(), set)
    }
}

fn file(affinity: &str, members: &[&Script], rest: &str) -> String {
    let members: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    listening(&format!("affinity = {affinity}\n"), &members, rest)
}

#[test]
fn a_client_comes_back_to_its_member_over_any_connection() {
    let (one, other) = (named("one"), named("other"));
    // Each thread has its own round robin.
    let text = file("{}", &[&one, &other], "strategy = \"round_robin\"\n");
    let balancer = Balancer::start(&format!("threads = 1\n{text}"));
    let said = balancer.process.lines();
    assert!(said.iter().any(|line| line.contains("a key was made for its cookies")), "{said:?}");
    let mut homes = BTreeMap::<String, u32>::new();
    for _ in 0..4 {
        let mut browser = Browser::default();
        let (home, set) = browser.visit(balancer.address());
        let set = set.unwrap();
        let value = set.strip_prefix("plimsoll=").unwrap().split(';').next().unwrap();
        assert!(value.len() == 84 && value.bytes().all(|byte| byte.is_ascii_hexdigit()), "{set}");
        assert!(set.ends_with("; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax"), "{set}");
        for _ in 0..5 {
            assert_eq!(browser.visit(balancer.address()), (home.clone(), None));
        }
        *homes.entry(home).or_default() += 1;
    }
    assert_eq!(homes.into_values().collect::<Vec<_>>(), [2, 2], "who is new goes where the strategy says");
    // Many clients may share a connection.
    let mut browsers = [Browser::default(), Browser::default()];
    let homes = [0, 1].map(|index: usize| browsers[index].visit(balancer.address()).0);
    let mut client = Wire::connect(balancer.address());
    for turn in [0, 1, 1, 0, 0, 1] {
        let cookie = browsers[turn].0.as_ref().unwrap();
        client.send(format!("GET / HTTP/1.1\r\nHost: test\r\nCookie: {cookie}\r\n\r\n"));
        assert_eq!(client.answer().unwrap().text(), homes[turn]);
    }
    // An invalid cookie counts as none, and fails no request.
    let (mut flips, value) = (0, browsers[0].0.clone().unwrap());
    for wrong in [
        "plimsoll=",
        "plimsoll=x",
        &format!("{value}0"),
        &value[..value.len() - 1],
        &value.replace('=', "=0"),
    ] {
        let mut browser = Browser(Some(wrong.to_owned()));
        let (home, set) = browser.visit(balancer.address());
        assert!(set.is_some(), "{wrong}");
        flips += u32::from(home != homes[0]);
    }
    assert!(flips >= 2, "by turns");
    let bindings = balancer.run(&["bindings", "-o", "json"]).json();
    assert_eq!(bindings["listeners"][0]["binding"], "affinity");
}

#[test]
fn a_key_in_a_file_is_known_after_a_restart_and_elsewhere_and_another_is_not() {
    let (one, other) = (named("one"), named("other"));
    let keys = Folder::new();
    let key = keys.write("key", "0123456789abcdef0123456789abcdef\n");
    let affinity = format!("{{ cookie = \"sid\", ttl = \"0s\", key_file = \"{}\" }}", key.display());
    let text = file(&affinity, &[&one, &other], "strategy = \"random\"\n");
    let (first, second) = (Balancer::start(&text), Balancer::start(&text));
    let mut browsers: Vec<Browser> = (0..8).map(|_| Browser::default()).collect();
    let homes: Vec<String> = browsers
        .iter_mut()
        .map(|browser| {
            let (home, set) = browser.visit(first.address());
            let set = set.unwrap();
            assert!(set.starts_with("sid=") && !set.contains("Max-Age"), "{set}");
            home
        })
        .collect();
    for (browser, home) in browsers.iter_mut().zip(&homes) {
        assert_eq!(browser.visit(second.address()), (home.clone(), None));
    }
    // A reload with the same key keeps all cookies valid, one with another key none.
    first.reload(&file(&affinity, &[&other, &one], "strategy = \"round_robin\"\n"));
    for (browser, home) in browsers.iter_mut().zip(&homes) {
        assert_eq!(browser.visit(first.address()), (home.clone(), None));
    }
    keys.write("key", "another key of thirty two bytes and more");
    first.reload(&text);
    assert!(browsers.iter_mut().all(|browser| browser.visit(first.address()).1.is_some()));
    // An unusable file changes nothing.
    keys.write("key", "short");
    let refused = first.run(&["reload"]);
    assert!(refused.code != Some(0) && refused.err.contains("32 are the least"), "{}", refused.err);
    assert!(browsers.iter_mut().all(|browser| browser.visit(first.address()).1.is_none()));
}

#[test]
fn a_key_is_changed_and_nobody_is_sent_elsewhere() {
    let (one, other) = (named("one"), named("other"));
    let keys = Folder::new();
    let old = keys.write("old", "0123456789abcdef0123456789abcdef\n");
    let new = keys.write("new", "another key of thirty two bytes and more");
    let by = |affinity: String| file(&affinity, &[&one, &other], "strategy = \"random\"\n");
    let balancer = Balancer::start(&by(format!("{{ key_file = \"{}\" }}", old.display())));
    let mut browsers: Vec<Browser> = (0..12).map(|_| Browser::default()).collect();
    let homes: Vec<String> = browsers.iter_mut().map(|browser| browser.visit(balancer.address()).0).collect();
    let both = format!("{{ key_file = \"{}\", old_key_file = \"{}\" }}", new.display(), old.display());
    balancer.reload(&by(both));
    for (browser, home) in browsers.iter_mut().zip(&homes) {
        let (again, set) = browser.visit(balancer.address());
        assert!(again == *home && set.is_some(), "its cookie is given anew: {set:?}");
        assert_eq!(browser.visit(balancer.address()), (home.clone(), None));
    }
    // The old key is no longer needed.
    balancer.reload(&by(format!("{{ key_file = \"{}\" }}", new.display())));
    for (browser, home) in browsers.iter_mut().zip(&homes) {
        assert_eq!(browser.visit(balancer.address()), (home.clone(), None));
    }
}

#[test]
fn one_good_cookie_among_several_of_the_name_is_enough() {
    let (one, other) = (named("one"), named("other"));
    let balancer = Balancer::start(&file("{}", &[&one, &other], "strategy = \"random\"\n"));
    for _ in 0..8 {
        let mut browser = Browser::default();
        let (home, _) = browser.visit(balancer.address());
        // The cookies of a page below, set by an application behind another balancer.
        let good = browser.0.unwrap();
        let mut several = Browser(Some(format!("plimsoll=; plimsoll={}; {good}", "0".repeat(84))));
        assert_eq!(several.visit(balancer.address()), (home, None));
    }
}

#[test]
fn a_cookie_grows_old_and_is_given_anew() {
    let (one, other) = (named("one"), named("other"));
    let start = |ttl: &str| Balancer::start(&file(&format!("{{ ttl = \"{ttl}\" }}"), &[&one, &other], ""));
    // A client that keeps returning keeps its member. It gets a fresh cookie at half of its lifetime; the
    // other half is longer than any machine stands still.
    let long = start("16s");
    let mut browser = Browser::default();
    let (home, _) = browser.visit(long.address());
    until("a young one", || {
        let (again, set) = browser.visit(long.address());
        assert_eq!(again, home);
        set.is_some()
    });
    // A client that does not return gets a cookie with its next answer, from any member.
    let short = start("2s");
    let mut old = Browser::default();
    old.visit(short.address());
    until("one whose time is over", || {
        let mut late = old.clone();
        let (_, set) = late.visit(short.address());
        let session = |browser: &Browser| browser.0.as_ref().unwrap()["plimsoll=01".len()..][..16].to_owned();
        set.is_some() && session(&late) != session(&old)
    });
}

#[test]
fn clients_leave_a_member_that_may_not_be_used_and_stay_where_they_went() {
    let (one, other) = (named("one"), named("other"));
    let text = file("{}", &[&one, &other], "strategy = \"first_available\"\n");
    // Most threads have never chosen the drained member; its clients are bound to it on those threads, too.
    let balancer = Balancer::start(&format!("threads = 16\n{text}"));
    let mut browsers: Vec<Browser> = (0..5).map(|_| Browser::default()).collect();
    assert!(browsers.iter_mut().all(|browser| browser.visit(balancer.address()).0 == "one"));
    assert_eq!(balancer.run(&["drain", &one.address.to_string()]).code, Some(0));
    for browser in &mut browsers {
        let (home, set) = browser.visit(balancer.address());
        assert!(home == "other" && set.is_some());
        assert_eq!(browser.visit(balancer.address()), ("other".to_owned(), None));
    }
    until("the moves to be told", || !balancer.events(one.address, "moved").is_empty());
    let event = &balancer.events(one.address, "moved")[0];
    assert!(event["why"].as_str().unwrap().contains(&format!("to {}", other.address)), "{event}");
    let moved = format!(
        "plimsoll_sessions_moved_total{{listener=\"{}\",protocol=\"http\",group=\"web\",member=\"{}\"}}",
        balancer.address(),
        one.address
    );
    until("all moves are counted", || balancer.metric(&moved) == 5.0);
    assert_eq!(balancer.run(&["undrain", &one.address.to_string()]).code, Some(0));
    assert!(
        browsers.iter_mut().all(|browser| browser.visit(balancer.address()).0 == "other"),
        "nobody goes back"
    );
    // Slow start applies, as to any member that returns.
    until("it takes newcomers again", || Browser::default().visit(balancer.address()).0 == "one");
}

#[test]
fn a_drained_member_may_keep_its_sessions_until_they_end() {
    let (one, other) = (named("one"), named("other"));
    let rest = "strategy = \"first_available\"\non_drain = \"stay\"\n";
    let text = file("{ ttl = \"10s\" }", &[&one, &other], rest);
    let balancer = Balancer::start(&format!("threads = 2\n{text}"));
    let mut browsers: Vec<Browser> = (0..5).map(|_| Browser::default()).collect();
    let begun = Instant::now();
    // bound: what is said of sessions that last is only asked while none can be over, by a second for whole
    // seconds
    let early = || begun.elapsed() < Duration::from_secs(9);
    assert!(browsers.iter_mut().all(|browser| browser.visit(balancer.address()).0 == "one"));
    assert_eq!(balancer.run(&["drain", &one.address.to_string()]).code, Some(0));
    assert_eq!(balancer.member(one.address)["state"], "draining");
    let mut fresh = Browser::default();
    // Until more than half of their lifetime is over, after which others would get a fresh cookie.
    while begun.elapsed().as_secs() < 7 {
        // sleeps: paces the clients
        sleep(Duration::from_millis(50));
        // Over any connection and thread, and with a cookie that is not renewed.
        for browser in &browsers {
            let came = browser.clone().visit(balancer.address());
            assert!(came == ("one".to_owned(), None) || !early(), "{came:?}");
        }
        assert_eq!(fresh.visit(balancer.address()).0, "other");
        assert_eq!(Browser::default().visit(balancer.address()).0, "other");
    }
    let moved = balancer.member(one.address)["moved"].clone();
    assert!(moved == 0 || !early(), "{moved}");
    for browser in &mut browsers {
        let mut staying = true;
        until("its session ends, though it keeps coming", || {
            let (home, set) = browser.visit(balancer.address());
            staying &= set.is_none() && home == "one";
            !staying
        });
        assert_eq!(browser.visit(balancer.address()).0, "other");
    }
}

#[test]
fn sessions_that_stayed_go_with_a_reload_or_when_the_member_is_disabled() {
    let (one, other) = (named("one"), named("other"));
    let rest = "strategy = \"first_available\"\non_drain = \"stay\"\n";
    let text = file("{}", &[&one, &other], rest);
    let balancer = Balancer::start(&format!("threads = 2\n{text}"));
    let [mut back, mut late] = [Browser::default(), Browser::default()];
    assert!(back.visit(balancer.address()).0 == "one" && late.visit(balancer.address()).0 == "one");
    assert_eq!(balancer.run(&["drain", &one.address.to_string()]).code, Some(0));
    assert_eq!(back.visit(balancer.address()).0, "one");
    balancer.reload(&format!("threads = 2\n{}", text.replace("on_drain = \"stay\"\n", "")));
    assert_eq!(back.visit(balancer.address()).0, "other", "a reload says that they go");
    balancer.reload(&format!("threads = 2\n{text}"));
    assert_eq!(late.visit(balancer.address()).0, "one");
    assert_eq!(balancer.run(&["disable", "member", &one.address.to_string()]).code, Some(0));
    assert_eq!(late.visit(balancer.address()).0, "other");
}

#[test]
fn connections_may_stay_with_a_drained_member_until_they_end() {
    let (one, other) = (named("one"), named("other"));
    let rest = "strategy = \"first_available\"\non_drain = \"stay\"\n";
    let addresses = [one.address, other.address];
    let balancer = Balancer::start(&listening("binding = \"per_session\"\n", &addresses, rest));
    let ask = |client: &mut Wire| {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client.answer().unwrap().text()
    };
    let mut client = Wire::connect(balancer.address());
    assert_eq!(ask(&mut client), "one");
    assert_eq!(balancer.run(&["drain", &one.address.to_string()]).code, Some(0));
    for _ in 0..5 {
        assert_eq!(ask(&mut client), "one");
        assert_eq!(ask(&mut Wire::connect(balancer.address())), "other");
    }
    let bound = || {
        let said = balancer.run(&["bindings", "-o", "json"]).json();
        let all = said["listeners"][0]["bindings"].as_array().unwrap().clone();
        all.into_iter().find(|of| of["member"] == one.address.to_string()).map(|of| of["bound"].clone())
    };
    assert_eq!(bound(), Some(1.into()));
    drop(client);
    until("its last session has ended", || bound() == Some(0.into()));
}

#[test]
fn sessions_leave_a_member_under_alert_until_all_is_even() {
    const CLIENTS: usize = 40;
    let (one, other) = (named("one"), named("other"));
    let rest = "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\ninterval = \"1m\"\n";
    let balancer = Balancer::start(&file("{}", &[&one, &other], rest));
    let mut browsers: Vec<Browser> = (0..CLIENTS).map(|_| Browser::default()).collect();
    let mut round = || -> [usize; 2] {
        let homes: Vec<String> =
            browsers.iter_mut().map(|browser| browser.visit(balancer.address()).0).collect();
        ["one", "other"].map(|name| homes.iter().filter(|home| *home == name).count())
    };
    let mut homes = round();
    assert_eq!(homes, [CLIENTS, 0]);
    found("sessions shared among both", || {
        let mut alert = false;
        for (member, count) in [(&other, homes[1]), (&one, homes[0])] {
            alert |= report(&balancer, member.address, 0.2 + count as f64 / CLIENTS as f64).is_some();
        }
        let before = std::mem::replace(&mut homes, round());
        (!alert && before == homes && homes[0].abs_diff(CLIENTS / 2) <= 6).then_some(())
    });
    let moved = |address| balancer.member(address)["moved"].as_u64().unwrap();
    assert_eq!((moved(one.address) - moved(other.address)) as usize, homes[1]);
    for member in [&one, &other] {
        assert_eq!(balancer.member(member.address)["failures"], 0);
    }
}

#[test]
fn a_listener_that_gets_another_group_knows_none_of_the_cookies() {
    let (one, other, third) = (named("one"), named("other"), named("third"));
    let web = file("{}", &[&one, &other], "strategy = \"round_robin\"\n");
    let text = format!("threads = 1\n{web}\n[[group]]\nname = \"api\"\nmembers = [\"{}\"]\n", third.address);
    let balancer = Balancer::start(&text);
    let mut browsers = [Browser::default(), Browser::default()];
    let homes = browsers.each_mut().map(|browser| browser.visit(balancer.address()).0);
    assert_ne!(homes[0], homes[1]);
    balancer.reload(&text.replacen("group = \"web\"", "group = \"api\"", 1));
    for browser in &mut browsers {
        let (home, set) = browser.visit(balancer.address());
        assert!(home == "third" && set.is_some(), "{set:?}");
        assert_eq!(browser.visit(balancer.address()), ("third".to_owned(), None));
    }
}

#[test]
fn a_member_at_its_limit_sends_its_client_elsewhere() {
    // The member never answers requests that ask it to wait.
    let hold = |name: &'static str| {
        Script::start(move |wire| {
            while let Some(head) = wire.head()? {
                if !head.starts_with("GET /hold") {
                    wire.try_send(format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}",
                        name.len()
                    ))?;
                }
            }
            std::io::Result::Ok(())
        })
    };
    let (one, other) = (hold("one"), hold("other"));
    let rest = "strategy = \"first_available\"\nmax_connections = 1\n";
    let balancer = Balancer::start(&file("{}", &[&one, &other], rest));
    let mut browser = Browser::default();
    assert_eq!(browser.visit(balancer.address()).0, "one");
    // The client receives an answer a moment before the request stops counting as in flight.
    let idle = |member: &Script| balancer.member(member.address)["in_flight"] == 0;
    until("it to be idle", || idle(&one));
    let mut busy = Wire::connect(balancer.address());
    busy.send("GET /hold HTTP/1.1\r\nHost: test\r\n\r\n");
    until("it to be busy", || balancer.member(one.address)["in_flight"] == 1);
    let (home, set) = browser.visit(balancer.address());
    assert!(home == "other" && set.is_some());
    drop(busy);
    until("both to be idle", || idle(&one) && idle(&other));
    assert_eq!(browser.visit(balancer.address()), ("other".to_owned(), None));
}

#[test]
fn over_tls_and_http2_the_cookie_is_for_tls_alone() {
    let (one, other) = (named("one"), named("other"));
    let folder = Folder::new();
    Authority::new(&folder, "ca").issue(&folder, "web", &["localhost"]);
    let tls = format!(
        "protocol = \"https\"\ntls = {{ certificates = [{{ certificate = \"{}\", key = \"{}\" }}] \
         }}\naffinity = {{}}\n",
        folder.join("web.pem").display(),
        folder.join("web.key").display()
    );
    let text = listening(&tls, &[one.address, other.address], "strategy = \"round_robin\"\n");
    let balancer = Balancer::start(&text);
    let url = format!("https://{}/", balancer.address());
    let jar = folder.join("jar");
    let jar = jar.to_str().unwrap();
    let mut homes = Vec::new();
    for version in ["--http1.1", "--http2", "--http2", "--http1.1"] {
        let curled = curl(&["-k", version, "-i", "-b", jar, "-c", jar, &url], b"");
        let text = String::from_utf8(curled.body).unwrap();
        assert_eq!(text.to_lowercase().contains("set-cookie: plimsoll="), homes.is_empty(), "{text}");
        assert!(!homes.is_empty() || text.contains("; SameSite=Lax; Secure"), "{text}");
        homes.push(text.rsplit("\r\n").next().unwrap().to_owned());
    }
    assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
}

#[test]
fn headers_and_addresses_have_their_members_by_strategy() {
    // Without cookies: a strategy that hashes, with a bound on the load of one member.
    let (one, other) = (named("one"), named("other"));
    let members = [one.address, other.address];
    let rest = "strategy = \"rendezvous\"\nkey = \"header:X-User\"\n";
    // One thread: with several, a member may still count an answered request, and be at its bound.
    let web = |rest: &str| format!("threads = 1\n{}", crate::stage::web(&members, rest));
    let balancer = Balancer::start(&web(rest));
    let visit = |user: &str| {
        let mut client = Wire::connect(balancer.address());
        client.send(format!("GET / HTTP/1.1\r\nHost: test\r\nX-User: {user}\r\nConnection: close\r\n\r\n"));
        client.answer().unwrap().text()
    };
    let homes: BTreeMap<u32, String> = (0..16).map(|user| (user, visit(&user.to_string()))).collect();
    assert!(homes.iter().all(|(user, home)| visit(&user.to_string()) == *home));
    assert_eq!(homes.values().collect::<std::collections::BTreeSet<_>>().len(), 2);
    let by_address = rest.replace("header:X-User", "client");
    balancer.reload(&web(&by_address));
    let home = get(balancer.address(), "/").text();
    assert!((0..8).all(|_| get(balancer.address(), "/").text() == home));
    let status: Value = balancer.status();
    assert_eq!(status["groups"][0]["strategy"], "rendezvous");
}
