#!/usr/bin/env -S python3 -B
"""make bench-load: our load generator beside others, in one interleaved run. docs/bench.md explains the trials.

Results go to bench/results/: a page, load-latest.md, and every figure as JSON. Exit status: 0 all targets met,
1 one was missed, 2 it could not be measured.
"""

import argparse
import dataclasses
import datetime
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

from rig import trials
from bench import machine
from rig.generators import ALL
from rig.leg import FOREIGN
from rig.peers import ROOT
from rig.process import Failed, end_on_sigterm, raise_file_limit

@dataclasses.dataclass(frozen=True)
class Trial:
    name: str
    columns: tuple
    """(key, heading, digits)"""
    run: object
    rounds: bool = True
    """Repeated in every round, or only in the first two."""


@dataclasses.dataclass(frozen=True)
class Target:
    trial: str
    key: str
    low: float
    high: float

    def met(self, value):
        return self.low <= value <= self.high


COST = (("cpu", "CPU µs", 1), ("rate", "requests/s", 0))
EVEN = (("cv", "CV", 2), ("idc", "IDC 1 ms", 2), ("rate", "requests/s", 1))
TRIALS = (
    Trial("cost, kept connections", COST, lambda g, s, c: trials.cost(g, True, s, c)),
    Trial("cost, new connections", COST, lambda g, s, c: trials.cost(g, False, s, c)),
    Trial("evenness, constant", EVEN, lambda g, s, c: trials.evenness(g, False, s, c)),
    Trial("evenness, Poisson", EVEN, lambda g, s, c: trials.evenness(g, True, s, c)),
    Trial(
        "stall",
        (("p95", "p95 ms (100)", 1), ("p99", "p99 ms (180)", 1), ("rate", "requests/s", 0)),
        lambda g, s, c: trials.stalled(g, 8, c),
        rounds=False,
    ),
    Trial(
        "stopped server",
        (("offered", "offered while stopped", 3), ("off", "worst bin off by", 3), ("peak", "peak after", 2),
         ("repeats", "SYNs repeated", 0)),
        lambda g, s, c: trials.stopped(g, c),
        rounds=False,
    ),
)  # fmt: skip
TARGETS = (
    Target("cost, kept connections", "cpu", 0, 6.5),
    Target("cost, new connections", "cpu", 0, 46),
    Target("evenness, constant", "cv", 0, 0.5),
    Target("evenness, Poisson", "cv", 0.95, 1.15),
    Target("stall", "p95", *(trials.TRUTH[0] * off for off in (0.95, 1.05))),
    Target("stall", "p99", *(trials.TRUTH[1] * off for off in (0.95, 1.05))),
    Target("stopped server", "off", 0, 0.02),
    Target("stopped server", "repeats", 0, 0),
    Target("stopped server", "peak", 0, 1.05),
)


def main():
    arguments = parse()
    end_on_sigterm()
    try:
        raise_file_limit(20_000)
        found, about = run(arguments)
    except (Failed, OSError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    text, missed = page(found, about)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "load-latest.md").write_text(text)
    stamp = about["date"].replace("-", "").replace(":", "")[:13]
    rows = [{"trial": trial, "generator": name, "runs": runs} for (trial, name), runs in found.items()]
    (arguments.out / f"load-{stamp}.json").write_text(json.dumps({"about": about, "found": rows}, indent=1) + "\n")
    return 1 if missed else 0


def parse():
    parser = argparse.ArgumentParser(description="Compares load generators side by side on this machine.")
    parser.add_argument("--quick", action="store_true", help="one round of shorter trials, about 4 minutes")
    parser.add_argument("--rounds", type=int, help="default 5, quick 1")
    parser.add_argument("--minutes", type=float, help="begin no round later, repeat nothing after half of it (default 20, quick 5)")
    parser.add_argument("--only", default=",".join(ALL), help=f"generators, with commas, of {', '.join(ALL)}")
    parser.add_argument("--trial", default="", help="only trials whose name contains this")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the results")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.only.split(",") if name not in ALL]
    if unknown:
        parser.error(f"unknown generator {unknown[0]}: one of {', '.join(ALL)}")
    return arguments


def run(arguments):
    kinds = [ALL[name]() for name in arguments.only.split(",")]
    present = [kind for kind in kinds if kind.program()]
    missing = [kind.name for kind in kinds if not kind.program()]
    for name in missing:
        talk(f"{name} is left out: not installed (scripts/install-bench-peers)")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise Failed("two cores are needed: one for the generator, one for the server")
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    seconds = 2 if arguments.quick else 3
    chance, found, began = random.Random(), {}, time.monotonic()
    limit = 60 * (arguments.minutes or (5 if arguments.quick else 20))
    for number in range(1, rounds + 1):
        if time.monotonic() - began > limit:
            talk(f"{number - 1} of {rounds} rounds in the time that there is")
            rounds = number - 1
            break
        chosen = [trial for trial in TRIALS if arguments.trial in trial.name and (trial.rounds or number <= 2)]
        for trial in chosen:
            for kind in chance.sample(present, len(present)):
                best = once(trial, kind, seconds, cores, began + limit / 2)
                if best is None:
                    continue
                best["round"] = number
                found.setdefault((trial.name, kind.name), []).append(best)
                shown = "  ".join(f"{heading} {best[key]:,.{digits}f}" for key, heading, digits in trial.columns)
                note = "" if best.get("foreign", 0) <= FOREIGN else f"  disturbed: {best['foreign']:.0%} of a core"
                talk(f"{(time.monotonic() - began) / 60:5.1f} min  round {number}  {trial.name:<24}{kind.name:<10}{shown}{note}")
    about = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": machine(),
        "rounds": rounds,
        "versions": {kind.name: kind.version() for kind in present},
        "missing": missing,
    }
    return found, about


def once(trial, kind, seconds, cores, repeat_until):
    """One run; if it was disturbed the best of three, as long as there is time. None if the generator cannot do it."""
    best = None
    for _ in range(3):
        try:
            one = trial.run(kind, seconds, cores)
        except (Failed, ValueError, KeyError) as error:
            talk(f"{trial.name}: {kind.name}: {error}")
            return None
        if one is None:
            return None
        if best is None or one.get("foreign", 0) < best.get("foreign", 0):
            best = one
        if best.get("foreign", 0) <= FOREIGN or time.monotonic() > repeat_until:
            break
    return best


def page(found, about):
    """The page as Markdown, and how many targets were missed."""
    lines = ["# Load generators side by side", "", f"{about['date']}, {about['machine']}, {about['rounds']} rounds. `make bench-load`.", ""]
    lines += [f"- {name}: {version}" for name, version in about["versions"].items()]
    lines += [f"- {name}: left out, not installed" for name in about["missing"]]
    runs = [run for list_of_runs in found.values() for run in list_of_runs]
    disturbed = sum(run.get("foreign", 0) > FOREIGN for run in runs)
    lines += [
        "",
        "Medians over the rounds (lowest to highest); ratios to wrk are made within a round. CPU is user and system time of",
        "the whole program, per request that the server saw.",
        f"{disturbed} of {len(runs)} runs were disturbed (other programs took more than {FOREIGN:.0%} of a core in every try): they",
        "count only where there are no others.",
        "",
    ]
    lines += ["| target | at most | ours | verdict |", "| --- | ---: | ---: | ---: |"]
    missed = 0
    for target in TARGETS:
        values = of(found, target.trial, "plimsoll", target.key)
        if not values:
            continue
        value = statistics.median(values)
        missed += not target.met(value)
        bound = f"{target.high:g}" if not target.low else f"{target.low:g} to {target.high:g}"
        lines.append(f"| {target.trial}: {target.key} | {bound} | {value:.3g} | {'met' if target.met(value) else 'MISSED'} |")
    for trial in TRIALS:
        names = [name for kind, name in found if kind == trial.name]
        if not names:
            continue
        headings = [heading for _, heading, _ in trial.columns] + ["to wrk"] * (trial.columns == COST)
        lines += ["", f"## {trial.name}", "", "| | " + " | ".join(headings) + " |"]
        lines.append("| --- |" + " ---: |" * len(headings))
        first = trial.columns[0][0]
        for name in sorted(names, key=lambda name: statistics.median(of(found, trial.name, name, first))):
            cells = [spread(of(found, trial.name, name, key), digits) for key, _, digits in trial.columns]
            if trial.columns == COST:
                ratios = to_wrk(found, trial.name, name)
                cells.append(spread(ratios, 2) if ratios and name != "wrk" else "-")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n", missed


def of(found, trial, name, key):
    """The values of one figure, of undisturbed runs if there are any."""
    runs = found.get((trial, name), [])
    quiet = [run for run in runs if run.get("foreign", 0) <= FOREIGN]
    return [run[key] for run in quiet or runs]


def to_wrk(found, trial, name):
    """CPU per request as ratios to wrk's of the same round; of rounds in which neither was disturbed, if there are any."""
    theirs = {run.get("round"): run for run in found.get((trial, "wrk"), [])}
    pairs = [(run, theirs[run["round"]]) for run in found.get((trial, name), []) if run.get("round") in theirs]
    calm = [pair for pair in pairs if max(run.get("foreign", 0) for run in pair) <= FOREIGN]
    return [mine["cpu"] / other["cpu"] for mine, other in calm or pairs if other["cpu"] > 0]


def spread(values, digits):
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def talk(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
