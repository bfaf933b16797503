"""Child processes that are always ended, by their own pid, and what /proc says of them.

CPU time is utime + stime of all processes of the child (`/proc/PID/stat`); `schedstat` counts the same time by another
clock and is kept beside it as a check. Where the kernel is built without IRQ time accounting, work done in loopback
softirqs is charged to the sender and so is part of both.
"""

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOST = "127.0.0.1"
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Failed(Exception):
    """A program did not start, ended early or could not be ended; the text says which and shows its last words."""


class Child:
    """A running program with its output in a log file. Use as a context manager: leaving it ends the program."""

    def __init__(self, command, log, cores=None):
        """Starts `command`. `cores` pins it (a list of processor numbers). It dies with this process."""
        self.command = [str(word) for word in command]
        self.log = Path(log)
        prefix = ["setpriv", "--pdeathsig", "KILL"]
        if cores is not None:
            prefix += ["taskset", "-c", ",".join(map(str, cores))]
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                prefix + self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def await_port(self, port, seconds=30.0, host=HOST):
        """Returns as soon as something accepts connections on `port`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"{self.words()} ended with status {self.process.returncode}:\n{self.last_words()}")
            try:
                socket.create_connection((host, port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise Failed(f"{self.words()} does not listen on {host}:{port} after {seconds:.0f} s:\n{self.last_words()}")

    def stop(self, seconds=30.0):
        """SIGTERM until it ends, SIGKILL after `seconds`; returns whether it ended of itself."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return True
            # Again each second: a program that checks a flag before it waits for events can miss the first.
            for pid in self.targets():
                send(pid, signal.SIGTERM)
            try:
                self.process.wait(1.0)
                return True
            except subprocess.TimeoutExpired:
                continue
        for pid in self.tree():
            send(pid, signal.SIGKILL)
        self.process.wait()
        return False

    def targets(self):
        """The processes that are asked to end."""
        return [self.pid]

    def tree(self):
        """Its pid and those of all its descendants."""
        return [self.pid] + descendants(self.pid)

    def cpu(self):
        """CPU seconds used so far by all its processes, by utime + stime."""
        return sum(cpu_of(pid) for pid in self.tree())

    def schedstat(self):
        """CPU seconds used so far by all its threads, by the scheduler's own count."""
        return sum(schedstat_of(pid) for pid in self.tree())

    def memory(self):
        """Proportional resident memory of all its processes in bytes: pages they share are counted once."""
        return sum(pss_of(pid) for pid in self.tree())

    def resident(self):
        """Resident memory of its first process in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE

    def words(self):
        return Path(self.command[0]).name

    def last_words(self):
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-12:]
        return "\n".join("  " + line for line in lines) or "  (it printed nothing)"


class Traced(Child):
    """A program under a tracer that is its parent: the tracer ends, and writes its file, when the program does."""

    def targets(self):
        return children(self.pid) or [self.pid]


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def children(pid):
    """The direct children of a process."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def descendants(pid):
    found = []
    for child in children(pid):
        found += [child] + descendants(child)
    return found


def cpu_of(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def schedstat_of(pid):
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        return 0.0


def pss_of(pid):
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def busy_of_machine():
    """CPU seconds that anything has used on any core since boot, steal included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK


def busy_of_ours(running):
    """CPU seconds that this process, its ended children and the `running` ones have used."""
    own = sum(os.times()[:4])
    return own + sum(child.cpu() for child in running)


CLAIMED = []


def free_port():
    """A port on the loopback address that nothing uses, below those that the kernel gives to outgoing connections and those of
    tests/ports.rs. No other bench has it until this process ends: the name of a socket stands for it."""
    top = min(18_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    low = 10_000 if top > 12_000 else 1_024
    for _ in range(1000):
        port = random.randrange(low, max(top, low + 1))
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0plimsoll-bench-port-{port}")
                probe.bind((HOST, port))
            except OSError:
                claim.close()
                continue
        CLAIMED.append(claim)
        return port
    raise Failed(f"no free port between {low} and {top}")


def raise_file_limit(needed):
    """Raises the limit of open files to what is allowed; an error if that is below `needed`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Failed(f"{needed} open files are needed, {hard} are allowed: raise the hard limit (ulimit -Hn)")


def end_on_sigterm():
    """Turns SIGTERM into SystemExit, so that every child is ended on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
