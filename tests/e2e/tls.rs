//! TLS with clients and with members: curl, openssl, nginx and HAProxy on the other side.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use crate::stage::{
    Authority, Balancer, Curled, Folder, Haproxy, Member, Nginx, PATIENCE, Script, Wire, curl, found, groups,
    listening, members_list, noise, part, until,
};

const BOTH: &str = "tls = { certificates = [{ certificate = \"one.pem\", key = \"one.key\" }, \
                    { certificate = \"two.pem\", key = \"two.key\" }]";

/// The settings of a group whose members may take long over a handshake.
const PATIENT: &str = "timeouts = { connect = \"20s\" }\n";

/// Makes a folder with the authority `ca`, and certificates of it for one.test and for all below two.test.
fn certificates() -> (Folder, Authority) {
    let folder = Folder::new();
    let authority = Authority::new(&folder, "ca");
    authority.issue(&folder, "one", &["one.test", "127.0.0.1"]);
    authority.issue(&folder, "two", &["*.two.test"]);
    (folder, authority)
}

/// Returns a file with an https listener.
fn https(tls: &str, members: &[SocketAddr], rest: &str) -> String {
    let groups = groups(&[("web", members)], rest);
    format!("[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\ngroup = \"web\"\n{tls}\n{groups}")
}

/// Returns the result of curl for a host name that leads to the balancer.
fn get(balancer: &Balancer, name: &str, more: &[&str]) -> Curled {
    let port = balancer.address().port();
    let resolve = format!("{name}:{port}:127.0.0.1");
    let ca = balancer.folder().path().join("ca.pem");
    let url = format!("https://{name}:{port}/some/where");
    let ca = ca.to_str().unwrap();
    curl(&[&["--resolve", &resolve, "--cacert", ca, "-v", &url], more].concat(), b"")
}

fn text(curled: &Curled) -> &str {
    std::str::from_utf8(&curled.body).unwrap()
}

/// Returns the output of openssl's client on a connection.
fn openssl(balancer: &Balancer, args: &[&str], input: &str) -> String {
    let address = balancer.address().to_string();
    let mut child = Command::new(part("openssl"))
        .args(["s_client", "-connect", &address, "-CAfile", "ca.pem"])
        .args(args)
        .current_dir(balancer.folder().path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn clients_come_by_tls_and_members_are_told() {
    let member = Member::start(&["--echo", "http"]);
    let (folder, _) = certificates();
    let balancer = Balancer::start_in(folder, &https(&format!("{BOTH} }}"), &[member.address], ""));
    for version in ["--tlsv1.3", "--tls-max=1.2"] {
        let version: Vec<&str> = version.split('=').collect();
        let got = get(&balancer, "one.test", &version);
        assert_eq!(got.code, Some(0), "{}", got.talk);
        assert!(text(&got).contains("\r\nX-Forwarded-Proto: https\r\n"), "{}", text(&got));
        assert!(text(&got).starts_with("GET /some/where "), "{}", text(&got));
    }
    // Two requests share one connection; a large body goes both ways.
    let large = vec![b'x'; 3_000_000];
    let port = balancer.address().port();
    let url = format!("https://one.test:{port}/");
    let args = ["--resolve", &format!("one.test:{port}:127.0.0.1"), "--cacert"];
    let ca = balancer.folder().path().join("ca.pem");
    let args = [&args[..], &[ca.to_str().unwrap(), "--data-binary", "@-", &url]].concat();
    let got = curl(&args, &large);
    assert_eq!((got.code, got.body.len() > large.len()), (Some(0), true), "{}", got.talk);
    assert_eq!(balancer.status()["listeners"][0]["protocol"], "https");
}

#[test]
fn each_name_has_its_certificate_and_may_have_its_group() {
    let (one, two) = (Member::start(&["--echo", "http"]), Member::start(&["--echo", "http"]));
    let (folder, _) = certificates();
    let names = format!("{BOTH}, names = [{{ name = \"*.two.test\", group = \"other\" }}] }}");
    let text = https(&names, &[one.address], "");
    let other = groups(&[("other", &[two.address])], "");
    let balancer = Balancer::start_in(folder, &format!("{text}\n{other}"));
    for (name, subject) in [("one.test", "CN=one"), ("a.two.test", "CN=two")] {
        let got = get(&balancer, name, &[]);
        assert_eq!(got.code, Some(0), "{}", got.talk);
        assert!(got.talk.contains(subject), "{}", got.talk);
    }
    let requests = |group: &str| balancer.group(group)["members"][0]["requests"].as_u64();
    until("each group has had its own", || (requests("web"), requests("other")) == (Some(1), Some(1)));
    assert_eq!(balancer.status()["listeners"][0]["others"], serde_json::json!(["other"]));
    let status = balancer.run(&["status", "other"]);
    assert!(status.out.contains("→  web, other"), "{}", status.out);
    // An unknown name gets the first certificate, which is not for it.
    let got = get(&balancer, "three.test", &[]);
    assert_eq!(got.code, Some(60), "{}", got.talk);
}

#[test]
fn connections_of_http_2_are_for_what_they_were_made_for() {
    let (one, two) = (Member::start(&[]), Member::start(&[]));
    let (folder, _) = certificates();
    let names = format!("{BOTH}, names = [{{ name = \"b.two.test\", group = \"other\" }}] }}");
    let text = https(&names, &[one.address], "");
    let other = groups(&[("other", &[two.address])], "");
    let balancer = Balancer::start_in(folder, &format!("{text}\n{other}"));
    let status = |version: &str, name: &str, host: &str| {
        let got = get(&balancer, name, &[version, "-H", &format!("Host: {host}")]);
        assert_eq!(got.code, Some(0), "{}", got.talk);
        let line = got.talk.lines().find(|line| line.starts_with("< HTTP/")).unwrap().to_owned();
        line.split(' ').nth(2).unwrap().to_owned()
    };
    for (name, host, expected) in [
        ("one.test", "ONE.test:8443", "200"),
        // A host without a certificate and a group here is served on any connection.
        ("one.test", "nobody.test", "200"),
        // Another certificate.
        ("one.test", "a.two.test", "421"),
        ("a.two.test", "one.test", "421"),
        // The same certificate, another group; and back.
        ("a.two.test", "c.two.test", "200"),
        ("a.two.test", "b.two.test", "421"),
        ("b.two.test", "a.two.test:443", "421"),
        ("b.two.test", "b.two.test", "200"),
    ] {
        assert_eq!(status("--http2", name, host), expected, "{host} on a connection for {name}");
        // Connections of HTTP/1.1 are not shared.
        assert_eq!(status("--http1.1", name, host), "200", "{host} on a connection for {name}");
    }
    // The fourth is the other group's.
    until("they are counted", || balancer.rejected("misdirected") == 3);
}

#[test]
fn clients_without_a_certificate_stay_outside_where_one_is_asked_for() {
    let member = Member::start(&["--echo", "http"]);
    let (folder, authority) = certificates();
    authority.issue(&folder, "client", &["client.test"]);
    let stranger = Authority::new(&folder, "elsewhere");
    stranger.issue(&folder, "stranger", &["client.test"]);
    let at = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
    let shows = |who: &str| {
        ["--cert".to_owned(), at(&format!("{who}.pem")), "--key".to_owned(), at(&format!("{who}.key"))]
    };
    let (client, stranger) = (shows("client"), shows("stranger"));
    let asked = format!("{BOTH}, client_ca = \"ca.pem\" }}");
    let file = https(&asked, &[member.address], "");
    let balancer = Balancer::start_in(folder, &file);
    let code = |shown: &[String]| {
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        get(&balancer, "one.test", &shown).code
    };
    assert_eq!(code(&client), Some(0));
    assert_ne!(code(&[]), Some(0));
    assert_ne!(code(&stranger), Some(0));
    until("they are counted", || balancer.rejected("handshake") == 2);
    balancer.reload(
        &file.replace("client_ca = \"ca.pem\"", "client_ca = \"ca.pem\", client_certificate = \"optional\""),
    );
    assert_eq!(code(&[]), Some(0));
    assert_ne!(code(&stranger), Some(0));
}

#[test]
fn a_session_is_resumed_and_a_new_certificate_drops_nobody() {
    let member = Member::start(&["--echo", "http"]);
    let (folder, authority) = certificates();
    let file = https(&format!("{BOTH} }}"), &[member.address], "");
    let balancer = Balancer::start_in(folder, &file);
    let ask = "GET / HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n";
    let quiet = ["-servername", "one.test", "-ign_eof", "-sess_out", "session"];
    for version in ["-tls1_3", "-tls1_2"] {
        let first = openssl(&balancer, &[&quiet[..], &[version]].concat(), ask);
        assert!(first.contains("Verify return code: 0"), "{first}");
        assert!(first.contains("\nNew, "), "{first}");
        let again = ["-servername", "one.test", "-ign_eof", "-sess_in", "session", version];
        let second = openssl(&balancer, &again, ask);
        assert!(second.contains("\nReused, "), "{second}");
    }
    // An open connection goes on, new ones see the new certificate, and nothing is lost between.
    let mut open = Command::new(part("openssl"))
        .args(["s_client", "-quiet", "-connect", &balancer.address().to_string(), "-servername", "one.test"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = open.stdin.take().unwrap();
    stdin.write_all(b"GET /first HTTP/1.1\r\nHost: one.test\r\n\r\n").unwrap();
    until("its first request is answered", || balancer.member(member.address)["requests"].as_u64() > Some(4));
    authority.issue(balancer.folder(), "one", &["one.test", "new.test"]);
    let said = balancer.reload(&file);
    assert!(said.contains("listener https"), "{said}");
    let got = get(&balancer, "new.test", &[]);
    assert_eq!(got.code, Some(0), "{}", got.talk);
    stdin.write_all(b"GET /second HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n").unwrap();
    drop(stdin);
    let heard = String::from_utf8(open.wait_with_output().unwrap().stdout).unwrap();
    assert!(heard.contains("GET /first ") && heard.contains("GET /second "), "{heard}");
}

#[test]
fn members_are_reached_by_tls_and_must_be_who_they_should_be() {
    let (folder, _) = certificates();
    let at = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
    let (certificate, key) = (at("one.pem"), at("one.key"));
    let nginx = Nginx::start(|address| {
        format!(
            "http {{ access_log off; client_body_temp_path temp; proxy_temp_path temp;\n\
             server {{ listen {address} ssl; ssl_protocols TLSv1.2 TLSv1.3; \
             ssl_certificate {certificate}; ssl_certificate_key {key};\n\
             keepalive_timeout 60; return 200 \"$ssl_server_name $ssl_protocol\\n\"; }} }}"
        )
    });
    let trusting = |tls: &str| {
        let groups = groups(
            &[("web", &[nginx.address])],
            &format!("tls = {tls}\nretry = {{ attempts = 0 }}\noutlier = false\n{PATIENT}"),
        );
        format!("threads = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{groups}")
    };
    let health =
        "[group.health]\nhttp = \"/\"\ninterval = \"100ms\"\ntimeout = \"20s\"\nfall = 1\nrise = 1\n";
    let good = trusting("{ ca = \"ca.pem\", server_name = \"one.test\" }");
    let balancer = Balancer::start_in(folder, &good);
    for _ in 0..3 {
        let answer = crate::stage::get(balancer.address(), "/");
        assert_eq!(
            (answer.status, answer.text().contains("one.test TLSv1.3")),
            (200, true),
            "{}",
            answer.text()
        );
    }
    assert_eq!(balancer.member(nginx.address)["connects"], 1, "connections are used again");
    // The member is trusted by its address, for which its certificate is, too; and refused by a name that the
    // certificate is not for.
    balancer.reload(&trusting("{ ca = \"ca.pem\" }"));
    assert_eq!(crate::stage::get(balancer.address(), "/").status, 200);
    balancer.reload(&trusting("{ ca = \"ca.pem\", server_name = \"else.test\" }"));
    let answer = crate::stage::get(balancer.address(), "/");
    assert_eq!((answer.status, answer.reason()), (502, Some("connect_failed")));
    balancer.reload(&trusting("{ verify = false, server_name = \"else.test\" }"));
    assert_eq!(crate::stage::get(balancer.address(), "/").status, 200);
    // Health checks have the same result.
    balancer.reload(&(good.clone() + health));
    until("it is up", || balancer.member(nginx.address)["state"] == "up");
    let wrong = trusting("{ ca = \"ca.pem\", server_name = \"else.test\" }");
    balancer.reload(&(wrong + health));
    until("it is down", || balancer.member(nginx.address)["state"] == "down");
    let why = found("an event", || balancer.events(nginx.address, "down").pop());
    assert!(why["why"].as_str().unwrap().contains("TLS: "), "{why}");
}

#[test]
fn members_see_our_certificate_where_they_ask_for_one() {
    let (folder, authority) = certificates();
    authority.issue(&folder, "balancer", &["balancer.test"]);
    let at = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (at("one.pem"), at("one.key"), at("ca.pem"));
    let nginx = Nginx::start(|address| {
        format!(
            "http {{ access_log off; client_body_temp_path temp; proxy_temp_path temp;\n\
             server {{ listen {address} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};\n\
             ssl_verify_client on; ssl_client_certificate {ca};\n\
             location / {{ return 200 \"$ssl_client_s_dn\\n\"; }} }} }}"
        )
    });
    let file = |own: &str| {
        let tls = format!(
            "tls = {{ ca = \"ca.pem\", server_name = \"one.test\"{own} }}\noutlier = false\n{PATIENT}"
        );
        let health =
            "[group.health]\nhttp = \"/\"\ninterval = \"100ms\"\ntimeout = \"20s\"\nfall = 1\nrise = 1\n";
        let groups = groups(&[("web", &[nginx.address])], &(tls + health));
        format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{groups}")
    };
    let own = ", own = { certificate = \"balancer.pem\", key = \"balancer.key\" }";
    let balancer = Balancer::start_in(folder, &file(own));
    until("its health checks pass", || balancer.member(nginx.address)["state"] == "up");
    let answer = crate::stage::get(balancer.address(), "/");
    assert_eq!((answer.status, answer.text().trim()), (200, "CN=balancer"));
    // Without a certificate the balancer is refused.
    balancer.reload(&file(""));
    until("its health checks fail", || balancer.member(nginx.address)["state"] == "down");
}

#[test]
fn what_the_authority_says_is_stapled() {
    let member = Member::start(&["--echo", "http"]);
    let (folder, _) = certificates();
    let openssl_at = |args: &[&str]| {
        let output = Command::new(part("openssl")).args(args).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // An authority's list of certificates, and its answer about one of them.
    let serial = openssl_at(&["x509", "-in", "one.pem", "-noout", "-serial"]);
    let serial = serial.trim().strip_prefix("serial=").unwrap();
    folder.write("index.txt", format!("V\t400101000000Z\t\t{serial}\tunknown\t/CN=one\n"));
    let ask = ["ocsp", "-index", "index.txt", "-rsigner", "ca.pem", "-rkey", "ca.key", "-CA", "ca.pem"];
    let about = ["-issuer", "ca.pem", "-cert", "one.pem", "-ndays", "1", "-respout", "one.ocsp", "-noverify"];
    openssl_at(&[&ask[..], &about].concat());
    let tls = BOTH.replace("key = \"one.key\"", "key = \"one.key\", ocsp = \"one.ocsp\"");
    let file = https(&format!("{tls} }}"), &[member.address], "");
    let balancer = Balancer::start_in(folder, &file);
    let checked = balancer.run(&["config", "check"]);
    assert_eq!((checked.code, checked.err.contains("OCSP")), (Some(0), false), "{}", checked.err);
    for version in ["-tls1_3", "-tls1_2"] {
        let status = |name: &str| {
            let said = openssl(&balancer, &["-status", "-servername", name, version], "");
            (said.contains("Cert Status: good"), said.contains("OCSP response: no response sent"))
        };
        assert_eq!((status("one.test"), status("a.two.test")), ((true, false), (false, true)), "{version}");
    }
    // An invalid answer is reported, and changes nothing.
    balancer.write(&file.replace("one.ocsp", "one.pem"));
    let run = balancer.run(&["reload"]);
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(run.err.contains("one.pem: it is no OCSP response in DER form"), "{}", run.err);
    let said = openssl(&balancer, &["-status", "-servername", "one.test"], "");
    assert!(said.contains("Cert Status: good"), "{said}");
}

#[test]
fn byte_streams_are_decrypted_and_encrypted() {
    let (folder, _) = certificates();
    let pair = folder.path().join("pair.pem");
    let both = ["one.pem", "one.key"].map(|file| std::fs::read_to_string(folder.path().join(file)).unwrap());
    std::fs::write(&pair, both.concat()).unwrap();
    let echo = Member::start(&["--echo", "tcp"]);
    // The clients' TLS ends here, and another one begins, which HAProxy ends.
    let haproxy = Haproxy::start(|address| {
        format!(
            "listen front\n  mode tcp\n  bind {address} ssl crt {}\n  server echo {}\n",
            pair.display(),
            echo.address
        )
    });
    let members = members_list(&[haproxy.address]);
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ngroup = \"web\"\n{BOTH} }}\n\
         [[group]]\nname = \"web\"\nmembers = {members}\ntls = \
         {{ ca = \"ca.pem\", server_name = \"one.test\" }}\n{PATIENT}"
    );
    let balancer = Balancer::start_in(folder, &text);
    let lines = "a line that is sent and comes back\n".repeat(20_000);
    let mut client = Command::new(part("openssl"))
        .args(["s_client", "-quiet", "-nocommands", "-connect", &balancer.address().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut back = vec![0; lines.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| stdin.write_all(lines.as_bytes()).unwrap());
        stdout.read_exact(&mut back).unwrap();
    });
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(back == lines.as_bytes());
}

/// Starts openssl's client on a connection for `name`.
fn dial(address: SocketAddr, name: &str) -> Child {
    Command::new(part("openssl"))
        .args(["s_client", "-quiet", "-nocommands", "-servername", name, "-connect", &address.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns `true` if there is an established connection to a member that its client has not ended.
fn sends(member: SocketAddr) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", member.port());
    // The columns are number, local address, remote address and state.
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|columns| {
        columns.get(2).is_some_and(|remote| remote.ends_with(&port)) && columns.get(3) == Some(&"01")
    })
}

#[test]
fn a_client_that_ends_without_a_word_loses_nothing_that_it_sent() {
    let (folder, _) = certificates();
    let (go, gone) = channel();
    let (tell, told) = channel();
    let gone = Mutex::new(gone);
    let member = Script::start(move |wire| {
        // The member reads only when the client has gone.
        gone.lock().unwrap().recv().unwrap();
        tell.send(wire.rest().map_err(|error| error.to_string())).unwrap();
    });
    let text = listening(&format!("protocol = \"tcp\"\n{BOTH} }}"), &[member.address], "");
    let balancer = Balancer::start_in(folder, &text);
    let mut client = dial(balancer.address(), "one.test");
    let sent = noise(200_000);
    client.stdin.as_mut().unwrap().write_all(&sent).unwrap();
    until("all is there", || balancer.member(member.address)["bytes_out"] == 200_000);
    // The killed client sends nothing more: the kernel ends its connection, and the balancer its own to the
    // member.
    client.kill().unwrap();
    client.wait().unwrap();
    until("the balancer sends no more to the member", || !sends(member.address));
    go.send(()).unwrap();
    let heard = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(heard == sent, "{} bytes", heard.len());
    until("it has ended", || balancer.member(member.address)["in_flight"] == 0);
    assert_eq!(balancer.member(member.address)["failures"], 0);
}

#[test]
fn members_chosen_by_name_are_told_where_the_client_came_to() {
    let (folder, _) = certificates();
    let (tell, told) = channel();
    let plain = Member::start(&["--echo", "tcp"]);
    let member = Script::start(move |wire| tell.send(wire.line().unwrap()));
    let names = format!("{BOTH}, names = [{{ name = \"a.two.test\", group = \"other\" }}] }}");
    let web = listening(&format!("protocol = \"tcp\"\n{names}"), &[plain.address], "");
    let other = groups(&[("other", &[member.address])], "send_proxy = \"v1\"\n");
    let text = format!("{web}\n{other}").replace("127.0.0.1:0", "0.0.0.0:0");
    let balancer = Balancer::start_in(folder, &text);
    let port = balancer.address().port();
    let mut client = dial(SocketAddr::from(([127, 0, 0, 1], port)), "a.two.test");
    let line = told.recv_timeout(PATIENCE).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[..4], ["PROXY", "TCP4", "127.0.0.1", "127.0.0.1"], "{line}");
    assert_eq!(words[5], port.to_string(), "{line}");
}

#[test]
fn what_is_no_tls_and_what_says_nothing_harm_nobody() {
    let member = Member::start(&["--echo", "http"]);
    let (folder, _) = certificates();
    let text = https(&format!("{BOTH} }}"), &[member.address], "");
    let balancer = Balancer::start_in(folder, &text);
    drop(Wire::connect(balancer.address()));
    let mut plain = Wire::connect(balancer.address());
    plain.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    until("it is sent away", || balancer.rejected("handshake") == 1);
    assert_eq!(get(&balancer, "one.test", &[]).code, Some(0));
    // The timeout is shorter than that of any other test.
    balancer.reload(
        &text.replace(&format!("{BOTH} }}"), &format!("{BOTH} }}\ntimeouts = {{ head = \"200ms\" }}")),
    );
    let silent = Wire::connect(balancer.address());
    until("both are sent away", || balancer.rejected("handshake") == 2);
    balancer.reload(&text);
    assert_eq!(get(&balancer, "one.test", &[]).code, Some(0));
    drop((plain, silent));
}

#[test]
fn a_wrong_certificate_is_told_with_its_place_and_changes_nothing() {
    let member = Member::start(&["--echo", "http"]);
    let (folder, _) = certificates();
    folder.write("empty.pem", "nothing\n");
    let file = https(&format!("{BOTH} }}"), &[member.address], "");
    let balancer = Balancer::start_in(folder, &file);
    for (wrong, told) in [
        ("\"one.pem\", key = \"two.key\"", "the key is not that of the certificate"),
        ("\"empty.pem\", key = \"one.key\"", "no certificate in PEM form"),
        ("\"missing.pem\", key = \"one.key\"", "cannot read missing.pem"),
    ] {
        balancer.write(&file.replace("\"one.pem\", key = \"one.key\"", wrong));
        for args in [&["reload"][..], &["config", "check"]] {
            let run = balancer.run(args);
            assert_eq!(run.code, Some(2), "{args:?}: {}{}", run.out, run.err);
            assert!(run.err.contains(told) && run.err.contains("plimsoll.toml:5:"), "{args:?}: {}", run.err);
        }
        assert_eq!(get(&balancer, "one.test", &[]).code, Some(0));
    }
}
