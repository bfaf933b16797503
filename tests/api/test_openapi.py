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
PATIENCE = 30.0
# Of requests for each operation and phase.
EXAMPLES = 15

CONFIG = """
[[listener]]
address = "127.0.0.1:0"
group = "web"

[[group]]
name = "web"
members = ["127.0.0.1:9"]

[admin]
listen = "off"
control = ["unix:{folder}/control.sock", "tls://127.0.0.1:0"]
audit = "{folder}/audit.log"
tls = {{ certificate = "lb.pem", key = "lb.key" }}
jwt = {{ issuer = "https://id", audience = "plimsoll", jwks_file = "jwks.json" }}

[[admin.access.grant]]
identity = "jwt:root"
role = "admin"

[[admin.access.grant]]
identity = "jwt:view"
role = "viewer"
"""


class Balancer:
    """`plimsoll up` and what it says. The kernel ends it with the test's process."""

    def __init__(self, folder):
        self.folder = folder
        self.plimsoll("cert", "init", "--trust-domain", "example.org")
        self.plimsoll("cert", "issue", "lb", "--server", "127.0.0.1")
        self._key = Ed25519PrivateKey.generate()
        public = base64.urlsafe_b64encode(self._key.public_key().public_bytes_raw()).rstrip(b"=").decode()
        keys = {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}
        (folder / "jwks.json").write_text(json.dumps(keys))
        (folder / "plimsoll.toml").write_text(CONFIG.format(folder=folder))
        command = ["setpriv", "--pdeathsig", "KILL", "--", os.environ["PLIMSOLL_BIN"], "up"]
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
        claims = {"iss": "https://id", "aud": "plimsoll", "sub": who, "exp": int(time.time()) + 600}
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
        while time.monotonic() < end and self.runs():
            for line in self.said:
                if text in line:
                    return line.split(text)[1].split()[0].rstrip(":,")
            time.sleep(0.01)
        raise AssertionError("".join(self.said))


class OpenApi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="plimsoll-api-")
        self.addCleanup(folder.cleanup)
        self.balancer = Balancer(Path(folder.name))
        self.addCleanup(self.balancer.end)

    def _run(self, who, *arguments):
        """Every operation, as somebody."""
        folder = self.balancer.folder
        command = [
            str(Path(sys.executable).parent / "schemathesis"),
            *("--config-file", str(HERE / "schemathesis.toml"), "run", str(folder / "openapi.json")),
            *("--url", self.balancer.url, "--tls-verify", str(folder / "ca/ca.pem")),
            *("--header", f"Authorization: Bearer {self.balancer.token(who)}"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--generation-database", "none"),
            *("--continue-on-failure", "--no-color", "--request-timeout", "10", "--request-retries", "3", *arguments),
        ]
        environment = {**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "hooks"}
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=120, capture_output=True, text=True, errors="replace"
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(self.balancer.runs(), "".join(self.balancer.said))
        self.assertFalse([line for line in self.balancer.said if "panicked" in line], "it went on after a panic")
        return done.stdout

    def test_whoever_may_do_everything_gets_what_the_document_says(self):
        # That it stops is told by other tests.
        self._run("root", "--exclude-operation-id", "stop", "--exclude-operation-id", "upgrade")

    def test_whoever_may_look_gets_no_further(self):
        self._run("view", "--phases", "examples,coverage", "--exclude-checks", "positive_data_acceptance")
        audit = (self.balancer.folder / "audit.log").read_text().splitlines()
        results = {line["result"] for line in map(json.loads, audit)}
        self.assertEqual(results, {"refused"})


if __name__ == "__main__":
    unittest.main()
