"""The image's files as a container has them: one program, nobody's rights, a root without a shell."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from root import DIST, until, why_not

REASON = why_not()
# A container's runtime mounts these, and the kernel's loopback is its own.
ENTER = """
set -e
mount --make-rprivate /
mkdir -p "$1/proc"
mount -t proc proc "$1/proc"
ip link set lo up
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PLIMSOLL_CONTROL=unix:/run/plimsoll/control.sock chroot --userspec=65532:65532 --groups= "$@"
"""


def setUpModule() -> None:
    if REASON:
        print(f"\n*** THE IMAGE IS NOT RUN: {REASON} ***", file=sys.stderr)
        raise unittest.SkipTest(REASON)


class Runs(unittest.TestCase):
    """Its entry point, by the user that it names."""

    def test_serves_and_stops(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name) / "root"
        layer = gzip.decompress((DIST / "oci" / "root.tar.gz").read_bytes())
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            # Debian 12's Python has no argument for it.
            archive.extraction_filter = lambda member, _: member
            archive.extractall(root)
        recipe = (DIST / "oci" / "Containerfile").read_text()
        words = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in recipe.splitlines() if " " in line}
        command = [*json.loads(words["ENTRYPOINT"]), *json.loads(words["CMD"])]

        unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        process = subprocess.Popen([*unshare, "bash", "-c", ENTER, "enter", root, *command], stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def inside(*arguments: str) -> subprocess.CompletedProcess[str]:
            # Not its name space of processes, with which the one that stops it would end.
            enter = ["nsenter", "-t", children.read_text().split()[0], "--mount", "--net"]
            control = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PLIMSOLL_CONTROL=unix:/run/plimsoll/control.sock"]
            user = ["chroot", "--userspec=65532:65532", "--groups=", root]
            return subprocess.run([*enter, *control, *user, *arguments], capture_output=True, text=True)

        def status() -> str:
            self.assertIsNone(process.poll(), "it ended")
            return inside("/usr/bin/plimsoll", "-o", "json", "status").stdout if children.read_text() else ""

        self.assertIn("web", [group["name"] for group in json.loads(until("it answers", status))["groups"]])
        about = Path(f"/proc/{children.read_text().split()[0]}/status").read_text()
        self.assertIn("Uid:\t65532\t65532\t65532\t65532\n", about)
        self.assertIn("CapEff:\t0000000000000000\n", about)
        self.assertEqual(inside("/usr/bin/plimsoll", "stop", "--wait").returncode, 0)
        self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
