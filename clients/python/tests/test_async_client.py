"""The client for asyncio, against real daemons."""

from __future__ import annotations

import asyncio
import socket
import time
import unittest
from typing import Set

import plimsoll
from cluster import ATTEMPTS, GRUDGE, PATIENCE, Cluster


class Picks(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.cluster = Cluster(3)
        self.addCleanup(self.cluster.close)

    async def asyncSetUp(self) -> None:
        # On a machine with much to do it would tell of every step that took long.
        asyncio.get_running_loop().set_debug(False)

    def client(self) -> plimsoll.AsyncClient:
        return plimsoll.AsyncClient(self.cluster.addresses, self.cluster.keys, attempts=ATTEMPTS)

    async def all_serve(self, client: plimsoll.AsyncClient) -> None:
        async def look() -> None:
            seen: Set[int] = set()
            while seen != {1, 2, 3}:
                try:
                    seen.add((await client.pick("web")).number)
                except plimsoll.Unserved:
                    pass

        await asyncio.wait_for(look(), PATIENCE)

    async def test_tasks_share_a_client_and_one_that_dies_costs_none_of_them(self) -> None:
        async with self.client() as client:
            await self.all_serve(client)
            picks = await asyncio.gather(*(client.pick("web") for _ in range(500)))
            self.assertEqual({pick.number for pick in picks}, {1, 2, 3})
            self.assertTrue(all(pick.address == ("127.0.0.1", pick.number) for pick in picks))
            self.cluster.daemons[0].kill()
            for _ in range(100):
                await client.pick("web")

    async def test_the_loop_turns_while_nobody_answers(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{silent.getsockname()[1]}"
            async with plimsoll.AsyncClient(nobody, self.cluster.keys, attempts=ATTEMPTS) as client:
                pick = asyncio.ensure_future(client.pick("web"))
                for _ in range(21):
                    # sleeps: a turn of the loop
                    await asyncio.sleep(0.001)
                    self.assertFalse(pick.done(), "it takes minutes")
                pick.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await pick
            async with plimsoll.AsyncClient(nobody, self.cluster.keys) as client:
                with self.assertRaises(plimsoll.Silence):
                    await client.pick("web")

    async def test_who_gives_up_leaves_nothing_behind(self) -> None:
        async with self.client() as client:
            await self.all_serve(client)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.pick("web"), 0)
            pick = asyncio.ensure_future(client.pick("web"))
            # sleeps: a turn of the loop
            await asyncio.sleep(0)
            pick.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await pick
            self.assertEqual((await client.pick("web")).host, "127.0.0.1")
            self.assertEqual(client._waiting, {})

    async def test_who_waits_when_it_is_closed_is_cancelled(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            client = plimsoll.AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}", self.cluster.keys)
            pick = asyncio.ensure_future(client.pick("web"))
            # sleeps: a turn of the loop
            await asyncio.sleep(0)
            client.close()
            client.close()
            with self.assertRaises(asyncio.CancelledError):
                await pick
            with self.assertRaisesRegex(ValueError, "closed"):
                await client.pick("web")

    async def test_who_failed_is_left_alone_and_who_asks_in_vain_is_told_why(self) -> None:
        async with self.client() as client:
            await self.all_serve(client)
            picked: Set[int] = set()
            begun = time.monotonic() - GRUDGE
            # bound: for so long it is; what takes longer decides nothing
            while time.monotonic() - begun >= GRUDGE:
                begun = time.monotonic()
                client.failed(1)
                client.failed(await client.pick("web"))
                picks = await asyncio.gather(*(client.pick("web") for _ in range(40)))
                picked = {pick.number for pick in picks}
            self.assertEqual(len(picked), 1)
            with self.assertRaises(plimsoll.Unknown):
                await client.pick("mail")
            with self.assertRaises(ValueError):
                await client.pick("")

    async def test_an_answer_that_is_used_again_is_there_at_once(self) -> None:
        with Cluster(1, "--ttl", "60s") as cluster:
            async with plimsoll.AsyncClient(cluster.addresses, cluster.keys) as client:
                while True:
                    try:
                        first = await client.pick("web")
                        break
                    except plimsoll.Unserved:
                        # sleeps: polls
                        await asyncio.sleep(0.01)
                cluster.daemons[0].kill()
                self.assertEqual(await asyncio.gather(*(client.pick("web") for _ in range(10))), [first] * 10)


class Loops(unittest.TestCase):
    def test_a_client_belongs_to_one_loop(self) -> None:
        with Cluster(1) as cluster:
            client = plimsoll.AsyncClient(cluster.addresses, cluster.keys)

            async def pick() -> None:
                try:
                    await client.pick("web")
                except plimsoll.Unserved:
                    # It has only begun.
                    pass

            asyncio.run(pick())
            with self.assertRaisesRegex(RuntimeError, "another event loop"):
                asyncio.run(pick())
            client.close()


if __name__ == "__main__":
    unittest.main()
