//! The table of the routes of the API, from which the router, roles, audit log and OpenAPI document follow.

use super::{ApiRoute, Operation, OperationClass, OperationScope, ProcessKind, RequestKind, ResponseKind};

use OperationClass::{Administer, Automate, Operate, Query};
use OperationScope::{Group, Groups, Process};
use ResponseKind::{Html, Object, Page, Shed, Stream, Text};

const ALL: &[ProcessKind] = &[ProcessKind::Balancer, ProcessKind::Lottery, ProcessKind::Supervisor];
const BALANCER: &[ProcessKind] = &[ProcessKind::Balancer];
const BALANCER_AND_LOTTERY: &[ProcessKind] = &[ProcessKind::Balancer, ProcessKind::Lottery];
const LOTTERY: &[ProcessKind] = &[ProcessKind::Lottery];
const SUPERVISOR: &[ProcessKind] = &[ProcessKind::Supervisor];

/// All operations, in the order of [`Operation`].
#[rustfmt::skip]
pub const ROUTES: &[ApiRoute] = &[
    ApiRoute {
        operation: Operation::Index, name: "index", class: Query, scope: Groups,
        served_by: ALL, method: "GET", path: "/",
        summary: "index of the API",
        request: RequestKind::Nothing, response: (200, Text),
    },
    ApiRoute {
        operation: Operation::Document, name: "document", class: Query, scope: Groups,
        served_by: ALL, method: "GET", path: "/v1/openapi.json",
        summary: "OpenAPI document of this API",
        request: RequestKind::Nothing, response: (200, Object("Document")),
    },
    ApiRoute {
        operation: Operation::Health, name: "health", class: Query, scope: Groups,
        served_by: ALL, method: "GET", path: "/healthz",
        summary: "health: 200, or 503 while the process stops; with ?group=NAME also 503 if the group has \
            no usable member or refuses requests",
        request: RequestKind::Groups, response: (200, Text),
    },
    ApiRoute {
        operation: Operation::Status, name: "status", class: Query, scope: Groups,
        served_by: BALANCER, method: "GET", path: "/status",
        summary: "status of listeners, groups and members",
        request: RequestKind::Nothing, response: (200, Object("Status")),
    },
    ApiRoute {
        operation: Operation::Metrics, name: "metrics", class: Query, scope: Groups,
        served_by: ALL, method: "GET", path: "/metrics",
        summary: "metrics in the Prometheus text format",
        request: RequestKind::Nothing, response: (200, Page),
    },
    ApiRoute {
        operation: Operation::Events, name: "events", class: Query, scope: Groups,
        served_by: BALANCER, method: "GET", path: "/events",
        summary: "decisions with their reasons as server-sent events; ?since=SEQ (or Last-Event-ID) \
            resumes, ?follow=0 returns a JSON array",
        request: RequestKind::Since, response: (200, Stream),
    },
    ApiRoute {
        operation: Operation::Explain, name: "explain", class: Query, scope: Group,
        served_by: BALANCER, method: "GET", path: "/v1/groups/{group}/explain",
        summary: "measurements of each member and the strategy's result",
        request: RequestKind::Nothing, response: (200, Object("GroupExplanation")),
    },
    ApiRoute {
        operation: Operation::Capacity, name: "capacity", class: Query, scope: Group,
        served_by: BALANCER, method: "GET", path: "/v1/groups/{group}/capacity",
        summary: "load line of the group: capacity, headroom, prediction and its past error",
        request: RequestKind::Nothing, response: (200, Object("LoadLine")),
    },
    ApiRoute {
        operation: Operation::Recent, name: "recent", class: Query, scope: Group,
        served_by: BALANCER, method: "GET", path: "/v1/groups/{group}/recent",
        summary: "the last ten seconds of the group, and recent rates of its members",
        request: RequestKind::Nothing, response: (200, Object("Recent")),
    },
    ApiRoute {
        operation: Operation::Scale, name: "scale", class: Query, scope: Group,
        served_by: BALANCER, method: "GET", path: "/v1/groups/{group}/scale",
        summary: "wanted number of members, the reason, and actions in progress",
        request: RequestKind::Nothing, response: (200, Object("Scaler")),
    },
    ApiRoute {
        operation: Operation::Reference, name: "reference", class: Query, scope: Group,
        served_by: BALANCER, method: "GET", path: "/v1/groups/{group}/ior",
        summary: "object reference (IOR) of a group with an iiop listener",
        request: RequestKind::Nothing, response: (200, Object("Reference")),
    },
    ApiRoute {
        operation: Operation::Report, name: "report", class: Automate, scope: Group,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/report",
        summary: "record a load report: member=10.0.0.1:80&name=cpu&value=0.4, or JSON; a lottery daemon \
            needs no member",
        request: RequestKind::Report, response: (204, Shed),
    },
    ApiRoute {
        operation: Operation::Bind, name: "bind", class: Automate, scope: Group,
        served_by: BALANCER, method: "POST", path: "/v1/groups/{group}/bind",
        summary: "grant a lease of a member to a client that connects to it directly",
        request: RequestKind::LeaseRequest, response: (200, Object("Lease")),
    },
    ApiRoute {
        operation: Operation::Renew, name: "renew", class: Automate, scope: Group,
        served_by: BALANCER, method: "POST", path: "/v1/groups/{group}/bind/{lease}",
        summary: "renew a lease; the response tells whether the client keeps its member or moves to another",
        request: RequestKind::Renewal, response: (200, Object("Lease")),
    },
    ApiRoute {
        operation: Operation::Release, name: "release", class: Automate, scope: Group,
        served_by: BALANCER, method: "DELETE", path: "/v1/groups/{group}/bind/{lease}",
        summary: "release a lease before it expires",
        request: RequestKind::Nothing, response: (204, ResponseKind::Nothing),
    },
    ApiRoute {
        operation: Operation::Leases, name: "leases", class: Query, scope: Group,
        served_by: BALANCER, method: "GET", path: "/v1/groups/{group}/leases",
        summary: "leases of the group by member and client address",
        request: RequestKind::Nothing, response: (200, Object("Leases")),
    },
    ApiRoute {
        operation: Operation::EndLeases, name: "end-leases", class: Operate, scope: Group,
        served_by: BALANCER, method: "DELETE", path: "/v1/groups/{group}/leases",
        summary: "end leases of a member, of clients at an address, or of the whole group",
        request: RequestKind::EndLeases, response: (200, Object("LeasesEnded")),
    },
    ApiRoute {
        operation: Operation::Register, name: "register", class: Automate, scope: Group,
        served_by: BALANCER, method: "PUT", path: "/v1/groups/{group}/members/{member}",
        summary: "register a member or renew its registration; with ttl_seconds it expires unless it is \
            renewed",
        request: RequestKind::Registration, response: (200, Object("Registered")),
    },
    ApiRoute {
        operation: Operation::Deregister, name: "deregister", class: Automate, scope: Group,
        served_by: BALANCER, method: "DELETE", path: "/v1/groups/{group}/members/{member}",
        summary: "remove a registered member from the group",
        request: RequestKind::Nothing, response: (200, Object("Deregistered")),
    },
    ApiRoute {
        operation: Operation::Drain, name: "drain", class: Operate, scope: Group,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/drain",
        summary: "drain a member: no new work; group is optional. A lottery daemon is drained as a whole, \
            without a body",
        request: RequestKind::Member, response: (200, Object("Drained")),
    },
    ApiRoute {
        operation: Operation::Undrain, name: "undrain", class: Operate, scope: Group,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/undrain",
        summary: "undrain a member or a lottery daemon",
        request: RequestKind::Member, response: (200, Object("Undrained")),
    },
    ApiRoute {
        operation: Operation::Disable, name: "disable", class: Operate, scope: Group,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/disable",
        summary: "disable a member, a listener or the balancing of a group; at a lottery daemon one \
            service, or all without a body",
        request: RequestKind::Switch, response: (200, Object("Changes")),
    },
    ApiRoute {
        operation: Operation::Enable, name: "enable", class: Operate, scope: Group,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/enable",
        summary: "enable what was disabled",
        request: RequestKind::Switch, response: (200, Object("Changes")),
    },
    ApiRoute {
        operation: Operation::Set, name: "set", class: Operate, scope: Group,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/set",
        summary: "change a setting of a group until the next reload; at a lottery daemon ttl, slow_start \
            or rate, and the capacity of a service (group)",
        request: RequestKind::Setting, response: (200, Object("Changes")),
    },
    ApiRoute {
        operation: Operation::Reload, name: "reload", class: Administer, scope: Process,
        served_by: ALL, method: "POST", path: "/v1/reload",
        summary: "reload the configuration",
        request: RequestKind::Nothing, response: (200, Object("Changes")),
    },
    ApiRoute {
        operation: Operation::Upgrade, name: "upgrade", class: Administer, scope: Process,
        served_by: BALANCER, method: "POST", path: "/v1/upgrade",
        summary: "start a new process that takes over sockets and state; this one ends when its \
            connections have ended. The control socket also accepts the path of another binary",
        request: RequestKind::Upgrade, response: (200, Object("Upgraded")),
    },
    ApiRoute {
        operation: Operation::Stop, name: "stop", class: Administer, scope: Process,
        served_by: BALANCER_AND_LOTTERY, method: "POST", path: "/v1/stop",
        summary: "stop the process after work in flight has ended (graceful shutdown)",
        request: RequestKind::Nothing, response: (202, Object("Stopping")),
    },
    ApiRoute {
        operation: Operation::Lottery, name: "lottery", class: Query, scope: Groups,
        served_by: LOTTERY, method: "GET", path: "/v1/lottery",
        summary: "status of the daemon: services, loads, other members, pending requests, counters",
        request: RequestKind::Nothing, response: (200, Object("Daemon")),
    },
    ApiRoute {
        operation: Operation::Keys, name: "keys", class: Query, scope: Process,
        served_by: LOTTERY, method: "GET", path: "/v1/keys",
        summary: "identifiers of the daemon's keys",
        request: RequestKind::Nothing, response: (200, Object("Keys")),
    },
    ApiRoute {
        operation: Operation::KeyAccept, name: "key-accept", class: Administer, scope: Process,
        served_by: LOTTERY, method: "POST", path: "/v1/keys/accept",
        summary: "accept another key without sending with it",
        request: RequestKind::Secret, response: (200, Object("Keys")),
    },
    ApiRoute {
        operation: Operation::KeySeal, name: "key-seal", class: Administer, scope: Process,
        served_by: LOTTERY, method: "POST", path: "/v1/keys/seal",
        summary: "send with an accepted key",
        request: RequestKind::KeyId, response: (200, Object("Keys")),
    },
    ApiRoute {
        operation: Operation::KeyRetire, name: "key-retire", class: Administer, scope: Process,
        served_by: LOTTERY, method: "POST", path: "/v1/keys/retire",
        summary: "remove a key that is not sent with",
        request: RequestKind::KeyId, response: (200, Object("Keys")),
    },
    ApiRoute {
        operation: Operation::Processes, name: "processes", class: Query, scope: Groups,
        served_by: SUPERVISOR, method: "GET", path: "/v1/processes",
        summary: "status of all processes",
        request: RequestKind::Nothing, response: (200, Object("Household")),
    },
    ApiRoute {
        operation: Operation::Process, name: "process", class: Query, scope: Group,
        served_by: SUPERVISOR, method: "GET", path: "/v1/processes/{process}",
        summary: "status of one process",
        request: RequestKind::Nothing, response: (200, Object("Process")),
    },
    ApiRoute {
        operation: Operation::ProcessDetails, name: "household", class: Query, scope: Groups,
        served_by: SUPERVISOR, method: "GET", path: "/v1/status",
        summary: "status of all processes, with the status that each reports itself",
        request: RequestKind::Nothing, response: (200, Object("Household")),
    },
    ApiRoute {
        operation: Operation::ProcessStart, name: "process-start", class: Operate, scope: Group,
        served_by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/start",
        summary: "start the process, unless it runs",
        request: RequestKind::Nothing, response: (200, Object("Process")),
    },
    ApiRoute {
        operation: Operation::ProcessStop, name: "process-stop", class: Operate, scope: Group,
        served_by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/stop",
        summary: "stop the process until it is started again",
        request: RequestKind::Nothing, response: (200, Object("Process")),
    },
    ApiRoute {
        operation: Operation::ProcessRestart, name: "process-restart", class: Operate, scope: Group,
        served_by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/restart",
        summary: "restart the process",
        request: RequestKind::Nothing, response: (200, Object("Process")),
    },
    ApiRoute {
        operation: Operation::ProcessReload, name: "process-reload", class: Operate, scope: Group,
        served_by: SUPERVISOR, method: "POST", path: "/v1/processes/{process}/reload",
        summary: "make the process reload its configuration",
        request: RequestKind::Nothing, response: (200, Object("Process")),
    },
    ApiRoute {
        operation: Operation::Shutdown, name: "shutdown", class: Administer, scope: Process,
        served_by: SUPERVISOR, method: "POST", path: "/v1/shutdown",
        summary: "end the Supervisor; ?children=stop (the default) or ?children=leave",
        request: RequestKind::ShutdownMode, response: (202, Object("Ending")),
    },
    ApiRoute {
        operation: Operation::Dashboard, name: "dashboard", class: Query, scope: Groups,
        served_by: ALL, method: "GET", path: "/dashboard",
        summary: "dashboard and its pages; each action needs the right for its own operation",
        request: RequestKind::Nothing, response: (200, Html),
    },
];
