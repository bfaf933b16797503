"""The client for threads, against real daemons."""

from __future__ import annotations

import socket
import threading
import time
import unittest
from collections import Counter
from hashlib import sha256
from importlib.metadata import version
from typing import Callable, List, Set, Tuple, Union

import plimsoll
from cluster import ATTEMPTS, GRUDGE, Cluster, until


class Picks(unittest.TestCase):
    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster(3)
        cls.addClassCleanup(cls.cluster.close)
        with cls.client() as client:
            # Each daemon knows all members.
            until("all serve", lambda: len({cls.member(client) for _ in range(50)}) == 3)

    @classmethod
    def client(cls) -> plimsoll.Client:
        return plimsoll.Client(cls.cluster.addresses, cls.cluster.keys, attempts=ATTEMPTS)

    @staticmethod
    def member(client: plimsoll.Client) -> int:
        try:
            return client.pick("web").number
        except plimsoll.Unserved:
            return 0

    def test_a_pick_says_who_and_where_and_who_else(self) -> None:
        with self.client() as client:
            pick = client.pick("web")
            self.assertEqual(pick.address, ("127.0.0.1", pick.number))
            self.assertEqual(str(pick), f"127.0.0.1:{pick.number}")
            picks = [pick]

            def names_all() -> bool:
                picks.append(client.pick("web", b"\0gold\0"))
                return {picks[-1].number, *(one.number for one in picks[-1].further)} == {1, 2, 3}

            until("it names the others", names_all)
            pick = picks[-1]
            self.assertTrue(all(one.address == ("127.0.0.1", one.number) for one in pick.further))
            self.assertEqual(pick.info, b"")

    def test_a_service_has_a_number_too(self) -> None:
        with self.client() as client:
            number = int.from_bytes(sha256(b"web").digest()[:4], "big")
            self.assertIn(client.pick(number).number, (1, 2, 3))

    def test_who_failed_is_left_alone(self) -> None:
        with self.client() as client:
            picked: Set[int] = set()
            begun = time.monotonic() - GRUDGE
            # bound: for so long it is; what takes longer decides nothing
            while time.monotonic() - begun >= GRUDGE:
                begun = time.monotonic()
                client.failed(1)
                client.failed(client.pick("web"))
                picked = {client.pick("web").number for _ in range(40)}
            self.assertEqual(len(picked), 1)

    def test_threads_share_a_client(self) -> None:
        seen: Counter[int] = Counter()
        faults: List[BaseException] = []

        def picks(client: plimsoll.Client) -> None:
            try:
                for _ in range(100):
                    seen[client.pick("web").number] += 1
            except BaseException as fault:
                faults.append(fault)

        with self.client() as client:
            threads = [threading.Thread(target=picks, args=[client]) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((faults, sum(seen.values()), set(seen)), ([], 800, {1, 2, 3}))

    def test_what_is_closed_while_threads_use_it_ends_after_them(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            host, port = silent.getsockname()
            client = plimsoll.Client(f"{host}:{port}", self.cluster.keys)
            ends: List[BaseException] = []

            def pick() -> None:
                try:
                    client.pick("web")
                except BaseException as end:
                    ends.append(end)

            threads = [threading.Thread(target=pick) for _ in range(4)]
            for thread in threads:
                thread.start()
            # One has asked.
            silent.recv(2000)
            client.close()
            client.close()
            for thread in threads:
                thread.join()
        kinds = {type(end) for end in ends}
        self.assertEqual(len(ends), 4)
        self.assertTrue(plimsoll.Silence in kinds and kinds <= {plimsoll.Silence, ValueError}, ends)
        with self.assertRaisesRegex(ValueError, "closed"):
            client.pick("web")

    def test_who_asks_in_vain_is_told_why(self) -> None:
        with self.client() as client:
            with self.assertRaisesRegex(plimsoll.Unknown, "no member offers it"):
                client.pick("mail")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            with plimsoll.Client([f"127.0.0.1:{silent.getsockname()[1]}"], self.cluster.keys) as client:
                with self.assertRaises(plimsoll.Silence):
                    client.pick("web")

    def test_what_is_wrong_is_told_at_once(self) -> None:
        keys, daemons = self.cluster.keys, self.cluster.addresses
        bad = self.cluster.folder / "bad"
        bad.write_text("1 5a\n")
        wrongs: List[Tuple[Callable[[], plimsoll.Client], str]] = [
            (lambda: plimsoll.Client(daemons, bad), "line 1"),
            (lambda: plimsoll.Client(daemons, "no-such-file"), "cannot be read"),
            (lambda: plimsoll.Client("", keys), "no daemon to ask"),
            (lambda: plimsoll.Client(daemons, keys, multicast="10.0.0.1:7447"), "not a multicast address"),
            (lambda: plimsoll.Client(daemons, keys, attempts=256), "attempts"),
            (lambda: plimsoll.Client("127.0.0.1:1\0", keys), "zero"),
        ]
        for wrong, why in wrongs:
            with self.subTest(why), self.assertRaisesRegex(ValueError, why):
                wrong()
        with self.assertRaisesRegex(OSError, "look up"):
            plimsoll.Client("127.0.0.1", keys)
        with self.client() as client:
            services: List[Union[str, int]] = ["", "id:web", "a\0b", -1]
            for service in services:
                with self.subTest(service), self.assertRaises(ValueError):
                    client.pick(service)
            with self.assertRaisesRegex(ValueError, "1000 bytes"):
                client.pick("web", bytes(1001))
            with self.assertRaises(ValueError):
                client.failed(65536)

    def test_the_version_is_one(self) -> None:
        self.assertEqual(plimsoll.__version__, version("plimsoll"))


class Cache(unittest.TestCase):
    def test_an_answer_is_used_again_until_its_member_fails(self) -> None:
        with Cluster(2, "--ttl", "60s") as cluster:

            def first() -> int:
                with plimsoll.Client(cluster.addresses, cluster.keys, attempts=ATTEMPTS) as fresh:
                    return Picks.member(fresh)

            until("both serve", lambda: {first() for _ in range(20)} == {1, 2})
            with plimsoll.Client(cluster.addresses, cluster.keys, attempts=ATTEMPTS) as client:
                pick = client.pick("web")
                # By chance alone once in 2^50.
                self.assertEqual({client.pick("web") for _ in range(50)}, {pick})
                client.failed(pick)
                self.assertNotEqual(client.pick("web").number, pick.number)


if __name__ == "__main__":
    unittest.main()
