"""The Debian package on a Debian that has nothing else: it comes, works, is replaced and goes without a trace."""

import json
import sys
import unittest

from root import DIST, Root, until, why_not

REASON = why_not()
CONFIG = """
[admin]
control = "unix:/run/plimsoll/control.sock"
[[listener]]
address = "127.0.0.1:80"
group = "web"
[[listener]]
address = "127.0.0.1:53"
group = "web"
protocol = "dns"
domain = "web.test"
[[group]]
name = "web"
members = ["127.0.0.1:8081"]
[group.health]
http = "/healthz"
"""


def package(which: str) -> str:
    """The path in the root of the package that is older, or of the one that is newer."""
    found = sorted(DIST.glob("plimsoll_*_amd64.deb")) if which == "newer" else sorted((DIST / "earlier").glob("*.deb"))
    if len(found) != 1:
        raise AssertionError(f"{DIST} has {len(found)} packages that are {which}: make test-package makes them")
    return f"/mnt/{found[0].relative_to(DIST)}"


def setUpModule() -> None:
    if REASON:
        print(f"\n*** THE PACKAGE IS NOT INSTALLED ANYWHERE: {REASON} ***", file=sys.stderr)
        raise unittest.SkipTest(REASON)


class Bare(unittest.TestCase):
    """Where no systemd runs, as in a chroot."""

    def setUp(self) -> None:
        self.root = Root(booted=False)
        self.addCleanup(self.root.close)

    def test_comes_serves_and_goes(self) -> None:
        root = self.root
        before = root.files()
        root.run(f"dpkg -i {package('earlier')}")
        root.run("plimsoll config check -c /etc/plimsoll/plimsoll.toml")
        self.assertEqual(root.say("plimsoll --version").split()[0], "plimsoll")
        self.assertIn("complete -F", root.say("cat /usr/share/bash-completion/completions/plimsoll"))
        self.assertTrue(root.say("zcat /usr/share/man/man1/plimsoll-up.1.gz").startswith("."))
        self.assertEqual(root.say("md5sum -c --quiet /var/lib/dpkg/info/plimsoll.md5sums"), "")

        # By hand what the unit starts, as somebody who may do nothing; the folder is what systemd would have made.
        start = root.say("sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/plimsoll.service")
        root.run("mkdir /run/plimsoll && chown 65534:65534 /run/plimsoll")
        root.run(f"setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs {start} >/tmp/log 2>&1 &")
        until("it answers", lambda: "200 OK" in root.get(9900, "/healthz"))
        self.assertIn('"web"', root.say("plimsoll -o json status -c /etc/plimsoll/plimsoll.toml || [ $? = 1 ]"))
        root.run("plimsoll stop --wait -c /etc/plimsoll/plimsoll.toml")

        root.run(f"dpkg -i {package('newer')}")
        root.run("dpkg --verify plimsoll")
        root.run("dpkg --remove plimsoll && test -e /etc/plimsoll/plimsoll.toml && test ! -e /usr/bin/plimsoll")
        root.run("dpkg --purge plimsoll")
        self.assertEqual(root.files(), before)


class Booted(unittest.TestCase):
    """Where systemd runs."""

    def setUp(self) -> None:
        self.root = Root(booted=True)
        self.addCleanup(self.root.close)

    def status_of(self, pid: str) -> dict[str, str]:
        """What the kernel says of a process."""
        return dict(line.split(":\t", 1) for line in self.root.say(f"cat /proc/{pid}/status").splitlines() if ":\t" in line)

    def pid(self) -> str:
        """The balancer's."""
        return self.root.say("systemctl show -P MainPID plimsoll")

    def test_life(self) -> None:
        root = self.root
        before = root.files()
        root.run(f"dpkg -i {package('earlier')}")
        self.assertEqual(root.say("systemctl is-active plimsoll"), "active")
        self.assertEqual(root.say("systemctl is-enabled plimsoll"), "enabled")
        for other in ("plimsoll-agent", "plimsoll-lottery", "plimsoll.socket"):
            self.assertEqual(root.run(f"systemctl is-enabled {other}", check=False).stdout.strip(), "disabled")
        self.units_are_sound()
        self.may_do_little()
        # Without a word where it is: by the link that tmpfiles.d makes.
        self.assertIn('"web"', root.say("plimsoll -o json status || [ $? = 1 ]"))

        root.run("systemd-run --quiet --unit member plimsoll member --listen 127.0.0.1:8081 --name one")
        self.reloads()
        self.reads_keys_of_its_group()
        self.is_upgraded()
        self.is_restarted_where_it_must_be()
        self.has_sockets_of_systemd()
        self.others_run()

        root.run("dpkg --remove plimsoll")
        self.assertNotEqual(root.run("systemctl is-active plimsoll", check=False).returncode, 0)
        self.assertEqual(root.run("pgrep -x plimsoll || cat /proc/[0-9]*/comm | grep -x plimsoll", check=False).stdout.count("plimsoll"), 1, "the member only")
        root.run("systemctl stop member")
        root.run("test -e /etc/plimsoll/plimsoll.toml && test ! -e /usr/bin/plimsoll && test ! -L /run/plimsoll.sock")
        root.run("rm /etc/plimsoll/lottery.toml && dpkg --purge plimsoll")
        self.assertEqual(root.files(), before)

    def units_are_sound(self) -> None:
        root = self.root
        units = ("plimsoll", "plimsoll-agent", "plimsoll-lottery")
        for unit in units:
            said = root.run(f"systemd-analyze verify --man=no /usr/lib/systemd/system/{unit}.service")
            self.assertEqual(said.stdout + said.stderr, "", unit)
            # 10 is none at all; what is left is the network, and the port below 1024.
            root.run(f"systemd-analyze security --no-pager --threshold=20 {unit}.service")
        said = root.run("systemd-analyze verify --man=no /usr/lib/systemd/system/plimsoll.socket")
        self.assertEqual(said.stdout + said.stderr, "")

    def may_do_little(self) -> None:
        about = self.status_of(self.pid())
        self.assertNotIn("0", about["Uid"].split())
        self.assertEqual(int(about["CapEff"], 16), 1 << 10, "CAP_NET_BIND_SERVICE and no other")
        self.assertEqual(about["NoNewPrivs"], "1")
        self.assertEqual(about["Seccomp"], "2")

    def reloads(self) -> None:
        root = self.root
        before = self.pid()
        root.write("/etc/plimsoll/plimsoll.toml", CONFIG)
        root.run("systemctl reload plimsoll")
        until("the member is up", lambda: "200 OK" in root.get(80))
        # Names: from the file of hosts, then by DNS, which the balancer itself answers.
        root.run("echo 127.0.0.1 file.test >>/etc/hosts")
        for name in ("file.test", "web.test"):
            root.write("/etc/plimsoll/plimsoll.toml", CONFIG.replace("127.0.0.1:8081", f"{name}:8081"))
            root.run("systemctl reload plimsoll")
            until(f"{name} is served", lambda: "200 OK" in root.get(80))
        root.write("/etc/plimsoll/plimsoll.toml", CONFIG + "nonsense = 1\n")
        self.assertNotEqual(root.run("systemctl reload plimsoll", check=False).returncode, 0)
        self.assertIn("nonsense", root.say("journalctl --no-pager -u plimsoll -o cat"))
        self.assertIn("200 OK", root.get(80))
        root.write("/etc/plimsoll/plimsoll.toml", CONFIG)
        root.run("systemctl reload plimsoll")
        self.assertEqual(self.pid(), before, "a reload is no restart")

    def reads_keys_of_its_group(self) -> None:
        root = self.root
        root.run("plimsoll -q cert init --trust-domain example.org --dir /tmp/ca")
        root.run("plimsoll -q cert issue web --server localhost --dir /tmp/ca --out /etc/plimsoll")
        tls = '[[listener]]\naddress = "127.0.0.1:443"\nprotocol = "https"\ngroup = "web"\n[listener.tls]\n'
        pair = 'certificates = [{ certificate = "/etc/plimsoll/web.pem", key = "/etc/plimsoll/web.key" }]\n'
        root.write("/etc/plimsoll/plimsoll.toml", CONFIG + tls + pair)
        self.assertNotEqual(root.run("systemctl reload plimsoll", check=False).returncode, 0, "a key of root's")
        root.run("groupadd --system keys-test && chgrp keys-test /etc/plimsoll/web.key && chmod 640 /etc/plimsoll/web.key")
        root.run("mkdir -p /etc/systemd/system/plimsoll.service.d")
        root.write("/etc/systemd/system/plimsoll.service.d/keys.conf", "[Service]\nSupplementaryGroups=keys-test\n")
        root.run("systemctl daemon-reload && systemctl restart plimsoll")
        self.assertIn("plimsoll_certificate_expiry_seconds", root.get(9900, "/metrics"))
        root.write("/etc/plimsoll/plimsoll.toml", CONFIG)
        root.run("systemctl reload plimsoll")
        root.run("rm -r /etc/plimsoll/web.* /etc/systemd/system/plimsoll.service.d && groupdel keys-test && systemctl daemon-reload")

    def nobody_fails(self, options: str, act: str) -> str:
        """Does something under load, of which no request fails; what it prints as an error."""
        root = self.root
        root.run(f"rm -f /tmp/load && cp /usr/bin/plimsoll /tmp/generator && systemd-run --quiet --unit load -p StandardOutput=file:/tmp/load -p StandardError=journal /tmp/generator load http://127.0.0.1/ -r 50 {options} -o json")
        until("there is load", lambda: root.run("systemctl is-active load", check=False).stdout.strip() == "active")
        said = root.run(act).stderr
        # While systemd reads its units anew it may say nothing.
        until("the load is over", lambda: root.run("systemctl is-active load", check=False).stdout.strip() in ("inactive", "failed"))
        told = json.loads(root.say("cat /tmp/load"))
        self.assertEqual((told["failed"], told["cut"]), ({}, 0))
        self.assertGreater(told["ok"], 100)
        root.run("systemctl reset-failed load; rm /tmp/load /tmp/generator", check=False)
        return said

    def since(self) -> str:
        """When the service was started, which no upgrade changes."""
        return self.root.say("systemctl show -P ActiveEnterTimestampMonotonic plimsoll")

    def is_upgraded(self) -> None:
        root = self.root
        before, since = self.pid(), self.since()
        self.assertNotIn("restarted", self.nobody_fails("-d 20s", f"dpkg -i {package('newer')}"))
        self.assertNotEqual(self.pid(), before)
        self.assertEqual(self.since(), since, "a new process took over: nothing was stopped")
        self.assertEqual(root.say("systemctl is-active plimsoll"), "active")
        # The new one: by what the file is, as the folder of the root may stand before its name.
        root.run(f"test /proc/{self.pid()}/exe -ef /usr/bin/plimsoll")
        self.may_do_little()
        self.assertIn("web.test", root.say("cat /etc/plimsoll/plimsoll.toml"), "what was written stays")
        until("it serves again", lambda: "200 OK" in root.get(80))
        # A file that the new version does not take: what runs goes on.
        root.write("/etc/plimsoll/plimsoll.toml", "nonsense = 1\n")
        before = self.pid()
        self.assertIn("goes on", root.run(f"dpkg -i {package('newer')}").stderr)
        self.assertEqual(self.pid(), before)
        self.assertIn("200 OK", root.get(80))
        root.write("/etc/plimsoll/plimsoll.toml", CONFIG)

    def is_restarted_where_it_must_be(self) -> None:
        root = self.root
        before, since = self.pid(), self.since()
        # Nobody can be asked to take over.
        root.run("rm /run/plimsoll/control.sock")
        self.assertIn("it is restarted", root.run(f"dpkg -i {package('newer')}").stderr)
        self.assertNotEqual((self.pid(), self.since()), (before, since))
        until("it serves again", lambda: "200 OK" in root.get(80))
        # Who stopped it keeps it so.
        root.run("systemctl stop plimsoll")
        root.run(f"dpkg -i {package('newer')}")
        self.assertEqual(root.run("systemctl is-active plimsoll", check=False).stdout.strip(), "inactive")
        # Nor is anything touched where that is forbidden.
        root.run("systemctl start plimsoll")
        before = self.pid()
        root.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
        root.run("chmod 755 /usr/sbin/policy-rc.d")
        root.run(f"dpkg -i {package('newer')}")
        self.assertEqual(self.pid(), before)
        root.run("rm /usr/sbin/policy-rc.d")

    def has_sockets_of_systemd(self) -> None:
        root = self.root
        root.run("systemctl stop plimsoll && mkdir -p /etc/systemd/system/plimsoll.socket.d")
        root.write("/etc/systemd/system/plimsoll.socket.d/here.conf", "[Socket]\nListenStream=\nListenStream=127.0.0.1:80\n")
        root.run("systemctl daemon-reload && systemctl start plimsoll.socket")
        self.assertNotEqual(root.say("systemctl is-active plimsoll || true"), "active")
        until("whoever comes starts it", lambda: "200 OK" in root.get(80))
        # Whoever comes while it is started again waits.
        before = self.pid()
        self.nobody_fails("-d 20s --no-keepalive --timeout 15s", "systemctl restart plimsoll")
        self.assertNotEqual(self.pid(), before)
        # And it is upgraded as it is without.
        since = self.since()
        root.run(f"dpkg -i {package('newer')}")
        self.assertEqual(self.since(), since)
        self.assertIn("200 OK", root.get(80))
        root.run("systemctl stop plimsoll.socket plimsoll && rm -r /etc/systemd/system/plimsoll.socket.d && systemctl daemon-reload")
        root.run("systemctl start plimsoll")
        until("it serves by itself", lambda: "200 OK" in root.get(80))

    def others_run(self) -> None:
        root = self.root
        root.write("/etc/default/plimsoll-agent", 'AGENT_OPTIONS="--member 127.0.0.1:8081 --listen 127.0.0.1:9902"\n')
        root.run("systemctl start plimsoll-agent")
        self.assertIn("cpu", until("it measures", lambda: root.get(9902, "/load")))
        lottery = 'member = 1\nlisten = "127.0.0.1:7447"\nkeys = "/var/lib/plimsoll-lottery/keys"\n[[service]]\nname = "web"\nserver = "127.0.0.1:8081"\n'
        root.write("/etc/plimsoll/lottery.toml", lottery)
        root.run("systemctl start plimsoll-lottery")
        self.assertEqual(root.say("systemctl is-active plimsoll-agent plimsoll-lottery").split(), ["active"] * 2)
        # It reads its file again, and goes on with the old one where that is wrong.
        before = root.say("systemctl show --value -p MainPID plimsoll-lottery")
        root.run("systemctl reload plimsoll-lottery")
        root.write("/etc/plimsoll/lottery.toml", "nonsense = 1\n" + lottery)
        root.run("systemctl reload plimsoll-lottery")
        until("it says what is wrong", lambda: "nonsense" in root.say("journalctl -u plimsoll-lottery -o cat"))
        root.write("/etc/plimsoll/lottery.toml", lottery)
        root.run("systemctl reload plimsoll-lottery")
        self.assertEqual(root.say("systemctl is-active plimsoll-lottery").strip(), "active")
        self.assertEqual(root.say("systemctl show --value -p MainPID plimsoll-lottery"), before)
        # Hints name pages that the package has.
        found = json.loads(root.say("plimsoll check -o json -c /etc/plimsoll/plimsoll.toml || true"))
        pages = {one["see"].split("#")[0] for part in found["parts"] for one in part["findings"] if "see" in one}
        for page in pages:
            self.assertTrue(page.startswith("/usr/share/doc/plimsoll/guide/"), page)
            root.run(f"test -f {page}")


if __name__ == "__main__":
    unittest.main()
