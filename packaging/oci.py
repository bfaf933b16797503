"""The OCI image, made without a daemon or a builder: one layer, its configuration, and an image layout in a tar archive.

The recipe is `oci/Containerfile`, which is also what the configuration is read from, so that both say the same.
<https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md>
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import tree
from archive import LEVEL, File, gz, sha256, tar

USER = 65532
RECIPE = tree.PACKAGING / "oci" / "Containerfile"


def root(binary: Path, extra: list[File]) -> list[File]:
    """The files of the image: no shell, no library, no package manager."""
    passwd = f"root:x:0:0:root:/:/sbin/nologin\nplimsoll:x:{USER}:{USER}:plimsoll:/:/sbin/nologin\n"
    return [
        File("usr/bin/plimsoll", binary.read_bytes(), 0o755),
        File("etc/plimsoll/plimsoll.toml", (tree.PACKAGING / "oci" / "plimsoll.toml").read_bytes()),
        File("etc/passwd", passwd.encode()),
        File("etc/group", f"root:x:0:\nplimsoll:x:{USER}:\n".encode()),
        File("tmp", None, 0o1777),
        # Its control socket, certificates and logs: volumes, if they are to stay.
        File("run/plimsoll", None, 0o755, USER),
        File("var/lib/plimsoll", None, 0o700, USER),
        File("var/log/plimsoll", None, 0o755, USER),
        *(file.under("usr/share/doc/plimsoll") for file in extra),
    ]


def recipe() -> dict:
    """What the recipe says beside the files, as a configuration has it."""
    config: dict = {"Env": [], "ExposedPorts": {}}
    for line in RECIPE.read_text().splitlines():
        word, _, rest = line.partition(" ")
        match word:
            case "USER":
                config["User"] = rest
            case "WORKDIR":
                config["WorkingDir"] = rest
            case "ENV":
                config["Env"].append(rest)
            case "EXPOSE":
                config["ExposedPorts"][rest] = {}
            case "STOPSIGNAL":
                config["StopSignal"] = rest
            case "ENTRYPOINT":
                config["Entrypoint"] = json.loads(rest)
            case "CMD":
                config["Cmd"] = json.loads(rest)
            case "" | "#" | "FROM" | "ADD":
                pass
            case _:
                raise SystemExit(f"{RECIPE}: {word} is not known here")
    return config


def layout(layer: bytes, version: str, epoch: int) -> bytes:
    """The image as a tar archive of an image layout, for a layer that is not compressed."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.title": "plimsoll",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.created": created,
    }
    packed = gz(layer, LEVEL)
    config = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {**recipe(), "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}"]},
        "history": [{"created": created, "created_by": "packaging/oci.py"}],
    }
    blobs: list[File] = []

    def blob(media: str, data: bytes) -> dict:
        """Keeps a blob, and describes it."""
        digest = sha256(data)
        blobs.append(File(f"blobs/sha256/{digest}", data))
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", text(config)),
        "layers": [blob("layer.v1.tar+gzip", packed)],
        "annotations": labels,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                **blob("manifest.v1+json", text(manifest)),
                "platform": {"architecture": "amd64", "os": "linux"},
                "annotations": {"org.opencontainers.image.ref.name": version},
            }
        ],
    }
    files = [File("oci-layout", text({"imageLayoutVersion": "1.0.0"})), File("index.json", text(index)), *blobs]
    return tar(files, epoch)


def text(value: dict) -> bytes:
    """JSON in the one form that its digest is of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def pack(binary: Path, version: str, epoch: int, extra: list[File], out: Path) -> Path:
    """Writes the image, and the context for those who build by the recipe."""
    layer = tar(root(binary, extra), epoch)
    image = out / f"plimsoll-{version}-oci.tar"
    image.write_bytes(layout(layer, version, epoch))
    context = out / "oci"
    context.mkdir()
    (context / "root.tar.gz").write_bytes(gz(layer, LEVEL))
    (context / "Containerfile").write_bytes(RECIPE.read_bytes())
    return image
