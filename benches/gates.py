#!/usr/bin/env -S python3 -B
"""make gates: three figures of the request path that a noisy machine cannot blur, each with a limit.

Instructions and system calls are counted in two runs of the same proxy that differ only in the number of requests;
the difference of the counts over the difference of the requests leaves out start, stop and connection set-up. How many
events the proxy finds at once depends on what else the machine does, and a turn of its event loop costs 1,300
instructions: so the turns are counted, too, and what is judged is what a request costs at `TURNS` of them. What a turn
costs is known from one connection, whose requests take two turns each. The figure is the median of three such pairs.
They are counted before one plain server; before four (`of four`: each choice looks at all of them); and (`all on`)
before four that say of themselves with each answer what adaptive goes by, with slots, limits for members and the page
of metrics, which is fetched in the middle of each run.
Memory is the growth of the resident set from one client connection to thousands of idle ones that each made one
request. Every figure is of a GET of 1 KiB over kept connections with the default strategy, time limits and metrics.
Exit status: 0 all within the limits, 1 one is above, 2 it could not be measured.
"""

import argparse
import dataclasses
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from rig.client import Crowd, Refused
from rig.origin import origins
from rig.peers import TARGET, FullPlimsoll, HAProxy, Nginx, Plimsoll
from rig.process import HOST, Child, Failed, Traced, end_on_sigterm, free_port, raise_file_limit

IDLE = 4000
"""Idle connections for the memory gate."""

TURNS = 0.1
"""Turns of the event loop per request at which instructions are judged. Sixteen connections on an idle machine make
from 0.03 to 0.1: where sockets are found ready they are looked at again before the loop is asked."""

MOST_TURNS = 1.5
"""Turns per request above which a run on a busy machine tells too little of what a turn costs: another is made."""

PAIRS = 6
"""Pairs of runs at most, of which three are used."""


@dataclasses.dataclass(frozen=True)
class Gate:
    """One figure with its limit."""

    name: str
    unit: str
    limit: float
    digits: int
    measure: object


def main():
    arguments = parse()
    end_on_sigterm()
    peers = [Plimsoll()] + ([HAProxy(), Nginx(alone=True)] if arguments.peers else [])
    results = TARGET / "gates"
    results.mkdir(parents=True, exist_ok=True)
    failures = 0
    try:
        raise_file_limit(IDLE + 100)
        with origins(4) as plain, origins(4, reports=True) as speaking:
            several, theirs = [[port for port, _ in running] for running in (plain, speaking)]
            ports = several[:1]
            print(f"{'gate':<14}{'proxy':<10}{'measured':>10}{'limit':>9}  unit")
            for peer in peers:
                reason = peer.missing()
                if reason and arguments.peers:
                    print(f"{'':<14}{peer.name:<10}{'-':>10}{'':>9}  left out: {reason}")
                    continue
                if reason:
                    raise Failed(reason)
                for gate in GATES:
                    failures += judge(gate, peer, ports, results)
            failures += judge(GATES[0], Plimsoll(name="of four"), several, results)
            for gate in GATES[:2]:
                failures += judge(gate, FullPlimsoll(), theirs, results)
    except (Failed, Refused, OSError) as error:
        print(f"gates: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 1 if failures else 0


def parse():
    parser = argparse.ArgumentParser(description="Measures three figures of the request path against their limits.")
    parser.add_argument("--peers", action="store_true", help="also measure HAProxy and nginx, which no limit binds")
    return parser.parse_args()


def judge(gate, peer, members, results):
    """Measures one gate on one proxy and prints a line; returns 1 if ours is above the limit."""
    started = time.monotonic()
    measured = gate.measure(peer, members, results)
    ours = isinstance(peer, Plimsoll)
    above = ours and measured > gate.limit
    verdict = ("FAIL" if above else "ok") if ours else ""
    limit = f"{gate.limit:,.{gate.digits}f}" if ours else "-"
    seconds = time.monotonic() - started
    print(
        f"{gate.name:<14}{peer.name:<10}{measured:>10,.{gate.digits}f}{limit:>9}"
        f"  {gate.unit}  ({seconds:.0f} s)  {verdict}",
        flush=True,
    )
    return int(above)


def instructions(peer, members, results):
    """User-space instructions per request, as fast as they are answered, under cachegrind, at `TURNS` turns each."""

    def count(connections, requests):
        counts = results / f"cachegrind.{peer.name}.{connections}.{requests}"
        tracer = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={counts}"]
        with tempfile.TemporaryDirectory(prefix="plimsoll-gate-") as where:
            port = free_port()
            command = tracer + peer.command("http", port, members, where)
            with Child(command, Path(where) / "log") as proxy:
                proxy.await_port(port, 60)
                with Crowd((HOST, port), connections) as crowd:
                    halves(crowd, requests, peer)
                if not proxy.stop():
                    raise Failed(f"{peer.name} did not end on SIGTERM under valgrind:\n{proxy.last_words()}")
                return Counted.of(read(counts, proxy))

    alone = difference(lambda requests: count(1, requests), 400, 4400)
    figures = []
    for _ in range(PAIRS):
        pair = difference(lambda requests: count(16, requests), 400, 4400)
        if pair.turns(alone) <= MOST_TURNS:
            figures.append(pair.at(TURNS, alone))
        if len(figures) == 3:
            break
    if not figures:
        raise Failed(f"the machine is too busy: {PAIRS} times there were more than {MOST_TURNS} turns for a request")
    return statistics.median(figures)


@dataclasses.dataclass(frozen=True)
class Counted:
    """What cachegrind counted: all instructions, and those of the call that waits for events, of which each turn makes
    one."""

    total: float
    waits: float

    @classmethod
    def of(cls, text):
        """Of the text of a cachegrind file."""
        total = re.search(r"^summary: (\d+)", text, re.MULTILINE)
        if not total:
            raise Failed("the cachegrind file has no summary line: the proxy did not end cleanly")
        calls = re.findall(r"^fn=epoll_wait\n((?:\d+ \d+\n)+)", text, re.MULTILINE)
        waits = sum(int(line.split()[1]) for lines in calls for line in lines.splitlines())
        return cls(int(total[1]), waits)

    def __sub__(self, other):
        return Counted(self.total - other.total, self.waits - other.waits)

    def __truediv__(self, requests):
        return Counted(self.total / requests, self.waits / requests)

    def at(self, turns, alone):
        """The instructions of a request at so many turns, if one `alone` takes two."""
        own = self.turns(alone)
        turn = (alone.total - self.total) / (2 - own)
        return self.total + (turns - own) * turn

    def turns(self, alone):
        """How many turns a request took, if one `alone` takes two."""
        if not alone.waits:
            raise Failed("no call of epoll_wait was counted: what a turn costs cannot be told")
        return 2 * self.waits / alone.waits


def system_calls(peer, members, _results):
    """System calls per request of all threads, 64 connections as fast as they are answered, under strace."""

    def count(requests):
        with tempfile.TemporaryDirectory(prefix="plimsoll-gate-") as where:
            counts, port = Path(where) / "strace", free_port()
            # The tracee dies with strace, as strace dies with us.
            tracer = ["strace", "-f", "-c", "-U", "calls,name", "-o", counts, "setpriv", "--pdeathsig", "KILL"]
            with Traced(tracer + peer.command("http", port, members, where), Path(where) / "log") as proxy:
                proxy.await_port(port, 60)
                with Crowd((HOST, port), 64) as crowd:
                    halves(crowd, requests, peer)
                if not proxy.stop():
                    raise Failed(f"{peer.name} did not end on SIGTERM under strace:\n{proxy.last_words()}")
                return strace_total(read(counts, proxy))

    return difference(count, 2_000, 22_000)


def memory(peer, members, _results):
    """KiB of resident memory per idle client connection."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-gate-") as where:
        port = free_port()
        with Child(peer.command("http", port, members, where), Path(where) / "log") as proxy:
            proxy.await_port(port)
            with Crowd((HOST, port), 1) as first:
                first.in_turn(100)
                before = proxy.resident()
                with Crowd((HOST, port), IDLE) as crowd:
                    crowd.in_turn(IDLE)
                    after = proxy.resident()
                    if crowd.lost():
                        raise Failed(f"{peer.name} closed {crowd.lost()} of {IDLE} idle connections")
    return (after - before) / IDLE / 1024


def halves(crowd, requests, peer):
    """Sends the requests, and fetches the page of metrics in the middle where there is one."""
    crowd.run(requests // 2)
    if isinstance(peer, FullPlimsoll):
        page = urllib.request.urlopen(f"http://{peer.admin}/metrics", timeout=60).read().decode()
        heard = re.search(r"^plimsoll_member_knee\{.*\} 7\.8", page, re.MULTILINE)
        if not heard:
            raise Failed(f"{peer.name}: the members' words have not come to it:\n{page}")
    crowd.run(requests - requests // 2)


def difference(count, few, many):
    """What one more request adds."""
    return (count(many) - count(few)) / (many - few)


def read(path, child):
    try:
        return path.read_text()
    except OSError as error:
        raise Failed(f"{child.words()} left no counts: {error}\n{child.last_words()}") from error


def strace_total(text):
    """The calls that `strace -c -U calls,name` sums up to."""
    found = re.search(r"^ *(\d+) total$", text, re.MULTILINE)
    if not found:
        raise Failed("strace wrote no total: it did not end cleanly")
    return int(found[1])


GATES = (
    Gate("instructions", "user-space instructions per request", 7000, 0, instructions),
    Gate("system calls", "per request at 64 connections", 4.3, 2, system_calls),
    Gate("idle memory", f"KiB per idle connection ({IDLE})", 4, 2, memory),
)

if __name__ == "__main__":
    sys.exit(main())
