"""The image, the bill of materials and the checksums, read back as those who take them do."""

import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
import unittest
from pathlib import Path

from root import DIST, REPO


def only(pattern: str) -> Path:
    """The one file of this kind."""
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"{len(found)} of {DIST}/{pattern}: make dist makes one")
    return found[0]


class Image(unittest.TestCase):
    """An OCI image layout, by its specification."""

    def setUp(self) -> None:
        with tarfile.open(only("plimsoll-*-oci.tar")) as archive:
            self.files = {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}

    def blob(self, descriptor: dict) -> bytes:
        """What a descriptor is of; its digest and its size fit."""
        algorithm, digest = descriptor["digest"].split(":")
        self.assertEqual(algorithm, "sha256")
        data = self.files[f"blobs/sha256/{digest}"]
        self.assertEqual(hashlib.sha256(data).hexdigest(), digest)
        self.assertEqual(len(data), descriptor["size"])
        return data

    def parts(self) -> tuple[dict, dict, bytes]:
        """Manifest, configuration and layer."""
        self.assertEqual(json.loads(self.files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
        index = json.loads(self.files["index.json"])
        self.assertEqual(index["schemaVersion"], 2)
        (entry,) = index["manifests"]
        self.assertEqual(entry["mediaType"], "application/vnd.oci.image.manifest.v1+json")
        self.assertEqual(entry["platform"], {"architecture": "amd64", "os": "linux"})
        manifest = json.loads(self.blob(entry))
        self.assertEqual(manifest["config"]["mediaType"], "application/vnd.oci.image.config.v1+json")
        config = json.loads(self.blob(manifest["config"]))
        (layer,) = manifest["layers"]
        self.assertEqual(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip")
        plain = gzip.decompress(self.blob(layer))
        self.assertEqual(config["rootfs"]["diff_ids"], [f"sha256:{hashlib.sha256(plain).hexdigest()}"])
        # Nothing is there that nobody refers to.
        self.assertEqual(len(self.files), 5)
        return manifest, config, plain

    def test_says_how_it_is_run(self) -> None:
        _, config, _ = self.parts()
        self.assertEqual((config["os"], config["architecture"]), ("linux", "amd64"))
        how = config["config"]
        self.assertEqual(how["User"], "65532:65532")
        self.assertEqual(how["Entrypoint"], ["/usr/bin/plimsoll"])
        self.assertEqual(how["Cmd"], ["up", "--config", "/etc/plimsoll/plimsoll.toml"])
        self.assertEqual(sorted(how["ExposedPorts"]), ["8080/tcp", "8443/tcp", "9900/tcp"])

    def test_has_one_program(self) -> None:
        _, _, plain = self.parts()
        with tarfile.open(fileobj=io.BytesIO(plain)) as layer:
            entries = {each.name: each for each in layer}
            binary = layer.extractfile("usr/bin/plimsoll").read()
            config = layer.extractfile("etc/plimsoll/plimsoll.toml").read()
        self.assertEqual([name for name, each in entries.items() if each.isfile() and each.mode & 0o111], ["usr/bin/plimsoll"])
        self.assertFalse([name for name, each in entries.items() if each.issym() or each.islnk() or each.isdev()])
        self.assertEqual(binary, (DIST / "plimsoll").read_bytes())
        for folder in ("run/plimsoll", "var/lib/plimsoll", "var/log/plimsoll"):
            self.assertEqual((entries[folder].uid, entries[folder].gid), (65532, 65532))
        self.assertEqual(entries["tmp"].mode, 0o1777)
        done = subprocess.run([DIST / "plimsoll", "config", "check", "-"], input=config, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def test_recipe_has_the_same_layer(self) -> None:
        _, _, plain = self.parts()
        self.assertEqual(gzip.decompress((DIST / "oci" / "root.tar.gz").read_bytes()), plain)
        self.assertTrue((DIST / "oci" / "Containerfile").read_text().splitlines()[2].startswith("FROM scratch"))


class Bill(unittest.TestCase):
    """CycloneDX 1.5: what its schema requires, and what makes it worth reading."""

    def setUp(self) -> None:
        self.bill = json.loads(only("plimsoll-*.cdx.json").read_text())

    def test_has_what_the_schema_requires(self) -> None:
        bill = self.bill
        self.assertEqual((bill["bomFormat"], bill["specVersion"], bill["version"]), ("CycloneDX", "1.5", 1))
        uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
        self.assertRegex(bill["serialNumber"], f"^urn:uuid:{uuid}$")
        self.assertRegex(bill["metadata"]["timestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        components = [bill["metadata"]["component"], *bill["components"]]
        for each in components:
            self.assertIn(each["type"], ("application", "library"))
            self.assertTrue(each["name"])
            self.assertIn(each.get("scope", "required"), ("required", "optional", "excluded"))
            self.assertTrue(each["licenses"][0]["expression"], each["name"])
            for sum_ in each.get("hashes", []):
                self.assertEqual(sum_["alg"], "SHA-256")
                self.assertTrue(re.fullmatch("[0-9a-f]{64}", sum_["content"]), each["name"])
        names = [each["bom-ref"] for each in components]
        self.assertEqual(len(set(names)), len(names), "references are unique")
        for edge in bill["dependencies"]:
            self.assertLessEqual({edge["ref"], *edge["dependsOn"]}, set(names))
        self.assertEqual(sorted(edge["ref"] for edge in bill["dependencies"]), sorted(names))

    def test_names_what_is_linked(self) -> None:
        linked = {each["name"] for each in self.bill["components"] if each["scope"] == "required"}
        self.assertLessEqual({"plimsoll-brain", "rustls", "aws-lc-sys", "libmimalloc-sys", "musl", "rust-std"}, linked)
        self.assertNotIn("libgssapi", linked)
        built = {each["name"] for each in self.bill["components"] if each["scope"] == "excluded"}
        self.assertLessEqual({"cc", "serde_derive"}, built)
        digest = hashlib.sha256((DIST / "plimsoll").read_bytes()).hexdigest()
        self.assertEqual(self.bill["metadata"]["component"]["hashes"][0]["content"], digest)


class Rest(unittest.TestCase):
    """The tarball, the package's form and the checksums."""

    def test_checksums_are_of_all_packages(self) -> None:
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=DIST, check=True)
        named = {line.split()[1] for line in (DIST / "SHA256SUMS").read_text().splitlines()}
        there = {path.name for path in DIST.iterdir() if path.is_file()} - {"SHA256SUMS"}
        self.assertEqual(named, there)

    def test_tarball_has_all(self) -> None:
        path = only("plimsoll-*-linux.tar.gz")
        with tarfile.open(path) as archive:
            entries = list(archive)
        top = path.name.removesuffix(".tar.gz")
        names = {each.name.removeprefix(f"{top}/") for each in entries}
        for name in (
            "bin/plimsoll",
            "LICENSE",
            "third-party-licences.txt",
            "share/man/man1/plimsoll.1",
            "share/bash-completion/completions/plimsoll",
            "share/doc/plimsoll/guide/install.md",
            "share/doc/plimsoll/examples/http.toml",
            "systemd/plimsoll.service",
        ):
            self.assertIn(name, names)
        self.assertEqual({(each.uid, each.gid) for each in entries}, {(0, 0)})
        self.assertEqual(len({each.mtime for each in entries}), 1)
        self.assertEqual([each.name for each in entries], sorted(each.name for each in entries))

    def test_lintian_has_nothing_to_say(self) -> None:
        done = subprocess.run(
            ["lintian", "--allow-root", "--profile", "debian", "--fail-on", "error,warning", only("plimsoll_*_amd64.deb")],
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_a_binary_that_knows_no_path_of_this_machine(self) -> None:
        binary = (DIST / "plimsoll").read_bytes()
        for path in (f"{REPO}/", f"{Path.home()}/", "registry/src/"):
            self.assertFalse(path.encode() in binary, path)


if __name__ == "__main__":
    unittest.main()
