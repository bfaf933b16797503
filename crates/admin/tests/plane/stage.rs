//! A test rig for control over TLS: a balancer with roles and grants, and clients with their credentials.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use plimsoll_admin::{
    AccessRules, ActiveRules, AdminServer, ApiRoute, AuditLog, Config, Grant, JwtSettings, KeySet, Operation,
    RequestKind, Role, SecuredConfig, TlsSettings, start,
};
use rcgen::KeyPair;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::pki::{Authority, Identity};
use crate::script::{Answer, Scratch, Script};

/// Verbs that change nothing.
pub(crate) const LOOK: &[&str] = &[
    "index",
    "document",
    "health",
    "status",
    "metrics",
    "events",
    "explain",
    "capacity",
    "recent",
    "scale",
    "reference",
    "leases",
    "dashboard",
];
/// The verbs of the built-in roles, beside `LOOK`. They are repeated here so that a change of the table fails
/// a test.
pub(crate) const OPERATE: &[&str] = &["end-leases", "drain", "undrain", "disable", "enable", "set"];
pub(crate) const ADMINISTER: &[&str] =
    &["report", "bind", "renew", "release", "register", "deregister", "reload", "upgrade", "stop"];
/// The verbs of the test's own role, for the group `web`.
pub(crate) const OWN: &[&str] = &["status", "explain", "drain"];

pub(crate) const GRANTS: &str = "spiffe://example.org/view/* viewer\nspiffe://example.org/ops/* operator\n\
    spiffe://example.org/root/* admin\nspiffe://example.org/own/* own\nspiffe://example.org/agent/* agent\n\
    jwt:victor viewer\njwt:groups=ops operator\njwt:rita admin\njwt:owen own\njwt:sue switcher\njwt:lee \
    looker\njwt:agent agent\n\
    krb5:victor@PLIMSOLL.TEST viewer\nkrb5:olga@PLIMSOLL.TEST operator\nkrb5:rita@PLIMSOLL.TEST admin\n\
    krb5:owen@PLIMSOLL.TEST own\nkrb5:agent@PLIMSOLL.TEST agent\n";

/// Lines of pattern and role.
pub(crate) fn rules(bytes: &[u8]) -> Result<AccessRules, String> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let own = Role {
        name: "own".into(),
        operations: OWN.iter().map(|name| name.parse().unwrap()).collect(),
        groups: Some(["web".to_owned()].into()),
    };
    let switcher = Role { name: "switcher".into(), operations: [Operation::Disable].into(), ..own.clone() };
    let looker = Role {
        name: "looker".into(),
        operations: [
            Operation::Lottery,
            Operation::Processes,
            Operation::Process,
            Operation::ProcessDetails,
            Operation::ProcessRestart,
        ]
        .into(),
        ..own.clone()
    };
    let agent = Role { name: "agent".into(), operations: [Operation::Report].into(), groups: None };
    let mut grants = Vec::new();
    for line in text.lines() {
        let (pattern, role) = line.split_once(' ').ok_or("no role")?;
        grants.push(Grant { pattern: pattern.parse()?, role: role.into() });
    }
    AccessRules::new(vec![own, switcher, looker, agent], grants)
        .map_err(|place| format!("line {place}: no such role"))
}

pub(crate) struct Stage {
    pub(crate) script: Arc<Script>,
    pub(crate) admin: AdminServer,
    pub(crate) ours: Authority,
    pub(crate) signer: EncodingKey,
    pub(crate) audit: PathBuf,
    pub(crate) scratch: Scratch,
}

impl Stage {
    pub(crate) fn open() -> Self {
        Self::with(None)
    }

    /// One at which tickets count, if there is a keytab.
    pub(crate) fn with(keytab: Option<PathBuf>) -> Self {
        let script = Script::new();
        Self::made(script.clone(), keytab, |config| start(config, script).unwrap())
    }

    /// Returns the rig for the server that `open` starts.
    pub(crate) fn before(keytab: Option<PathBuf>, open: impl FnOnce(Config) -> AdminServer) -> Self {
        Self::made(Script::new(), keytab, open)
    }

    fn made(script: Arc<Script>, keytab: Option<PathBuf>, open: impl FnOnce(Config) -> AdminServer) -> Self {
        let scratch = Scratch::new();
        let ours = Authority::new("ours");
        let folder = scratch.path("");
        let (certificate, key) = ours.issue(&["spiffe://example.org/plimsoll"], 1).write(&folder, "server");
        let client_ca = scratch.path("ca.pem");
        std::fs::write(&client_ca, ours.pem()).unwrap();
        let pair = KeyPair::generate().unwrap();
        let (x, y) = pair.public_key_raw()[1..].split_at(32);
        let jwks_file = scratch.path("jwks.json");
        let jwk = json!({"kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y)});
        std::fs::write(&jwks_file, json!({"keys": [jwk]}).to_string()).unwrap();
        std::fs::write(scratch.path("access"), GRANTS).unwrap();
        let tls = TlsSettings {
            address: ([127, 0, 0, 1], 0).into(),
            certificate,
            key,
            client_ca: Some(client_ca),
            trust_domain: Some("example.org".into()),
        };
        let jwt = JwtSettings {
            issuer: "https://id".into(),
            audience: vec!["plimsoll".into()],
            keys: KeySet::File(jwks_file),
        };
        let rules = Arc::new(ActiveRules::file(scratch.path("access"), rules).unwrap());
        let audit = scratch.path("audit.log");
        let config = Config {
            secured: Some(SecuredConfig { tls, jwt: Some(jwt), keytab, rules }),
            audit: Some(Arc::new(AuditLog::open(&audit).unwrap())),
            ..Config::default()
        };
        let admin = open(config);
        let signer = EncodingKey::from_ec_der(pair.serialized_der());
        Self { script, admin, ours, signer, audit, scratch }
    }

    pub(crate) fn token(&self, subject: &str, change: Value) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({"iss": "https://id", "aud": "plimsoll", "sub": subject, "exp": now + 3600});
        for (key, value) in change.as_object().unwrap() {
            claims[key] = match value.as_i64() {
                Some(seconds) if key == "exp" || key == "nbf" => (now as i64 + seconds).into(),
                _ => value.clone(),
            };
        }
        encode(&Header::new(Algorithm::ES256), &claims, &self.signer).unwrap()
    }

    pub(crate) fn connect(&self, client: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
        let stream = crate::script::tcp(self.admin.secured().unwrap());
        let name = "127.0.0.1".try_into().unwrap();
        StreamOwned::new(ClientConnection::new(client.clone(), name).unwrap(), stream)
    }

    /// Asks as somebody; `None` if no connection came about.
    pub(crate) fn ask(&self, shows: &Shows, method: &str, path: &str, body: &str) -> Option<Answer> {
        let mut stream = self.connect(&self.ours.client(shows.identity.as_ref()));
        let token = match &shows.ticket {
            Some(make) => Some(make(&channel(&mut stream)?)),
            None => shows.token.clone(),
        };
        let token = token.map_or_else(String::new, |it| format!("Authorization: {it}\r\n"));
        let length = body.len();
        let beside = &shows.headers;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{token}{beside}Content-Length: \
             {length}\r\n\r\n{body}"
        );
        let _ = stream.write_all(request.as_bytes());
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        (!text.is_empty()).then(|| Answer::read(&*text))
    }

    pub(crate) fn do_route(&self, shows: &Shows, route: &ApiRoute) -> Option<Answer> {
        let path = match route.request {
            RequestKind::Since => format!("{}?follow=0", route.path),
            _ => {
                let path = route.path.replace("{group}", "web").replace("{process}", "web");
                path.replace("{lease}", "0a").replace("{member}", "10.0.0.1:80")
            }
        };
        let body = match route.request {
            RequestKind::Secret => {
                r#"{"id":7,"secret":"5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"}"#
            }
            RequestKind::KeyId => r#"{"id":7}"#,
            RequestKind::Member => r#"{"group":"web","member":"10.0.0.1:80"}"#,
            RequestKind::Switch => r#"{"balancing":"web"}"#,
            RequestKind::Setting => r#"{"group":"web","key":"strategy","value":"random"}"#,
            RequestKind::Report => r#"{"group":"web","member":"10.0.0.1:80","values":{"cpu":1}}"#,
            RequestKind::Registration => r#"{"ttl_seconds":9}"#,
            RequestKind::LeaseRequest | RequestKind::Renewal => r#"{"lease_seconds":9}"#,
            RequestKind::EndLeases => r#"{"member":"10.0.0.1:80"}"#,
            RequestKind::Upgrade => r#"{"timeout_seconds":9}"#,
            RequestKind::Nothing | RequestKind::Groups | RequestKind::Since | RequestKind::ShutdownMode => "",
        };
        self.ask(shows, route.method, &path, body)
    }

    /// A connection over which nothing is said.
    pub(crate) fn silent(&self) -> TcpStream {
        crate::script::tcp(self.admin.secured().unwrap())
    }

    pub(crate) fn audited(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn calls(&self) -> usize {
        self.script.calls.lock().unwrap().len()
    }
}

/// The credentials of a client.
#[derive(Default)]
pub(crate) struct Shows {
    pub(crate) identity: Option<Identity>,
    pub(crate) token: Option<String>,
    /// Other lines of the head.
    pub(crate) headers: String,
    /// Creates the token of a connection from its channel binding.
    pub(crate) ticket: Option<Ticket>,
}

type Ticket = Box<dyn Fn(&[u8; 32]) -> String>;

pub(crate) fn certificate(identity: Identity) -> Shows {
    Shows { identity: Some(identity), ..Shows::default() }
}

pub(crate) fn bearer(token: &str) -> Shows {
    Shows { token: Some(format!("Bearer {token}")), ..Shows::default() }
}

/// Shakes hands; what only the two ends know then (RFC 9266). `None` if that fails.
pub(crate) fn channel(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> Option<[u8; 32]> {
    // What is sent behind the handshake's end does not wait for its acknowledgement.
    stream.sock.set_nodelay(true).unwrap();
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).ok()?;
    }
    stream.conn.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", None).ok()
}
