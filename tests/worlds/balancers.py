"""The balancers: what each is told to do, and the command that runs it.

HAProxy and nginx go by the fewest connections, as a careful operator would have them.
"""

import dataclasses
import json
import shutil
import subprocess

from benches.rig.peers import Plimsoll as Built
from benches.rig.process import HOST

from .world import PEERS

REFERENCES = ("least_request", "least_connections", "round_robin")
"""Strategies without admission, which `adaptive` is judged by."""


def binary():
    """Returns the plimsoll that is played with: $PLIMSOLL_BIN, or what `make build` leaves."""
    return Built().binary


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a balancer is and what is there."""

    where: object
    """Its folder."""
    port: int
    number: int
    """Which of several balancers it is."""
    members: list
    """(host, port) of each member, or of its side-car."""
    setup: object
    reports: int = 0
    """Port for reports, if they are taken."""
    secure: int = 0
    """Port of the listener of HTTPS, if there is one."""

    def path(self, name):
        return self.where / f"{name}-{self.number}"


def balancer(strategy):
    """Returns what writes a configuration, of `Place`, and returns the command."""
    return {"haproxy": haproxy, "nginx": nginx}.get(strategy) or (lambda place: plimsoll(place, strategy))


def installed(strategy):
    """Returns whether it can be run here."""
    return strategy not in PEERS or shutil.which(strategy) is not None


def plimsoll(place, strategy):
    config = place.path("plimsoll.toml")
    config.write_text(plimsoll_config(place, strategy))
    return [binary(), "up", "-c", config]


def plimsoll_config(place, strategy):
    """Returns the configuration. `adaptive+open` is `adaptive` without admission."""
    setup = place.setup
    strategy, _, switch = (setup.strategy or strategy).partition("+")
    members = [f"{host}:{port}" for host, port in place.members]
    health = 'health = {{ http = "/healthz", interval = "500ms", timeout = "{}" }}'
    lines = [
        f"threads = {setup.threads}",
        "[admin]",
        'listen = "off"',
        f'control = "unix:{place.path("control")}"',
        f'reports = "{HOST}:{place.reports}"' if place.reports else "",
        "[[listener]]",
        f'address = "{HOST}:{place.port}"',
        'group = "web"',
        setup.listener,
        *(https(place) if place.secure else ()),
        "[[group]]",
        'name = "web"',
        f'strategy = "{strategy}"',
        "admission = false" if switch == "open" else "",
        'protocol = "h2"' if setup.http2 else "",
        f"members = {json.dumps(members)}",
        health.format(setup.health) if setup.health else "",
        setup.group,
    ]
    return "\n".join(line for line in lines if line) + "\n"


def https(place):
    """Makes a certificate, and returns the lines of a listener of HTTPS."""
    certificate, key = place.path("certificate.pem"), place.path("key.pem")
    if not key.exists():
        made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        said = ("-subj", "/CN=world", "-days", "2", "-out", certificate, "-keyout", key)
        subprocess.run([*made, *said], check=True, capture_output=True)
    return (
        "[[listener]]",
        f'address = "{HOST}:{place.secure}"',
        'protocol = "https"',
        'group = "web"',
        "[listener.tls]",
        f'certificates = [{{ certificate = "{certificate}", key = "{key}" }}]',
    )


def haproxy(place):
    setup = place.setup
    second = "proto h2" if setup.http2 else ""
    check = "check inter 500ms" if setup.health else ""
    servers = "\n".join(
        f"  server s{number} {host}:{port} {second} {check}"
        for number, (host, port) in enumerate(place.members)
    )
    config = place.path("haproxy.cfg")
    config.write_text(
        f"""\
global
  nbthread {setup.threads}
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout tunnel 1h
  timeout check {setup.health or "10s"}
  option redispatch
frontend front
  bind {HOST}:{place.port} {second}
  default_backend back
backend back
  balance leastconn
  {"option httpchk GET /healthz" if setup.health else ""}
{servers}
"""
    )
    return ["haproxy", "-db", "-f", config]


def nginx(place):
    servers = " ".join(f"server {host}:{port};" for host, port in place.members)
    config = place.path("nginx.conf")
    config.write_text(
        nginx_config(
            place.where,
            place.setup.threads,
            place.path("pid"),
            f"""\
  map $http_upgrade $switches {{ default upgrade; "" ""; }}
  upstream web {{ least_conn; {servers} keepalive 64; }}
  server {{
    listen {HOST}:{place.port};
    location / {{
      proxy_http_version 1.1;
      proxy_set_header Connection $switches;
      proxy_set_header Upgrade $http_upgrade;
      proxy_buffering off;
      proxy_read_timeout 60s;
      proxy_pass http://web;
    }}
  }}
""",
        )
    )
    return ["nginx", "-p", place.where, "-e", "stderr", "-c", config]


def nginx_config(where, threads, pid, http):
    """Returns a configuration of nginx with so many processes and lines of `http`."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n".join(f"  {kind}_temp_path {where}/{kind};" for kind in kinds)
    return f"""\
daemon off;
worker_processes {threads};
pid {pid};
error_log stderr error;
events {{ worker_connections 8000; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
{folders}
{http}
}}
"""


def fast_members(where, addresses):
    """Writes nginx's configuration as members that answer at once; returns the command."""
    listen = " ".join(f"listen {host}:{port} backlog=4096;" for host, port in addresses)
    config = where / "members.conf"
    config.write_text(
        nginx_config(where, 1, where / "members.pid", f'  server {{ {listen} return 200 "ok"; }}\n')
    )
    return ["nginx", "-p", where, "-e", "stderr", "-c", config]
