#!/usr/bin/env -S python3 -B
"""make bench-control: what many groups cost a balancer that has nothing to do, and what 100 changes a second cost it.

One balancer of two threads with 1,000 groups of 100 members (`rig/fleet.py`). Measured are the time and memory of its start, what it
takes at rest, what each member takes once it has had requests, a reload, the pages that show all of it (and whether anybody waits
for them), and then 100 changes a second, in five ways in turn (`rig/changes.py`): an operator drains a member and takes it back, a
member is registered and leaves, its capacity changes, a file is written, a key of etcd is. Each is watched until a request shows it,
while a steady load on a group that has nothing to do with it says what that does to others. At the end a balancer with health
checks at rest.

Processor time is utime + stime: other programs on the machine stretch seconds, not those. Exit status: 0 measured, 2 it could not be.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rig.changes import Control, Watcher, run
from rig.fleet import Fleet, Stage, servers, store
from rig.peers import ROOT, Plimsoll
from rig.process import Child, Failed, end_on_sigterm, raise_file_limit
from rig.report import grid

STAGE = 20
"""Groups in which something changes in one way."""
WAYS = ("operator", "registered", "weight", "file", "etcd")
REST = 66
"""Seconds after which a group that nobody uses is at rest."""
BESIDE = 200
"""Requests a second on a group in which nothing changes."""


def main():
    arguments = parse()
    end_on_sigterm()
    plimsoll = Plimsoll()
    try:
        if reason := plimsoll.missing():
            raise Failed(reason)
        raise_file_limit(4 * arguments.groups + 2000)
        results = measure(plimsoll, arguments)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"bench-control: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M")
    (out / f"control-{stamp}.json").write_text(json.dumps(results, indent=1) + "\n")
    text = page(results)
    (out / "control-latest.md").write_text(text)
    print(text)
    return 0


def parse():
    parser = argparse.ArgumentParser(description="What many groups, and changes of them, cost a balancer.")
    parser.add_argument("--groups", type=int, default=1000, help="groups (default 1000, quick 200)")
    parser.add_argument("--members", type=int, default=100, help="members of each (default 100, quick 50)")
    parser.add_argument("--rate", type=float, default=100, help="changes a second")
    parser.add_argument("--seconds", type=float, default=30, help="of changes (default 30, quick 10)")
    parser.add_argument("--checks", default="60s", help="interval of health checks in the last part")
    parser.add_argument("--quick", action="store_true", help="fewer of everything: two minutes")
    parser.add_argument("--out", default=ROOT / "bench/results", help="folder of the results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.groups, arguments.members, arguments.seconds = 200, 50, 10
    if arguments.groups < STAGE * len(WAYS) + 1:
        parser.error(f"at least {STAGE * len(WAYS) + 1} groups")
    return arguments


def measure(plimsoll, arguments):
    results = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": plimsoll.version(),
        "groups": arguments.groups,
        "members": arguments.groups * arguments.members,
        "processors": os.cpu_count(),
        "checks": arguments.checks,
    }
    with servers() as origin, store(shutil.which("etcd")) as etcd:
        with tempfile.TemporaryDirectory(prefix="plimsoll-control-") as folder:
            ways = [way for way in WAYS if way != "etcd" or etcd]
            stages = tuple(Stage(way, place * STAGE, STAGE) for place, way in enumerate(ways))
            fleet = Fleet(arguments.groups, arguments.members, Path(folder), origin, stages=stages, etcd=etcd)
            with started(plimsoll, fleet, results) as balancer:
                results["rest"] = rest(balancer, "at rest")
                results["memory_rest"] = balancer.resident()
                changes(plimsoll, balancer, fleet, arguments, results)
                results["reload"] = reloads(plimsoll, balancer, fleet)
                results["pages"] = pages(plimsoll, balancer, fleet)
                results["used"] = used(balancer, fleet)
        with tempfile.TemporaryDirectory(prefix="plimsoll-control-") as folder:
            fleet = Fleet(arguments.groups, arguments.members, Path(folder), origin, checks=arguments.checks)
            with started(plimsoll, fleet, {}) as balancer:
                results["rest_checks"] = rest(balancer, "at rest with health checks")
                results["memory_checks"] = balancer.resident()
    return results


class started:
    """A balancer that has just begun to serve all groups. What that cost goes into `results`."""

    def __init__(self, plimsoll, fleet, results):
        config = fleet.where / "plimsoll.toml"
        config.write_text(fleet.text())
        self.fleet, self.results = fleet, results
        self.command = [plimsoll.binary, "up", "-c", config]

    def __enter__(self):
        began = time.monotonic()
        child = Child(self.command, self.fleet.where / "log").__enter__()
        try:
            while not self.fleet.control().exists():
                if child.process.poll() is not None or time.monotonic() > began + 300:
                    raise Failed(f"the balancer did not start:\n{child.last_words()}")
                time.sleep(0.02)
            self.await_answer(began)
            start = {"seconds": time.monotonic() - began, "cpu": child.cpu(), "memory": child.resident()}
        except BaseException:
            child.stop()
            raise
        self.results["start"] = start
        say(f"started in {start['seconds']:.1f} s, {start['memory'] >> 20} MiB")
        self.child = child
        return child

    def await_answer(self, began):
        """Returns when the last group serves: with health checks that is when some have passed."""
        while True:
            try:
                return Watcher(self.fleet).shows(self.fleet.groups - 1, ("", False))
            except OSError:
                if time.monotonic() > began + 300:
                    raise
                time.sleep(0.05)

    def __exit__(self, *_):
        self.child.stop()


def spent(child, seconds):
    """Processor seconds a second."""
    began, before = time.monotonic(), child.cpu()
    time.sleep(seconds)
    return (child.cpu() - before) / (time.monotonic() - began)


def rest(child, what):
    """Processor seconds a second of the first minute and when groups are at rest."""
    first = spent(child, REST)
    later = spent(child, 24)
    say(f"{what}: {first:.3f} s/s in the first minute, then {later:.3f}")
    return {"first": first, "later": later}


def load(plimsoll, fleet, seconds):
    """A steady load on the last group: what it came to."""
    host, port = fleet.listener(fleet.groups - 1)
    command = [plimsoll.binary, "load", f"http://{host}:{port}/", "-r", BESIDE, "-d", f"{seconds}s", "-o", "json"]
    # Late requests are told, and judged by who reads: the generator shares the machine with everything else here.
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    try:
        told = json.loads(ended.stdout)
    except json.JSONDecodeError:
        raise Failed(f"plimsoll load failed:\n{ended.stdout}{ended.stderr}") from None
    service = told["service_seconds"] or {}
    kept = {name: service.get(name) for name in ("p50", "p99", "max")}
    return {**kept, "ok": told["ok"], "failed": sum(told["failed"].values()), "punctual": told["punctuality"]}


class beside:
    """A steady load on the last group while something else goes on; `result` is what it came to."""

    def __init__(self, plimsoll, fleet, seconds):
        def work():
            self.result = load(plimsoll, fleet, seconds)

        self.thread = threading.Thread(target=work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()


def changes(plimsoll, balancer, fleet, arguments, results):
    results["beside_quiet"] = load(plimsoll, fleet, 10)
    before, began = balancer.cpu(), time.monotonic()
    with beside(plimsoll, fleet, int(arguments.seconds)) as other:
        told = run(fleet, fleet.stages, fleet.etcd, arguments.rate, arguments.seconds)
    took = time.monotonic() - began
    results["beside_changes"] = other.result
    results["changes"] = {
        "asked_for": told["asked_for"],
        "skipped": told["skipped"],
        "lost": told["lost"],
        "failures": told["failures"],
        "cpu": (balancer.cpu() - before) / took,
        "seen": {way: spread(values) for way, values in told["seen"].items()},
        "made": {way: spread(values) for way, values in told["made"].items()},
    }
    count = sum(map(len, told["seen"].values()))
    say(f"{count} changes seen in {took:.1f} s, {results['changes']['cpu']:.3f} s/s of processor, lost {told['lost']}")


def spread(values):
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": ordered[-1]}


def reloads(plimsoll, balancer, fleet):
    """A reload of the same, and of one group with a member less."""
    config = fleet.where / "plimsoll.toml"
    told = {}
    for what in ("nothing", "one group"):
        if what != "nothing":
            lines = config.read_text().splitlines()
            place = max(n for n, line in enumerate(lines) if line.startswith("members = ["))
            lines[place] = "members = [" + lines[place].split(", ", 1)[1]
            config.write_text("\n".join(lines) + "\n")
        before, began = balancer.cpu(), time.monotonic()
        subprocess.run([plimsoll.binary, "-q", "reload", "-c", config], check=True, stdout=subprocess.DEVNULL)
        told[what] = {"seconds": time.monotonic() - began, "cpu": balancer.cpu() - before}
    say(f"reloads: {told}")
    return told


def pages(plimsoll, balancer, fleet):
    """What shows everything: its size, how long it takes, and how long others wait meanwhile."""
    told = {}
    for path in ("/status", "/metrics"):
        waits, done = [], threading.Event()

        def ask_health():
            control = Control(fleet.control())
            while not done.is_set():
                began = time.monotonic()
                control.ask("GET", "/healthz")
                waits.append(time.monotonic() - began)
                time.sleep(0.02)

        other = threading.Thread(target=ask_health)
        control = Control(fleet.control())
        control.ask("GET", "/healthz")
        with beside(plimsoll, fleet, 12) as clients:
            time.sleep(2)
            other.start()
            before, began = balancer.cpu(), time.monotonic()
            size = len(control.ask("GET", path))
            seconds, cpu = time.monotonic() - began, balancer.cpu() - before
            done.set()
            other.join()
        told[path] = {"bytes": size, "seconds": seconds, "cpu": cpu, "health_max": max(waits), "beside": clients.result}
        say(f"{path}: {size / 1e6:.1f} MB in {seconds:.1f} s, {cpu:.2f} s of processor; /healthz at most {max(waits):.3f} s")
    told["memory"] = balancer.resident()
    return told


def used(balancer, fleet):
    """Memory once each member has had requests."""
    watcher = Watcher(fleet)
    idle = range(len(fleet.stages) * STAGE, fleet.groups)
    for group in idle:
        for _ in range(2 * fleet.members):
            watcher.shows(group, ("", False))
        watcher.asked.pop(group).close()
    told = {"memory": balancer.resident(), "members": len(idle) * fleet.members}
    told["first"] = spent(balancer, 20)
    say(f"after requests to {told['members']} members: {told['memory'] >> 20} MiB, {told['first']:.3f} s/s")
    return told


def say(text):
    print(text, file=sys.stderr, flush=True)


def page(results):
    """The results as Markdown."""
    mib = lambda size: f"{size / 2**20:,.0f} MiB"
    ms = lambda seconds: "-" if seconds is None else f"{seconds * 1000:.1f}"
    members = results["members"]
    each = lambda size: f"{size / members / 1024:.2f} KiB"
    start, rest_, checks = results["start"], results["rest"], results["rest_checks"]
    rows = [
        ["what", "seconds", "processor s", "memory", "a member"],
        ["start", f"{start['seconds']:.1f}", f"{start['cpu']:.1f}", mib(start["memory"]), each(start["memory"])],
        ["at rest", "", f"{rest_['first']:.3f}/s, then {rest_['later']:.3f}/s", mib(results["memory_rest"]), each(results["memory_rest"])],
        [f"with checks each {results['checks']}", "", f"{checks['first']:.3f}/s, then {checks['later']:.3f}/s", mib(results["memory_checks"]), each(results["memory_checks"])],
        ["after requests to nearly all", "", f"{results['used']['first']:.3f}/s", mib(results["used"]["memory"]), each(results["used"]["memory"])],
    ]
    for what, told in results["reload"].items():
        rows.append([f"reload, {what} is different", f"{told['seconds']:.2f}", f"{told['cpu']:.2f}", "", ""])
    for path in ("/status", "/metrics"):
        told = results["pages"][path]
        rows.append([f"{path}, {told['bytes'] / 1e6:.0f} MB", f"{told['seconds']:.1f}", f"{told['cpu']:.1f}", "", ""])
    told = results["changes"]
    ways = [["change", "made", "p50 ms", "p99 ms", "max ms", "call p50 ms", "never seen"]]
    for way, seen in told["seen"].items():
        made = told["made"][way]
        ways.append([way, str(seen["count"]), ms(seen["p50"]), ms(seen["p99"]), ms(seen["max"]), ms(made["p50"]), str(told["lost"].get(way, 0))])
    others = [["a group beside", "p50 ms", "p99 ms", "max ms", "failed"]]
    for name, one in (
        ("quiet", results["beside_quiet"]),
        ("changes", results["beside_changes"]),
        ("/status", results["pages"]["/status"]["beside"]),
        ("/metrics", results["pages"]["/metrics"]["beside"]),
    ):
        others.append([name, ms(one["p50"]), ms(one["p99"]), ms(one["max"]), str(one["failed"])])
    waits = max(results["pages"][path]["health_max"] for path in ("/status", "/metrics"))
    lines = [
        "# Control plane",
        "",
        f"{results['version']}, {results['date']}: {results['groups']:,} groups, {members:,} members, two threads, {results['processors']} processors,",
        "which the load, the members and other programs share. `make bench-control` makes this page.",
        "",
        *grid(rows),
        "",
        f"`/healthz` took {waits * 1000:.0f} ms at most while `/status` or `/metrics` was made.",
        "",
        f"## {told['asked_for']:,} changes, {told['cpu']:.3f} s of processor a second",
        "",
        "From the change to the first request that shows it.",
        "",
        *grid(ways),
        "",
        f"Not made because all groups of the kind were still busy with the one before: {told['skipped']}.",
        "",
        f"Requests to another group, {BESIDE} a second:",
        "",
        *grid(others),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
