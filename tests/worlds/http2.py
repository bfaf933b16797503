"""HTTP/2 in clear (RFC 9113), as far as worlds need it: connections of a client, and of a member's server.

Windows are given back as soon as data has come; what is sent is small and does not count the peer's. A
client may open its windows not at all, as one does that reads nothing.
"""

import asyncio
import contextlib

from .hpack import Decoder, encode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4
WINDOW = 65_535
REFUSED_STREAM, CANCEL = 7, 8


class Lost(ConnectionError):
    """The peer ended the stream or the connection before its answer was whole."""


class Unprocessed(Lost):
    """The peer says that it has not begun with the request: it may be sent again."""


def frame(kind, flags, stream, payload=b""):
    """Returns the bytes of a frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(**values):
    """Returns the bytes of SETTINGS; `window` is the window that the peer has for each stream."""
    names = {"window": INITIAL_WINDOW_SIZE, "streams": MAX_CONCURRENT_STREAMS}
    payload = b"".join(
        names[name].to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items()
    )
    return frame(SETTINGS, 0, 0, payload)


def unpadded(flags, payload, priority=False):
    """Returns the payload of DATA or HEADERS without padding and priority."""
    if flags & PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if priority and flags & PRIORITY else payload


class Link:
    """One end of a connection: answers what concerns the connection, and passes on what concerns streams."""

    def __init__(self, reader, writer, reads=True):
        self.reader, self.writer, self.reads = reader, writer, reads
        self.decoder = Decoder()
        self.most_streams = 100

    async def run(self):
        """Reads frames until the connection ends."""
        while True:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            self.take(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, payload)

    def take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            self.agree(payload)
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == DATA:
            self.give_back(stream, len(payload))
            self.on_data(stream, unpadded(flags, payload), flags & END_STREAM)
        elif kind == HEADERS:
            self.block, self.ends = unpadded(flags, payload, priority=True), flags & END_STREAM
            self.on_block(stream, flags)
        elif kind == CONTINUATION:
            self.block += payload
            self.on_block(stream, flags)
        elif kind == RST_STREAM:
            self.on_reset(stream, int.from_bytes(payload, "big"))
        elif kind == GOAWAY:
            self.on_goaway(int.from_bytes(payload[:4], "big"))

    def agree(self, payload):
        for at in range(0, len(payload), 6):
            if int.from_bytes(payload[at : at + 2], "big") == MAX_CONCURRENT_STREAMS:
                self.most_streams = int.from_bytes(payload[at + 2 : at + 6], "big")
        self.send(frame(SETTINGS, ACK, 0))

    def give_back(self, stream, length):
        if length and self.reads:
            more = length.to_bytes(4, "big")
            self.send(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, stream, more))

    def on_block(self, stream, flags):
        if flags & END_HEADERS:
            self.on_fields(stream, dict(self.decoder.decode(self.block)), self.ends)

    def send(self, frames):
        if not self.writer.is_closing():
            self.writer.write(frames)

    def send_fields(self, stream, fields, ends):
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, encode(fields)))


class Call:
    """A request of a client: its answer's first and last fields, when they have come."""

    def __init__(self, number):
        self.number = number
        self.fields, self.head, self.end = {}, asyncio.Event(), asyncio.Event()
        self.lost = None

    def fail(self, why):
        """Ends it with an error, which is raised to whoever waits."""
        self.lost = why
        self.head.set()
        self.end.set()

    async def answered(self):
        """Returns the status once the answer is whole."""
        await self.end.wait()
        return self.status()

    async def begun(self):
        """Returns the status once the answer's head is here."""
        await self.head.wait()
        return self.status()

    def status(self):
        if self.lost:
            raise self.lost
        return int(self.fields.get(":status", 0))


class Client(Link):
    """A client's connection."""

    def __init__(self, reader, writer, reads):
        super().__init__(reader, writer, reads)
        self.calls, self.next, self.ending = {}, 1, False

    @classmethod
    async def open(cls, door, reads=True):
        """Connects to a (host, port). Without `reads` the peer may send no byte of any answer's body."""
        client = cls(*await asyncio.open_connection(*door), reads)
        client.send(PREFACE + settings(window=WINDOW if reads else 0))
        client.reading = asyncio.create_task(client.read())
        return client

    async def read(self):
        try:
            await self.run()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.ending = True
            for call in self.calls.values():
                call.fail(Lost(f"the connection ended: {error}"))
            self.calls.clear()

    def has_room(self):
        """Returns whether another call may begin."""
        return not self.ending and not self.writer.is_closing() and len(self.calls) < self.most_streams

    def begin(self, path, fields=(), body=None):
        """Sends a request, whole; a POST if it has a body."""
        call = Call(self.next)
        self.next += 2
        self.calls[call.number] = call
        method = "GET" if body is None else "POST"
        head = [(":method", method), (":scheme", "http"), (":authority", "world"), (":path", path), *fields]
        if body is not None:
            head.append(("content-length", str(len(body))))
        self.send_fields(call.number, head, body is None)
        if body is not None:
            self.send(frame(DATA, END_STREAM, call.number, body))
        return call

    def give_up(self, call):
        """Tells the peer that nobody waits for this answer any more."""
        if self.calls.pop(call.number, None):
            self.send(frame(RST_STREAM, 0, call.number, CANCEL.to_bytes(4, "big")))

    def on_fields(self, stream, fields, ends):
        if call := self.calls.get(stream):
            call.fields.update(fields)
            call.head.set()
            self.on_data(stream, b"", ends)

    def on_data(self, stream, data, ends):
        if ends and (call := self.calls.pop(stream, None)):
            call.end.set()

    def on_reset(self, stream, code):
        if call := self.calls.pop(stream, None):
            call.fail(
                (Unprocessed if code == REFUSED_STREAM else Lost)(f"the stream was reset with code {code}")
            )

    def on_goaway(self, last):
        self.ending = True
        for number in [number for number in self.calls if number > last]:
            self.calls.pop(number).fail(Unprocessed("the connection is about to end"))

    async def close(self):
        self.reading.cancel()
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Request:
    """A request at a server: where it goes, and how to answer it."""

    def __init__(self, link, number, fields):
        self.link, self.number, self.fields = link, number, fields
        self.target, self.whole = fields.get(":path", "/"), asyncio.Event()

    def head(self, status, *fields):
        self.link.send_fields(self.number, [(":status", str(status)), *fields], False)

    def data(self, data):
        self.link.send(frame(DATA, 0, self.number, data))

    def trailers(self, *fields):
        """Ends the answer."""
        if fields:
            self.link.send_fields(self.number, list(fields), True)
        else:
            self.link.send(frame(DATA, END_STREAM, self.number))


class Server(Link):
    """A server's connection: `answer(request)` is run for each request."""

    def __init__(self, reader, writer, answer):
        super().__init__(reader, writer)
        self.answer, self.requests, self.tasks = answer, {}, {}
        self.send(settings(streams=250))

    def on_fields(self, stream, fields, ends):
        if stream not in self.requests:
            request = self.requests[stream] = Request(self, stream, fields)
            self.tasks[stream] = asyncio.create_task(self.answer(request))
            self.tasks[stream].add_done_callback(lambda _: self.forget(stream))
        self.on_data(stream, b"", ends)

    def on_data(self, stream, data, ends):
        if ends and stream in self.requests:
            self.requests[stream].whole.set()

    def on_reset(self, stream, code):
        if stream in self.tasks:
            self.tasks[stream].cancel()

    def on_goaway(self, last):
        """Streams that are under way go on until the peer closes."""

    def forget(self, stream):
        self.tasks.pop(stream, None)
        self.requests.pop(stream, None)

    def end(self):
        for task in self.tasks.values():
            task.cancel()
