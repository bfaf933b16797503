"""Worlds in which more comes than can be done, for a moment or for long."""

import asyncio

from benches.rig import wrk

from .clock import pause
from .world import Outcome, Setup, all_but, at_least, at_most, none_refused, world

ONE_WORKER = Setup(work=({"workers": 1, "mean": 10},))
"""Four members that can do 400 requests a second together."""

PATIENCE = 1.0
"""Seconds within which an answer is of use in a lasting overload."""


@world(Setup(), "the burst", [all_but(0)], quiet=True)
async def cold_burst(stage):
    """400 requests at once are the first that it sees."""
    load = stage.load()
    await load.burst(400)
    return load.outcome()


@world(Setup(), "the bursts", [all_but(0)], quiet=True)
async def bursts(stage):
    """100 requests come at once, each second, and none between."""
    load = stage.load()
    for _ in range(8):
        await load.burst(100)
        await pause(1)
    return load.outcome()


@world(ONE_WORKER, "all requests", [all_but(0)], quiet=True)
async def spike(stage):
    """Half as much again as members can do for one second, which half a second of waiting makes good;
    twice."""
    load = stage.load()
    for _ in range(2):
        part = stage.load()
        await part.run(100, 4)
        await part.run(600, 1)
        load.rows += part.rows
    rest = stage.load()
    await rest.run(100, 4)
    load.rows += rest.rows
    return load.outcome()


@world(
    ONE_WORKER,
    "what was due in the last six of the ten seconds and answered within one",
    [at_least("in time", 0.8), at_most("refused afterwards", 0)],
    quiet=True,
)
async def surge(stage):
    """A third more than members can do for ten seconds, then half; in time is as a share of what they can
    do."""
    load, last = stage.load(), stage.load()
    running = load.start(533, 10)
    await pause(4)
    before = await stage.done()
    await running
    can = 6 * capacity(before, await stage.done())
    await last.run(200, 10)
    outcome, after = load.outcome(since=4, patience=PATIENCE), last.outcome(since=3)
    return outcome.with_figures(**{"in time": outcome.answered / can, "refused afterwards": after.refused})


def capacity(before, after):
    """Returns the requests a second that one worker each can do, by how long workers were busy with one."""
    served = sum(one["served"] for one in after) - sum(one["served"] for one in before)
    busy = sum(one["busy"] for one in after) - sum(one["busy"] for one in before)
    return len(after) * served / busy


@world(Setup(fast=True, threads=1), "requests of the thousand", [none_refused()], alone=True)
async def closed_loop(stage):
    """64 connections ask again at once for four seconds, then 1000; members answer in microseconds."""
    port = stage.door[1]
    await measured(port, 64, 4)
    load = await measured(port, 1000, 8)
    return Outcome(
        sent=load.requests,
        answered=load.requests - load.errors,
        refused=load.errors,
        p50=load.p50 / 1e3,
        p99=load.p99 / 1e3,
    )


async def measured(port, connections, seconds):
    """Runs wrk, and returns what it saw."""
    running = wrk.start(port, connections, "/healthz", seconds, 0)
    return await asyncio.to_thread(wrk.finish, running, seconds)
