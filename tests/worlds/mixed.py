"""A world in which everything happens that happens on an ordinary day, for as long as one likes."""

import asyncio
import itertools

from .clients import Held, Http1, Http2
from .clock import pause
from .ordinary import download, upload
from .world import Setup, all_but, none_refused, tally, world

CALM = 5.0
"""Seconds before and after the updates of a member."""


@world(
    Setup(apart=True, tls=True, peers=(), work=({"workers": 2, "mean": 30},)),
    "all requests",
    [all_but(0), none_refused()],
)
async def mixed(stage):
    """Members do half of what they can: requests over kept and new connections, TLS and HTTP/2, uploads and
    downloads, beside streams and WebSockets that come and go, updates of members and reloads, for
    `--length` seconds."""
    kept, fresh = Http1(stage.doors), Http1(stage.doors, keeps=False)
    secure, many = Http1(stage.secure_doors, secure=True), Http2(stage.doors)
    kinds = [(kept, 60, {}), (fresh, 15, {}), (secure, 15, {}), (many, 20, {})]
    kinds += [(kept, 8, {"ask": upload}), (kept, 6, {"ask": download})]
    loads = [(stage.load(client), rate, more) for client, rate, more in kinds]
    around = [asyncio.create_task(held(stage)), asyncio.create_task(churn(stage))]
    await asyncio.gather(*(load.run(rate, stage.length, **more) for load, rate, more in loads))
    for task in around:
        task.cancel()
    ended = await asyncio.gather(*around, return_exceptions=True)
    if failed := [end for end in ended if not isinstance(end, asyncio.CancelledError)]:
        raise failed[0] or RuntimeError("it ended before the load did")
    for client in (kept, fresh, secure, many):
        await client.close()
    return tally([row for load, *_ in loads for row in load.rows])


async def held(stage):
    """Keeps 20 streams and 20 WebSockets open, and opens them anew each quarter of a minute."""
    while True:
        with Held(stage.door) as open_ones:
            for _ in range(20):
                await open_ones.get("/events")
                await open_ones.socket()
            await pause(15)


async def churn(stage):
    """Updates one member after the other, and reads the configuration again between, each time changed."""
    for turn in itertools.count():
        await pause(CALM)
        await stage.reload(group=f'timeouts = {{ connect = "{turn % 3 + 1}s" }}')
        number = turn % len(stage.addresses)
        host, port = stage.addresses[number]
        await pause(CALM)
        await stage.ask("drain", "--wait", f"{host}:{port}")
        stage.kill(number)
        await stage.revive(number)
        await stage.ask("undrain", f"{host}:{port}")
