"""What is said of the package is true: its types, and the examples of the guide."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path

from cluster import Cluster, until

HERE = Path(__file__).parent
GUIDE = HERE.parents[2] / "docs" / "guide" / "lottery.md"


class Types(unittest.TestCase):
    def test_it_and_its_tests_are_typed_strictly(self) -> None:
        command = [*shlex.split(os.environ["MYPY"]), "--strict", "--no-incremental", "--cache-dir", os.devnull]
        command += ["--python-executable", sys.executable]
        # Its sources, and programs that see the package which is installed here.
        for what in ([str(HERE.parent / "src" / "plimsoll")], [str(path) for path in sorted(HERE.glob("*.py"))]):
            run = subprocess.run(command + what, cwd=HERE, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


class Guide(unittest.TestCase):
    def test_its_examples_run(self) -> None:
        examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        self.assertGreaterEqual(len(examples), 2)
        with Cluster(2) as cluster:
            for example in examples:
                asked = "10.0.0.1:7447,10.0.0.2:7447"
                self.assertIn(asked, example)
                program = example.replace(asked, cluster.addresses)

                def runs() -> bool:
                    run = subprocess.run(
                        [sys.executable, "-c", program], cwd=cluster.folder, capture_output=True, text=True
                    )
                    # Daemons that have only begun say so.
                    if "plimsoll.Busy" in run.stderr:
                        return False
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertRegex(run.stdout, r"127\.0\.0\.1\D+[12]\b")
                    return True

                with self.subTest(example):
                    until("the example runs", runs)


if __name__ == "__main__":
    unittest.main()
