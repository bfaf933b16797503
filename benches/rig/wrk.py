"""wrk as the load: closed loop, one thread, for a time; what it printed, as numbers."""

import dataclasses
import re
import subprocess

from .process import HOST, Failed

UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 60e6}


@dataclasses.dataclass(frozen=True)
class Load:
    """What one run of wrk saw. Latencies in microseconds, closed loop: they grow with the connections."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: int


def start(port, connections, path, seconds, core, tls=False, kept=True):
    """Starts wrk, pinned to `core`; `finish` waits for it. `kept`: connections serve more than one request."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "--latency"]
    command = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core)] + command
    command += [] if kept else ["-H", "Connection: close"]
    url = f"{'https' if tls else 'http'}://{HOST}:{port}{path}"
    return subprocess.Popen(command + [url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(running, seconds):
    """Waits for a wrk that should take `seconds`; returns its `Load`."""
    return parse(finished(running, seconds))


def finished(running, seconds):
    """What a program prints that should take `seconds`."""
    try:
        out, err = running.communicate(timeout=seconds + 30)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"the load did not end {seconds + 30} s after it started") from error
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
    if running.returncode:
        raise Failed(f"the load failed: {(err or out).strip()}")
    return out


def parse(text):
    """The `Load` in what `wrk --latency` prints."""
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m),", text)
    if not total:
        raise Failed(f"wrk printed something unknown:\n{text}")
    socket_errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    answers = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    errors = sum(map(int, socket_errors.groups())) if socket_errors else 0
    errors += int(answers[1]) if answers else 0
    return Load(
        requests=int(total[1]),
        seconds=float(total[2]) * UNITS[total[3]] / 1e6,
        p50=percentile(text, 50),
        p99=percentile(text, 99),
        errors=errors,
    )


def percentile(text, share):
    # wrk pads units of one letter with a space.
    found = re.search(rf"^ +{share}% +([\d.]+)(us|ms|s|m) *$", text, re.MULTILINE)
    if not found:
        raise Failed(f"wrk printed no {share}th percentile:\n{text}")
    return float(found[1]) * UNITS[found[2]]
