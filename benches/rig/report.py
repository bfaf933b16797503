"""What the legs say together: medians, ratios paired within a round, targets; as JSON and as a page.

Proxies are compared only within one round, where they ran a few seconds apart: the machine's speed drifts over
minutes more than the proxies differ. A ratio is made for each round and their median is quoted with their range.
"""

import dataclasses
import json
import statistics

BASES = ("haproxy", "nginx")
"""The proxies that the others are compared with."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound on the ratio of CPU per request to another proxy's."""

    base: str
    mode: str
    connections: int
    body: str
    bound: float

    def __str__(self):
        return f"{self.mode}, {self.connections} connections, {self.body}: CPU per request, to {self.base}"


TARGETS = (
    Target("haproxy", "http", 64, "1k", 0.85),
    Target("nginx", "http", 64, "1k", 0.90),
    Target("haproxy", "http", 1000, "1k", 0.70),
    Target("haproxy", "http", 64, "64k", 0.70),
    Target("haproxy", "tcp", 64, "1k", 0.95),
    Target("haproxy", "tcp", 64, "64k", 0.65),
    Target("haproxy", "https", 64, "1k", 0.75),
    # As many a second as HAProxy on a core that either fills.
    Target("haproxy", "handshakes", 64, "0", 1.0),
    Target("haproxy", "grpc", 64, "1k", 1.0),
)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """CPU per request of one proxy to another's, over the rounds."""

    median: float
    low: float
    high: float
    rounds: int
    quiet: bool
    """Whether only undisturbed rounds are in it; if there was none, all are."""

    def __str__(self):
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})" + ("" if self.quiet else " *")


def ratio(legs, peer, base, cell):
    """The `Ratio` of `peer` to `base` in `cell`, or None if no round has both."""
    mine = {leg.round: leg for leg in legs if leg.peer == peer and leg.cell == cell}
    theirs = {leg.round: leg for leg in legs if leg.peer == base and leg.cell == cell}
    pairs = [(mine[n], theirs[n]) for n in mine if n in theirs and mine[n].cpu > 0 and theirs[n].cpu > 0]
    if not pairs:
        return None
    undisturbed = [pair for pair in pairs if pair[0].quiet and pair[1].quiet]
    values = [a.cpu / b.cpu for a, b in undisturbed or pairs]
    return Ratio(statistics.median(values), min(values), max(values), len(values), bool(undisturbed))


def verdicts(legs):
    """Each `Target` with its `Ratio` (or None) and whether it is met (None if not measured)."""
    out = []
    for target in TARGETS:
        cells = [
            leg.cell
            for leg in legs
            if (leg.cell.mode, leg.cell.connections, leg.cell.body) == (target.mode, target.connections, target.body)
        ]
        found = ratio(legs, "plimsoll", target.base, cells[0]) if cells else None
        out.append((target, found, None if found is None else found.median <= target.bound))
    return out


def table(legs):
    """A table of all cells as a list of Markdown lines, one row a proxy."""
    lines = []
    for cell in sorted({leg.cell for leg in legs}, key=lambda cell: (cell.mode, cell.connections, size(cell.body))):
        here = [leg for leg in legs if leg.cell == cell]
        rows = [
            ["proxy", "CPU s per 1M", "to haproxy", "to nginx", "req/s", "p50 ms", "p99 ms", "MiB", "core", "errors"]
        ]
        for peer in dict.fromkeys(leg.peer for leg in sorted(here, key=lambda leg: leg.peer != "plimsoll")):
            mine = [leg for leg in here if leg.peer == peer]
            calm = [leg for leg in mine if leg.quiet] or mine
            ratios = [ratio(legs, peer, base, cell) if peer != base else None for base in BASES]
            rows.append(
                [peer, f"{middle(calm, 'cpu'):.2f}"]
                + ["-" if found is None else str(found) for found in ratios]
                + [
                    f"{middle(calm, 'rate'):,.0f}",
                    f"{middle(calm, 'p50') / 1000:.2f}",
                    f"{middle(calm, 'p99') / 1000:.2f}",
                    f"{middle(calm, 'memory'):.1f}",
                    f"{middle(calm, 'used'):.2f}",
                    str(sum(leg.errors for leg in mine)),
                ]
            )
        lines += ["", f"### {cell}", ""] + grid(rows)
    return lines


def judged(legs):
    """The targets as a list of Markdown lines."""
    rows = [["target", "at most", "measured", "rounds", "verdict"]]
    for target, found, met in verdicts(legs):
        rows.append(
            [
                str(target),
                f"{target.bound:.2f}",
                "not measured" if found is None else str(found),
                "-" if found is None else str(found.rounds),
                {None: "-", True: "met", False: "MISSED"}[met],
            ]
        )
    return grid(rows)


def page(legs, about):
    """The whole page as Markdown. `about` is a dict of what was run, where and with what."""
    disturbed = sum(not leg.quiet for leg in legs)
    lines = [
        "# Side by side",
        "",
        f"{about['date']}, {about['machine']}. {about['rounds']} rounds, legs of {about['seconds']} s.",
        "",
    ]
    lines += [f"- {name}: {version}" for name, version in about["versions"].items()]
    lines += [f"- {name}: left out: {reason}" for name, reason in about["missing"].items()]
    lines += [
        "",
        "One thread each, on a core of its own; the load (wrk, closed loop) and the two origins (nginx) share the other.",
        "`core` is the share of its core that the proxy used: well below 1 the load was the limit, so that requests per",
        "second are not the proxy's own. CPU is utime + stime and holds the loopback's share of the peers. Ratios are of",
        "CPU per request, paired within a round: median (lowest-highest). Compare nothing across runs. `make bench`",
        "makes this page; docs/bench.md explains it.",
        "",
        f"{disturbed} of {len(legs)} legs were disturbed (other programs took more than 8 % of a core in every try);",
        "they are left out where undisturbed rounds exist, else a * marks the ratio.",
        "",
        "## Targets",
        "",
    ]
    return "\n".join(lines + judged(legs) + ["", "## All cells"] + table(legs)) + "\n"


def record(legs, about):
    """Everything as JSON: what was run, every leg, the verdicts."""
    targets = [
        {
            **dataclasses.asdict(target),
            "measured": None if found is None else dataclasses.asdict(found),
            "met": met,
        }
        for target, found, met in verdicts(legs)
    ]
    rows = [{**dataclasses.asdict(leg), "quiet": leg.quiet} for leg in legs]
    return json.dumps({"about": about, "targets": targets, "legs": rows}, indent=1) + "\n"


def middle(legs, name):
    return statistics.median(getattr(leg, name) for leg in legs)


def size(body):
    return int(body.replace("k", "000"))


def grid(rows):
    """Rows, the first a heading, as an aligned Markdown table: first column left, the rest right."""
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [word.ljust(width) if n == 0 else word.rjust(width) for n, (word, width) in enumerate(zip(row, widths))]
        lines.append("| " + " | ".join(cells) + " |")
    rule = ["-" * widths[0]] + ["-" * (width - 1) + ":" for width in widths[1:]]
    return [lines[0], "| " + " | ".join(rule) + " |"] + lines[1:]
