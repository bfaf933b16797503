"""Tests of what the bench of load generators reads, counts and reckons; no generator is needed."""

import os
import socket
import tempfile
import time
import unittest

import load
from rig import trials
from rig.generators import ALL, Fortio, Hey, K6, Oha, Ours, Wrk2
from rig.process import HOST
from rig.responder import Responder
from rig.syns import Syns

# Bound of every wait: longer than anything takes on a machine with other work.
PATIENCE = 60
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def read(client, count):
    """Reads answers until their bodies have come `count` times, or the end."""
    got = b""
    while got.count(b"\r\n\r\nhello") < count:
        more = client.recv(4096)
        if not more:
            break
        got += more
    return got


class Latencies(unittest.TestCase):
    """Every generator's own words as (p95, p99) in milliseconds."""

    def test_json(self):
        told = '{"latency_seconds": {"p50": 0.1, "p95": 0.1024, "p99": 0.181}}'
        self.assertEqual([round(value, 6) for value in Ours().latencies(told)], [102.4, 181.0])
        self.assertEqual(Oha().latencies('{"latencyPercentiles": {"p95": 0.25, "p99": 0.5}}'), (250.0, 500.0))
        told = 'talk\n{"DurationHistogram": {"Percentiles": [{"Percentile": 95, "Value": 0.25}, {"Percentile": 99, "Value": 0.5}]}}'
        self.assertEqual(Fortio().latencies(told), (250.0, 500.0))

    def test_text(self):
        self.assertEqual(Hey().latencies("  90% in 0.0003 secs\n  95% in 0.2500 secs\n  99% in 0.5000 secs\n"), (250.0, 500.0))
        told = "    http_req_duration..............: p(95)=950µs p(99)=1.5s\n"
        self.assertEqual([round(value, 6) for value in K6().latencies(told)], [0.95, 1500.0])

    def test_words_that_are_not_understood_are_none_or_an_error(self):
        for generator in (Hey(), K6(), Wrk2()):
            self.assertIsNone(generator.latencies("killed\n"))
        for generator in (Ours(), Oha()):
            with self.assertRaises(ValueError):
                generator.latencies("killed\n")


class Figures(unittest.TestCase):
    def test_targets_name_trials_and_figures_that_there_are(self):
        columns = {trial.name: [key for key, _, _ in trial.columns] for trial in load.TRIALS}
        for target in load.TARGETS:
            self.assertIn(target.key, columns[target.trial])

    def test_disturbed_runs_count_only_if_there_are_no_others(self):
        found = {("t", "wrk"): [{"cpu": 6, "foreign": 0.0}, {"cpu": 9, "foreign": 0.5}], ("t", "ab"): [{"cpu": 9, "foreign": 0.5}]}
        self.assertEqual((load.of(found, "t", "wrk", "cpu"), load.of(found, "t", "ab", "cpu")), ([6], [9]))

    def test_a_missed_target_is_said_and_counted(self):
        about = {"date": "2026-01-01", "machine": "m", "rounds": 1, "versions": {"wrk": "4"}, "missing": ["wrk2"]}
        run = {"cpu": 7.0, "rate": 1e5, "foreign": 0.0}
        text, missed = load.page({("cost, kept connections", "plimsoll"): [run]}, about)
        self.assertEqual((missed, "MISSED" in text, "wrk2: left out" in text), (1, True, True))
        text, missed = load.page({("cost, kept connections", "plimsoll"): [{**run, "cpu": 6.0}]}, about)
        self.assertEqual((missed, "MISSED" in text), (0, False))

    def test_ratios_are_made_within_a_round(self):
        # The machine is twice as slow in round 2; wrk has no figure of round 3.
        ours = [{"round": n, "cpu": cpu} for n, cpu in ((1, 5), (2, 10), (3, 99))]
        found = {("t", "plimsoll"): ours, ("t", "wrk"): [{"round": 1, "cpu": 10}, {"round": 2, "cpu": 20}]}
        self.assertEqual(load.to_wrk(found, "t", "plimsoll"), [0.5, 0.5])

    def test_every_generator_can_do_something(self):
        for kind in ALL.values():
            made = [getattr(kind, name) is not getattr(trials_base, name) for name in ("closed", "open", "fresh")]
            self.assertTrue(any(made), kind.name)


trials_base = ALL["wrk"].__base__


class TheResponder(unittest.TestCase):
    def test_it_answers_and_stamps_every_request(self):
        with tempfile.TemporaryDirectory() as where, Responder(where, 0) as responder:
            began = time.monotonic()
            with socket.create_connection((HOST, responder.port), timeout=PATIENCE) as client:
                client.sendall(ASK * 3)
                self.assertEqual(read(client, 3).count(b"hello"), 3)
                client.sendall(ASK)
                self.assertEqual(read(client, 1).count(b"hello"), 1)
            stamps = responder.stamps()
        self.assertEqual(len(stamps), 4)
        self.assertTrue(began <= stamps[0] <= stamps[3] <= time.monotonic())

    def test_it_closes_where_the_client_says_so(self):
        with tempfile.TemporaryDirectory() as where, Responder(where, 0) as responder:
            for ask in (ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"GET / HTTP/1.0\r\n\r\n"):
                with socket.create_connection((HOST, responder.port), timeout=PATIENCE) as client:
                    client.sendall(ask)
                    self.assertIn(b"Connection: close", read(client, 2))

    def test_a_client_of_old_keeps_its_connection_if_it_asks(self):
        ask = b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"
        with tempfile.TemporaryDirectory() as where, Responder(where, 0) as responder:
            with socket.create_connection((HOST, responder.port), timeout=PATIENCE) as client:
                for _ in range(2):
                    client.sendall(ask)
                    self.assertIn(b"Connection: keep-alive", read(client, 1))

    def test_it_stands_still_on_schedule(self):
        with tempfile.TemporaryDirectory() as where, Responder(where, 0, stall=(200, 400)) as responder:
            slowest, ending = 0.0, time.monotonic() + PATIENCE
            with socket.create_connection((HOST, responder.port), timeout=PATIENCE) as client:
                while slowest <= 0.15 and time.monotonic() < ending:
                    began = time.monotonic()
                    client.sendall(ASK)
                    read(client, 1)
                    slowest = max(slowest, time.monotonic() - began)
        self.assertGreater(slowest, 0.15)


@unittest.skipUnless(os.geteuid() == 0, "watching packets needs root")
class TheWatcher(unittest.TestCase):
    def test_each_connection_is_seen_once(self):
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
            syns, began = Syns(port), time.time()
            for _ in range(5):
                socket.create_connection((HOST, port), timeout=PATIENCE).close()
            firsts, repeats = syns.stop()
        self.assertEqual((len(firsts), repeats), (5, 0))
        self.assertTrue(began - 0.1 <= firsts[0] <= firsts[-1] <= time.time() + 0.1)

    def test_a_repeated_syn_is_told_from_a_first_one(self):
        # A full queue drops SYNs; the kernel sends them again after a second.
        with socket.create_server((HOST, 0), backlog=0) as server:
            port = server.getsockname()[1]
            syns, clients = Syns(port), []
            for _ in range(3):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex((HOST, port))
                clients.append(client)
            ending = time.monotonic() + PATIENCE
            while not syns.repeats and time.monotonic() < ending:
                time.sleep(0.02)  # sleeps: polls
            firsts, repeats = syns.stop()
            for client in clients:
                client.close()
        self.assertEqual(len(firsts), 3)
        self.assertGreaterEqual(repeats, 1)


class Evenness(unittest.TestCase):
    def test_a_stamp_a_millisecond_is_even(self):
        found = trials_of([n / 1000 for n in range(2000)])
        self.assertLess(found["cv"], 0.01)
        self.assertAlmostEqual(found["rate"], 1000, delta=1)

    def test_ten_at_once_every_ten_milliseconds_are_not(self):
        found = trials_of([n // 10 / 100 for n in range(2000)])
        self.assertAlmostEqual(found["cv"], 3.0, delta=0.1)


class Offered(unittest.TestCase):
    def test_a_clock_fills_every_bin(self):
        shares = trials.offered([7 + n / 2000 for n in range(9 * 2000)], 2000, 9, 0.25)
        self.assertEqual(len(shares), 32)
        for share in shares:
            self.assertAlmostEqual(share, 1, delta=0.01)


def trials_of(stamps):
    """What `trials.evenness` makes of these stamps of two seconds."""
    made = {}

    def instead(_command, _cores, figures, **_):
        made.update(figures(stamps, {"cpu": 0, "out": ""}))

    kept, trials.judged = trials.judged, instead
    try:
        trials.evenness(None, False, 2, [0, 1])
    finally:
        trials.judged = kept
    return made


if __name__ == "__main__":
    unittest.main()
