"""The rules of comments in Rust files, as far as a scan can hold them: `make lint`.

The first word of a doc comment is a verb ("Returns …") or the thing's noun phrase ("A token bucket …"), and no line has
more than 110 columns.
"""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COLUMNS = 110

OPENER = re.compile(r"(?:What|Who|Whose|Whom|Is|Has|Does|May|Why|How|Of)\b", re.IGNORECASE)
DOC = re.compile(r"\s*(//!|///(?!/)) ?(.*)")
# Raw strings, which cannot be split.
RAW = re.compile(r'\bb?r(#+)".*?"\1|\bb?r"[^"\n]*"', re.DOTALL)


def raw_lines(text):
    """Returns the numbers of the lines that are part of a raw string."""
    numbers = set()
    for match in RAW.finditer(text):
        first = text.count("\n", 0, match.start()) + 1
        numbers.update(range(first, first + match.group().count("\n") + 1))
    return numbers


def openers(lines):
    """Yields (number, text) of the lines that begin a doc comment, or a paragraph or a section of one."""
    marker, begins, fenced = None, True, False
    for number, line in enumerate(lines, 1):
        match = DOC.fullmatch(line)
        if not match:
            marker = None
            continue
        if match[1] != marker:
            marker, begins, fenced = match[1], True, False
        text = match[2].strip()
        if text.startswith("```"):
            fenced = not fenced
        elif not fenced and not text:
            begins = True
        elif not fenced and text.startswith("# "):
            begins = True
        elif not fenced:
            if begins:
                yield number, text
            begins = False


def complaints(text):
    """Returns (number, complaint) of each line that breaks a rule."""
    lines = text.splitlines()
    found = [
        (number, f"a doc comment opens with `{OPENER.match(opening)[0]}`")
        for number, opening in openers(lines)
        if OPENER.match(opening)
    ]
    raw = raw_lines(text)
    found += [
        (number, f"has {len(line)} columns, more than {COLUMNS}")
        for number, line in enumerate(lines, 1)
        if len(line) > COLUMNS and number not in raw
    ]
    return sorted(found)


def folder(path):
    """Returns the crate of a file, or its first folder if it belongs to none."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: 2 if parts[0] in ("crates", "clients") else 1])


def sources():
    for top in ("crates", "clients", "fuzz", "tests"):
        for path in sorted((ROOT / top).rglob("*.rs")):
            if "target" not in path.parts:
                yield path


class Scan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = {}
        for path in sources():
            own = cls.found.setdefault(folder(path), [])
            for number, what in complaints(path.read_text()):
                own.append(f"{path.relative_to(ROOT)}:{number}: {what}")

    def test_comments_keep_the_rules(self):
        found = [line for lines in self.found.values() for line in lines]
        self.assertEqual([], found, "\n" + "\n".join(found))


class OfTheScan(unittest.TestCase):
    def found(self, *lines):
        return [number for number, _ in complaints("\n".join(lines))]

    def test_a_doc_comment_does_not_open_with_a_question(self):
        self.assertEqual([1], self.found("//! What a request is."))
        self.assertEqual([1], self.found("    /// Is it open?"))
        self.assertEqual([1], self.found("/// Of the group."))
        self.assertEqual([], self.found("/// Returns whether it is open.", "/// Officially closed."))
        self.assertEqual([], self.found("// What follows is no doc comment.", "//// Nor is this."))

    def test_a_later_line_is_no_opener_and_a_paragraph_is_one(self):
        self.assertEqual([], self.found("/// Returns the reason", "/// why it failed, or", "/// what to do."))
        self.assertEqual([3], self.found("/// Opens it.", "///", "/// How is left open."))
        self.assertEqual([4], self.found("/// Opens it.", "///", "/// # Errors", "/// Why not."))
        self.assertEqual([2], self.found("//! A module.", "/// Who calls."))
        self.assertEqual([2], self.found("struct Here; // What a line.", "/// Whose it is."))

    def test_code_in_a_comment_is_not_looked_at(self):
        self.assertEqual([], self.found("/// Opens it.", "///", "/// ```", "/// is(what);", "/// ```"))

    def test_a_line_has_a_bound(self):
        self.assertEqual([], self.found("x" * COLUMNS))
        self.assertEqual([1], self.found("x" * (COLUMNS + 1)))
        self.assertEqual([1], self.found("// " + "é" * COLUMNS))
        self.assertEqual([], self.found('let raw = r#"' + "x" * COLUMNS + '"#;'))
        self.assertEqual([], self.found('let raw = r#"first', "x" * (COLUMNS + 1) + '"#;'))
        self.assertEqual([2], self.found('let raw = r#"first"#;', "x" * (COLUMNS + 1)))


if __name__ == "__main__":
    unittest.main()
