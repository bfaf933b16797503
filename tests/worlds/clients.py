"""Clients: HTTP/1.1, HTTP/2 and gRPC, and connections that are held open."""

import asyncio
import contextlib
import dataclasses
import itertools
import socket
import ssl

from . import http2
from .clock import pause
from .world import REFUSED, Answer

SOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
"""Fields that ask for a WebSocket."""

PIECES = 20
"""Pieces in which a slow body is sent or read."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """A request."""

    target: str = "/"
    upload: int = 0
    """Bytes of its body."""
    over: float = 0.0
    """Seconds over which the body is sent, or that of the answer read."""


class Stale(ConnectionError):
    """A kept connection was closed before a byte of the answer came."""


def unverified():
    """Returns settings of TLS that take any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Http1:
    """Connections of HTTP/1.1 that are kept while they are idle. Doors, (host, port), take turns; those of
    HTTPS are believed whatever certificate they show."""

    def __init__(self, doors, keeps=True, secure=False):
        self.doors, self.keeps, self.idle = itertools.cycle(doors), keeps, []
        self.tls = unverified() if secure else None

    async def ask(self, ask):
        """Returns an `Answer`. A kept connection that turns out to be closed is replaced by a new one."""
        if self.idle:
            with contextlib.suppress(Stale):
                return await self.exchange(ask, *self.idle.pop())
        return await self.exchange(ask, *await asyncio.open_connection(*next(self.doors), ssl=self.tls))

    async def exchange(self, ask, reader, writer):
        kept = False
        try:
            head = await head_of(ask, reader, writer)
            fields = fields_of(head)
            # The connection ends a body whose length is not said.
            await read(ask, reader, int(fields.get("content-length", 0)))
            kept = self.keeps and fields.get("connection") != "close"
            return Answer(int(head[9:12]), fields.get("plimsoll-reason", ""))
        finally:
            if kept:
                self.idle.append((reader, writer))
            else:
                writer.close()

    async def close(self):
        """Closes what is idle."""
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()


async def head_of(ask, reader, writer):
    """Sends a request and returns the head of its answer."""
    try:
        await send(ask, writer)
        return await reader.readuntil(b"\r\n\r\n")
    except ConnectionError as error:
        raise Stale(str(error)) from error
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise Stale("closed") from error


async def send(ask, writer):
    """Sends a request: a POST if it has a body, in pieces if it takes its time."""
    if not ask.upload:
        writer.write(f"GET {ask.target} HTTP/1.1\r\nHost: world\r\n\r\n".encode())
        return
    writer.write(
        f"POST {ask.target} HTTP/1.1\r\nHost: world\r\nContent-Length: {ask.upload}\r\n\r\n".encode()
    )
    pieces = PIECES if ask.over else 1
    for piece in range(pieces):
        if ask.over:
            await pause(ask.over / pieces)
        size = ask.upload * (piece + 1) // pieces - ask.upload * piece // pieces
        writer.write(b"x" * size)
        await writer.drain()


async def read(ask, reader, size):
    """Reads a body, in pieces if that takes its time."""
    pieces = PIECES if ask.over and not ask.upload and size >= PIECES else 1
    for piece in range(pieces):
        await reader.readexactly(size * (piece + 1) // pieces - size * piece // pieces)
        if pieces > 1:
            await pause(ask.over / pieces)


def fields_of(head):
    """Returns the fields of a head, by name."""
    lines = head.decode("latin-1").lower().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines if ": " in line)


class Http2:
    """A few connections of HTTP/2, on which requests take turns; with `calls` these are unary calls of
    gRPC."""

    def __init__(self, doors, connections=5, calls=False):
        self.doors, self.most, self.calls, self.open = itertools.cycle(doors), connections, calls, []

    async def ask(self, ask):
        """Returns an `Answer`; one of gRPC that says "unavailable" or "exhausted" is a refusal."""
        try:
            return await self.once(ask)
        except http2.Unprocessed:
            return await self.once(ask)

    async def once(self, ask):
        connection = await self.connection()
        call = self.begin(connection, ask)
        try:
            status = await call.answered()
        finally:
            connection.give_up(call)
        return Answer(self.status(status, call), call.fields.get("plimsoll-reason", ""))

    async def connection(self):
        """Returns the connection with the fewest calls, or a new one."""
        self.open = [connection for connection in self.open if not connection.ending]
        free = [connection for connection in self.open if connection.has_room()]
        if not free or len(self.open) < self.most:
            connection = await http2.Client.open(next(self.doors))
            self.open.append(connection)
            return connection
        return min(free, key=lambda connection: len(connection.calls))

    def begin(self, connection, ask):
        """Sends a request on a connection."""
        if self.calls:
            fields = [("content-type", "application/grpc"), ("te", "trailers")]
            return connection.begin(ask.target, fields, b"\0\0\0\0\x10" + b"x" * 16)
        return connection.begin(ask.target, body=b"x" * ask.upload if ask.upload else None)

    def status(self, status, call):
        if not self.calls or status != 200:
            return status
        return {"0": 200, "8": REFUSED, "14": REFUSED}.get(call.fields.get("grpc-status"), 500)

    async def hold(self, target):
        """Begins a request whose answer does not end, and returns the status of its head."""
        return await self.begin(await self.connection(), Ask(target)).begun()

    async def close(self):
        """Closes all connections."""
        for connection in self.open:
            await connection.close()


class Held:
    """Connections that are held open; leaving the context closes them."""

    def __init__(self, door):
        self.door, self.writers, self.sockets = door, [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for held in self.writers + self.sockets:
            held.close()

    async def get(self, target, fields="", head=True):
        """Sends a request of which the answer stays unread, behind its head unless that does not matter
        either."""
        reader, writer = await asyncio.open_connection(*self.door)
        self.writers.append(writer)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: world\r\n{fields}\r\n".encode())
        if head:
            await reader.readuntil(b"\r\n\r\n")

    async def socket(self):
        """Opens a WebSocket, on which nothing is said."""
        await self.get("/socket", SOCKET)

    async def unfinished_upload(self):
        """Sends the head of an upload and three of its thousand bytes."""
        _, writer = await asyncio.open_connection(*self.door)
        self.writers.append(writer)
        writer.write(b"POST /upload HTTP/1.1\r\nHost: world\r\nContent-Length: 1000\r\n\r\nabc")

    def unread(self, target):
        """Asks for a body of which not a byte is read."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        held.connect(self.door)
        held.sendall(f"GET {target} HTTP/1.1\r\nHost: world\r\n\r\n".encode())
        self.sockets.append(held)
