"""One leg: one proxy, one way of speaking, one number of connections, one body, for some seconds.

The proxy is started for the leg and ended after it, so that its memory is the leg's own. It has one core to itself;
the load and the origins share another. A first second warms it up (connections, pools, caches) and is not counted.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

from . import h2load, wrk
from .process import Child, busy_of_machine, busy_of_ours, free_port

FOREIGN = 0.08
"""Share of one core that other programs may take before a leg is repeated."""

REPEATS = 2
"""How often a disturbed leg is repeated; the least disturbed try counts."""


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """What is asked of every proxy alike."""

    mode: str
    """http, tcp; https: TLS towards the client; handshakes: the same with a connection for each request; grpc: unary calls over
    HTTP/2 in clear on both sides."""
    connections: int
    body: str

    def __str__(self):
        return f"{self.mode} {self.connections} connections, {self.body}"


@dataclasses.dataclass
class Leg:
    """What one leg measured."""

    peer: str
    cell: Cell
    round: int
    requests: int
    rate: float
    """Requests per second."""
    p50: float
    p99: float
    """Microseconds."""
    cpu: float
    """CPU seconds per million requests, utime + stime."""
    schedstat: float
    """The same by the scheduler's count."""
    used: float
    """Share of its core that the proxy used; well below 1 the load was the limit."""
    memory: float
    """MiB resident halfway through, shared pages counted once."""
    errors: int
    foreign: float
    """Share of one core that other programs took."""
    tries: int = 1

    @property
    def quiet(self):
        """Whether other programs left it alone."""
        return self.foreign <= FOREIGN


def measure(peer, cell, number, origins, seconds, cores):
    """Runs a leg, again if other programs disturbed it. `origins` is the list of (port, child); `cores` a pair."""
    best = None
    for tries in range(1, REPEATS + 2):
        leg = once(peer, cell, number, origins, seconds, cores)
        if best is None or leg.foreign < best.foreign:
            best = leg
        best.tries = tries
        if best.quiet:
            break
    return best


def once(peer, cell, number, origins, seconds, cores):
    load_core, proxy_core = cores
    with tempfile.TemporaryDirectory(prefix="plimsoll-leg-") as where:
        port = free_port()
        command = peer.command(cell.mode, port, [origin for origin, _ in origins], where)
        with Child(command, Path(where) / "log", [proxy_core]) as proxy:
            proxy.await_port(port)
            warm_up, finish = load(cell, port, 1, load_core, where)
            finish(warm_up, 1)

            ours = [proxy] + [child for _, child in origins]
            cpu, scheduled = proxy.cpu(), proxy.schedstat()
            busy, own, began = busy_of_machine(), busy_of_ours(ours), time.monotonic()
            running, finish = load(cell, port, seconds, load_core, where)
            time.sleep(seconds / 2)
            memory = proxy.memory()
            seen = finish(running, seconds)
            elapsed = time.monotonic() - began
            cpu, scheduled = proxy.cpu() - cpu, proxy.schedstat() - scheduled
            foreign = (busy_of_machine() - busy) - (busy_of_ours(ours) - own)

    requests = max(seen.requests, 1)
    return Leg(
        peer=peer.name,
        cell=cell,
        round=number,
        requests=seen.requests,
        rate=seen.requests / seen.seconds,
        p50=seen.p50,
        p99=seen.p99,
        cpu=cpu / requests * 1e6,
        schedstat=scheduled / requests * 1e6,
        used=scheduled / elapsed,
        memory=memory / 2**20,
        errors=seen.errors,
        foreign=max(foreign, 0.0) / elapsed,
    )


def load(cell, port, seconds, core, where):
    """The load of a cell, started, and what waits for it."""
    if cell.mode == "grpc":
        path = f"/grpc/{cell.body}"
        return h2load.start(port, cell.connections, path, seconds, core, where), h2load.finish
    tls, kept = cell.mode in ("https", "handshakes"), cell.mode != "handshakes"
    return wrk.start(port, cell.connections, f"/{cell.body}", seconds, core, tls, kept), wrk.finish
