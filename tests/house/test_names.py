"""The rules of type names, as far as a scan can hold them: `make lint`.

A type's name is unique in its crate, and at most [`SHARE`] of the names are one word.
"""

import re
import unittest
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Names that several modules of a crate may use, each for its own.
COMMON = {"Args", "Settings", "Error", "Kind", "Builder"}
# The same type for two sets of features.
TWICE = {("kerberos", "TokenAcceptor"), ("kerberos", "TokenInitiator")}
# The largest share of names of one word.
SHARE = 0.15

TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe )?(?:struct|enum|trait|union|type)\s+([A-Z]\w*)", re.MULTILINE)
# An associated type belongs to its trait.
ASSOCIATED = re.compile(r"^\s+type\s", re.MULTILINE)


def types(crate):
    """Returns the names of the types of a crate, each as often as it is defined."""
    names = Counter()
    for path in sorted((crate / "src").rglob("*.rs")):
        text = "\n".join(line for line in path.read_text().splitlines() if not ASSOCIATED.match(line))
        names.update(TYPE.findall(text))
    return names


class Scan(unittest.TestCase):
    def test_names_are_unique_in_their_crate(self):
        found = []
        for crate in sorted((ROOT / "crates").iterdir()):
            for name, times in sorted(types(crate).items()):
                if times > 1 and name not in COMMON and (crate.name, name) not in TWICE:
                    found.append(f"{crate.name}: {times} types are called {name}")
        self.assertEqual([], found)

    def test_few_names_are_one_word(self):
        names = [name for crate in (ROOT / "crates").iterdir() for name in types(crate)]
        single = [name for name in names if re.fullmatch("[A-Z][a-z0-9]*", name)]
        self.assertGreater(len(names), 1000)
        self.assertLess(len(single) / len(names), SHARE)


if __name__ == "__main__":
    unittest.main()
