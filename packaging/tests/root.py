"""A Debian root made by debootstrap, entered anew by each test and thrown away after it."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
# The packages under test, and where the root is kept from one run to the next.
DIST = Path(os.environ.get("DIST", REPO / "target" / "dist")).resolve()
BASE = Path(os.environ.get("DEBIAN_ROOT", DIST.parent / "debian-root")).resolve()
# Seconds: far more than any step takes, as the machine may have ten other things to do.
PATIENCE = 240
# What changes by itself, or is the package manager's own.
ITS_OWN = ("./proc/", "./sys/", "./dev/", "./run/", "./tmp/", "./mnt/", "./var/lib/dpkg/", "./var/log/", "./var/cache/", "./var/lib/systemd/", "./var/lib/private/")


def made() -> Path:
    """The root, made if it is not there: minbase of Debian 12, and systemd as its init."""
    if not (BASE / "usr/bin/dpkg").exists():
        shutil.rmtree(BASE, ignore_errors=True)
        draft = BASE.with_name(BASE.name + ".draft")
        shutil.rmtree(draft, ignore_errors=True)
        arguments = ["--variant=minbase", "--include=systemd-sysv,dbus", "bookworm", draft]
        subprocess.run(["debootstrap", *arguments], check=True, stdout=subprocess.DEVNULL)
        draft.rename(BASE)
    return BASE


def why_not() -> str | None:
    """Why no root can be entered here, if so."""
    if os.geteuid() != 0:
        return "not root"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--net", "--cgroup", "--fork", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"namespaces are refused: {tried.stderr.strip()}"


class Root:
    """One that runs. `booted`: with systemd as process 1."""

    def __init__(self, booted: bool) -> None:
        base = made()
        self.console = tempfile.NamedTemporaryFile(prefix="plimsoll-console-")
        mode = "boot" if booted else "bare"
        command = [HERE / "enter.sh", base, DIST, self.console.name, mode]
        self.outer = subprocess.Popen(command)
        try:
            self.first = self.find("systemd" if booted else "sleep")
            if booted:
                until("systemd is up", self.is_up)
        except BaseException:
            print(Path(self.console.name).read_text(errors="replace")[-4000:])
            self.close()
            raise

    def find(self, name: str) -> int:
        """Process 1 of the root, once it is the program of this name."""
        def look() -> int | None:
            if self.outer.poll() is not None:
                raise AssertionError(f"enter.sh ended with {self.outer.returncode}")
            below = [self.outer.pid]
            while below:
                pid = below.pop()
                try:
                    if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                        return pid
                    below += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                except FileNotFoundError:
                    continue
            return None

        return until(f"process 1 is {name}", look)

    def is_up(self) -> bool:
        """Has all been started that belongs to the usual target?"""
        return self.run("systemctl is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def run(self, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A line of shell in the root."""
        enter = ["nsenter", "-t", str(self.first), "--all", "--root"]
        environment = ["env", "-i", "-C", "/", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"]
        done = subprocess.run(
            [*enter, *environment, "bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
        )
        if check and done.returncode != 0:
            journal = ["journalctl", "--no-pager", "-n", "40", "-o", "cat"]
            log = subprocess.run([*enter, *journal], capture_output=True, text=True, timeout=PATIENCE).stdout
            raise AssertionError(f"{command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}\njournal:\n{log}")
        return done

    def say(self, command: str) -> str:
        """What a line of shell prints."""
        return self.run(command).stdout.strip()

    def write(self, path: str, text: str) -> None:
        """A file in the root."""
        self.run(f"printf %s {shlex.quote(text)} >{path}")

    def get(self, port: int, path: str = "/") -> str:
        """An answer over HTTP, or nothing; bash is all the client that a bare Debian has."""
        line = f"exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3 && timeout 10 cat <&3"
        return self.run(line, check=False).stdout

    def files(self) -> set[str]:
        """All that there is but what changes by itself."""
        there = self.say("find . -mindepth 1 -xdev").splitlines()
        return {path for path in there if not f"{path}/".startswith(ITS_OWN)}

    def close(self) -> None:
        """Ends it, with all that runs in it."""
        if self.outer.poll() is None:
            self.outer.send_signal(signal.SIGTERM)
            try:
                self.outer.wait(30)
            except subprocess.TimeoutExpired:
                self.outer.kill()
        self.console.close()


def until(what: str, look, patience: float = PATIENCE):
    """Waits until something is so, and says what it is."""
    end = time.monotonic() + patience
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(0.1)
