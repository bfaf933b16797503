"""Daemons that run for the tests: the real binary that PLIMSOLL_BIN names, on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Callable, List, Optional, Type

# Nothing that is waited for takes longer on the slowest machine.
PATIENCE = 60.0
# So many attempts as take minutes: daemons that stand still for a while are waited for.
ATTEMPTS = 255
# A member that failed is left alone for at least so long.
GRUDGE = 4.5


def until(what: str, holds: Callable[[], bool]) -> None:
    """Looks again and again until it holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        # bound: a safety net
        assert time.monotonic() < end, f"in {PATIENCE} s: not {what}"
        # sleeps: polls
        time.sleep(0.01)


class Daemon:
    """One daemon, and what it says. The kernel ends it with the test's process."""

    def __init__(self, folder: Path, member: int, arguments: List[str]) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "--", os.environ["PLIMSOLL_BIN"], "lottery"]
        command += ["--member", str(member), "--listen", "127.0.0.1:0", "--keys", "lottery.keys", "--slow-start", "0s"]
        self._process = subprocess.Popen(
            command + arguments, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._lines: List[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        said = "listening lottery "
        until("the daemon listens", lambda: any(said in line for line in self._lines) or not self.runs())
        assert self.runs(), "".join(self._lines)
        line = next(line for line in self._lines if said in line)
        self.address = line.split(said)[1].split(": ")[0]

    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._lines.extend(lines)


class Cluster:
    """Daemons 1 to `count` beside servers of `web` at 127.0.0.1:1 to `count`."""

    def __init__(self, count: int, *arguments: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="plimsoll-python-"))
        self.daemons: List[Daemon] = []
        for member in range(1, count + 1):
            more = ["--service", f"web=127.0.0.1:{member}", *arguments]
            if self.daemons:
                more += ["--peers", self.daemons[0].address]
            self.daemons.append(Daemon(self.folder, member, more))

    @property
    def keys(self) -> Path:
        return self.folder / "lottery.keys"

    @property
    def addresses(self) -> str:
        return ",".join(daemon.address for daemon in self.daemons)

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
