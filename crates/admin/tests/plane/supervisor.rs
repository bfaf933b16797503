//! The endpoints of a Supervisor over real sockets.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use plimsoll_admin::{
    AdminServer, Config, LastExit, OperationClass, ProcessActionError, ProcessCommand, ProcessKind,
    ProcessStatus, ROUTES, SelfStatus, ShutdownMode, SupervisorBackend, SupervisorStatus, start_supervisor,
};
use plimsoll_brain::supervision::{ExitCause, ProcessPhase};
use serde_json::Value;

use crate::script::{Answer, Scratch, tcp, unix};

/// A Supervisor of one process that says what it was told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) calls: Mutex<Vec<String>>,
    stopping: Mutex<bool>,
}

fn household(stopping: bool) -> SupervisorStatus {
    let web = ProcessStatus {
        name: "web".into(),
        command: vec!["up".into(), "--config".into(), "/secret/place.toml".into()],
        state: ProcessPhase::BackingOff,
        why: "exit code 1".into(),
        since_unix_ms: 1_800_000_000_000,
        pid: None,
        adopted: false,
        outdated: false,
        restarts: 3,
        failures: 2,
        next_start_unix_ms: Some(1_800_000_000_500),
        last_exit: Some(LastExit {
            ending: ExitCause::Code(1),
            reason: "exit code 1".into(),
            unix_ms: 1_800_000_000_000,
            lines: vec!["error: /secret/key".into()],
        }),
        says: None,
    };
    let mail = ProcessStatus { name: "mail".into(), ..web.clone() };
    SupervisorStatus {
        schema: 1,
        version: "0.1.0".into(),
        pid: 7,
        stopping,
        processes: vec![web, mail],
        ..SupervisorStatus::default()
    }
}

impl SupervisorBackend for Told {
    fn status(&self) -> SupervisorStatus {
        household(*self.stopping.lock().unwrap())
    }

    fn detailed_status(&self) -> SupervisorStatus {
        let mut household = self.status();
        let says = SelfStatus { well: true, lines: vec!["fine".into()], facts: Value::Null };
        household.processes[0].says = Some(says);
        household
    }

    fn perform(&self, process: &str, act: ProcessCommand) -> Result<ProcessStatus, ProcessActionError> {
        self.calls.lock().unwrap().push(format!("{act:?} {process}"));
        match (process, act) {
            ("web", ProcessCommand::Reload) => Err(ProcessActionError::Impossible("web does not run".into())),
            ("web", _) => Ok(self.status().processes.remove(0)),
            _ => Err(ProcessActionError::Unknown(format!("there is no process {process}"))),
        }
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.calls.lock().unwrap().push("reload".into());
        Ok(vec!["+ process web".into()])
    }

    fn shut_down(&self, children: ShutdownMode) {
        self.calls.lock().unwrap().push(format!("{children:?}"));
        *self.stopping.lock().unwrap() = true;
    }
}

struct Open {
    told: Arc<Told>,
    admin: AdminServer,
    control: PathBuf,
    _scratch: Scratch,
}

fn open() -> Open {
    let scratch = Scratch::new();
    let control = scratch.path("supervise.sock");
    let told = Arc::new(Told::default());
    let listen = Some(([127, 0, 0, 1], 0).into());
    let config = Config { listen, control: Some(control.clone()), ..Config::default() };
    let admin = start_supervisor(config, told.clone()).unwrap();
    Open { told, admin, control, _scratch: scratch }
}

impl Open {
    fn act(&self, method: &str, target: &str) -> Answer {
        Answer::to(unix(&self.control), method, target, "", "")
    }

    fn ask(&self, method: &str, target: &str) -> Answer {
        Answer::to(tcp(self.admin.addr().unwrap()), method, target, "", "")
    }
}

#[test]
fn acts_reach_the_supervisor() {
    let open = open();
    for act in ["start", "stop", "restart"] {
        let done = open.act("POST", &format!("/v1/processes/web/{act}"));
        assert_eq!((done.status, done.json()["restarts"].as_u64()), (200, Some(3)));
    }
    let refused = open.act("POST", "/v1/processes/web/reload");
    assert_eq!((refused.status, refused.error()), (422, "web does not run".into()));
    assert_eq!(open.act("POST", "/v1/processes/none/start").status, 404);
    assert_eq!(open.act("POST", "/v1/reload").json()["changes"][0], "+ process web");
    assert_eq!(open.act("POST", "/v1/shutdown?children=none").status, 400);
    assert_eq!(open.act("POST", "/v1/processes/web/stop?wait=1").status, 400);
    assert_eq!(open.act("GET", "/v1/healthz").status, 200);
    let done = open.act("POST", "/v1/shutdown?children=leave");
    assert_eq!((done.status, &done.json()["children"]), (202, &"left".into()));
    assert_eq!(open.act("POST", "/v1/shutdown").json()["children"], "stopping");
    assert_eq!(open.act("GET", "/v1/healthz").status, 503);
    let calls = open.told.calls.lock().unwrap();
    let expected =
        ["Start web", "Stop web", "Restart web", "Reload web", "Start none", "reload", "Leave", "Stop"];
    assert_eq!(*calls, expected);
}

#[test]
fn what_there_is_to_see() {
    let open = open();
    for answer in [open.act("GET", "/v1/processes"), open.ask("GET", "/v1/processes")] {
        let process = &answer.json()["processes"][0];
        assert_eq!((&process["name"], &process["state"]), (&"web".into(), &"backing_off".into()));
        assert!(process.get("says").is_none());
    }
    assert_eq!(open.ask("GET", "/v1/processes/web").json()["failures"], 2);
    // What it was started with, and what it said, are not for everybody who can reach the listener.
    for path in ["/v1/processes", "/v1/processes/web", "/v1/status"] {
        let (shown, told) = (open.ask("GET", path).body, open.act("GET", path).body);
        assert!(!shown.contains("/secret/") && shown.contains(r#""command":["up"]"#), "{shown}");
        assert!(told.contains("/secret/place.toml") && told.contains("/secret/key"), "{told}");
    }
    assert!(open.ask("GET", "/v1/processes/none").error().contains("there are: web, mail"));
    assert_eq!(open.ask("GET", "/v1/status").json()["processes"][0]["says"]["lines"][0], "fine");
    let page = open.ask("GET", "/metrics").body;
    for sample in [
        "plimsoll_supervise_process_state{process=\"web\",state=\"backing_off\"} 1\n",
        "plimsoll_supervise_process_state{process=\"web\",state=\"running\"} 0\n",
        "plimsoll_supervise_restarts_total{process=\"web\"} 3\n",
        "process_resident_memory_bytes ",
    ] {
        assert!(page.contains(sample), "{sample} in {page}");
    }
}

#[test]
fn each_route_is_one_verb_and_the_listener_only_looks() {
    let open = open();
    for route in ROUTES.iter().filter(|route| route.is_served_by(ProcessKind::Supervisor)) {
        let path = route.path.replace("{process}", "web");
        let looks = route.class == OperationClass::Query;
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS"] {
            let shown = open.ask(method, &path);
            match (method, looks) {
                ("GET", true) => assert_eq!(shown.status, 200, "{method} {path}"),
                ("GET", false) => assert_eq!(shown.status, 404, "{method} {path}"),
                _ => assert_eq!(shown.status, 405, "{method} {path}"),
            }
            if method != route.method {
                let refused = open.act(method, &path);
                assert_eq!(refused.status, 405, "{method} {path}");
                let allow = if looks { "allow: get, head" } else { "allow: post" };
                assert!(refused.head.contains(allow), "{method} {path}");
            }
        }
        let index = open.act("GET", "/").body;
        assert!(index.contains(route.path) && index.contains(route.summary), "{index}");
        assert_eq!(open.ask("GET", "/").body.contains(route.summary), looks);
    }
    assert!(open.told.calls.lock().unwrap().is_empty());
    let elsewhere = open.act("GET", "/status");
    assert!(elsewhere.status == 404 && elsewhere.error().contains("a balancer does"), "{}", elsewhere.body);
    assert_eq!(open.ask("GET", "/v1/healthz").status, 200, "as it was called before");
    assert_eq!(open.ask("GET", "/healthz?group=web").status, 404, "its balancers know");
}
