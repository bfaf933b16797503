"""The server that judges load generators: built from responder.c, pinned, and asked for its stamps at the end."""

import array
import subprocess
from pathlib import Path

from .peers import TARGET
from .process import Child, Failed, free_port

SOURCE = Path(__file__).with_name("responder.c")


def build():
    """The program, built if it is older than its source."""
    program = TARGET / "bench" / "responder"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["cc", "-O2", "-o", program, SOURCE], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Failed(f"cc cannot build the responder:\n{done.stderr}")
    return program


class Responder(Child):
    """A running responder. `stamps()` ends it and tells when each request came, in seconds."""

    def __init__(self, where, core, backlog=4096, stall=(0, 0)):
        """`stall` is (how long, how often) in milliseconds."""
        self.port = free_port()
        self.file = Path(where) / "stamps"
        command = [build(), self.port, backlog, *stall, self.file]
        super().__init__(command, Path(where) / "responder.log", [core])
        self.await_port(self.port)

    def stamps(self):
        if not self.stop(10):
            raise Failed("the responder did not end")
        stamps = array.array("Q")
        stamps.frombytes(self.file.read_bytes())
        return [stamp / 1e9 for stamp in stamps]
