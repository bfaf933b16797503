//! The configuration that has everything.

/// The part that not every build supports: sources of members in Kubernetes, every key, none at its default.
pub(super) const ENDPOINTS: &str = r#"[[group.discover]]
kubernetes = { service = "web", namespace = "shop", port = "http", server = "api:81", tls = false, account = "/tmp/account" }
family = "ipv6"
timeout = "52s"
[[group.discover]]
kubernetes = { service = "web", port = 83, kubeconfig = "/tmp/kubeconfig", context = "shop@cluster" }
"#;

/// A configuration with every key, none at its default, except [`ENDPOINTS`] and `[admin.kerberos]`, which
/// not every build supports.
pub(super) const ALL: &str = r#"threads = 3
max_connections = 5000
max_memory = 123_456_789
drain_deadline = "1m30s"
upgrade_deadline = "17m"

[access_log]
path = "/tmp/access.log"
sample = 0.5

[tracing]
endpoint = "https://collector.example:4318/otlp"
sample = 0.25
service = "edge"
headers = ["authorization: Bearer 123"]
timeout = "3s"
ca = "/TLS/a.pem"

[fleet]
name = "lb1"
listen = "127.0.0.1:7946"
address = "lb1.example:7947"
seeds = ["lb.example:7946", "[::1]:7948"]
key_file = "/TLS/fleet.keys"
interval = "38ms"
bytes_per_second = 39000
checks_per_member = 2
lost_peer_timeout = "40s"

[store]
config = true
file = "/tmp/state.json"
etcd = "/plimsoll/"

[etcd]
endpoints = ["https://a:41", "http://[::1]"]
user = "lb"
password_file = "/tmp/etcd.password"
ca = "/TLS/a.pem"
certificate = "/TLS/a.pem"
key = "/TLS/a.key"
timeout = "42s"

[admin]
listen = "off"
names = ["LB1.example.org"]
control = ["unix:/tmp/x.sock", "tls://127.0.0.1:9905"]
reports = "127.0.0.1:9901"
leases = false
register = true
load_manager = "127.0.0.1:9904"
load_interval = "2s"
audit = "/tmp/audit.log"
[admin.tls]
certificate = "/tmp/lb.pem"
key = "/tmp/lb.key"
client_ca = "/tmp/ca.pem"
trust_domain = "example.org"
[admin.jwt]
issuer = "https://id.example.org"
audience = "plimsoll"
jwks_url = "https://id.example.org:8443/keys"
jwks_ca = "/tmp/id.pem"
[admin.access]
[[admin.access.role]]
name = "web-drainers"
verbs = ["status", "drain"]
groups = ["web"]
[[admin.access.grant]]
identity = "jwt:groups=web"
role = "web-drainers"

[[listener]]
address = "[::1]:8443"
protocol = "http"
group = "web"
binding = "per_request"
affinity = { cookie = "sid", ttl = "27m", key_file = "/TLS/a.key", old_key_file = "/TLS/b.key" }
backlog = 100
accept_proxy = true
priority = "x-urgency"
half_close = true
upgrades = ["WebSocket", "foo"]
forwarded = "forwarded"
trusted = ["10.0.0.0/8", "::1"]
max_header_bytes = 2048
[listener.timeouts]
head = "1s"
idle = "2s"
body = "3s"
tunnel = "4s"

[[listener]]
address = "127.0.0.1:0"
https_redirect = true
[[listener.route]]
name = "api"
host = ["Api.example", "*.Api.example"]
path = ["/v1/", "/v2"]
path_exact = "/v3"
path_regex = "/v[4-9]/.*"
method = ["GET", "HEAD"]
headers = { X-Canary = "yes", x-old = { present = true } }
query = { page = { regex = "[0-9]+" } }
cookies = { tenant = "a" }
groups = [{ group = "web", weight = 95 }, { group = "calc" }]
[[listener.route]]
path = "/one"
group = "web"
[[listener.route]]
path = "/old"
redirect = { status = 308, scheme = "https", host = "new.example", port = 74, prefix = "/new" }
[[listener.route]]
path = "/older"
redirect = { path = "/newest" }
[[listener.route]]
path = "/down"
respond = { status = 503, content_type = "text/html", body = "no" }
[[listener.route]]
path = "/"
respond = { file = "/TLS/eab.key" }

[[listener]]
address = "127.0.0.1:0"
protocol = "udp"
group = "web"
max_flows = 77

[[listener]]
address = "127.0.0.1:0"
protocol = "tcp"
group = "web"
binding = "on_demand"
rebind = "agent"
rebind_idle = "5s"
[listener.tls]
certificates = [{ certificate = "/TLS/a.pem", key = "/TLS/a.key", ocsp = "/TLS/a.ocsp" }]
client_ca = "/TLS/a.pem"
client_certificate = "optional"
min_version = "1.3"
names = [{ name = "*.Web.example", group = "web" }]
[listener.tls.acme]
domains = ["One.example", "two.example"]
directory = "https://ca.example:14000/dir"
terms_agreed = true
contact = ["mailto:ops@example.org"]
cache = "/tmp/acme"
challenge = "http-01"
key_type = "ecdsa-p384"
profile = "shortlived"
separate = true
root = "/TLS/a.pem"
external_account = { id = "kid", key_file = "/TLS/eab.key" }

[[group]]
name = "web"
strategy = { least_request = { choices = 3 } }
max_connections = 9
max_rate = 50.5
admission = true
objective = "301ms"
aperture = 12
slow_start = "0s"
when_all_down = "fail_open"
queue = 5
queue_timeout = "6s"
load_report_header = "pass"
max_idle_connections = 7
pool_idle_timeout = "8s"
send_proxy = "v1"
tls = { ca = "/TLS/a.pem", verify = true, server_name = "app.example", own = { certificate = "/TLS/a.pem", key = "/TLS/a.key" }, min_version = "1.3" }
members = ["app:80", { address = "[2001:db8::1]:81", capacity = 2.5, max_connections = 4, public = "https://one.example:81", location = "host1", host = "rack1" }]
[group.health]
http = "/up"
interval = "9s"
timeout = "10s"
rise = 11
fall = 12
host = "h"
expect = 204
[group.timeouts]
connect = "13s"
per_try = "14s"
total = "15s"
idle = "16s"
[group.retry]
attempts = 0
budget = 0.25
min_per_second = 18
[group.outlier]
consecutive = 19
false_alarm = 1e-7
interval = "20s"
deviations = 2
min_requests = 21
ejection = "22s"
max_ejection = "23s"
max_ejected = 0.75
[group.drain_hook]
url = "http://state:31/hand-over"
timeout = "1501ms"
[group.monitor]
metric = "cpu * 0.5"
source = "pull"
interval = "24s"
port = 25
path = "/l"
timeout = "26s"

[[group]]
name = "sticky"
strategy = "rendezvous"
key = "cookie:Id"
members = ["app:80"]
protocol = "h2"
outlier = false
on_drain = "stay"
health = { tcp = true }
[group.monitor]
source = "prometheus"
url = "http://m:27/{member}"

[[listener]]
address = "127.0.0.1:0"
protocol = "iiop"
group = "calc"
public = "calc.example:2809"

[[group]]
name = "calc"
members = [{ ior = "corbaloc:iiop:1.2@[::1]:28/A%00" }, { address = "app:29", key = "B/c" }]
health = { iiop = true }
[group.iiop]
type_id = "IDL:Calc:1.0"
key = "Calc"
ior_file = "/tmp/calc.ior"
max_message = 4097
connections = 30

[[listener]]
address = "127.0.0.1:0"
group = "drawn"

[[listener]]
address = "127.0.0.1:53"
protocol = "dns"
domain = "Web.example"
ttl = "2s"
answer_rate = 78
answer_slip = 79
group = "drawn"

[[listener]]
address = "127.0.0.1:0"
protocol = "xds"
group = "web"
groups = ["calc", "s0", "s1", "s2", "s3", "s4", "s5", "s6"]

[[group]]
name = "drawn"
lottery = { service = "web", daemons = ["d:7447", "e:7448"], keys = "/keys" }
health = { grpc = "shop.Orders" }

[[listener]]
address = "127.0.0.1:0"
group = "found"

[[group]]
name = "found"
[[group.discover]]
file = "/TLS/found.members"
interval = "2s"
[[group.discover]]
dns = "Web.example.:32"
resolver = ["127.0.0.1:5353", "[::1]:53"]
family = "ipv4"
timeout = "330ms"
min = "34s"
max = "35s"
allow_empty = true
stale_ttl = "36s"
[[group.discover]]
srv = "_http._tcp.Web.example"
[[group.discover]]
http = "http://[::1]:37/v1/members"
[[group.discover]]
etcd = "/services/web/"
[[group.discover]]
registered = true

[[group]]
name = "s0"
health = { http = "/" }
[group.scaler]
min = 2
max = 40
target = { utilization = 0.41 }
interval = "42s"
start_time = "43s"
start_deadline = "44s"
drain = "45s"
stabilize = "46s"
cool_down = { scale_out = "47s", scale_in = "48s" }
step = { scale_out = 49, scale_in = 50 }
capacity = 51.5
max_connections = 52
dry_run = true
on_stop = "leave"
[group.scaler.process]
command = ["/bin/server", "{address}"]
environment = ["WHO={index}"]
folder = "/tmp"
log = "/tmp/{index}.log"
host = "127.0.0.53"
ports = "54000-54055"
patience = "56s"
state = "/tmp/state"

[[group]]
name = "s1"
health = { tcp = true }
[group.scaler]
max = 3
target = { response_time = "57ms" }
systemd = { unit = "web@.service", user = true, host = "127.0.0.58", first_port = 59, systemctl = "/bin/systemctl", timeout = "60s" }

[[group]]
name = "s2"
health = { tcp = true }
[group.scaler]
max = 3
target = { headroom = 0.61 }
exec = { command = ["/bin/members"], timeout = "62s" }

[[group]]
name = "s3"
health = { tcp = true }
[group.scaler]
max = 3
target = { headroom = 0.61 }
webhook = { url = "http://members:63/scale", timeout = "64s" }

[[group]]
name = "s4"
health = { tcp = true }
[group.scaler]
max = 3
target = { headroom = 0.61 }
[group.scaler.docker]
image = "web:1"
port = 65
command = ["serve"]
environment = ["WHO={index}"]
host = "127.0.0.66"
ports = "67-80"
patience = "68s"
socket = "/tmp/docker.sock"
timeout = "69s"

[[group]]
name = "s5"
discover = [{ dns = "web.shop:70" }]
[group.scaler]
max = 3
target = { headroom = 0.61 }
kubernetes = { name = "web", resource = "stateful_set", namespace = "shop", server = "api:71", tls = false, account = "/tmp/account", timeout = "72s" }

[[group]]
name = "s6"
members = ["app:73"]
[group.scaler]
max = 3
target = { headroom = 0.61 }
advice = true
"#;
