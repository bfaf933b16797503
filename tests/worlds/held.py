"""Worlds in which connections stay: streams, sockets, uploads that do not come, answers that nobody reads."""

import asyncio

from .clients import Held, Http2
from .clock import pause
from .http2 import Client
from .world import HAPROXY, Setup, all_but, answered, world


@world(Setup(), "requests after the two seconds", [all_but(0)])
async def streams(stage):
    """25 streams of events stay open; all members are up to 80 ms slower for two seconds, once."""
    return await behind_streams(stage, 25)


@world(Setup(side_cars=4), "requests after the two seconds", [answered(0.999)])
async def side_car_streams(stage):
    """30 streams of events through side-cars stay open; all members are slower for two seconds, once."""
    return await behind_streams(stage, 30)


async def behind_streams(stage, count):
    load = stage.load()
    running = load.start(100, 30)
    await pause(3)
    with Held(stage.door) as held:
        for _ in range(count):
            await held.get("/events")
        await pause(4)
        await stage.hiccup(80, 2)
        await running
    return load.outcome(since=11)


@world(Setup(http2=True, peers=HAPROXY), "calls after the two seconds", [all_but(0)])
async def grpc_streams(stage):
    """40 streams of gRPC stay open beside calls; all members are up to 80 ms slower for two seconds, once."""
    client, streaming = Http2(stage.doors, calls=True), Http2(stage.doors, calls=True)
    load = stage.load(client)
    running = load.start(80, 26)
    await pause(3)
    for _ in range(40):
        await streaming.hold("/events")
    await pause(4)
    await stage.hiccup(80, 2)
    await running
    await client.close()
    await streaming.close()
    return load.outcome(since=11)


@world(Setup(side_cars=4), "requests once the sockets are open", [answered(0.999)])
async def sockets(stage):
    """40 WebSockets, on which nothing is said, stay open beside ordinary requests, through side-cars."""
    load = stage.load()
    running = load.start(100, 20)
    await pause(2)
    with Held(stage.door) as held:
        for _ in range(40):
            await held.socket()
        await running
    return load.outcome(since=3)


@world(Setup(), "requests after the two seconds", [all_but(0)])
async def plain_sockets(stage):
    """40 WebSockets stay open without side-cars; all members are up to 80 ms slower for two seconds, once."""
    load = stage.load()
    running = load.start(80, 24)
    await pause(2)
    with Held(stage.door) as held:
        for _ in range(40):
            await held.socket()
        await pause(4)
        await stage.hiccup(80, 2)
        await running
    return load.outcome(since=9)


@world(Setup(), "requests after the burst", [answered(0.999)])
async def slow_posts(stage):
    """40 uploads of which nothing comes stay open; later 300 requests come at once, twice."""
    load = stage.load()
    running = load.start(150, 26)
    await pause(3)
    with Held(stage.door) as held:
        for _ in range(40):
            await held.unfinished_upload()
        await bursts(stage)
        await running
    return load.outcome(since=17)


@world(Setup(peers=HAPROXY), "requests after the burst", [answered(0.999)])
async def zero_window(stage):
    """A connection of HTTP/2 that reads nothing has 40 answers waiting; later 300 requests come at once,
    twice."""
    load = stage.load()
    running = load.start(150, 26)
    await pause(3)
    closed = await Client.open(stage.door, reads=False)
    for _ in range(40):
        closed.begin("/")
    await bursts(stage)
    await running
    await closed.close()
    return load.outcome(since=17)


async def bursts(stage):
    """Sends 300 requests at once and gives them up after two seconds, twice."""
    for calm in (6, 3):
        await pause(calm)
        with Held(stage.door) as held:
            for _ in range(300):
                await held.get("/", head=False)
            await pause(2)


@world(Setup(), "requests once the downloads have begun", [answered(0.999)])
async def slow_readers(stage):
    """30 downloads of 20 MB, of which nobody reads a byte, stay open."""
    load = stage.load()
    running = load.start(60, 16)
    await pause(2)
    with Held(stage.door) as held:
        for _ in range(30):
            held.unread("/file/20000000")
        await running
    return load.outcome(since=4)


@world(Setup(), "ordinary requests", [all_but(0)])
async def reconnecting_streams(stage):
    """30 streams of events end at once and are opened again at once, each three seconds."""
    load = stage.load()
    running = load.start(60, 16)
    for _ in range(5):
        with Held(stage.door) as held:
            await asyncio.gather(*(held.get("/events") for _ in range(30)))
            await pause(3)
    await running
    return load.outcome()
