"""Control over TLS against its OpenAPI document, with requests that schemathesis invents: `make test-api`.

The binary is the one that PLIMSOLL_BIN names; the document that it serves is what it is held to.
"""

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HERE = Path(__file__).parent
# Nothing that is waited for takes longer on the slowest machine.
PATIENCE = 60.0
# Of requests for each operation and phase.
EXAMPLES = 15

# Where control is, by whom it is trusted, and who may do what: alike for all, but for the name of the section.
CONTROL = """
control = ["unix:{folder}/control.sock", "tls://127.0.0.1:0"]
audit = "{folder}/audit.log"
tls = {{ certificate = "lb.pem", key = "lb.key" }}
jwt = {{ issuer = "https://id", audience = "plimsoll", jwks_file = "jwks.json" }}

[[SECTION.access.grant]]
identity = "jwt:root"
role = "admin"

[[SECTION.access.grant]]
identity = "jwt:view"
role = "viewer"
"""

BALANCER = (
    """
[[listener]]
address = "127.0.0.1:0"
group = "web"

[[group]]
name = "web"
members = ["127.0.0.1:9"]

[admin]
listen = "off"
"""
    + CONTROL.replace("SECTION", "admin")
)

# Its key is made, as it is told of no others. Nothing listens where its server is.
LOTTERY = (
    """
member = 1
listen = "127.0.0.1:0"
keys = "{folder}/lottery.keys"

[[service]]
name = "web"
server = "127.0.0.1:9"

[[service]]
name = "mail"
server = "127.0.0.1:9"
load = "busy"

[admin]
"""
    + CONTROL.replace("SECTION", "admin")
)

# Of its processes none is started by itself: `web` may be by who asks, and listens nowhere that matters.
SUPERVISOR = (
    """
[[process]]
name = "web"
command = ["agent", "--listen", "127.0.0.1:0"]
start = false

[supervise]
log_dir = "{folder}"
"""
    + CONTROL.replace("SECTION", "supervise")
)


class Process:
    """A command of `plimsoll` and what it says. The kernel ends it with the test's process."""

    def __init__(self, folder, config, *command):
        self.folder = folder
        self.plimsoll("cert", "init", "--trust-domain", "example.org")
        self.plimsoll("cert", "issue", "lb", "--server", "127.0.0.1")
        self._key = Ed25519PrivateKey.generate()
        public = base64.urlsafe_b64encode(self._key.public_key().public_bytes_raw()).rstrip(b"=").decode()
        keys = {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}
        (folder / "jwks.json").write_text(json.dumps(keys))
        (folder / "own.toml").write_text(config.format(folder=folder))
        command = ["setpriv", "--pdeathsig", "KILL", "--", os.environ["PLIMSOLL_BIN"], *command]
        command += ["--config", "own.toml"]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.said = []
        threading.Thread(target=self._read, daemon=True).start()
        self.url = "https://" + self._after("listening control tls://")
        request = urllib.request.Request(self.url + "/v1/openapi.json")
        request.add_header("Authorization", f"Bearer {self.token('root')}")
        trusted = ssl.create_default_context(cafile=folder / "ca/ca.pem")
        with urllib.request.urlopen(request, timeout=PATIENCE, context=trusted) as answer:
            (folder / "openapi.json").write_bytes(answer.read())

    def plimsoll(self, *arguments):
        command = [os.environ["PLIMSOLL_BIN"], *arguments]
        done = subprocess.run(command, cwd=self.folder, check=True, timeout=PATIENCE, capture_output=True, text=True)
        return done.stdout

    def token(self, who):
        claims = {"iss": "https://id", "aud": "plimsoll", "sub": who, "exp": int(time.time()) + 3600}
        return jwt.encode(claims, self._key, algorithm="EdDSA")

    def runs(self):
        return self._process.poll() is None

    def end(self):
        self._process.kill()
        self._process.wait()

    def _read(self):
        with self._process.stderr as lines:
            for line in lines:
                self.said.append(line)

    def _after(self, text):
        end = time.monotonic() + PATIENCE
        # bound: a safety net
        while time.monotonic() < end and self.runs():
            for line in self.said:
                if text in line:
                    return line.split(text)[1].split()[0].rstrip(":,")
            # sleeps: polls
            time.sleep(0.01)
        raise AssertionError("".join(self.said))


class Served:
    """What every kind of process is held to."""

    # What it is started with, and what ends it or starts another: that these do so is told by other tests.
    config = ""
    command = ()
    ends = ()
    # What is certainly tried, by its name in the audit log.
    acts = frozenset()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="plimsoll-api-")
        self.addCleanup(folder.cleanup)
        self.process = Process(Path(folder.name), self.config, *self.command)
        self.addCleanup(self.process.end)

    def _run(self, who, *arguments):
        """Every operation, as somebody."""
        folder = self.process.folder
        command = [
            str(Path(sys.executable).parent / "schemathesis"),
            *("--config-file", str(HERE / "schemathesis.toml"), "run", str(folder / "openapi.json")),
            *("--url", self.process.url, "--tls-verify", str(folder / "ca/ca.pem")),
            *("--header", f"Authorization: Bearer {self.process.token(who)}"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--generation-database", "none"),
            *("--continue-on-failure", "--no-color", "--request-timeout", "60", "--request-retries", "3", *arguments),
        ]
        environment = {**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "hooks"}
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=10 * PATIENCE, capture_output=True, text=True, errors="replace"
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(self.process.runs(), "".join(self.process.said))
        self.assertFalse([line for line in self.process.said if "panicked" in line], "it went on after a panic")
        return done.stdout

    def _audited(self):
        # Not by splitlines: what was invented may have other ends of lines within.
        lines = (self.process.folder / "audit.log").read_text().split("\n")
        return [json.loads(line) for line in lines if line]

    def test_whoever_may_do_everything_gets_what_the_document_says(self):
        left_out = [word for operation in self.ends for word in ("--exclude-operation-id", operation)]
        self._run("root", *left_out)
        done = {line["verb"] for line in self._audited() if line["result"] != "begun"}
        self.assertFalse(self.acts - done, "what was to be tried and was not")

    def test_whoever_may_look_gets_no_further(self):
        self._run("view", "--phases", "examples,coverage", "--exclude-checks", "positive_data_acceptance")
        results = {line["result"] for line in self._audited()}
        self.assertEqual(results, {"refused"})


class Balancer(Served, unittest.TestCase):
    config = BALANCER
    command = ("up",)
    ends = ("stop", "upgrade")
    acts = {"drain", "undrain", "disable", "enable", "set", "reload"}


class Lottery(Served, unittest.TestCase):
    config = LOTTERY
    command = ("lottery",)
    ends = ("stop",)
    acts = {"drain", "undrain", "disable", "enable", "set", "reload", "key-accept", "key-seal", "key-retire"}


class Supervisor(Served, unittest.TestCase):
    config = SUPERVISOR
    command = ("supervise",)
    ends = ("shutdown",)
    acts = {"process-start", "process-stop", "process-restart", "process-reload", "reload"}


if __name__ == "__main__":
    unittest.main()
