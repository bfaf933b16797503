//! Tests of the configuration as a whole. Checks of single values are tested with their types.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insta::assert_snapshot;
use plimsoll_admin::{JwtSettings, KeySet, TlsSettings};

use super::*;
use all::{ALL, ENDPOINTS};

mod all;
mod any;
mod knobs;
mod renamed;
mod routes;
mod schema;
mod strategies;
mod tls;
mod wrong;

const TEST_MACHINE: MachineDefaults = MachineDefaults {
    threads: 1,
    max_connections: 99,
    max_descriptors: 1000,
    max_memory: 1 << 30,
    max_flows: 16384,
};

/// The least configuration.
const MINIMAL: &str = r#"[[listener]]
address = "127.0.0.1:8080"
group = "web"
[[group]]
name = "web"
members = ["127.0.0.1:1"]
"#;

fn read(text: &str) -> Result<ConfigFile, ConfigDiagnostics> {
    parse("plimsoll.toml", text.as_bytes().to_vec())
}

/// Returns [`ALL`], with certificates at the paths that it names.
pub(super) fn all() -> String {
    use base64::Engine as _;
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = std::env::temp_dir().join(format!("plimsoll-config-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pem = |label: &str, der: &[u8]| {
            let text = base64::prelude::BASE64_STANDARD.encode(der);
            format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
        };
        let generated = rcgen::generate_simple_self_signed(["web.example".to_owned()]).unwrap();
        fs::write(folder.join("a.pem"), pem("CERTIFICATE", generated.cert.der())).unwrap();
        fs::write(folder.join("a.key"), pem("PRIVATE KEY", &generated.signing_key.serialize_der())).unwrap();
        fs::write(folder.join("a.ocsp"), ocsp::tests::response(0, &[0x80, 0], None)).unwrap();
        fs::write(folder.join("eab.key"), "a2V5-_8=\n").unwrap();
        fs::write(folder.join("fleet.keys"), format!("1 {}\n", "ab".repeat(32))).unwrap();
        fs::write(folder.join("b.key"), [b'k'; 32]).unwrap();
        folder
    });
    let last_section = "[[group.discover]]\nregistered = true\n";
    let kubernetes_section = if plimsoll_cluster::discover::KUBERNETES_ENABLED { ENDPOINTS } else { "" };
    ALL.replace(last_section, &format!("{last_section}{kubernetes_section}"))
        .replace("/TLS", FOLDER.to_str().unwrap())
}

fn errors(text: &str) -> String {
    read(text).expect_err("a file that is wrong").to_string()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn failing_resolver(_: &MemberAddress) -> io::Result<std::net::SocketAddr> {
    Ok(([192, 0, 2, 1], 7).into())
}

#[test]
fn a_strategy_is_read_by_itself() {
    let parse = |text: &str| parse_strategy(text).map(|strategy| strategy.with_defaults());
    assert_eq!(parse("random").unwrap().name(), "random");
    assert_eq!(parse(" \"random\" ").unwrap().name(), "random");
    let (definition, params) = parse("{ least_request = { choices = 3 } }").unwrap().find().unwrap();
    assert_eq!((definition.name, params.0), ("least_request", vec![3.0]));
    assert!(parse("{ expression = { weight = 'cpu' } }").unwrap().weight().is_some());
    for (text, expected) in [
        ("least_conn", "did you mean `least_connections`?"),
        ("", "unknown strategy"),
        ("expression", "write strategy = { expression"),
        ("{ least_request = { choices = 99 } }", "must be at most 16"),
        ("{ least_request = { choices = 3 }", ""),
        ("{ expression = { weight = 'cpu +' } }", "is not an expression"),
        ("random\"}]\nthreads = 0 #", "unknown strategy"),
    ] {
        let error_text = parse(text).unwrap_err();
        assert!(error_text.contains(expected) && !error_text.contains('\n'), "{text}: {error_text}");
    }
}

#[test]
fn defaults_are_as_documented() {
    let settings = read(MINIMAL)
        .unwrap()
        .settings(
            MachineDefaults {
                threads: 2,
                max_connections: 1234,
                max_descriptors: 1000,
                max_memory: 1 << 30,
                max_flows: 16384,
            },
            failing_resolver,
        )
        .unwrap();
    assert_eq!((settings.threads, settings.max_connections), (2, 1234));
    assert_snapshot!(format!("{:#?}", settings.listeners[0]), @r#"
    ListenerSettings {
        address: 127.0.0.1:8080,
        protocol: Http,
        group: "web",
        routes: None,
        others: [],
        binding: PerRequest,
        affinity: None,
        public: None,
        move_idle: 0ns,
        backlog: 4096,
        accept_proxy: false,
        priority: None,
        timeouts: ClientTimeouts {
            head: 10s,
            idle: 60s,
            body: 30s,
            tunnel: 3600s,
        },
        max_head: 32768,
        half_close: false,
        upgrades: [
            "websocket",
        ],
        forwarded: XForwarded,
        trusted: [],
        max_flows: 0,
        zone: None,
        tls: None,
    }
    "#);
    let group = &settings.groups[0];
    assert_eq!(group.spec.strategy.name, "adaptive");
    assert_snapshot!(
        format!(
            "{:#?}\n{:#?}\n{:#?}\n{:?}",
            group.spec.outlier, group.timeouts, group.retry, group.spec.slow_start
        ),
        @r#"
    Some(
        OutlierSpec {
            false_alarm: 1e-6,
            consecutive: 5,
            interval: 10s,
            deviations: 1.9,
            min_requests: 100,
            ejection: 10s,
            max_ejection: 300s,
            max_ejected: 0.5,
        },
    )
    MemberTimeouts {
        connect: 1s,
        per_try: 0ns,
        total: 0ns,
        idle: 60s,
    }
    RetrySettings {
        attempts: 2,
        budget: 0.2,
        min_per_second: 10.0,
    }
    10s
    "#
    );
    let tcp = read(&MINIMAL.replace("group = \"web\"", "group = \"web\"\nprotocol = \"tcp\"")).unwrap();
    let tcp = tcp.settings(TEST_MACHINE, failing_resolver).unwrap();
    assert_eq!(tcp.listeners[0].timeouts.idle, Duration::from_secs(3600));
}

#[test]
fn every_key_reaches_the_settings() {
    let file = read(&all()).expect("valid");
    assert_snapshot!(file.warnings, @r#"
    warning: plimsoll.toml:170:1: `send_proxy` has no effect for the udp listener on 127.0.0.1:0
      170 | send_proxy = "v1"
          | ^^^^^^^^^^
    warning: plimsoll.toml:211:8: no listener sends clients to group `sticky`
      211 | name = "sticky"
          |        ^^^^^^^^
    2 warnings
    "#);
    let settings = file.settings(TEST_MACHINE, failing_resolver).unwrap();
    assert_eq!(settings.upgrade_deadline, Duration::from_secs(17 * 60));
    let certificates = file.authorities().unwrap();
    let [first_certificate, second_certificate] = &certificates[..] else { panic!("{certificates:?}") };
    assert_eq!(
        (&first_certificate.domains[..], &second_certificate.domains[..]),
        (&["one.example".to_owned()][..], &["two.example".to_owned()][..])
    );
    assert_eq!(
        (first_certificate.directory.as_str(), first_certificate.contact.len()),
        ("https://ca.example:14000/dir", 1)
    );
    assert_eq!(
        (first_certificate.method, first_certificate.key_type),
        (plimsoll_acme::ChallengeMethod::Http, plimsoll_acme::KeyType::P384)
    );
    assert_eq!(
        (first_certificate.profile.as_deref(), first_certificate.cache.to_str()),
        (Some("shortlived"), Some("/tmp/acme"))
    );
    let account_binding = first_certificate.binding.as_ref().unwrap();
    assert_eq!((account_binding.id.as_str(), &account_binding.key[..]), ("kid", &b"key\xfb\xff"[..]));
    let listener_certificates: Vec<_> = settings.listeners[3].tls.as_ref().unwrap().certificates().collect();
    assert_eq!(listener_certificates.iter().map(|one| one.issued).collect::<Vec<_>>(), [false, true, true]);
    let hook = settings.groups[0].hand_over.as_ref().unwrap();
    let hook = (&*hook.host, hook.port, &*hook.path, hook.timeout.as_millis());
    assert_eq!(hook, ("state", 31, "/hand-over", 1501));
    assert_eq!((settings.groups[0].keeps_drained, settings.groups[1].keeps_drained), (false, true));
    assert_eq!((settings.groups[0].max_rate, settings.groups[1].max_rate), (Some(50.5), None));
    assert_eq!(settings.tracing, Some(plimsoll_proxy::TracingSettings { sample: 0.25 }));
    let collector = file.config.tracing.as_ref().unwrap().collector();
    assert_eq!(collector.url.to_string(), "https://collector.example:4318/otlp/v1/traces");
    assert_eq!(collector.headers, [("authorization".to_owned(), "Bearer 123".to_owned())]);
    assert_eq!((&*collector.service, collector.timeout), ("edge", Duration::from_secs(3)));
    assert!(collector.authorities.ends_with("a.pem"), "{collector:?}");
    let fleet = file.fleet(failing_resolver).unwrap().unwrap();
    assert_eq!((&*fleet.name, fleet.listen, fleet.seeds.len()), ("lb1", ([127, 0, 0, 1], 7946).into(), 2));
    assert_eq!(fleet.address, Some(([192, 0, 2, 1], 7).into()));
    assert_eq!(fleet.seeds[1], ("::1".to_owned(), 7948));
    assert_eq!((fleet.interval, fleet.bytes_per_second), (Duration::from_millis(38), 39_000));
    assert_eq!((fleet.probers, fleet.forget_after), (2, Duration::from_secs(40)));
    let cluster_groups = file.watched_groups(&settings);
    let monitor = format!("{:?}", cluster_groups[0].monitor);
    assert_eq!(
        monitor,
        "Some(MonitorSettings \
         { source: Pull, metric: Expression(\"cpu * 0.5\"), interval: 24s, target: MonitorTarget { \
         host: None, port: Some(25), path: \"/l\", timeout: 26s } })"
    );
    assert_eq!(
        (&*cluster_groups[0].members[1].name, cluster_groups[0].members[1].capacity),
        ("[2001:db8::1]:81", 2.5)
    );
    let target = &cluster_groups[1].monitor.as_ref().unwrap().target;
    assert_eq!((target.host.as_deref(), target.port, &*target.path), (Some("m"), Some(27), "/{member}"));
    assert_eq!(cluster_groups[1].weight, None);
    let iiop = settings.groups[2].iiop.as_ref().unwrap();
    assert_eq!((iiop.key.as_deref(), &*iiop.type_id), (Some(&b"Calc"[..]), &b"IDL:Calc:1.0"[..]));
    assert_eq!((iiop.max_message, iiop.connections), (4097, 30));
    let object = |name: &str| {
        let object = &iiop.objects[name];
        (object.ior().type_id.clone(), object.ior().first_iiop_profile().unwrap().host, object.key().to_vec())
    };
    assert_eq!(object("[::1]:28"), (b"IDL:Calc:1.0".to_vec(), "::1".into(), b"A\0".to_vec()));
    assert_eq!(object("app:29"), (b"IDL:Calc:1.0".to_vec(), "app".into(), b"B/c".to_vec()));
    assert_eq!(
        file.config.groups[2].iiop.as_ref().unwrap().ior_file.as_ref().unwrap().to_string(),
        "/tmp/calc.ior"
    );
    let admission: Vec<_> = settings.groups.iter().map(|group| group.spec.admission).take(2).collect();
    assert_eq!(admission, [Some(true), None]);
    let objective: Vec<_> = settings.groups.iter().map(|group| group.spec.objective).take(2).collect();
    assert_eq!(objective, [Some(Duration::from_millis(301)), None]);
    let aperture: Vec<_> = settings.groups.iter().map(|group| group.spec.aperture).take(2).collect();
    assert_eq!(aperture, [Some(12), None]);
    let lottery_config = file.config.groups[3].lottery.as_ref().unwrap();
    assert_eq!(
        (&*lottery_config.service.0, lottery_config.daemons.len(), lottery_config.keys.0.to_str()),
        ("web", 2, Some("/keys"))
    );
    assert_eq!(
        (settings.groups[3].spec.strategy.name, settings.groups[3].spec.members.len()),
        ("expression", 0)
    );
    let zones: Vec<_> = settings
        .listeners
        .iter()
        .filter_map(|listener| Some((listener.protocol, listener.zone.as_ref()?)))
        .collect();
    let [(plimsoll_proxy::Protocol::Dns, udp), (plimsoll_proxy::Protocol::DnsStream, tcp)] = zones[..] else {
        panic!("{zones:?}")
    };
    assert_eq!((udp, &*udp.domain, udp.ttl, udp.rate, udp.slip), (tcp, "web.example.", 2, 78, 79));
    let mut settings_text = format!(
        "{} {} {:?} {:?}\n{:#?}\n",
        settings.threads,
        settings.max_connections,
        settings.drain_deadline,
        settings.access_log,
        settings.listeners
    );
    for group in settings.groups {
        let spec = &group.spec;
        settings_text += &format!(
            "{} {} {:?} {:?} {:?}\n{:#?}\n{:?}\n{:?}\n",
            spec.name,
            spec.strategy.name,
            spec.params.0,
            spec.slow_start,
            spec.when_all_down,
            spec.members,
            spec.health,
            spec.outlier
        );
        settings_text += &format!(
            "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{} {:?} {} {:?} {:?}\n",
            group.public,
            group.probe,
            group.key,
            group.timeouts,
            group.retry,
            group.queue,
            group.queue_timeout,
            group.pool,
            group.pool_idle,
            (group.send_proxy, group.http2)
        );
    }
    assert_snapshot!("all_settings", settings_text);
    assert_eq!(
        file.admin(),
        AdminConfig {
            listen: None,
            names: vec!["lb1.example.org".into()],
            control: Some("/tmp/x.sock".into()),
            reports: Some(([127, 0, 0, 1], 9901).into()),
            leases: false,
            register: true,
            load_manager: Some((([127, 0, 0, 1], 9904).into(), Duration::from_secs(2))),
            control_is_set: true,
            tls: Some((
                TlsSettings {
                    address: ([127, 0, 0, 1], 9905).into(),
                    certificate: "/tmp/lb.pem".into(),
                    key: "/tmp/lb.key".into(),
                    client_ca: Some("/tmp/ca.pem".into()),
                    trust_domain: Some("example.org".into()),
                },
                Some(JwtSettings {
                    issuer: "https://id.example.org".into(),
                    audience: vec!["plimsoll".into()],
                    keys: KeySet::Published {
                        url: "https://id.example.org:8443/keys".parse().unwrap(),
                        authorities: "/tmp/id.pem".into(),
                    },
                }),
                None,
            )),
            audit: Some("/tmp/audit.log".into()),
        }
    );
}

#[test]
fn what_is_shown_can_be_read_again() {
    for text in [MINIMAL, &all()] {
        let completed = read(text).unwrap().config.with_defaults(TEST_MACHINE);
        let rendered = toml::to_string_pretty(&completed).unwrap();
        let reread = read(&rendered).unwrap_or_else(|problems| panic!("{problems}{rendered}"));
        assert_eq!(reread.config, completed, "{rendered}");
        assert_eq!(reread.config.with_defaults(TEST_MACHINE), completed, "nothing is left to fill");
    }
}

#[test]
fn a_location_and_an_address_are_taken_once() {
    let duplicate_members =
        r#"members = [{ address = "a:1", location = "host1" }, { address = "b:1", location = "host1" }]"#;
    let error_text = errors(&MINIMAL.replace("members = [\"127.0.0.1:1\"]", duplicate_members));
    assert!(error_text.contains("a second member at `host1` in group `web`"), "{error_text}");
    let error_text =
        errors(&format!("{MINIMAL}[admin]\nreports = \"127.0.0.1:7\"\nload_manager = \"127.0.0.1:7\"\n"));
    assert!(error_text.contains("`load_manager` is also the address of `reports`"), "{error_text}");
    let error_text = errors(
        &MINIMAL.replace("members = [\"127.0.0.1:1\"]", "members = [{ address = \"a:1\", location = \"\" }]"),
    );
    assert!(error_text.contains("is empty") && error_text.contains("a location, such as"), "{error_text}");
}

#[test]
fn names_that_cannot_be_looked_up_are_placed() {
    let file = read(&MINIMAL.replace("127.0.0.1:1", "no.such.name:1")).unwrap();
    let problems = file.settings(TEST_MACHINE, |_| Err(io::Error::other("not known"))).unwrap_err();
    assert_snapshot!(problems, @r#"
    error: plimsoll.toml:6:12: cannot look up `no.such.name`: not known
        6 | members = ["no.such.name:1"]
          |            ^^^^^^^^^^^^^^^^ correct the name, or write an IP address
    1 error
    "#);
}

#[test]
fn look_ups_prefer_ipv4() {
    let address = |text: &str| look_up(&text.parse().unwrap()).unwrap().to_string();
    assert_eq!(address("127.0.0.1:80"), "127.0.0.1:80");
    assert_eq!(address("[::1]:80"), "[::1]:80");
    assert_eq!(address("localhost:80"), "127.0.0.1:80");
}

#[test]
fn examples_are_valid() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let file = super::read(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(file.warnings.to_string(), "", "{}", path.display());
            file.settings(TEST_MACHINE, failing_resolver).unwrap();
            count += 1;
        }
    }
    assert!(count >= 5);
}
