"""What every package has beside the binary: completions, manual pages, documents, examples, units."""

import subprocess
import tempfile
from pathlib import Path

from archive import File

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"


def said(binary: Path, *arguments: str) -> bytes:
    """What the binary prints, of whose build everything here is."""
    return subprocess.run([binary, *arguments], check=True, stdout=subprocess.PIPE).stdout


def completions(binary: Path) -> dict[str, bytes]:
    """By shell, those of which packages know where they belong."""
    return {shell: said(binary, "completions", shell) for shell in ("bash", "zsh", "fish")}


def manual(binary: Path) -> dict[str, bytes]:
    """Pages of section 1 by file name."""
    with tempfile.TemporaryDirectory() as folder:
        said(binary, "-q", "man", "--dir", folder)
        return {page.name: page.read_bytes() for page in sorted(Path(folder).iterdir())}


def below(folder: Path, prefix: str) -> list[File]:
    """All files of a folder of the source, by the mode that git keeps of them."""
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith(".") and "__pycache__" not in path.parts:
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            files.append(File(f"{prefix}/{path.relative_to(folder)}", path.read_bytes(), mode))
    return files


def documents(binary: Path) -> list[File]:
    """The guide, the reference, examples, schemas: for a folder of documents."""
    schema = said(binary, "config", "schema")
    return [
        *below(ROOT / "docs" / "guide", "guide"),
        *below(ROOT / "docs" / "reference", "reference"),
        *below(ROOT / "examples", "examples"),
        *below(ROOT / "contrib", "contrib"),
        File("schema/plimsoll.schema.json", schema),
        File("schema/openapi.json", said(binary, "config", "openapi")),
        File("README.md", (ROOT / "README.md").read_bytes()),
    ]


def units(binary: str) -> list[File]:
    """systemd's units, for a binary at this path."""
    files = below(PACKAGING / "systemd", ".")
    return [
        File(Path(file.path).name, (file.content or b"").replace(b"/usr/bin/plimsoll", binary.encode()))
        for file in files
    ]


def configuration() -> bytes:
    """The configuration that a package begins with."""
    return (PACKAGING / "etc" / "plimsoll.toml").read_bytes()
