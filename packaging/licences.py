"""The licences of everything that is linked into the binary, each text once, with those that it is of."""

from crates import Crate
from tree import PACKAGING

NAMES = ("licen", "copying", "notice", "copyright", "unlicense")
TEXTS = ("", ".txt", ".md", ".html")


def texts(crate: Crate) -> list[str]:
    """Licences in a crate, also those of the C sources in it."""
    found = []
    for path in sorted(crate.folder.rglob("*")):
        named = path.name.lower().startswith(NAMES)
        if named and path.is_file() and (path.suffix.lower() in TEXTS or path.suffix[1:].isupper()):
            found.append(path.read_text(encoding="utf-8", errors="replace").strip() + "\n")
    return found


def collect(crates: list[Crate]) -> bytes:
    """One text."""
    by_text: dict[str, list[str]] = {}
    without = []
    for crate in crates:
        if not crate.linked or crate.ours:
            continue
        name = f"{crate.name} {crate.version} ({crate.licence})"
        found = texts(crate)
        if not found:
            without.append(name)
        for text in found:
            names = by_text.setdefault(text, [])
            if name not in names:
                names.append(name)
    musl = (PACKAGING / "licences" / "musl.txt").read_text()
    by_text[musl] = ["musl, the C library (MIT)"]
    parts = ["Plimsoll is linked with these parts. Each text stands once, below those that it is of.\n"]
    parts.append("Rust's standard library (MIT OR Apache-2.0): the texts of these two stand below.\n")
    if without:
        parts.append("Without a text in their sources:\n" + "".join(f"  {name}\n" for name in without))
    for text, names in by_text.items():
        parts.append("\n".join(["=" * 80, *names, "=" * 80, "", text]))
    return "\n".join(parts).encode()
