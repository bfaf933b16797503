"""Tests of HTTP/2 and of members: a client and a server of ours over a real socket."""

import asyncio
import random
import unittest

from . import http2
from .clients import Ask, Http1, Http2
from .member import Http1 as Connection
from .member import Member, Work

QUICK = {"mean": 0.1, "constant": True}


class Frames(unittest.TestCase):
    def test_a_frame_is_as_rfc_9113_draws_it(self):
        self.assertEqual(
            http2.frame(http2.PING, http2.ACK, 0, b"12345678").hex(), "000008060100000000" + b"12345678".hex()
        )

    def test_padding_and_priority_are_taken_off(self):
        self.assertEqual(http2.unpadded(http2.PADDED, b"\x02abc\0\0"), b"abc")
        self.assertEqual(
            http2.unpadded(http2.PADDED | http2.PRIORITY, b"\x0112345abc\0", priority=True), b"abc"
        )


class Members(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.member = Member(Work(**QUICK), random.Random(1))
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        self.doors = [self.server.sockets[0].getsockname()]

    async def asyncTearDown(self):
        self.server.close()
        await self.server.wait_closed()

    async def connected(self, reader, writer):
        try:
            await Connection(self.member, reader, writer).run()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def test_requests_of_all_kinds_are_answered(self):
        first, second, calls = Http1(self.doors), Http2(self.doors), Http2(self.doors, calls=True)
        for client in (first, second, calls):
            for ask in (Ask(), Ask("/upload", upload=5000), Ask("/file/70000")):
                self.assertEqual((await client.ask(ask)).status, 200)
        self.assertEqual(self.member.served, 9)
        for client in (first, second, calls):
            await client.close()

    async def test_one_that_fails_answers_health_checks(self):
        client = Http1(self.doors)
        self.assertEqual((await client.ask(Ask("/__set?fail=1"))).status, 200)
        self.assertEqual((await client.ask(Ask())).status, 500)
        self.assertEqual((await client.ask(Ask("/healthz"))).status, 200)
        await client.close()

    async def test_a_call_that_fails_says_so_in_its_trailers(self):
        self.member.work.fail = True
        client = Http2(self.doors, calls=True)
        self.assertEqual((await client.ask(Ask())).status, 500)
        await client.close()

    async def test_a_stream_begins_and_goes_on(self):
        client = Http2(self.doors, connections=1)
        self.assertEqual(await client.hold("/events"), 200)
        self.assertEqual((await client.ask(Ask())).status, 200)
        await client.close()

    async def test_a_head_needs_no_window(self):
        client = await http2.Client.open(self.doors[0], reads=False)
        self.assertEqual(await client.begin("/").begun(), 200)
        await client.close()

    async def test_a_lost_connection_fails_what_is_under_way(self):
        self.member.work.hang = True
        client = Http2(self.doors, connections=1)
        waiting = asyncio.create_task(client.ask(Ask()))
        while not client.open or not client.open[0].calls:
            # sleeps: polls
            await asyncio.sleep(0.01)
        client.open[0].writer.close()
        with self.assertRaises(http2.Lost):
            await waiting
        self.member.work.hang = False
        await client.close()


class Works(unittest.TestCase):
    def test_what_is_told_as_text_has_its_kind(self):
        member = Member(Work(), random.Random(1))
        for name, text, value in (
            ("hang", "1.0", True),
            ("hang", "0", False),
            ("mean", "2.5", 2.5),
            ("cold", "3.0", 3),
        ):
            member.change(name, text)
            self.assertEqual(getattr(member.work, name), value)

    def test_a_cold_one_takes_ten_times_as_long_at_first(self):
        member = Member(Work(constant=True, mean=10, cold=1), random.Random(1))
        cold = member.seconds()
        member.served = 1
        self.assertAlmostEqual(cold / member.seconds(), 10)

    def test_means_are_what_they_say(self):
        for tail in (False, True):
            member = Member(Work(mean=20, tail=tail), random.Random(1))
            times = [member.seconds() for _ in range(20_000)]
            self.assertAlmostEqual(sum(times) / len(times) / 0.02, 1, delta=0.1)


if __name__ == "__main__":
    unittest.main()
