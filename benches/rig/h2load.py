"""h2load as the load of gRPC: closed loop, one thread, unary calls on few connections, for a time."""

import re
import statistics
import subprocess
from pathlib import Path

from .process import HOST, Failed
from .wrk import Load, finished

STREAMS = 16
"""Calls under way on one connection."""

MESSAGE = bytes([0, 0, 0, 0, 16]) + b"x" * 16
"""One message of sixteen bytes, with the five bytes that gRPC puts before it."""


def start(port, calls, path, seconds, core, where):
    """Starts h2load, pinned to `core`, with so many calls under way; `finish` waits for it. Its files go into `where`."""
    request, log = Path(where) / "call", Path(where) / "calls.log"
    request.write_bytes(MESSAGE)
    log.unlink(missing_ok=True)
    command = ["h2load", "-t1", f"-c{max(calls // STREAMS, 1)}", f"-m{min(calls, STREAMS)}", f"-D{seconds}"]
    command += ["-d", request, "-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
    running = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core), *command, f"http://{HOST}:{port}{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running.calls = log
    return running


def finish(running, seconds):
    """Waits for an h2load that should take `seconds`; returns its `Load`."""
    return parse(finished(running, seconds), running.calls.read_text())


def parse(text, log):
    """The `Load` in what h2load prints and in its log: when a call began, its status, its microseconds."""
    total = re.search(r"finished in ([\d.]+)(us|ms|s), ", text)
    calls = re.search(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", text)
    if not total or not calls:
        raise Failed(f"h2load printed something unknown:\n{text}")
    times = [int(line.split()[2]) for line in log.splitlines()]
    if len(times) < 2:
        raise Failed(f"h2load made {len(times)} calls:\n{text}")
    shares = statistics.quantiles(times, n=100)
    done, succeeded, failed, errored = map(int, calls.groups())
    return Load(
        requests=succeeded,
        seconds=float(total[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[total[2]],
        p50=shares[49],
        p99=shares[98],
        # Those that were under way when the time was over are errors to it, and none to us.
        errors=done - succeeded,
    )
