"""Worlds in which nothing is wrong: only clients, and how they come."""

import math

from .clients import Ask, Http1, Http2
from .clock import pause
from .world import HAPROXY, Setup, all_but, answered, none_refused, world

EVERYTHING = "all requests"


@world(Setup(), EVERYTHING, [all_but(0)])
async def calm(stage):
    """Nothing happens."""
    load = stage.load()
    await load.run(60, 12)
    return load.outcome()


@world(Setup(), EVERYTHING, [all_but(0)])
async def new_connections(stage):
    """Each request comes on a connection of its own; all members are up to 80 ms slower for two seconds,
    once."""
    load = stage.load(Http1(stage.doors, keeps=False))
    running = load.start(40, 14)
    await pause(5)
    await stage.hiccup(80, 2)
    await running
    return load.outcome()


@world(Setup(peers=HAPROXY), EVERYTHING, [all_but(0)])
async def http2_clients(stage):
    """Five clients of HTTP/2 have many requests under way on each connection; all members are slower for
    two seconds."""
    client = Http2(stage.doors, connections=5)
    load = stage.load(client)
    running = load.start(50, 14)
    await pause(5)
    await stage.hiccup(80, 2)
    await running
    await client.close()
    return load.outcome()


@world(Setup(http2=True, peers=HAPROXY), EVERYTHING, [all_but(0)])
async def grpc_calls(stage):
    """Clients of gRPC call members of gRPC; all members are up to 80 ms slower for two seconds, once."""
    client = Http2(stage.doors, connections=5, calls=True)
    load = stage.load(client)
    running = load.start(50, 14)
    await pause(5)
    await stage.hiccup(80, 2)
    await running
    await client.close()
    return load.outcome()


DAY, NIGHT, NOON = 5.0, 3.0, 100
"""Seconds of light and of none, and requests a second at noon."""


def of_day(time):
    """Returns the requests a second at a time of the day."""
    at = time % (DAY + NIGHT)
    return NOON * math.sin(math.pi * at / DAY) if at < DAY else 0


@world(Setup(), EVERYTHING, [all_but(0)])
async def day_and_night(stage):
    """Requests come and go as on a day, and there are none at night, three times."""
    load = stage.load()
    await load.run(of_day, 3 * (DAY + NIGHT), most=NOON)
    return load.outcome()


@world(Setup(), "requests of the morning", [all_but(0)])
async def sudden_morning(stage):
    """Some requests, twelve seconds of silence, and at once twenty times as many requests."""
    before, load = stage.load(), stage.load()
    await before.run(10, 3)
    await pause(12)
    await load.run(200, 4)
    return load.outcome()


@world(Setup(work=({"workers": 64, "long": 0.01},)), EVERYTHING, [answered(0.999)])
async def long_ones(stage):
    """One request in a hundred takes three seconds, the others five milliseconds."""
    load = stage.load()
    await load.run(150, 18)
    return load.outcome()


@world(Setup(work=({"workers": 64, "long": 0.05},)), EVERYTHING, [answered(0.92), none_refused()], quiet=True)
async def impatient(stage):
    """One request in twenty takes three seconds, and clients wait for a half only: those alone are lost."""
    load = stage.load()
    await load.run(80, 16, patience=0.5)
    return load.outcome()


@world(Setup(work=({"workers": 4, "mean": 80, "constant": True},)), EVERYTHING, [all_but(0)])
async def crowd(stage):
    """Sixty clients ask again as soon as they are answered, of members that can work on sixteen requests."""
    clients = stage.crowd()
    await clients.run(60, 10, gap=0)
    return clients.outcome()


def upload(chance):
    """Draws an upload of 20 to 200 KB that takes up to a second to send, or one time in two a plain
    request."""
    if chance.random() < 0.5:
        return Ask()
    return Ask("/upload", upload=chance.randrange(20_000, 200_000), over=chance.uniform(0.1, 1.0))


@world(Setup(), EVERYTHING, [all_but(0)])
async def uploads(stage):
    """Half of the requests are uploads of up to 200 KB and a second; all members are slower for two
    seconds, once."""
    load = stage.load()
    running = load.start(50, 14, ask=upload)
    await pause(5)
    await stage.hiccup(80, 2)
    await running
    return load.outcome()


def download(chance):
    """Draws a download of 500 KB that is read for two seconds, or three times in four a plain request."""
    return Ask("/file/500000", over=2.0) if chance.random() < 0.25 else Ask()


@world(Setup(), EVERYTHING, [all_but(0)])
async def downloads(stage):
    """A quarter of the requests are downloads that are read slowly; all members are slower for two seconds,
    once."""
    load = stage.load()
    running = load.start(40, 14, ask=download)
    await pause(5)
    await stage.hiccup(80, 2)
    await running
    return load.outcome()
