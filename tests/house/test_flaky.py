"""The rule "no flaky tests" of CONTRIBUTING.md, as far as a scan of the text of tests can hold it: `make lint`.

A test that sleeps, and a test that bounds elapsed time from above, says on that line or in the comment above why a slow
machine cannot fail it: `// sleeps: polls`, `// bound: three times the reference measured above`.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SLEEP = re.compile(r"\bsleep\(")
BOUND = re.compile(r"elapsed\(\)\s*<=?|elapsed\(\)[^;]*\)\.contains|contains\(&[^;]*elapsed\(\)")
# Ports that a test binds by number: another process may have them.
FIXED_PORT = re.compile(r"bind\(\(?\"?[^)]*?(?:127\.0\.0\.1|localhost|0\.0\.0\.0)(?::|\",\s*)[1-9]\d*")


def is_test(path):
    """Returns whether a whole file is test code."""
    parts = path.relative_to(ROOT).parts
    return "tests" in parts or path.name == "tests.rs" or path.name.startswith("test_")


def test_lines(path, text):
    """Returns the numbered lines of a file that are test code: all, or those behind the last `#[cfg(test)]`."""
    lines = list(enumerate(text.splitlines(), 1))
    if is_test(path):
        return lines
    begins = [number for number, line in lines if line.strip() == "#[cfg(test)]"]
    # A module in a file of its own is found by its name.
    if not begins or lines[begins[-1]][1].rstrip().endswith(";"):
        return []
    return lines[begins[-1] :]


def complaints(lines):
    """Returns (number, what) of each line that breaks the rule without a reason."""
    found = []
    above = ""
    for number, line in lines:
        code, _, comment = line.partition("//") if "//" in line else line.partition("# ")
        said = above + comment
        if SLEEP.search(code) and "sleeps:" not in said and "fn sleep(" not in code:
            found.append((number, "sleeps without a reason (`// sleeps: ...`)"))
        if BOUND.search(code) and "bound:" not in said:
            found.append((number, "bounds elapsed time without a reference (`// bound: ...`)"))
        if FIXED_PORT.search(code):
            found.append((number, "binds a port by number"))
        stripped = line.strip()
        above = above + stripped if stripped.startswith(("//", "# ")) else ""
    return found


def sources():
    for folder in ("tests", "crates", "clients"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".rs", ".py") and "target" not in path.parts and path != Path(__file__).resolve():
                yield path


class Scan(unittest.TestCase):
    def test_no_test_depends_on_the_speed_of_the_machine(self):
        found = []
        for path in sources():
            for number, what in complaints(test_lines(path, path.read_text())):
                found.append(f"{path.relative_to(ROOT)}:{number}: {what}")
        self.assertEqual([], found, "\n" + "\n".join(found))


class OfTheScan(unittest.TestCase):
    def found(self, *lines):
        return [number for number, _ in complaints(list(enumerate(lines, 1)))]

    def test_a_sleep_needs_a_reason(self):
        self.assertEqual([1], self.found("thread::sleep(LOOK);"))
        self.assertEqual([], self.found("thread::sleep(LOOK); // sleeps: polls"))
        self.assertEqual([], self.found("// sleeps: paces the client", "thread::sleep(LOOK);"))
        self.assertEqual([3], self.found("// sleeps: polls", "look();", "thread::sleep(LOOK);"))
        self.assertEqual([1], self.found("time.sleep(1)"))

    def test_an_upper_bound_needs_a_reference(self):
        self.assertEqual([1], self.found("assert!(begun.elapsed() < Duration::from_secs(5));"))
        self.assertEqual([1], self.found("assert!((MS..10 * MS).contains(&begun.elapsed()));"))
        self.assertEqual([], self.found("// bound: a safety net", "assert!(begun.elapsed() < PATIENCE);"))
        self.assertEqual([], self.found("assert!(begun.elapsed() >= 2 * SECOND);"))

    def test_a_port_is_not_bound_by_number(self):
        self.assertEqual([1], self.found('TcpListener::bind("127.0.0.1:8080")'))
        self.assertEqual([1], self.found('TcpListener::bind(("127.0.0.1", 8080))'))
        self.assertEqual([], self.found('TcpListener::bind("127.0.0.1:0")'))
        self.assertEqual([], self.found('TcpListener::bind(("127.0.0.1", port))'))

    def test_of_a_source_only_its_tests_are_looked_at(self):
        source = ROOT / "crates/x/src/x.rs"
        text = "sleep(1);\n#[cfg(test)]\nmod tests {\nsleep(2);\n}\n"
        self.assertEqual([3, 4, 5], [number for number, _ in test_lines(source, text)])
        self.assertEqual([], test_lines(source, "sleep(1);\n#[cfg(test)]\nmod tests;\n"))


if __name__ == "__main__":
    unittest.main()
