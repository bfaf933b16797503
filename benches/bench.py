#!/usr/bin/env -S python3 -B
"""make bench: this balancer beside HAProxy, nginx and Envoy, in rounds whose legs are interleaved and shuffled.

The figure that counts is CPU time per request, paired within a round; requests per second, latency and memory are
reported with it. Results go to bench/results/: one JSON file a run and `latest.md`. See docs/bench.md.
Exit status: 0 all targets met or not measured, 1 one missed or a request failed, 2 it could not be run.
"""

import argparse
import datetime
import os
import platform
import random
import re
import sys
import time
from pathlib import Path

from rig.leg import Cell, measure
from rig.origin import BODIES, origins
from rig.peers import PLAIN, ROOT, Envoy, HAProxy, LargeHAProxy, Nginx, Plimsoll
from rig.process import Failed, end_on_sigterm, raise_file_limit
from rig.report import TARGETS, judged, page, record, table, verdicts

PEERS = {peer.name: peer for peer in (Plimsoll, HAProxy, LargeHAProxy, Nginx, Envoy)}
SLOW = (LargeHAProxy.name, Envoy.name)  # left out of quick runs unless asked for
ALL = [Cell(mode, n, body) for mode in PLAIN for n in (64, 1000) for body in BODIES]
ALL += [Cell("https", n, body) for n in (64, 1000) for body in ("1k", "64k")]
ALL += [Cell("handshakes", 64, "0"), Cell("grpc", 64, "0"), Cell("grpc", 64, "1k"), Cell("grpc", 1000, "1k")]
TARGETED = sorted({Cell(target.mode, target.connections, target.body) for target in TARGETS})


def main():
    arguments = parse()
    end_on_sigterm()
    try:
        raise_file_limit(5000)
        legs, about = run(arguments)
    except (Failed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if not legs:
        print("bench: nothing was measured", file=sys.stderr)
        return 2
    print("\n".join(table(legs) + ["", "### Targets", ""] + judged(legs)))
    save(legs, about, arguments.out)
    failed = sum(leg.errors for leg in legs if leg.peer == Plimsoll.name)
    if failed:
        print(f"bench: {failed} requests through plimsoll failed", file=sys.stderr)
    return 1 if failed or any(met is False for _, _, met in verdicts(legs)) else 0


def parse():
    parser = argparse.ArgumentParser(description="Compares proxies side by side on this machine.")
    parser.add_argument("--quick", action="store_true", help="only what the targets name, for about 3 minutes")
    parser.add_argument("--minutes", type=float, help="begin no round that would end later (default 20, quick 3)")
    parser.add_argument("--seconds", type=int, help="length of a leg (default 3, quick 2)")
    parser.add_argument("--peers", help=f"which, with commas, of {', '.join(PEERS)} (default all, quick without {' and '.join(SLOW)})")
    parser.add_argument("--only", help="only cells whose name matches this pattern, such as 'http 64 .* 1k$'")
    parser.add_argument("--seed", type=int, help="of the shuffling")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the results")
    arguments = parser.parse_args()
    arguments.minutes = arguments.minutes or (3 if arguments.quick else 20)
    arguments.seconds = arguments.seconds or (2 if arguments.quick else 3)
    arguments.seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    usual = [name for name in PEERS if not (arguments.quick and name in SLOW)]
    names = arguments.peers.split(",") if arguments.peers else usual
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        parser.error(f"unknown proxy {unknown[0]}: one of {', '.join(PEERS)}")
    arguments.peers = names
    return arguments


def run(arguments):
    """All rounds; returns the legs and what is to be known about them."""
    began = time.monotonic()
    present, missing = gather(arguments.peers)
    cells = [cell for cell in (TARGETED if arguments.quick else ALL) if re.search(arguments.only or "", str(cell))]
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise Failed("two cores are needed: one for the proxy, one for the load and the origins")
    chance = random.Random(arguments.seed)
    legs, rounds = [], 0
    with origins(2, [cores[0]]) as first, origins(2, [cores[0]], "http2") as second:
        began_rounds = time.monotonic()
        while cells and present:
            each = (time.monotonic() - began_rounds) / rounds if rounds else 0
            if rounds and time.monotonic() - began + each > arguments.minutes * 60:
                break
            rounds += 1
            for cell in chance.sample(cells, len(cells)):
                able = [peer for peer in present if cell.body in peer.bodies and cell.mode in peer.modes]
                running = second if cell.mode == "grpc" else first
                for peer in chance.sample(able, len(able)):
                    leg = measure(peer, cell, rounds, running, arguments.seconds, cores)
                    legs.append(leg)
                    progress(leg, time.monotonic() - began, arguments.minutes)
    about = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": machine(),
        "rounds": rounds,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "versions": {peer.name: peer.version() for peer in present},
        "missing": missing,
    }
    return legs, about


def gather(names):
    """The proxies that are here, and why the others are not."""
    present, missing = [], {}
    for name in names:
        peer = PEERS[name]()
        reason = peer.install() if isinstance(peer, Envoy) else peer.missing()
        if reason:
            missing[name] = reason
            talk(f"{name} is left out: {reason}")
        else:
            present.append(peer)
    return present, missing


def progress(leg, elapsed, minutes):
    note = "" if leg.quiet else f"  disturbed: others took {leg.foreign:.0%} of a core, {leg.tries} tries"
    note += f"  {leg.errors} ERRORS" if leg.errors else ""
    talk(
        f"{elapsed / 60:5.1f} of {minutes:.0f} min  round {leg.round}  {str(leg.cell):<28}{leg.peer:<10}"
        f"{leg.cpu:7.2f} s/1M  {leg.rate:9,.0f} req/s{note}"
    )


def talk(text):
    print(text, file=sys.stderr, flush=True)


def save(legs, about, folder):
    folder.mkdir(parents=True, exist_ok=True)
    stamp = re.sub(r"[^0-9T]", "", about["date"])[:13]
    for name, text in ((f"{stamp}.json", record(legs, about)), ("latest.md", page(legs, about))):
        part = folder / f"{name}.tmp"
        part.write_text(text)
        part.replace(folder / name)
    talk(f"results: {folder / (stamp + '.json')} and {folder / 'latest.md'}")


def machine():
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"


if __name__ == "__main__":
    sys.exit(main())
