#!/usr/bin/env -S python3 -B
"""Makes the packages out of a static binary: packaging/dist.py --binary FILE --out FOLDER

The folder is made anew. SOURCE_DATE_EPOCH is the time of everything in the packages; without it, that of the last commit.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import crates
import deb
import licences
import oci
import sbom
import tree
from archive import LEVEL, File, gz, sha256, tar

TARGET = os.environ.get("DIST_TARGET", "x86_64-unknown-linux-musl")


def main() -> int:
    """Everything in one folder, with checksums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True, help="as packaging/static-binary built it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the packages; what is in it goes")
    parser.add_argument("--deb-version", help="of the Debian package [default: the version, -1]")
    parser.add_argument("--only-deb", action="store_true", help="no other package")
    args = parser.parse_args()

    epoch = time_of_sources()
    version = tomllib.loads((tree.ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    binary = args.out / "plimsoll"
    # Names of functions stay with what cargo built; panics name file and line without them.
    subprocess.run(["strip", "--strip-all", "-o", binary, args.binary], check=True)
    refuse_dynamic(binary)

    linked = crates.crates(TARGET)
    bill = sbom.bill(linked, version, epoch, binary.read_bytes())
    third = licences.collect(linked)
    own = (tree.ROOT / "LICENSE").read_bytes()
    packed = [File("plimsoll.cdx.json.gz", gz(bill)), File("third-party-licences.txt.gz", gz(third))]

    made = [deb.pack(binary, args.deb_version or f"{version}-1", epoch, packed, args.out)]
    if not args.only_deb:
        plain = [File("LICENSE", own), File("third-party-licences.txt", third), File("plimsoll.cdx.json", bill)]
        made.append(tarball(binary, version, epoch, plain, args.out))
        made.append(oci.pack(binary, version, epoch, [File("LICENSE", own), *packed], args.out))
        made.append(args.out / f"plimsoll-{version}.cdx.json")
        made[-1].write_bytes(bill)
    made.append(binary)
    sums = "".join(f"{sha256(path.read_bytes())}  {path.name}\n" for path in sorted(made))
    (args.out / "SHA256SUMS").write_text(sums)
    for path in sorted(made):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    return 0


def tarball(binary: Path, version: str, epoch: int, extra: list[File], out: Path) -> Path:
    """For every other Linux: bin/ and share/ go below /usr/local as they are."""
    shells = tree.completions(binary)
    files = [
        File("bin/plimsoll", binary.read_bytes(), 0o755),
        File("share/bash-completion/completions/plimsoll", shells["bash"]),
        File("share/zsh/site-functions/_plimsoll", shells["zsh"]),
        File("share/fish/vendor_completions.d/plimsoll.fish", shells["fish"]),
        *(File(f"share/man/man1/{name}", page) for name, page in tree.manual(binary).items()),
        *(file.under("share/doc/plimsoll") for file in tree.documents(binary)),
        File("etc/plimsoll/plimsoll.toml", tree.configuration()),
        File("etc/default/plimsoll-agent", (tree.PACKAGING / "etc" / "plimsoll-agent").read_bytes()),
        *(file.under("systemd") for file in tree.units("/usr/local/bin/plimsoll")),
        File("README.md", (tree.ROOT / "README.md").read_bytes()),
        *extra,
    ]
    name = f"plimsoll-{version}-x86_64-linux"
    path = out / f"{name}.tar.gz"
    path.write_bytes(gz(tar([file.under(name) for file in files], epoch), LEVEL))
    return path


def time_of_sources() -> int:
    """SOURCE_DATE_EPOCH, or the time of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    last = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=tree.ROOT, capture_output=True, text=True)
    if last.returncode != 0:
        sys.exit("dist.py: no commit to take the time of: set SOURCE_DATE_EPOCH")
    return int(last.stdout)


def refuse_dynamic(binary: Path) -> None:
    """A binary that needs a library or an interpreter is not what packages are made of."""
    said = subprocess.run(["readelf", "-ld", binary], check=True, stdout=subprocess.PIPE, text=True).stdout
    for word in ("INTERP", "NEEDED"):
        if word in said:
            sys.exit(f"dist.py: {binary} is not static: readelf says {word}")


if __name__ == "__main__":
    sys.exit(main())
