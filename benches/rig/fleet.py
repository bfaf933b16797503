"""A configuration of many groups, and servers for all of their members.

Members have addresses of their own in 127.0.0.0/8 and one port, where one nginx answers for all of them with the address that was
asked. Each group has a listener of its own, at an address of its own too. The first groups are the stage: their members come and
go, and one of them has so much more capacity than the others that each request shows whether it is there.
"""

import contextlib
import dataclasses
import tempfile
from pathlib import Path

from .process import Child, free_port

HEAVY = "127.250.0.1"
"""The address of the member that gets all requests where it is there: a million to one for each other."""
MUCH, LITTLE = 1_000_000, 0.001

NGINX = """\
daemon off;
master_process off;
pid {where}/pid;
error_log stderr error;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  client_body_temp_path {where}/client;
  proxy_temp_path {where}/proxy;
  fastcgi_temp_path {where}/fastcgi;
  uwsgi_temp_path {where}/uwsgi;
  scgi_temp_path {where}/scgi;
  default_type text/plain;
  server {{
    listen 0.0.0.0:{port} backlog=16384;
    location / {{ return 200 "$server_addr"; }}
  }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Stage:
    """Groups in which something changes in one way: where members come from, and how many groups do so."""

    way: str
    first: int
    count: int


@dataclasses.dataclass
class Fleet:
    """What there is: how many groups of how many members, on which ports, in which folder."""

    groups: int
    members: int
    where: Path
    origin: int = 0
    port: int = dataclasses.field(default_factory=free_port)
    stages: tuple = ()
    etcd: int | None = None
    checks: str | None = None

    def control(self):
        return self.where / "control.sock"

    def file(self, group):
        """The file that has members of a group."""
        return self.where / f"group-{group}.members"

    def listener(self, group):
        """Where clients of a group come in."""
        return f"127.100.{group >> 8}.{group & 255}", self.port

    def heavy(self):
        return f"{HEAVY}:{self.origin}"

    def text(self):
        """The configuration."""
        parts = [f'threads = 2\n[admin]\nlisten = "off"\ncontrol = "unix:{self.control()}"\n']
        if self.etcd:
            parts.append(f'[etcd]\nendpoints = ["http://127.0.0.1:{self.etcd}"]\n')
        for group in range(self.groups):
            host, port = self.listener(group)
            parts.append(f'[[listener]]\naddress = "{host}:{port}"\ngroup = "g{group}"\n')
        ways = {group: stage.way for stage in self.stages for group in range(stage.first, stage.first + stage.count)}
        for group in range(self.groups):
            parts.append(self.group(group, ways.get(group)))
        return "".join(parts)

    def group(self, group, way):
        numbers = range(group * self.members, (group + 1) * self.members)
        members = [f'"127.{1 + (n >> 16)}.{n >> 8 & 255}.{n & 255}:{self.origin}"' for n in numbers]
        if way == "operator":
            members[-1] = f'{{ address = "{self.heavy()}", capacity = {MUCH} }}'
        lines = ["[[group]]", f'name = "g{group}"', f"members = [{', '.join(members)}]"]
        if self.checks:
            lines.append(f'health = {{ http = "/", interval = "{self.checks}" }}')
        if way:
            lines += ['strategy = "weighted_round_robin"', 'slow_start = "0s"']
        sources = {
            "registered": "{ registered = true }",
            "weight": "{ registered = true }",
            "file": f'{{ file = "{self.file(group)}", interval = "100ms", allow_empty = true }}',
            "etcd": f'{{ etcd = "/bench/g{group}/", allow_empty = true }}',
        }
        if way in sources:
            lines.append(f"discover = [{sources[way]}]")
        if way == "file":
            self.file(group).write_text("members = []\n")
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def servers():
    """The servers of all members; gives their port."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-members-") as folder:
        where, port = Path(folder), free_port()
        config = where / "nginx.conf"
        config.write_text(NGINX.format(where=where, port=port))
        with Child(["nginx", "-p", where, "-e", "stderr", "-c", config], where / "log") as child:
            child.await_port(port)
            yield port


@contextlib.contextmanager
def store(binary):
    """An etcd of its own, if there is `binary`; gives its port, or None."""
    if not binary:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="plimsoll-etcd-") as folder:
        clients, peers = free_port(), free_port()
        command = [binary, "--data-dir", folder, "--log-level", "error"]
        command += ["--listen-client-urls", f"http://127.0.0.1:{clients}"]
        command += ["--advertise-client-urls", f"http://127.0.0.1:{clients}"]
        command += ["--listen-peer-urls", f"http://127.0.0.1:{peers}"]
        command += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}"]
        command += ["--initial-cluster", f"default=http://127.0.0.1:{peers}"]
        with Child(command, Path(folder) / "log") as child:
            child.await_port(clients)
            yield clients
