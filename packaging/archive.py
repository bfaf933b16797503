"""Files as packages have them, and archives that come out the same, byte for byte, whoever makes them.

An archive has its entries sorted by path, owned by root, with one time for all: SOURCE_DATE_EPOCH. The compressed form
also depends on the version of zlib, so archives are compared between machines that have the same one.
"""

import gzip
import hashlib
import io
import os
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

# How hard whole archives are pressed, 1 to 9: packages that are only to be tried need not be small.
LEVEL = int(os.environ.get("DIST_LEVEL", "9"))


@dataclass(frozen=True)
class File:
    """One entry: a file by its content, a folder (content None), or a link by its target."""

    path: str
    content: bytes | None = b""
    mode: int = 0o644
    owner: int = 0
    link: str | None = None

    def under(self, prefix: str) -> "File":
        """The same below another folder."""
        return replace(self, path=f"{prefix.rstrip('/')}/{self.path}")


def folders(files: list[File]) -> list[File]:
    """The files with every folder that they need and that is not among them, sorted by path."""
    there = {file.path: file for file in files}
    if len(there) != len(files):
        raise ValueError("a path is there twice")
    for file in files:
        for parent in Path(file.path).parents:
            if str(parent) != ".":
                there.setdefault(str(parent), File(str(parent), content=None, mode=0o755))
    return [there[path] for path in sorted(there)]


def tar(files: list[File], epoch: int) -> bytes:
    """A tar archive (ustar, with pax headers for paths that are too long for it)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in folders(files):
            entry = tarfile.TarInfo(file.path)
            entry.mode, entry.mtime = file.mode, epoch
            entry.uid = entry.gid = file.owner
            if file.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
                archive.addfile(entry)
            elif file.content is None:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return out.getvalue()


def gz(data: bytes, level: int = 9) -> bytes:
    """Compressed, without a name or a time of its own."""
    return gzip.compress(data, compresslevel=level, mtime=0)


def sha256(data: bytes) -> str:
    """Its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def lay(files: list[File], root: Path) -> None:
    """Writes the files into a folder, which must not be there yet; owners are the caller's."""
    root.mkdir(parents=True)
    root.chmod(0o755)
    for file in folders(files):
        path = root / file.path
        if file.link is not None:
            path.symlink_to(file.link)
        elif file.content is None:
            path.mkdir()
            path.chmod(file.mode)
        else:
            path.write_bytes(file.content)
            path.chmod(file.mode)
