"""Leases of members, of a real balancer."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import List, Optional

import plimsoll
from cluster import PATIENCE, until

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "lookaside.md"


class Server(ThreadingHTTPServer):
    """A member."""

    class Says(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"here\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Says)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Stranger(ThreadingHTTPServer):
    """A server that says the same to everybody."""

    def __init__(self, said: str) -> None:
        class Says(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = said.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Says)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Balancer:
    """A balancer before two members."""

    def __init__(self, rest: str = "") -> None:
        self.members = [Server(), Server()]
        self.names = [f"127.0.0.1:{member.server_port}" for member in self.members]
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self.scratch.name)
        (self.folder / "plimsoll.toml").write_text(
            '[admin]\nlisten = "off"\nreports = "127.0.0.1:0"\n'
            f'control = "unix:{self.folder}/control.sock"\n'
            '[[listener]]\naddress = "127.0.0.1:0"\ngroup = "web"\n'
            f'[[group]]\nname = "web"\nslow_start = "0s"\nmembers = {self.names!r}\n{rest}\n'
        )
        self.said: List[str] = []
        command = ["setpriv", "--pdeathsig", "KILL", "--", os.environ["PLIMSOLL_BIN"], "up"]
        self.process = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()
        until("it serves", lambda: self.url is not None)

    def _listen(self) -> None:
        assert self.process.stderr
        with self.process.stderr as lines:
            self.said.extend(lines)

    @property
    def url(self) -> Optional[str]:
        found = re.search(r"listening reports (127\.0\.0\.1:\d+)", "".join(self.said))
        return f"http://{found[1]}" if found else None

    def bind(self, **wish: object) -> plimsoll.Lease:
        return plimsoll.bind(self.url or "", "web", **wish)  # type: ignore[arg-type]

    def run(self, *command: str) -> None:
        subprocess.run([os.environ["PLIMSOLL_BIN"], *command], cwd=self.folder, check=True, capture_output=True)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.reader.join()
        self.scratch.cleanup()
        for member in self.members:
            member.shutdown()
            member.server_close()


class Leases(unittest.TestCase):
    balancer: Balancer

    @classmethod
    def setUpClass(cls) -> None:
        cls.balancer = Balancer('strategy = "least_connections"')
        cls.addClassCleanup(cls.balancer.close)

    def test_members_are_lent_evenly_and_given_back(self) -> None:
        begun = time.monotonic()
        leases = [self.balancer.bind() for _ in range(8)]
        self.assertEqual(sorted(Counter(lease.member for lease in leases).values()), [4, 4])
        for lease in leases:
            self.assertIn(str(lease), self.balancer.names)
            with socket.create_connection(lease.address, timeout=PATIENCE):
                pass
            left = lease.left
            # bound: for as long as it took
            self.assertTrue(60 - (time.monotonic() - begun) <= left <= 60, left)
            self.assertTrue(lease.lease_seconds == 60 and not lease.moved)
            lease.release()
            lease.release()
        with self.assertRaisesRegex(plimsoll.Unknown, "bind again"):
            leases[0].renew()

    def test_who_fails_is_left_and_who_comes_again_is_known(self) -> None:
        with self.balancer.bind(key="me", lease_seconds=300) as lease, self.balancer.bind(key="me") as again:
            self.assertEqual(lease.member, again.member)
            self.assertFalse(lease.renew(lease_seconds=600))
            self.assertEqual(lease.lease_seconds, 600)
            self.assertTrue(lease.renew(exclude=[lease.member]))
            self.assertNotEqual(lease.member, again.member)
            self.assertIn("not wanted", lease.why)
        with self.assertRaises(plimsoll.Unknown):
            again.renew()

    def test_what_is_wrong_is_told(self) -> None:
        url = self.balancer.url or ""
        with self.assertRaisesRegex(plimsoll.Unknown, "there are: web"):
            plimsoll.bind(url, "mail")
        with self.assertRaisesRegex(plimsoll.Busy, "no member of group web"):
            self.balancer.bind(exclude=self.balancer.names)
        with self.assertRaisesRegex(ValueError, "1 to 3600"):
            self.balancer.bind(lease_seconds=0)
        for wrong in ("10.0.0.9:9901", "ftp://10.0.0.9", "http://10.0.0.9/v1", "http://"):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "is not where"):
                plimsoll.bind(wrong, "web")
        with self.assertRaisesRegex(ValueError, "several names"):
            self.balancer.bind(exclude="10.0.0.1:80")
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            with self.assertRaises(plimsoll.Silence):
                plimsoll.bind(f"http://127.0.0.1:{nobody.getsockname()[1]}", "web")
        # A server that is no balancer.
        with self.assertRaises(plimsoll.Unserved):
            plimsoll.bind(f"http://{self.balancer.names[0]}", "web")
        # One that answers all with an object of its own.
        for said in ('{"status": "fine"}', '{"member": "a:1", "lease": "0", "why": "", "address": "a:b"}', "[]"):
            stranger = Stranger(said)
            self.addCleanup(stranger.server_close)
            self.addCleanup(stranger.shutdown)
            with self.assertRaisesRegex(plimsoll.Silence, "no balancer"):
                plimsoll.bind(f"http://127.0.0.1:{stranger.server_port}", "web")


class Moves(unittest.TestCase):
    def test_a_drained_member_is_left_with_the_next_renewal(self) -> None:
        balancer = Balancer()
        self.addCleanup(balancer.close)
        with balancer.bind() as lease:
            before = lease.member
            self.assertFalse(lease.renew())
            balancer.run("drain", before)
            self.assertTrue(lease.renew())
            self.assertEqual({before, lease.member}, set(balancer.names))
            self.assertIn("drain", lease.why)


class Guide(unittest.TestCase):
    def test_its_examples_run(self) -> None:
        examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        self.assertGreaterEqual(len(examples), 1)
        balancer = Balancer()
        self.addCleanup(balancer.close)
        for example in examples:
            asked = "http://10.0.0.9:9901"
            self.assertIn(asked, example)
            program = example.replace(asked, balancer.url or "")
            run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
            with self.subTest(example):
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertRegex(run.stdout, "here")


if __name__ == "__main__":
    unittest.main()
