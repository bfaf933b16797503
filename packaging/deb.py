"""The Debian package: a staged tree and what dpkg wants to know of it, packed by dpkg-deb."""

import os
import subprocess
import tempfile
from email.utils import formatdate
from hashlib import md5
from pathlib import Path

import tree
from archive import LEVEL, File, folders, gz, lay

DEBIAN = tree.PACKAGING / "debian"
SCRIPTS = ("postinst", "prerm", "postrm")


def files(binary: Path, version: str, epoch: int, extra: list[File]) -> list[File]:
    """What the package puts where. `extra` goes beside the documents."""
    doc = "usr/share/doc/plimsoll"
    shells = tree.completions(binary)
    changelog = (DEBIAN / "changelog.in").read_text()
    changelog = changelog.replace("@VERSION@", version).replace("@DATE@", formatdate(epoch))
    laid = [
        File("usr/bin/plimsoll", binary.read_bytes(), 0o755),
        File("etc/plimsoll/plimsoll.toml", tree.configuration()),
        File("etc/default/plimsoll-agent", (tree.PACKAGING / "etc" / "plimsoll-agent").read_bytes()),
        File("usr/lib/tmpfiles.d/plimsoll.conf", (DEBIAN / "tmpfiles").read_bytes()),
        File("usr/share/bash-completion/completions/plimsoll", shells["bash"]),
        File("usr/share/zsh/vendor-completions/_plimsoll", shells["zsh"]),
        File("usr/share/fish/vendor_completions.d/plimsoll.fish", shells["fish"]),
        File("usr/share/lintian/overrides/plimsoll", (DEBIAN / "lintian-overrides").read_bytes()),
        File(f"{doc}/copyright", (DEBIAN / "copyright").read_bytes()),
        File(f"{doc}/changelog.Debian.gz", gz(changelog.encode())),
        File(f"{doc}/changelog.gz", gz((tree.ROOT / "CHANGELOG.md").read_bytes())),
        *(file.under("usr/lib/systemd/system") for file in tree.units("/usr/bin/plimsoll")),
        *(File(f"usr/share/man/man1/{name}.gz", gz(page)) for name, page in tree.manual(binary).items()),
        *(file.under(doc) for file in [*tree.documents(binary), *extra]),
    ]
    return folders(laid)


def control(laid: list[File], version: str) -> bytes:
    """The package's description, with the size that it takes on disk."""
    size = sum((len(file.content or b"") + 1023) // 1024 or 1 for file in laid)
    text = (DEBIAN / "control.in").read_text()
    return text.replace("@VERSION@", version).replace("@SIZE@", str(size)).encode()


def pack(binary: Path, version: str, epoch: int, extra: list[File], out: Path) -> Path:
    """Writes plimsoll_VERSION_amd64.deb into a folder."""
    laid = files(binary, version, epoch, extra)
    contents = [file for file in laid if file.content is not None]
    sums = "".join(f"{md5(file.content or b'').hexdigest()}  {file.path}\n" for file in contents)
    conffiles = "".join(f"/{file.path}\n" for file in contents if file.path.startswith("etc/"))
    about = [
        File("DEBIAN/control", control(laid, version)),
        File("DEBIAN/conffiles", conffiles.encode()),
        File("DEBIAN/md5sums", sums.encode()),
        *(File(f"DEBIAN/{name}", (DEBIAN / name).read_bytes(), 0o755) for name in SCRIPTS),
    ]
    package = out / f"plimsoll_{version}_amd64.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        lay([*laid, *about], root)
        # Entries sorted, owned by root, no newer than SOURCE_DATE_EPOCH; one thread, so that xz cuts no blocks by their number.
        for path in [root, *root.rglob("*")]:
            os.utime(path, (epoch, epoch), follow_symlinks=False)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{min(LEVEL, 6)}", "--threads-max=1", "--build", root, package],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        )
    return package
