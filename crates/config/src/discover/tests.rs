use insta::assert_snapshot;
use plimsoll_cluster::discover::KUBERNETES_ENABLED;

use super::super::parse;
use super::super::tests::all;
use super::*;

fn text(rest: &str) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n{rest}")
}

fn errors_of(rest: &str) -> String {
    match parse("plimsoll.toml", text(rest).into_bytes()) {
        Err(problems) => problems.to_string(),
        Ok(file) => panic!("{rest} is right; {}", file.warnings),
    }
}

#[test]
fn every_key_reaches_the_sources() {
    let file = parse("plimsoll.toml", all().into_bytes()).unwrap();
    let discovery = file.discoveries().into_iter().find(|candidate| &*candidate.group == "found").unwrap();
    assert_eq!((&*discovery.group, discovery.limit), ("found", u32::MAX));
    let kinds: Vec<String> = discovery.sources.iter().map(|source| source.kind.to_string()).collect();
    let file = kinds[0].strip_prefix("file ").unwrap();
    assert!(file.ends_with("/found.members"), "{file}");
    let expected_others = [
        "dns web.example.:32",
        "srv _http._tcp.web.example",
        "http http://[::1]:37/v1/members",
        "etcd /services/web/",
        "registered etcd /plimsoll/",
    ];
    assert_eq!(kinds[1..6], expected_others);
    assert_eq!(kinds.len(), if KUBERNETES_ENABLED { 8 } else { 6 });
    let dns = &discovery.sources[1];
    assert_eq!((dns.allow_empty, dns.hold_time.as_secs()), (true, 36));
    let SourceKind::Dns(settings) = &dns.kind else { panic!("{dns:?}") };
    assert_snapshot!(format!("{settings:?}"), @r#"DnsSettings { host: "web.example.", port: 32, family: V4, resolver: ResolverSettings { servers: [127.0.0.1:5353, [::1]:53], timeout: 330ms }, min: 34s, max: 35s }"#);
    let SourceKind::File(settings) = &discovery.sources[0].kind else { panic!("{:?}", discovery.sources[0]) };
    assert_eq!(settings.interval.as_secs(), 2);
    let SourceKind::Http(settings) = &discovery.sources[3].kind else { panic!("{:?}", discovery.sources[3]) };
    assert_eq!((settings.interval.as_secs(), settings.timeout.as_secs()), (5, 3));
    let SourceKind::Etcd(settings) = &discovery.sources[4].kind else { panic!("{:?}", discovery.sources[4]) };
    let etcd = &settings.etcd;
    let endpoints: Vec<String> = etcd.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["https://a:41", "http://[::1]:2379"]);
    assert_eq!((etcd.timeout.as_secs(), etcd.user.as_ref().unwrap().0.as_str()), (42, "lb"));
    assert!(etcd.tls.ca.is_some() && etcd.tls.client_identity.is_some() && !discovery.sources[4].allow_empty);
    assert!(discovery.sources[5].allow_empty);
    if !KUBERNETES_ENABLED {
        return;
    }
    assert_eq!(kinds[6..], ["kubernetes shop/web:http", "kubernetes web:83"]);
    let kubernetes_settings = |index: usize| match &discovery.sources[index].kind {
        SourceKind::Kubernetes(settings) => settings.clone(),
        other => panic!("{other:?}"),
    };
    assert_snapshot!(format!("{:?}", kubernetes_settings(6)), @r#"KubernetesSource { service: "web", namespace: Some("shop"), port: Some(Name("http")), family: V6, api: Account { server: Some(("api", 81)), tls: false, folder: "/tmp/account" }, timeout: 52s }"#);
    assert_snapshot!(format!("{:?}", kubernetes_settings(7)), @r#"KubernetesSource { service: "web", namespace: None, port: Some(Number(83)), family: Any, api: Kubeconfig { path: "/tmp/kubeconfig", context: Some("shop@cluster") }, timeout: 3s }"#);
}

#[test]
fn services_of_kubernetes_are_taken_by_a_build_that_has_it() {
    let rest = "discover = [{ kubernetes = { service = \"web\" } }]\n";
    if !KUBERNETES_ENABLED {
        assert_snapshot!(errors_of(rest), @r#"
        error: plimsoll.toml:6:15: this plimsoll was built without Kubernetes
            6 | discover = [{ kubernetes = { service = "web" } }]
              |               ^^^^^^^^^^ take it out, or build with: cargo build --release -p plimsoll --features kubernetes
        1 error
        "#);
        return;
    }
    let file = parse("plimsoll.toml", text(rest).into_bytes()).unwrap();
    let SourceKind::Kubernetes(settings) = &file.discoveries()[0].sources[0].kind else { panic!("{rest}") };
    assert_snapshot!(format!("{settings:?}"), @r#"KubernetesSource { service: "web", namespace: None, port: None, family: Any, api: Account { server: None, tls: true, folder: "/var/run/secrets/kubernetes.io/serviceaccount" }, timeout: 3s }"#);
    assert_snapshot!(errors_of(
        "discover = [{ kubernetes = { service = \"Web_1\" } },\n{ kubernetes = {} },\n\
         { kubernetes = { service = \"web\", port = \"8080\" } },\n\
         { kubernetes = { service = \"web\", port = 0 } },\n\
         { kubernetes = { service = \"web\", context = \"a\" } },\n\
         { kubernetes = { service = \"web\", kubeconfig = \"/k\", tls = false } }]\n"
    ), @r#"
    error: plimsoll.toml:6:40: `service`: `Web_1` is no name of Kubernetes: small letters, digits, and `-` between them
        6 | discover = [{ kubernetes = { service = "Web_1" } },
          |                                        ^^^^^^^ a name of Kubernetes, such as "web"
    error: plimsoll.toml:7:16: missing key `service` in [group.discover.kubernetes]
        7 | { kubernetes = {} },
          |                ^^ add service = "web"
    error: plimsoll.toml:8:42: `port` is called "8080", and names of ports have a letter
        8 | { kubernetes = { service = "web", port = "8080" } },
          |                                          ^^^^^^ write port = 8080 for the number
    error: plimsoll.toml:9:42: `port` must be at least 1
        9 | { kubernetes = { service = "web", port = 0 } },
          |                                          ^
    error: plimsoll.toml:10:35: `context` is of a `kubeconfig`, and there is none
       10 | { kubernetes = { service = "web", context = "a" } },
          |                                   ^^^^^^^ add kubeconfig = "/etc/plimsoll/kubeconfig"
    error: plimsoll.toml:11:54: either `kubeconfig` or `tls`, not both
       11 | { kubernetes = { service = "web", kubeconfig = "/k", tls = false } }]
          |                                                      ^^^
       11 | { kubernetes = { service = "web", kubeconfig = "/k", tls = false } }]
          |                                   ^^^^^^^^^^ it says whom to ask
    6 errors
    "#);
}

#[test]
fn a_group_needs_members_or_a_place_where_they_are() {
    assert_snapshot!(errors_of(""), @r#"
    error: plimsoll.toml:4:1: missing key `members` in [[group]]
        4 | [[group]]
          | ^^^^^^^^^ add members = ["10.0.0.1:80"]
    1 error
    "#);
    assert!(parse("x", text("discover = [{ srv = \"_http._tcp.web\" }]\n").into_bytes()).is_ok());
    assert!(
        parse("x", text("members = [\"a:1\"]\n[[group.discover]]\ndns = \"web:80\"\n").into_bytes()).is_ok()
    );
}

#[test]
fn what_is_wrong_with_sources() {
    assert_snapshot!(errors_of("discover = [\n{},\n{ file = \"/a\", dns = \"web:80\" },\n{ dns = \"10.0.0.1:80\" }]\n"), @r#"
    error: plimsoll.toml:7:1: a source of members without a place to look
        7 | {},
          | ^^ add file = "…", dns = "name:port", srv = "_http._tcp.name", http = "http://…", etcd = "/…/", kubernetes = { service = "…" } or registered = true
    error: plimsoll.toml:8:16: either `file` or `dns`, not both
        8 | { file = "/a", dns = "web:80" },
          |                ^^^ make a [[group.discover]] of each
        8 | { file = "/a", dns = "web:80" },
          |   ^^^^ here
    error: plimsoll.toml:9:9: `dns` is the address 10.0.0.1, which nobody has to look up
        9 | { dns = "10.0.0.1:80" }]
          |         ^^^^^^^^^^^^^ write it in `members`
    3 errors
    "#);
    assert_snapshot!(errors_of(
        "discover = \
         [{ dns = \"web\" },\n{ dns = \"web:80\", resolver = [\"dns.example:53\"], min = \"1h\" },\n\
         { http = \"https://a/\" },\n{ file = \"/a\", family = \"v4\" },\n\
         { srv = \"a..b\", stale_ttl = \"2h\" }]\n"
    ), @r#"
    error: plimsoll.toml:6:21: `dns`: `web` has no port
        6 | discover = [{ dns = "web" },
          |                     ^^^^^ a host and a port, such as "web.example.org:8080"
    error: plimsoll.toml:7:31: `resolver` has the name `dns.example`, which nobody could look up
        7 | { dns = "web:80", resolver = ["dns.example:53"], min = "1h" },
          |                               ^^^^^^^^^^^^^^^^ write an IP address and a port
    error: plimsoll.toml:7:56: `min` (1h) must not be longer than `max` (5m)
        7 | { dns = "web:80", resolver = ["dns.example:53"], min = "1h" },
          |                                                        ^^^^
    error: plimsoll.toml:8:10: `http`: `https://a/` does not begin with http://
        8 | { http = "https://a/" },
          |          ^^^^^^^^^^^^ an http URL, such as "http://10.0.0.1:8500/v1/members"
    error: plimsoll.toml:9:25: unknown family `v4`
        9 | { file = "/a", family = "v4" },
          |                         ^^^^ allowed: any, ipv4, ipv6
    error: plimsoll.toml:10:9: `srv`: `a..b` has a label of no bytes, or of more than 63
       10 | { srv = "a..b", stale_ttl = "2h" }]
          |         ^^^^^^ a domain name, such as "_http._tcp.example.org"
    error: plimsoll.toml:10:29: `stale_ttl` must be at most 1h
       10 | { srv = "a..b", stale_ttl = "2h" }]
          |                             ^^^^
    7 errors
    "#);
    let many_sources = "{ dns = \"web:80\" }, ".repeat(17);
    let error_text = errors_of(&format!("discover = [{many_sources}]\n"));
    assert!(
        error_text.contains("more than 16 sources") && error_text.contains("this source is there twice"),
        "{error_text}"
    );
    let lottery = "lottery = { service = \"web\", daemons = [\"d:1\"], keys = \"/k\" }\n";
    let error_text = errors_of(&format!("{lottery}discover = [{{ dns = \"web:80\" }}]\n"));
    assert!(error_text.contains("either `discover` or `lottery`, not both"), "{error_text}");
}

#[test]
fn keys_that_have_no_effect_are_told() {
    let rest = "discover = [{ file = \"/a\", min = \"1s\", resolver = [\"10.0.0.1:53\"] }, \
        { dns = \"web:80\", interval = \"1s\" }]\n";
    let file = parse("plimsoll.toml", text(rest).into_bytes()).unwrap();
    assert_snapshot!(file.warnings, @r#"
    warning: plimsoll.toml:6:28: `min` has no effect: the source is of the kind `file`
        6 | discover = [{ file = "/a", min = "1s", resolver = ["10.0.0.1:53"] }, { dns = "web:80", interval = "1…
          |                            ^^^
    warning: plimsoll.toml:6:40: `resolver` has no effect: the source is of the kind `file`
        6 | …er = [{ file = "/a", min = "1s", resolver = ["10.0.0.1:53"] }, { dns = "web:80", interval = "1s" }]
          |                                   ^^^^^^^^
    warning: plimsoll.toml:6:88: `interval` has no effect: the source is of the kind `dns`
        6 | ….0.0.1:53"] }, { dns = "web:80", interval = "1s" }]
          |                                   ^^^^^^^^
    3 warnings
    "#);
}

#[test]
fn a_look_at_the_files() {
    let folder = std::env::temp_dir().join(format!("plimsoll-members-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("good"), "members = [\"a:1\", \"b:2\"]").unwrap();
    std::fs::write(folder.join("bad.json"), "[\"a\"]").unwrap();
    let source = |name: &str| format!("{{ file = \"{}\" }}", folder.join(name).display());
    let rest = format!("discover = [{}, {}, {}]\n", source("good"), source("bad.json"), source("none"));
    let file = parse("plimsoll.toml", text(&rest).into_bytes()).unwrap();
    let (warnings, count) = file.read_member_files();
    assert_eq!((count, warnings.list().len(), warnings.has_errors()), (2, 2, false), "{warnings}");
    let rendered = warnings.to_string();
    assert!(
        rendered.contains("bad.json:1:4: `a` has no port") && rendered.contains("cannot read it"),
        "{rendered}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_examples_of_the_guide_are_right() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/discovery.md");
    let guide_text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        guide_text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 9);
    for block in blocks {
        let config_text = if block.contains("[[group]]") {
            block.to_owned()
        } else {
            format!("[[group]]\nname = \"web\"\n{block}")
        };
        let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{config_text}");
        let parsed = parse("discovery.md", text.into_bytes());
        if block.contains("kubernetes") && !KUBERNETES_ENABLED {
            assert!(parsed.unwrap_err().to_string().contains("built without Kubernetes"));
            continue;
        }
        let file = parsed.unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(file.warnings.list(), []);
    }
    let code_block = |language: &str, beginning: &str| {
        let block = guide_text.split(language).nth(1).unwrap().split("```").next().unwrap();
        block[block.find(beginning).unwrap()..].to_owned()
    };
    assert_eq!(members::toml("x", code_block("```sh\n", "members = ").as_bytes()).unwrap().len(), 2);
    assert_eq!(members::json("x", code_block("```json\n", "[").as_bytes()).unwrap().len(), 2);
}
