//! The endpoints of each kind of process, before somebody who says what he was told.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use plimsoll_admin::{
    AdminServer, ApiRoute, Config, DaemonBackend, DaemonCounters, DaemonStatus, KeyRing, KeyStep, LoadReport,
    ObservedDaemon, ObservedService, OwnService, ProcessKind, ROUTES, ReportRejection, start_daemon,
    start_supervisor,
};

use crate::script::Answer;
use crate::stage::{ADMINISTER, LOOK, OPERATE, Shows, Stage};
use crate::supervisor::Told;

/// A daemon that says what it was told.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) calls: Mutex<Vec<String>>,
}

impl Asked {
    fn call(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }
}

fn ring() -> KeyRing {
    KeyRing { member: 1, sealing: 6, keys: vec![6, 7], client_keys: vec![3], others: vec![2] }
}

impl DaemonBackend for Asked {
    fn is_stopping(&self) -> bool {
        false
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        let service = |name: &str, id| OwnService {
            name: name.into(),
            id,
            server: ([10, 0, 0, 1], 80).into(),
            capacity: 4,
            ready: true,
            enabled: id == 1,
            load: Some(0.5),
            in_flight: 2,
            weight: 5.5,
        };
        let part = |service| ObservedService { service, capacity: 4, weight: 2.0, load: None, in_flight: 0 };
        let other = ObservedDaemon {
            member: 2,
            address: ([10, 0, 0, 2], 7447).into(),
            state: "up".into(),
            suspect: false,
            differs: true,
            services: vec![part(1), part(2)],
        };
        Ok(DaemonStatus {
            schema: 1,
            version: "0.1.0".into(),
            pid: 7,
            started_unix_ms: 1_800_000_000_000,
            stopping: false,
            reload_error: Some("lottery.toml:1:1: secret = 5".into()),
            member: 1,
            address: ([10, 0, 0, 1], 7447).into(),
            state: "up".into(),
            services: vec![service("web", 1), service("mail", 2)],
            members: vec![other],
            pending: 3,
            queued: 4,
            sealing_key: 6,
            keys: vec![6, 7],
            client_keys: vec![3],
            counts: DaemonCounters { won: 200, duplicates: 1, ..DaemonCounters::default() },
            duplicate_share: 0.005,
            digest_disagreement: 1.0,
            commit_delay_seconds: Some(0.001),
            step_seconds: 0.02,
            lag_seconds: 0.0,
            prefer_referral: true,
            remembers: 65_536,
            ttl_seconds: 1.5,
            slow_start_seconds: 10.0,
            rate: 20_000,
        })
    }

    fn set_drained(&self, drain: bool) -> Result<(), String> {
        self.call(format!("drain {drain}"));
        Ok(())
    }

    fn set_service_enabled(&self, service: &str, on: bool) -> Result<Vec<String>, String> {
        self.call(format!("switch {service} {on}"));
        Ok(vec![format!("~ service {service}: {on}")])
    }

    fn set(&self, service: Option<&str>, key: &str, value: &str) -> Result<Vec<String>, String> {
        self.call(format!("set {service:?} {key} {value}"));
        if key == "member" {
            Err("member cannot be set".into())
        } else {
            Ok(vec![format!("~ {key}: {value}")])
        }
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.call("reload".into());
        Ok(vec!["~ ttl".into()])
    }

    fn stop(&self) {
        self.call("stop".into());
    }

    fn report(&self, report: LoadReport) -> Result<(), ReportRejection> {
        self.call(format!("report {:?}", report.values));
        Ok(())
    }

    fn keys(&self) -> Result<KeyRing, String> {
        Ok(ring())
    }

    fn rotate_key(&self, step: KeyStep) -> Result<KeyRing, String> {
        self.call(format!("{step:?}"));
        if step.id() == 13 { Err("there is no key with the number 13".into()) } else { Ok(ring()) }
    }
}

/// Endpoints, and how many times somebody behind them was told something.
pub(crate) struct Guarded {
    pub(crate) by: ProcessKind,
    pub(crate) stage: Stage,
    pub(crate) calls: Box<dyn Fn() -> usize>,
}

pub(crate) fn balancer(keytab: Option<PathBuf>) -> Guarded {
    let stage = Stage::with(keytab);
    let script = stage.script.clone();
    Guarded { by: ProcessKind::Balancer, stage, calls: Box::new(move || script.calls.lock().unwrap().len()) }
}

pub(crate) fn daemon(keytab: Option<PathBuf>) -> (Guarded, Arc<Asked>) {
    let asked = Arc::new(Asked::default());
    let (open, count) = (asked.clone(), asked.clone());
    let stage =
        Stage::before(keytab, |config: Config| -> AdminServer { start_daemon(config, open).unwrap() });
    let calls = Box::new(move || count.calls.lock().unwrap().len());
    (Guarded { by: ProcessKind::Lottery, stage, calls }, asked)
}

pub(crate) fn supervisor(keytab: Option<PathBuf>) -> (Guarded, Arc<Told>) {
    let told = Arc::new(Told::default());
    let (open, count) = (told.clone(), told.clone());
    let stage =
        Stage::before(keytab, |config: Config| -> AdminServer { start_supervisor(config, open).unwrap() });
    let calls = Box::new(move || count.calls.lock().unwrap().len());
    (Guarded { by: ProcessKind::Supervisor, stage, calls }, told)
}

/// One of each kind.
pub(crate) fn each(keytab: Option<&PathBuf>) -> [Guarded; 3] {
    [balancer(keytab.cloned()), daemon(keytab.cloned()).0, supervisor(keytab.cloned()).0]
}

/// Written out here, so that a change of the table shows: what viewers have, operators beside that, admins
/// beside that.
pub(crate) const DAEMON: [&[&str]; 3] = [
    &["index", "document", "health", "metrics", "lottery", "keys", "dashboard"],
    &["drain", "undrain", "disable", "enable", "set"],
    &["report", "reload", "stop", "key-accept", "key-seal", "key-retire"],
];
pub(crate) const SUPERVISOR: [&[&str]; 3] = [
    &["index", "document", "health", "metrics", "processes", "process", "household", "dashboard"],
    &["process-start", "process-stop", "process-restart", "process-reload"],
    &["reload", "shutdown"],
];

impl Guarded {
    /// Returns the routes that the process serves.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &'static ApiRoute> + use<> {
        let by = self.by;
        ROUTES.iter().filter(move |route| route.is_served_by(by))
    }

    /// Returns the verbs of viewers, the further verbs of operators, and the further verbs of admins.
    pub(crate) fn verbs(&self) -> [&'static [&'static str]; 3] {
        match self.by {
            ProcessKind::Balancer => [LOOK, OPERATE, ADMINISTER],
            ProcessKind::Lottery => DAEMON,
            ProcessKind::Supervisor => SUPERVISOR,
        }
    }

    /// Asks as somebody; `None` if no connection came about.
    pub(crate) fn do_route(&self, shows: &Shows, route: &ApiRoute) -> Option<Answer> {
        match route.name {
            // A daemon is drained as a whole.
            "drain" | "undrain" if self.by == ProcessKind::Lottery => {
                self.stage.ask(shows, "POST", route.path, "")
            }
            _ => self.stage.do_route(shows, route),
        }
    }

    /// Every verb, as somebody who may do some of them: nothing else is done, and nobody behind the endpoints
    /// told. How many there were.
    pub(crate) fn holds(&self, who: &str, shows: &Shows, allowed: &[&[&str]]) -> usize {
        let mut tried = 0;
        for route in self.routes() {
            let before = (self.calls)();
            let answer = self.do_route(shows, route).unwrap();
            let may = allowed.iter().any(|verbs| verbs.contains(&route.name));
            let expected = match route.name {
                _ if !may => 403,
                // The scripted Supervisor's process does not run.
                "process-reload" => 422,
                // Once somebody has shut it down.
                "health" if self.by == ProcessKind::Supervisor && answer.status == 503 => 503,
                _ => route.response.0,
            };
            let name = format!("{:?}: {who}: {}", self.by, route.name);
            assert_eq!(answer.status, expected, "{name}: {}", answer.body);
            let acted = usize::from(may && route.method != "GET");
            assert_eq!((self.calls)() - before, acted, "{name}");
            if !may {
                let named = answer.body.contains("no grant") || answer.body.contains("is of none");
                assert!(named, "{name}: {}", answer.body);
            }
            if shows.ticket.is_some() {
                assert!(answer.head.contains("www-authenticate: negotiate "), "{name}: {}", answer.head);
            }
            tried += 1;
        }
        tried
    }
}
