"""Members, a balancer and load, as the dashboard's tests need them. The kernel ends all of them with the test's process."""

import base64
import http.client
import json
import os
import socket
import subprocess
import threading
import time
import urllib.parse

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# Nothing that is waited for takes longer on the slowest machine.
PATIENCE = 60.0

CONFIG = """
[fleet]
listen = "127.0.0.1:0"
name = "lb1"
key_file = "{folder}/fleet.keys"

[[listener]]
address = "127.0.0.1:0"
group = "web"

[[listener]]
address = "127.0.0.1:0"
group = "shop"
binding = "on_demand"

[[group]]
name = "web"
members = [{web}]

[group.health]
http = "/healthz"
interval = "500ms"
timeout = "60s"

[[group]]
name = "shop"
strategy = {{ least_loaded = {{ reject = 0.6, critical = 0.8 }} }}
members = [{shop}]

[group.monitor]
metric = "cpu"
source = "push"
interval = "1s"

[admin]
listen = "127.0.0.1:0"
reports = "127.0.0.1:0"
control = ["unix:{folder}/control.sock", "tls://127.0.0.1:0"]
audit = "{folder}/audit.log"
tls = {{ certificate = "lb.pem", key = "lb.key" }}
jwt = {{ issuer = "https://id", audience = "plimsoll", jwks_file = "jwks.json" }}

[[admin.access.grant]]
identity = "jwt:olga"
role = "operator"

[[admin.access.grant]]
identity = "jwt:victor"
role = "viewer"
"""

# Another balancer of `web`, which the first one hears.
SECOND = """
[fleet]
listen = "127.0.0.1:0"
name = "lb2"
seeds = ["{seed}"]
key_file = "{folder}/fleet.keys"

[[listener]]
address = "127.0.0.1:0"
group = "web"

[[group]]
name = "web"
members = [{web}]

[admin]
listen = "127.0.0.1:0"
control = "off"
"""


def wait(what, found, patience=PATIENCE):
    """Until `found` gives something; that."""
    end = time.monotonic() + patience
    # bound: a safety net
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        # sleeps: polls
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about in {patience} s")


def plimsoll(folder, *arguments):
    """`plimsoll …`, which must succeed."""
    command = [os.environ["PLIMSOLL_BIN"], *arguments]
    subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE, capture_output=True)


class Child:
    """`plimsoll …`, and what it says."""

    def __init__(self, folder, *arguments):
        command = ["setpriv", "--pdeathsig", "KILL", "--", os.environ["PLIMSOLL_BIN"], *arguments]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.said = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with self._process.stderr as lines:
            for line in lines:
                self.said.append(line)

    def after(self, text):
        def found():
            for line in self.said:
                if text in line:
                    return line.split(text)[1].split()[0].rstrip(":,")
            if self._process.poll() is not None:
                raise AssertionError("it ended: " + "".join(self.said))
            return None

        return wait(text, found)

    def end(self):
        self._process.kill()
        self._process.wait()


class People:
    """Who has tokens, an authority's certificate for 127.0.0.1, and what checks both: files in `folder`."""

    def __init__(self, folder):
        self._key = Ed25519PrivateKey.generate()
        for arguments in (
            ("cert", "init", "--trust-domain", "example.org"),
            ("cert", "issue", "lb", "--server", "127.0.0.1"),
        ):
            plimsoll(folder, *arguments)
        public = base64.urlsafe_b64encode(self._key.public_key().public_bytes_raw()).rstrip(b"=").decode()
        keys = {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}
        (folder / "jwks.json").write_text(json.dumps(keys))

    def token(self, who, seconds=3600):
        claims = {"iss": "https://id", "aud": "plimsoll", "sub": who, "exp": int(time.time()) + seconds}
        return jwt.encode(claims, self._key, algorithm="EdDSA")


class Fleet:
    """Three members of `web` under load, two of `shop` that tell of their own load, and a balancer."""

    def __init__(self, folder):
        self.folder = folder
        self._people = People(folder)
        self._members = [self._member(name) for name in ("m1", "m2", "m3", "s1", "s2")]
        addresses = [member.after("listening http ") for member in self._members]
        self.web, self.shop = addresses[:3], addresses[3:]
        quoted = lambda names: ", ".join(f'"{name}"' for name in names)
        text = CONFIG.format(web=quoted(self.web), shop=quoted(self.shop), folder=folder)
        (folder / "plimsoll.toml").write_text(text)
        (folder / "fleet.keys").write_text(f"1 {'5a' * 32}\n")
        (folder / "fleet.keys").chmod(0o600)
        self.balancer = Child(folder, "up")
        self.listen = "http://" + self.balancer.after("listening admin ")
        self.control = "https://" + self.balancer.after("listening control tls://")
        self.reports = self.balancer.after("listening reports ")
        self.address = self.balancer.after("listening http ")
        seed = self.balancer.after("listening fleet ")
        (folder / "second.toml").write_text(SECOND.format(web=quoted(self.web), seed=seed, folder=folder))
        self.second = Child(folder, "up", "--config", "second.toml")
        self.load = None
        self._told = {member: 0.4 for member in self.shop}
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True)
        self._reporter.start()
        wait("all members up", lambda: all(member["state"] == "up" for member in self.members("web")))

    def _member(self, name):
        # A hundred requests a second each.
        service = ("--service", "exp:20ms", "--workers", "2", "--seed", "1")
        return Child(self.folder, "member", "--listen", "127.0.0.1:0", "--admin", "--name", name, *service)

    def token(self, who, seconds=3600):
        return self._people.token(who, seconds)

    def status(self):
        return self._get("/status")

    def group(self, name):
        return next(found for found in self.status()["groups"] if found["name"] == name)

    def members(self, group):
        return self.group(group)["members"]

    def audit(self):
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]

    def drive(self, rate, duration="3600s"):
        """Load from now on, in place of what there was."""
        if self.load:
            self.load.end()
        url = f"http://{self.address}/"
        self.load = Child(self.folder, "load", url, "--rate", str(rate), "--duration", duration, "--seed", "1")

    def hold(self, many):
        """Clients of `shop` that stay."""
        listeners = self.status()["listeners"]
        host, port = next(one["address"] for one in listeners if one["group"] == "shop").rsplit(":", 1)
        clients = []
        for _ in range(many):
            client = socket.create_connection((host, int(port)), timeout=PATIENCE)
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            client.recv(4096)
            clients.append(client)
        return clients

    def tell(self, member, load):
        """What a member of `shop` reports from now on."""
        self._told[member] = load

    def kill(self, place):
        """A member of `web` is gone."""
        self._members[place].end()

    def end(self):
        self._ended.set()
        self._reporter.join()
        for child in [self.balancer, self.second, *([self.load] if self.load else []), *self._members]:
            child.end()

    def _report(self):
        while not self._ended.wait(0.3):
            for member, load in dict(self._told).items():
                fields = {"group": "shop", "member": member, "name": "cpu", "value": load}
                connection = http.client.HTTPConnection(self.reports, timeout=PATIENCE)
                try:
                    connection.request("POST", "/v1/report", urllib.parse.urlencode(fields))
                    connection.getresponse().read()
                except OSError:
                    pass
                finally:
                    connection.close()

    def _get(self, path):
        connection = http.client.HTTPConnection(self.listen.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()
