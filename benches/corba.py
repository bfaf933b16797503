#!/usr/bin/env -S python3 -B
"""make bench-corba: what each way of balancing costs a client on a real ORB, and how fast clients are sent on.

A server and a client on omniORB, and four ways between them: straight; forwarded by the balancer with the first call
(redirect); through a side-car before the server; and by way of the balancer with every call (relay). Every round has
each way once, in shuffled order, with a client process of its own; ratios to the straight way are made within a round.
Client and server have a core each, for a call between two takes six times as long as one within one; what stands between
them goes where the kernel puts it.

Then the rate at which a balancer of one thread, on a core of its own, answers LOCATION_FORWARD to eight connections
that ask again at once.

Exit status: 0 all targets met, 1 one was missed, 2 it could not be measured.
"""

import argparse
import dataclasses
import datetime
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig.peers import ROOT, TARGET, Plimsoll
from rig.process import HOST, Child, Failed, end_on_sigterm, free_port

WAYS = ("straight", "redirect", "side-car", "relay")
WARM, CALLS = 3_000, 15_000
"""Calls that are not counted, and those that are, of each client."""

FORWARDS = 95_000
"""Forwards a second that are twice what TAO's load manager gave on two cores (47,600)."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """What the time of a call may be, as a multiple of the straight way's; None where it is only shown."""

    way: str
    most: float | None


BOUNDS = (Bound("redirect", 1.01), Bound("side-car", None), Bound("relay", 2.0))


def main():
    arguments = parse()
    end_on_sigterm()
    try:
        subprocess.run([ROOT / "scripts/build-corba-parts"], check=True)
        results = measure(arguments)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"bench-corba: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    page, missed = written(results)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M")
    (out / f"corba-{stamp}.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "corba-latest.md").write_text(page)
    print(page)
    return 1 if missed else 0


def parse():
    parser = argparse.ArgumentParser(description="Costs of balancing CORBA clients on omniORB.")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the four ways (default 30, quick 10)")
    parser.add_argument("--quick", action="store_true", help="ten rounds: a minute")
    parser.add_argument("--seed", type=int, default=1, help="of the shuffling")
    parser.add_argument("--out", default=ROOT / "bench/results", help="folder of the results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 10
    return arguments


def measure(arguments):
    plimsoll = Plimsoll()
    if reason := plimsoll.missing():
        raise Failed(reason)
    parts = TARGET / "corba/omniorb"
    with tempfile.TemporaryDirectory(prefix="plimsoll-corba-") as where:
        where = Path(where)
        ports = {name: free_port() for name in ("server", "side-car", "redirect", "relay")}
        server = [parts / "omniorb-server", "--port", ports["server"], "--ior", where / "server.ior"]
        side_car = [plimsoll.binary, "agent", "--iiop", f"{HOST}:{ports['side-car']}"]
        side_car += ["--server-ior", where / "server.ior", "--ior-file", where / "side-car.ior"]
        config = where / "plimsoll.toml"
        config.write_text(configuration(where, ports))
        with Child(server, where / "server.log", [1]) as running:
            running.await_port(ports["server"])
            appear(where / "server.ior")
            with Child(side_car, where / "side-car.log") as beside:
                beside.await_port(ports["side-car"])
                appear(where / "side-car.ior")
                with Child([plimsoll.binary, "up", "-c", config], where / "log") as balancer:
                    balancer.await_port(ports["relay"])
                    references = {
                        "straight": where / "server.ior",
                        "redirect": where / "redirect.ior",
                        "side-car": where / "side-car.ior",
                        "relay": where / "relay.ior",
                    }
                    for reference in references.values():
                        appear(reference)
                    rounds = in_rounds(parts / "omniorb-client", references, arguments)
            forwards = rate(plimsoll, config, ports["redirect"], where, arguments.rounds >= 30)
    return {"version": plimsoll.version(), "rounds": rounds, "forwards": forwards}


def configuration(where, ports):
    sections = [f'threads = 1\n[admin]\nlisten = "off"\ncontrol = "unix:{where}/control.sock"\n']
    for name, binding in (("redirect", "per_session"), ("relay", "per_request")):
        sections.append(
            f"""\
[[listener]]
address = "{HOST}:{ports[name]}"
protocol = "iiop"
binding = "{binding}"
group = "{name}"
[[group]]
name = "{name}"
members = [{{ ior = "file:{where}/server.ior" }}]
iiop.ior_file = "{where}/{name}.ior"
"""
        )
    return "\n".join(sections)


def appear(path, seconds=20.0):
    """Returns when a file is there with something in it."""
    deadline = time.monotonic() + seconds
    while not path.exists() or path.stat().st_size == 0:
        if time.monotonic() > deadline:
            raise Failed(f"{path.name} has not been written after {seconds:.0f} s")
        time.sleep(0.02)


def in_rounds(client, references, arguments):
    """Mean microseconds of a call by way, for each round."""
    shuffled = random.Random(arguments.seed)
    rounds = []
    for number in range(arguments.rounds):
        order = list(WAYS)
        shuffled.shuffle(order)
        rounds.append({way: called(client, references[way]) for way in order})
        told = "  ".join(f"{way} {rounds[-1][way]:.1f}" for way in WAYS)
        print(f"round {number + 1}/{arguments.rounds}: {told} us a call", file=sys.stderr)
    return rounds


def called(client, reference):
    command = ["taskset", "-c", "0", client, f"file:{reference}", "call", WARM, "7", "call", CALLS, "7"]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    means = re.findall(r"mean_us=([0-9.]+)", ended.stdout)
    if ended.returncode != 0 or len(means) != 2:
        raise Failed(f"the client on {reference.name} failed:\n{ended.stdout}{ended.stderr}")
    return float(means[1])


def rate(plimsoll, config, port, where, long):
    """Forwards per second, and microseconds of processor for each, over several trials."""
    trials = []
    with Child([plimsoll.binary, "up", "-c", config], where / "log", [1]) as balancer:
        balancer.await_port(port)
        target = f"corbaloc:iiop:1.2@{HOST}:{port}/redirect"
        for _ in range(10 if long else 5):
            before = balancer.cpu()
            load = ["taskset", "-c", "0", plimsoll.binary, "load", target, "--no-follow", "--concurrency", "8"]
            load += ["--duration", "3s", "-o", "json"]
            ended = subprocess.run(list(map(str, load)), capture_output=True, text=True, timeout=60, check=False)
            try:
                result = json.loads(ended.stdout)
            except json.JSONDecodeError:
                raise Failed(f"plimsoll load failed:\n{ended.stdout}{ended.stderr}") from None
            trials.append(trial(result, balancer.cpu() - before))
            print(f"forwards: {trials[-1]['rate']:,.0f} a second", file=sys.stderr)
    return trials


def trial(result, cpu):
    """One run of the load generator, by what it printed and what the balancer used meanwhile."""
    if result["ok"] == 0 or result["failed"]:
        raise Failed(f"calls that were not forwarded: {result['failed']} {result['exceptions']}")
    return {"rate": result["ok"] / result["seconds"], "cpu_us": cpu / result["ok"] * 1e6}


def written(results):
    """The page, and whether a target was missed."""
    rounds, missed = results["rounds"], False
    lines = [
        "# CORBA clients",
        "",
        f"{results['version']}, {len(rounds)} rounds of {CALLS:,} calls of `is_prime`, client and server on omniORB.",
        "Ratios to the straight way within a round: median (lowest-highest). `make bench-corba` makes this page.",
        "",
        "| way | us a call | to straight | at most | verdict |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    median = statistics.median
    lines.append(f"| straight | {median(one['straight'] for one in rounds):.1f} | | | |")
    for bound in BOUNDS:
        ratios = [one[bound.way] / one["straight"] for one in rounds]
        met = bound.most is None or median(ratios) <= bound.most
        missed |= not met
        most = "" if bound.most is None else f"{bound.most:.2f}"
        verdict = "" if bound.most is None else "met" if met else "MISSED"
        shown = f"{median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})"
        time = median(one[bound.way] for one in rounds)
        lines.append(f"| {bound.way} | {time:.1f} | {shown} | {most} | {verdict} |")
    rates = [one["rate"] for one in results["forwards"]]
    met = median(rates) >= FORWARDS
    missed |= not met
    each = median(one["cpu_us"] for one in results["forwards"])
    lines += [
        "",
        f"Forwards on 8 connections, one thread on a core of its own: {median(rates):,.0f} a second"
        f" ({min(rates):,.0f}-{max(rates):,.0f}), {each:.2f} us of processor each; at least {FORWARDS:,}:"
        f" {'met' if met else 'MISSED'}.",
        "",
    ]
    return "\n".join(lines), missed


if __name__ == "__main__":
    sys.exit(main())
