"""The rules of the documents' prose, as far as a scan can hold them: `make lint`.

On each page the mean sentence has at most [`MEAN`] words, at most [`SHARE`] of the sentences have more than [`LONG`], and no
cell of a table has more than [`CELL`]. Code, and what a link points to, do not count; a piece of inline code is one word.
Run as a program, it lists the pages' figures, or the long sentences and cells of the pages that it is given.
"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MEAN, LONG, SHARE, CELL = 17.0, 30, 0.06, 25

# The README is read in a minute.
README_LINES = 150
# Pages that do not keep the rules yet; one that does fails the test until it is removed here.
LEFT = set()


def pages():
    """Returns the pages that the rules bind."""
    folders = [ROOT / "docs" / "guide", ROOT / "docs" / "reference"]
    return [ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


def plain(text):
    """Returns text with inline code as one word, links as their text, and no markup."""
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*_#>]+", "", text)


def parts(text):
    """Returns the paragraphs (and items of lists) and the cells of tables of a page."""
    text = re.sub(r"^(```|~~~).*?^\1", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    paragraphs, cells, current = [], [], []
    for line in text.splitlines() + [""]:
        begins = re.match(r"\s*(?:[-*+]|\d+\.)\s+", line)
        stripped = line.strip()
        if stripped.startswith("|"):
            if not re.fullmatch(r"[|\s:-]+", stripped):
                cells += [plain(cell).strip() for cell in re.split(r"(?<!\\)\|", stripped)[1:-1]]
            stripped = ""
        if not stripped or stripped.startswith("#") or line.startswith("    ") and not current or begins:
            if current:
                paragraphs.append(plain(" ".join(current)))
            current = []
        if begins:
            current = [line[begins.end() :].strip()]
        elif stripped and not stripped.startswith("#") and not (line.startswith("    ") and not current):
            current.append(stripped)
    return paragraphs, cells


def sentences(paragraph):
    return [part for part in re.split(r"(?<=[.!?])[)\"”]*\s+(?=[A-Z(\"“]|code\b)", paragraph) if re.search(r"\w", part)]


def words(text):
    return len(re.findall(r"[^\s–—/+=×-]\S*", text))


def figures(page):
    """Returns the mean length of a page's sentences, the long ones, their share, and the long cells."""
    paragraphs, cells = parts(page.read_text())
    all_sentences = [sentence for paragraph in paragraphs for sentence in sentences(paragraph)]
    lengths = [words(sentence) for sentence in all_sentences] or [0]
    long = [sentence for sentence in all_sentences if words(sentence) > LONG]
    return sum(lengths) / len(lengths), long, len(long) / len(lengths), [cell for cell in cells if words(cell) > CELL]


def keeps(page):
    mean, _, share, cells = figures(page)
    return mean <= MEAN and share <= SHARE and not cells


class Scan(unittest.TestCase):
    def test_pages_keep_the_rules(self):
        self.assertGreater(len(pages()), 40)
        broken = {page.name for page in pages() if not keeps(page)}
        self.assertEqual(set(), broken - LEFT, "these break a rule: tests/house/test_prose.py PAGE lists where")
        self.assertEqual(set(), LEFT - broken, "take these out of LEFT")

    def test_the_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), README_LINES)

    def test_counting(self):
        text = "One `a b` two. Three (four) five!\n\n- Six: seven\n  eight.\n\n| a | " + "word " * 30 + "|\n|---|---|\n"
        paragraphs, cells = parts(text + "```\ncode here\n```\n")
        self.assertEqual([3, 3, 3], [words(s) for paragraph in paragraphs for s in sentences(paragraph)])
        self.assertEqual([1, 30], [words(cell) for cell in cells])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        mean, long, share, cells = figures(Path(name))
        print(f"{name}: mean {mean:.1f} words, {100 * share:.0f} % long")
        for text in long + cells:
            print(f"  {words(text)} words: {text}")
    if not sys.argv[1:]:
        for page in pages():
            mean, long, share, cells = figures(page)
            ok = "  " if keeps(page) else "! "
            print(f"{ok}{page.name:28} mean {mean:5.1f}  long {100 * share:4.0f} %  long cells {len(cells):3}  words {len(page.read_text().split())}")
