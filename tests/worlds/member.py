"""The servers of a world, in a process of their own: python3 -m tests.worlds.member JSON.

One process serves any number of members, each at an address of its own on one port. A member works on so
many requests at once, and others wait in order; work is a timer, so that the machine's speed is not the
member's. HTTP/1.1 and HTTP/2 by prior knowledge. What a member is like is changed while it runs: GET
/__set?name=value.

`/` is work, after the request's body; `/events` is a stream of events that does not end; `/socket` switches
protocols and is silent; `/file/BYTES` is work and a body of that size; `/healthz` is answered at once;
`/__told` is what was done.
"""

import asyncio
import contextlib
import dataclasses
import json
import random
import sys

from . import http2
from .clients import fields_of
from .clock import pause

EVENTS = 5.0
"""Seconds between two events of a stream."""

LONG = 3.0
"""Seconds that a long request takes."""

MOST = 0.3
"""Seconds at which the long tail is cut."""


@dataclasses.dataclass
class Work:
    """What a member does with a request. Times are in milliseconds."""

    workers: int = 8
    """Requests at once."""
    mean: float = 5.0
    """Mean time; exponential."""
    tail: bool = False
    """Lognormal in place of exponential: many short, some ten times the mean."""
    constant: bool = False
    """Always the mean."""
    extra: float = 0.0
    """Up to so much longer, evenly."""
    far: float = 0.0
    """Longer by so much, without keeping a worker busy: the way there and back."""
    long: float = 0.0
    """Share of the requests that take three seconds."""
    cold: int = 0
    """So many of the first requests take ten times as long."""
    hang: bool = False
    """Nothing is answered, but health checks."""
    fail: bool = False
    """All is answered 500 at once, but health checks."""


class Member:
    """A server."""

    def __init__(self, work, chance):
        self.work, self.chance = work, chance
        self.room = asyncio.Semaphore(work.workers)
        self.served, self.busy = 0, 0.0

    def change(self, name, value):
        """Sets what it is like, from text."""
        kind = type(getattr(self.work, name))
        setattr(self.work, name, kind(float(value)))

    def told(self):
        """Returns what it has done: requests, and seconds that workers were busy."""
        return json.dumps({"served": self.served, "busy": self.busy}).encode()

    def seconds(self):
        """Draws how long the next request takes."""
        work, mean = self.work, self.work.mean / 1000
        if work.tail:
            taken = min(MOST, self.chance.lognormvariate(0, 1.2) * mean / 2.05)
        else:
            taken = mean if work.constant else self.chance.expovariate(1 / mean)
        if self.served < work.cold:
            taken *= 10
        if self.chance.random() < work.long:
            taken += LONG
        return taken + work.extra / 1000 * self.chance.random()

    async def serve(self):
        """Works on a request; returns the status."""
        while self.work.hang:
            await pause(0.2)
        if self.work.fail:
            return 500
        async with self.room:
            begun = asyncio.get_running_loop().time()
            await pause(self.seconds())
            self.busy += asyncio.get_running_loop().time() - begun
            self.served += 1
        if self.work.far:
            await pause(self.work.far / 1000)
        return 200

    async def answer(self, target):
        """Returns status and body of what is no stream."""
        if target.startswith("/__set?"):
            self.change(*target.partition("?")[2].split("="))
            return 200, b"set"
        if target == "/__told":
            return 200, self.told()
        if target == "/healthz":
            return 200, b"ok"
        status = await self.serve()
        if target.startswith("/file/") and status == 200:
            return status, b"x" * int(target.split("/")[2])
        return status, b"ok"


class Http1:
    """A connection of HTTP/1.1."""

    def __init__(self, member, reader, writer):
        self.member, self.reader, self.writer = member, reader, writer

    async def run(self):
        """Serves requests until the client closes."""
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"PRI "):
                return await self.upgrade()
            target, fields = head.split(b" ", 2)[1].decode("latin-1"), fields_of(head)
            if target == "/events":
                await self.events()
            elif target == "/socket":
                return await self.socket()
            await self.body(int(fields.get("content-length", 0)))
            status, body = await self.member.answer(target)
            self.writer.write(b"HTTP/1.1 %d Served\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            for at in range(0, len(body), 65536):
                self.writer.write(body[at : at + 65536])
                await self.writer.drain()

    async def body(self, length):
        while length:
            length -= len(await self.reader.readexactly(min(length, 65536)))

    async def events(self):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.writer.write(head)
        while True:
            self.writer.write(b"9\r\ndata: x\n\n\r\n")
            await self.writer.drain()
            await pause(EVENTS)

    async def socket(self):
        switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        self.writer.write(switched)
        await self.reader.read()

    async def upgrade(self):
        await self.reader.readexactly(len(b"SM\r\n\r\n"))
        server = http2.Server(self.reader, self.writer, self.over_http2)
        try:
            await server.run()
        finally:
            server.end()

    async def over_http2(self, request):
        """Answers a request of HTTP/2, a call of gRPC if it says so."""
        call = request.fields.get("content-type") == "application/grpc"
        kind = [("content-type", "application/grpc")] if call else []
        if request.target == "/events":
            request.head(200, *kind)
            while True:
                request.data(message(b"x") if call else b"data: x\n\n")
                await pause(EVENTS)
        await request.whole.wait()
        status, body = await self.member.answer(request.target)
        request.head(status, *kind)
        request.data(message(body) if call else body)
        request.trailers(*([("grpc-status", "0" if status == 200 else "13")] if call else []))


def message(body):
    """Returns a message of gRPC."""
    return b"\0" + len(body).to_bytes(4, "big") + body


async def main(told):
    """Serves all members of a process until it is killed."""
    chance = random.Random(told["seed"])
    members = {host: Member(Work(**work), chance) for host, work in told["members"].items()}

    async def connected(reader, writer):
        member = members[writer.get_extra_info("sockname")[0]]
        try:
            await Http1(member, reader, writer).run()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, list(members), told["port"], backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(json.loads(sys.argv[1])))
