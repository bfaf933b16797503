"""The dashboards of a lottery's daemons and of their Supervisor, in headless Chromium: `make test-dashboard`."""

import re
import tempfile
import unittest
from pathlib import Path

from browser import Browser
from fleet import Child, People, plimsoll, wait

DAEMON = """
member = {number}
listen = "127.0.0.1:{port}"
peers = [{peers}]
keys = "lottery.keys"

[[service]]
name = "web"
server = "{server}"
capacity = {capacity}

[admin]
control = ["unix:{folder}/lottery-{number}.sock", "tls://127.0.0.1:0"]
tls = {{ certificate = "lb.pem", key = "lb.key" }}
jwt = {{ issuer = "https://id", audience = "plimsoll", jwks_file = "jwks.json" }}

[[admin.access.grant]]
identity = "jwt:victor"
role = "viewer"
"""

SUPERVISOR = """
[supervise]
control = ["unix:{folder}/supervise.sock", "tls://127.0.0.1:0"]
tls = {{ certificate = "lb.pem", key = "lb.key" }}
jwt = {{ issuer = "https://id", audience = "plimsoll", jwks_file = "jwks.json" }}

[[supervise.access.grant]]
identity = "jwt:victor"
role = "viewer"

[[process]]
name = "daemon"
command = ["lottery", "--config", "lottery-3.toml"]

[[process]]
name = "spare"
command = ["lottery", "--config", "lottery-4.toml"]
start = false
"""


class Others(Browser):
    """Two daemons that know one another, and a Supervisor of a third."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="plimsoll-dash-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.people = People(cls.folder)
        first = cls.daemon(1, "10.0.0.1:80", 100)
        cls.lottery = "https://" + first.after("listening control tls://")
        cls.at = first.after("listening lottery ")
        cls.daemon(2, "10.0.0.2:80", 300, f'"{cls.at}"')
        for number in (3, 4):
            cls.write(number, f"10.0.0.{number}:80", 100, f'"{cls.at}"')
        (cls.folder / "supervise.toml").write_text(SUPERVISOR.format(folder=cls.folder))
        supervisor = cls.child("supervise", "--config", "supervise.toml")
        # What it started outlives it otherwise.
        cls.addClassCleanup(plimsoll, cls.folder, "supervise", "shutdown", "--wait")
        cls.supervisor = "https://" + supervisor.after("listening control tls://")
        super().setUpClass()

    @classmethod
    def child(cls, *arguments):
        child = Child(cls.folder, *arguments)
        cls.addClassCleanup(child.end)
        return child

    @classmethod
    def write(cls, number, server, capacity, peers):
        fields = {"number": number, "port": 0, "peers": peers, "server": server, "capacity": capacity}
        text = DAEMON.format(folder=cls.folder, **fields)
        (cls.folder / f"lottery-{number}.toml").write_text(text)

    @classmethod
    def daemon(cls, number, server, capacity, peers=""):
        cls.write(number, server, capacity, peers)
        return cls.child("lottery", "--config", f"lottery-{number}.toml")

    def whole(self, base, name, said):
        """Signed in, light and dark, narrow, and without scripts: nothing is wrong, and it says what it should."""
        self.allowed = ("401",)
        page = self.page(base=base)
        self.sign_in(page, "victor", self.people.token("victor"))
        wait(f"{name} says all", lambda: page.reload() and all(re.search(text, page.locator("main").inner_text()) for text in said))
        self.live(page)
        state = page.context.storage_state()
        for scheme, width, scripts in (("light", 1280, True), ("dark", 1280, True), ("light", 360, True), ("light", 1280, False)):
            with self.subTest(name, scheme=scheme, width=width, scripts=scripts):
                seen = self.page(width=width, scheme=scheme, scripts=scripts, base=base, state=state)
                self.assertEqual(seen.goto("/dashboard").status, 200)
                self.assertEqual(seen.locator("h1").count(), 1)
                # Who was not heard for a moment is there again with the next look.
                shown = lambda: all(re.search(text, seen.locator("main").inner_text()) for text in said)
                wait(f"{name} says all", lambda: shown() or (seen.reload() and shown()))
                if scripts:
                    self.find_nothing(seen)
                    self.fits(seen)
                    self.picture(seen, f"{name}-{'narrow' if width == 360 else scheme}")
                seen.context.close()
        return page

    def test_a_daemon_says_who_has_which_part_of_the_drum(self):
        page = self.whole(self.lottery, "lottery", [r"web", r"10\.0\.0\.1", r"100", r"300"])
        self.assertEqual(page.locator("form[method=post]").filter(has_not_text="Sign out").count(), 0)

    def test_a_supervisor_says_how_its_processes_do(self):
        self.whole(self.supervisor, "supervisor", [r"daemon", r"running", r"spare", r"stopped", r"member 3"])


if __name__ == "__main__":
    unittest.main()
