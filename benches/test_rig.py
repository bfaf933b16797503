"""Tests of what the gates and the bench read and reckon; no proxy is needed."""

import contextlib
import socketserver
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from gates import Counted, difference, strace_total
from rig import h2load, wrk
from rig.client import Crowd, Refused, complete
from rig.leg import Cell, Leg
from rig.process import HOST, Child, Failed, cpu_of, free_port
from rig.report import TARGETS, grid, page, ratio, record, verdicts

WRK = """\
Running 3s test @ http://127.0.0.1:18000/1k
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.01ms  213.17us   5.94ms   83.32%
    Req/Sec    62.75k     4.15k   69.70k    80.00%
  Latency Distribution
     50%  995.00us
     75%    1.09ms
     90%    1.23ms
     99%    1.75ms
  187433 requests in 3.00s, 225.10MB read
"""
TROUBLE = """\
  Socket errors: connect 1, read 2, write 0, timeout 3
  Non-2xx or 3xx responses: 40
Requests/sec:  62441.37
"""


def leg(peer, number, cpu, cell=Cell("http", 64, "1k"), foreign=0.0, errors=0):
    return Leg(peer, cell, number, 1000, 1e4, 900.0, 1800.0, cpu, cpu, 0.9, 12.0, errors, foreign)


@contextlib.contextmanager
def counting_server(answer):
    """Answers every request with `answer` and counts them; gives an object with `port` and `requests`."""

    class Connection(socketserver.StreamRequestHandler):
        def handle(self):
            while self.rfile.readline():
                while self.rfile.readline().strip():
                    pass
                with server.lock:
                    server.requests += 1
                self.wfile.write(answer)

    with socketserver.ThreadingTCPServer((HOST, 0), Connection) as server:
        server.port, server.requests, server.lock = server.server_address[1], 0, threading.Lock()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Wrk(unittest.TestCase):
    def test_figures_are_in_microseconds(self):
        load = wrk.parse(WRK)
        self.assertEqual((load.requests, load.seconds, load.p50, load.p99, load.errors), (187433, 3.0, 995.0, 1750.0, 0))

    def test_a_padded_unit_is_read(self):
        self.assertEqual(wrk.parse(WRK.replace("1.75ms", "1.05s ")).p99, 1_050_000.0)

    def test_socket_errors_and_bad_answers_count(self):
        self.assertEqual(wrk.parse(WRK + TROUBLE).errors, 46)

    def test_unknown_text_is_an_error(self):
        with self.assertRaises(Failed):
            wrk.parse("unable to connect to 127.0.0.1:1")


H2LOAD = """\
starting benchmark...
finished in 2.00s, 30000.00 req/s, 32.00MB/s
requests: 60064 total, 60064 started, 60050 done, 60040 succeeded, 24 failed, 14 errored, 0 timeout
"""


class Calls(unittest.TestCase):
    def test_what_was_under_way_at_the_end_is_no_error(self):
        log = "".join(f"1700000000000000\t200\t{time}\n" for time in range(1, 1001))
        load = h2load.parse(H2LOAD, log)
        self.assertEqual((load.requests, load.seconds, load.errors), (60040, 2.0, 10))
        self.assertAlmostEqual(load.p50, 500, delta=2)
        self.assertAlmostEqual(load.p99, 990, delta=2)

    def test_unknown_text_and_no_calls_are_errors(self):
        for text, log in (("unable to connect", ""), (H2LOAD, "")):
            with self.assertRaises(Failed):
                h2load.parse(text, log)


class Counts(unittest.TestCase):
    def test_totals(self):
        text = "events: Ir\nfn=main\n1 5\nfn=epoll_wait\n0 9\n3 11\nfn=epoll_wait2\n1 7\nsummary: 16221098\n"
        self.assertEqual(Counted.of(text), Counted(16221098, 20))
        self.assertEqual(strace_total("    calls syscall\n--------- ---\n        7 read\n      145 total\n"), 145)

    def test_an_unfinished_file_is_an_error(self):
        for total in (Counted.of, strace_total):
            with self.assertRaises(Failed):
                total("")

    def test_what_a_request_costs_does_not_depend_on_the_turns_it_happened_to_take(self):
        # 6,000 and 900 a turn, of which 25 in the call that waits.
        alone = Counted(7_800, 50)
        for turns in (0.1, 0.5, 1.6):
            self.assertAlmostEqual(Counted(6_000 + 900 * turns, 25 * turns).at(0.25, alone), 6_225)

    def test_turns_are_known_by_one_that_is_alone(self):
        self.assertEqual(Counted(6_900, 25).turns(Counted(7_800, 50)), 1)
        with self.assertRaises(Failed):
            Counted(6_900, 25).turns(Counted(7_800, 0))

    def test_difference_leaves_out_what_every_run_costs(self):
        self.assertEqual(difference(lambda requests: 1_000_000 + 7 * requests, 400, 4400), 7)


class Answers(unittest.TestCase):
    HEAD = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 3\r\n\r\n"

    def test_complete_only_with_the_last_byte(self):
        whole = self.HEAD + b"abc"
        self.assertEqual([complete(whole[:n]) for n in range(len(whole) + 1)], [False] * len(whole) + [True])

    def test_another_status_or_no_length_is_refused(self):
        for answer in (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nDate: x\r\n\r\n"):
            with self.assertRaises(Refused):
                complete(answer)

    def test_the_crowd_sends_exactly_what_it_is_told(self):
        with counting_server(self.HEAD + b"abc") as server, Crowd((HOST, server.port), 5) as crowd:
            crowd.run(3)
            crowd.run(42)
            crowd.in_turn(7)
            self.assertEqual((server.requests, crowd.lost()), (52, 0))


class Ratios(unittest.TestCase):
    def test_pairs_are_made_within_a_round(self):
        # The machine is twice as slow in round 2: the ratio does not see it.
        legs = [leg("plimsoll", 1, 8), leg("haproxy", 1, 10), leg("plimsoll", 2, 16), leg("haproxy", 2, 20)]
        found = ratio(legs, "plimsoll", "haproxy", Cell("http", 64, "1k"))
        self.assertEqual((found.median, found.low, found.high, found.rounds), (0.8, 0.8, 0.8, 2))

    def test_disturbed_rounds_are_left_out_if_there_are_others(self):
        legs = [leg("plimsoll", 1, 8), leg("haproxy", 1, 10), leg("plimsoll", 2, 30), leg("haproxy", 2, 20, foreign=0.5)]
        found = ratio(legs, "plimsoll", "haproxy", Cell("http", 64, "1k"))
        self.assertEqual((found.median, found.rounds, found.quiet), (0.8, 1, True))
        only = ratio(legs[2:], "plimsoll", "haproxy", Cell("http", 64, "1k"))
        self.assertEqual((only.median, only.quiet), (1.5, False))

    def test_a_target_is_met_missed_or_not_measured(self):
        legs = [leg("plimsoll", 1, 8), leg("haproxy", 1, 10), leg("nginx", 1, 8)]
        met = {(target.base, target.mode, target.connections, target.body): met for target, _, met in verdicts(legs)}
        self.assertIs(met["haproxy", "http", 64, "1k"], True)
        self.assertIs(met["nginx", "http", 64, "1k"], False)
        self.assertIs(met["haproxy", "tcp", 64, "64k"], None)
        self.assertEqual(len(met), len(TARGETS))

    def test_the_page_and_the_record_name_what_is_missing(self):
        about = {
            "date": "2026-01-01", "machine": "m", "rounds": 1, "seconds": 1, "seed": 1,
            "versions": {"haproxy": "2.6"}, "missing": {"envoy": "no wheel for this machine"},
        }  # fmt: skip
        legs = [leg("haproxy", 1, 10), leg("nginx", 1, 8)]
        self.assertIn("envoy: left out: no wheel for this machine", page(legs, about))
        self.assertIn("not measured", page(legs, about))
        self.assertIn('"missing"', record(legs, about))

    def test_rows_line_up(self):
        self.assertEqual(grid([["a", "b"], ["long", "1"]]), ["| a    |   b |", "| ---- | --: |", "| long |   1 |"])


class Children(unittest.TestCase):
    def test_a_program_that_ends_early_is_reported_with_its_words(self):
        with tempfile.TemporaryDirectory() as where:
            command = [sys.executable, "-c", "raise SystemExit('no such file')"]
            with Child(command, Path(where) / "log") as child, self.assertRaisesRegex(Failed, "no such file"):
                child.await_port(free_port())

    def test_leaving_the_context_ends_a_deaf_program(self):
        with tempfile.TemporaryDirectory() as where:
            deaf = "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
            log = Path(where) / "log"
            child = Child([sys.executable, "-c", deaf + "while True: time.sleep(1)"], log)
            while not log.read_text():
                self.assertIsNone(child.process.poll())
            self.assertFalse(child.stop(seconds=0.2))
            self.assertIsNotNone(child.process.returncode)

    def test_cpu_time_is_counted(self):
        with tempfile.TemporaryDirectory() as where:
            with Child([sys.executable, "-c", "while True: pass"], Path(where) / "log") as child:
                while child.cpu() < 0.05:
                    self.assertIsNone(child.process.poll())
                self.assertGreater(child.schedstat(), 0.02)
        self.assertEqual(cpu_of(child.pid), 0.0)
