"""The bill of materials: CycloneDX 1.5 in JSON, the same for the same sources and time.

Crates that end in the binary are `required`, those that only build it (build scripts' and procedural macros) `excluded`.
Beside crates it names what the compiler brings: Rust's standard library and musl.
"""

import json
import subprocess
import uuid
from datetime import UTC, datetime

from archive import sha256
from crates import Crate


def purl(name: str, version: str) -> str:
    """The package URL of a crate, by which it is referred to."""
    return f"pkg:cargo/{name}@{version}"


def component(crate: Crate) -> dict:
    """A crate as a component."""
    about = {
        "type": "library",
        "bom-ref": purl(crate.name, crate.version),
        "name": crate.name,
        "version": crate.version,
        "scope": "required" if crate.linked else "excluded",
    }
    if crate.licence:
        about["licenses"] = [{"expression": crate.licence}]
    # What is of this workspace is in no registry: there its name may be somebody else's.
    if crate.checksum:
        about["purl"] = purl(crate.name, crate.version)
        about["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
    return about


def compiler() -> list[dict]:
    """What the compiler links in by itself."""
    said = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    facts = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    rust = f"rust-std@{facts['release']}"
    return [
        {
            "type": "library",
            "bom-ref": rust,
            "name": "rust-std",
            "version": facts["release"],
            "description": f"Rust's standard library, commit {facts['commit-hash']}",
            "scope": "required",
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
        },
        {
            "type": "library",
            "bom-ref": f"musl-of-{rust}",
            "name": "musl",
            "description": "The C library that comes with Rust's target for musl",
            "scope": "required",
            "licenses": [{"expression": "MIT"}],
        },
    ]


def bill(crates: list[Crate], version: str, epoch: int, binary: bytes) -> bytes:
    """The document."""
    own = next(crate for crate in crates if crate.name == "plimsoll")
    brought = compiler()
    below = [component(crate) for crate in crates if crate is not own]
    edges = [
        {"ref": purl(crate.name, crate.version), "dependsOn": [purl(*need) for need in crate.needs]}
        for crate in crates
    ]
    for edge in edges:
        if edge["ref"] == purl(own.name, own.version):
            edge["dependsOn"] += [each["bom-ref"] for each in brought]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'plimsoll {version} {sha256(binary)}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": purl(own.name, own.version),
                "name": "plimsoll",
                "version": version,
                "licenses": [{"expression": own.licence}],
                "hashes": [{"alg": "SHA-256", "content": sha256(binary)}],
            },
        },
        "components": below + brought,
        "dependencies": edges + [{"ref": each["bom-ref"], "dependsOn": []} for each in brought],
    }
    return (json.dumps(document, indent=1) + "\n").encode()
