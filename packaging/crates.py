"""The crates that the binary is made of, as cargo resolves them for it: for the bill of materials and the licences."""

import json
import os
import re
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import tree

CARGO = os.environ.get("CARGO", "cargo")


@dataclass(frozen=True)
class Crate:
    """One of them, by its name and version."""

    name: str
    version: str
    licence: str
    folder: Path
    # Of what the registry serves, SHA-256; none where it is of this workspace.
    checksum: str | None
    # In the binary, or only needed to build it.
    linked: bool
    needs: list[tuple[str, str]] = field(default_factory=list)

    @property
    def ours(self) -> bool:
        """Is it of this workspace?"""
        return self.checksum is None


def ask(*arguments: str) -> str:
    """What cargo says."""
    return subprocess.run([CARGO, *arguments], check=True, cwd=tree.ROOT, stdout=subprocess.PIPE, text=True).stdout


def listed(edges: str, target: str) -> set[tuple[str, str]]:
    """Names and versions below `plimsoll`, by kinds of edges."""
    said = ask("tree", "--locked", "-p", "plimsoll", "-e", edges, "--target", target, "--prefix", "none", "-f", "{p}")
    words = (re.match(r"(\S+) v(\S+)", line) for line in said.splitlines())
    return {(word[1], word[2]) for word in words if word}


def crates(target: str) -> list[Crate]:
    """All of them, sorted by name and version; the first line of each kind is cargo's own resolution."""
    there = listed("normal,build", target)
    linked = listed("normal,no-proc-macro", target)
    lock = tomllib.loads((tree.ROOT / "Cargo.lock").read_text())
    checksums = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    metadata = json.loads(ask("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    known = {each["id"]: (each["name"], each["version"]) for each in metadata["packages"]}
    needs = {
        known[node["id"]]: sorted(
            known[edge["pkg"]]
            for edge in node["deps"]
            if known[edge["pkg"]] in there and any(kind["kind"] != "dev" for kind in edge["dep_kinds"])
        )
        for node in metadata["resolve"]["nodes"]
    }
    found = []
    for package in metadata["packages"]:
        key = (package["name"], package["version"])
        if key in there:
            found.append(
                Crate(
                    *key,
                    licence=(package["license"] or "").replace("/", " OR "),
                    folder=Path(package["manifest_path"]).parent,
                    checksum=checksums[key],
                    linked=key in linked,
                    needs=needs[key],
                )
            )
    missing = there - {(crate.name, crate.version) for crate in found}
    if missing:
        raise SystemExit(f"cargo tree names what cargo metadata does not: {sorted(missing)}")
    return sorted(found, key=lambda crate: (crate.name, crate.version))
