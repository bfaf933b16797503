"""Four trials of a load generator, as docs/bench.md explains them. Each returns a dict of figures, or None if the
generator cannot do it. The generator has one core, the responder the other."""

import ctypes
import math
import os
import statistics
import subprocess
import tempfile
import time
from multiprocessing import get_context

from .process import Failed, busy_of_machine
from .responder import Responder
from .syns import Syns

RATE = 5000
"""Requests per second where the rate is given."""

STALL = (200, 2000)
"""The responder stands still for so many milliseconds of so many."""

TRUTH = (100.0, 180.0)
"""p95 and p99 of latency in milliseconds: a tenth of the arrivals wait evenly from 0 to 200, so a share 0.1 (1 - x / 200)
waits longer than x."""

CLONE_NEWNET = 0x40000000


def cost(generator, kept, seconds, cores):
    """CPU time of the generator per request, as fast as one core can."""
    return judged(lambda url: generator.closed(url, seconds, kept), cores, lambda stamps, done: {
        "cpu": done["cpu"] / max(len(stamps), 1) * 1e6,
        "rate": len(stamps) / seconds,
    })  # fmt: skip


def evenness(generator, poisson, seconds, cores):
    """How requests follow one another as the server sees them."""

    def figures(stamps, _):
        begin, end = stamps[0] + 0.1 * seconds, stamps[0] + 0.95 * seconds
        kept = [stamp for stamp in stamps if begin <= stamp < end]
        gaps = [later - sooner for sooner, later in zip(kept, kept[1:])]
        mean = statistics.fmean(gaps)
        bins = [0] * int((end - begin) * 1000)
        for stamp in kept:
            bins[min(int((stamp - begin) * 1000), len(bins) - 1)] += 1
        return {
            "cv": statistics.pstdev(gaps) / mean,
            "idc": statistics.pvariance(bins) / statistics.fmean(bins),
            "rate": 1 / mean,
        }

    return judged(lambda url: generator.open(url, seconds, RATE, poisson, 64), cores, figures)


def stalled(generator, seconds, cores):
    """The percentiles it reports of a server that stands still for a tenth of the time."""

    def figures(stamps, done):
        told = generator.latencies(done["out"])
        if told is None:
            return None
        return {"p95": told[0], "p99": told[1], "rate": len(stamps) / seconds}

    return judged(lambda url: generator.open(url, seconds, RATE, False, 32), cores, figures, stall=STALL)


def stopped(generator, cores):
    """What it offers while the server is stopped by SIGSTOP; in a network namespace of its own."""
    context = get_context("fork")
    there, here = context.Pipe()
    child = context.Process(target=in_namespace, args=(generator, cores, there))
    child.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = Failed("the trial in the network namespace broke off")
    child.join(60)
    if isinstance(answer, Failed):
        raise answer
    return answer


def in_namespace(generator, cores, answer):
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise Failed(f"no network namespace of our own: {os.strerror(ctypes.get_errno())}; needs root")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
        answer.send(stop_and_go(generator, cores))
    except (Failed, OSError, subprocess.SubprocessError) as error:
        answer.send(Failed(str(error)))


def stop_and_go(generator, cores):
    rate, seconds, pause, span = 2000, 9, (3.0, 6.0), 0.25
    with tempfile.TemporaryDirectory(prefix="plimsoll-trial-") as where:
        with Responder(where, cores[1], backlog=64) as responder:
            command = generator.fresh(f"http://127.0.0.1:{responder.port}/", seconds, rate)
            if command is None:
                return None
            syns = Syns(responder.port)
            busy, began = busy_of_machine(), time.monotonic()
            program = start(command, cores[0])
            time.sleep(pause[0])
            os.kill(responder.pid, 19)
            time.sleep(pause[1] - pause[0])
            os.kill(responder.pid, 18)
            try:
                program.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                program.kill()
                program.communicate()
            foreign = busy_of_machine() - busy - (times_of_children() - program.before) - responder.cpu()
            elapsed = time.monotonic() - began
            firsts, repeats = syns.stop()
    if len(firsts) < rate * span:
        raise Failed(f"{command[0]} asked for {len(firsts)} connections")
    shares = offered(firsts, rate, seconds, span)
    during = [share for at, share in enumerate(shares) if pause[0] <= at * span + 0.5 < pause[1] - span]
    after = [share for at, share in enumerate(shares) if at * span + 0.5 >= pause[1]]
    return {
        "offered": statistics.fmean(during),
        "off": max(abs(share - 1) for share in shares),
        "peak": max(after),
        "repeats": repeats,
        "foreign": max(foreign, 0.0) / elapsed,
    }


def offered(firsts, rate, seconds, span):
    """Connections asked for in each `span` as shares of what `rate` makes due: from half a second in, when everything is
    running, to half a second before the end."""
    bins = [0] * int((seconds - 1) / span)
    for first in firsts:
        # floor and not int, which would count the span before the first one into it.
        at = math.floor((first - firsts[0] - 0.5) / span)
        if 0 <= at < len(bins):
            bins[at] += 1
    return [found / (rate * span) for found in bins]


def judged(command, cores, figures, stall=(0, 0)):
    """Runs one generator against one responder."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-trial-") as where:
        with Responder(where, cores[1], stall=stall) as responder:
            words = command(f"http://127.0.0.1:{responder.port}/")
            if words is None:
                return None
            busy, began = busy_of_machine(), time.monotonic()
            program = start(words, cores[0])
            try:
                out, _ = program.communicate(timeout=60)
            except subprocess.TimeoutExpired as error:
                program.kill()
                program.communicate()
                raise Failed(f"{words[0]} did not end in a minute") from error
            cpu = times_of_children() - program.before
            ours = cpu + responder.cpu()
            foreign = busy_of_machine() - busy - ours
            elapsed = time.monotonic() - began
            stamps = responder.stamps()
    if len(stamps) < 100:
        raise Failed(f"{words[0]} made {len(stamps)} requests: {out[-300:]}")
    found = figures(stamps, {"cpu": cpu, "out": out})
    return found and {**found, "foreign": max(foreign, 0.0) / elapsed}


def start(command, core):
    before = times_of_children()
    program = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core), *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    program.before = before
    return program


def times_of_children():
    """CPU seconds of children that have ended and been waited for."""
    times = os.times()
    return times.children_user + times.children_system
