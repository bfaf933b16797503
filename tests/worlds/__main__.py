"""python3 -B -m tests.worlds: plays worlds, many beside each other, since all mostly wait.

The strategies of one world run one after the other, so that they see the same hour of the machine. Worlds
that fill the machine's cores run alone, after the others. With `--short` a row that breaks beside other worlds
is played again alone, and that counts: beside them its members may have had no processor.
"""

import argparse
import asyncio
import dataclasses
import json
import signal
import sys

from benches.rig.peers import Plimsoll, first_line
from benches.rig.process import Failed

from .balancers import installed
from .catalogue import ALL, SHORT, named
from .rows import JUDGED, Row, exit_code, harm
from .table import Table, summary
from .world import PEERS, Outcome

STRATEGIES = "adaptive,least_request,least_connections,round_robin"
LONGEST = 600
"""Seconds after which a world that does not end is ended; `--length` is added."""


def parse():
    parser = argparse.ArgumentParser(
        prog="python3 -B -m tests.worlds",
        description="Ordinary days of a load balancer, on real sockets: counts what is answered. Exit code "
        "0 if every row of adaptive holds, 1 if one breaks, 2 if something could not be played.",
        epilog="$PLIMSOLL_BIN names the binary (default: target/release/plimsoll).",
    )
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help="worlds to play (default: all)")
    parser.add_argument(
        "-s", "--strategies", metavar="NAMES",
        help="strategies, adaptive+open (without admission), haproxy, nginx "
        f"(default: {STRATEGIES}; with --short: adaptive)",
    )  # fmt: skip
    parser.add_argument("--short", action="store_true", help="the worlds of `make test`")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="first seed (default 1)")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="how many seeds, one after the other (default 1)"
    )
    parser.add_argument(
        "--length", type=float, default=60, metavar="SECONDS",
        help="how long the world `mixed` goes on (default 60)",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="worlds at once (default 4)")
    parser.add_argument("--list", action="store_true", help="say what the worlds are, and play none")
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="form of the data (default table)"
    )
    return parser, parser.parse_args()


def chosen(parser, arguments):
    """Returns the worlds and strategies that are asked for."""
    for name in arguments.worlds:
        if not named(name):
            parser.error(f"no world is called {name}; --list says which there are")
    worlds = [named(name) for name in arguments.worlds] or (SHORT if arguments.short else ALL)
    strategies = (arguments.strategies or (JUDGED if arguments.short else STRATEGIES)).split(",")
    missing = [strategy for strategy in strategies if not installed(strategy)]
    if missing:
        parser.error(f"not installed: {', '.join(missing)} (scripts/install-test-deps)")
    if min(arguments.jobs, arguments.seeds) < 1:
        parser.error("--jobs and --seeds are at least 1")
    return worlds, strategies


def plays(world, strategy):
    """Returns whether a world has a row of this strategy."""
    if world.setup.strategy:
        return strategy == JUDGED
    return strategy not in PEERS or strategy in world.setup.peers


def listed(worlds):
    """Returns what the worlds are, in words."""
    lines = []
    for world in worlds:
        lines += [world.name, f"  {world.happens}", f"  counted: {world.counts}"]
        lines += [f"  bound: {'; '.join(bound.words for bound in world.bounds)}"]
        lines += ["  needs a quiet machine"] if world.quiet or world.alone else []
        lines += [""]
    return "\n".join(lines)


class Player:
    """Plays worlds, some at once."""

    def __init__(self, table, jobs, length, again):
        self.table, self.jobs, self.length, self.rows = table, asyncio.Semaphore(jobs), length, []
        self.again = again

    async def all(self, plan):
        """Plays lists of rows: the rows of a list one after the other, lists beside each other unless they
        are alone."""
        alone = [rows for rows in plan if named(rows[0].world).alone]
        await asyncio.gather(*(self.lane(rows) for rows in plan if rows not in alone))
        for rows in alone:
            await self.lane(rows)
        shared = [row for row in self.rows if row.broken and not named(row.world).alone]
        for row in shared if self.again else []:
            self.rows.remove(row)
            self.table.left += 1
            await self.lane([Row(row.world, row.strategy, row.seed)])

    async def lane(self, rows):
        async with self.jobs:
            for row in rows:
                self.table.begins(row.world, row.strategy)
                try:
                    await play(row, self.length)
                finally:
                    self.table.ends(row.world, row.strategy)
                self.rows.append(row)
                self.table.row(row)


async def play(row, length):
    """Plays a world in a process of its own, and fills in the row."""
    words = [sys.executable, "-B", "-m", "tests.worlds.play", row.world, row.strategy]
    words += [str(row.seed), str(length)]
    child = await asyncio.create_subprocess_exec(
        "setpriv", "--pdeathsig", "TERM", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LONGEST + length):
            out, err = await child.communicate()
    except TimeoutError:
        out, err = b"", f"it did not end in {LONGEST + length:.0f} s".encode()
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()
    if child.returncode == 0:
        row.outcome = Outcome(**json.loads(out))
        row.broken = named(row.world).broken(row.outcome)
    else:
        row.error = (
            err.decode(errors="replace").strip().replace("\n", " | ") or f"ended with {child.returncode}"
        )


def planned(worlds, strategies, seeds):
    """Returns a list of rows for each world and seed. Each seed begins with another strategy."""
    plan = []
    for turn, seed in enumerate(seeds):
        at = turn % len(strategies)
        order = strategies[at:] + strategies[:at]
        for world in worlds:
            plan.append([Row(world.name, strategy, seed) for strategy in order if plays(world, strategy)])
    return [rows for rows in plan if rows]


async def run(player, plan):
    """Plays all; SIGTERM and SIGINT end what is being played."""
    playing = asyncio.create_task(player.all(plan))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    await playing


def main():
    parser, arguments = parse()
    worlds, strategies = chosen(parser, arguments)
    if arguments.list:
        # Whoever reads may close early, as `head` does.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        print(listed(worlds))
        return 0
    try:
        if missing := Plimsoll().missing():
            raise Failed(missing)
        version = first_line([Plimsoll().binary, "--version"])
    except Failed as error:
        print(error, file=sys.stderr)
        return 2
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    plan = planned(worlds, strategies, seeds)
    if not plan:
        parser.error("none of these worlds has a row of these strategies")
    out = sys.stderr if arguments.output == "json" else sys.stdout
    table = Table(out, [(row.world, row.strategy) for rows in plan for row in rows])
    player = Player(table, arguments.jobs, arguments.length, arguments.short)
    table.head()
    try:
        asyncio.run(run(player, plan))
    except asyncio.CancelledError:
        return 130
    harms = harm(player.rows, {world.name for world in worlds if world.comparable})
    for line in ["", *summary(player.rows, harms)]:
        print(line, file=out, flush=True)
    if arguments.output == "json":
        print(json.dumps(document(version, player.rows, harms), indent=1))
    return exit_code(player.rows, harms)


def document(version, rows, harms):
    """Returns what is printed as JSON."""
    told = [{**dataclasses.asdict(row), "verdict": row.verdict()} for row in rows]
    return {"version": version, "rows": told, "law_1_broken": [dataclasses.asdict(one) for one in harms]}


if __name__ == "__main__":
    sys.exit(main())
