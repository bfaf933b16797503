"""The layers of the crates: which crate may depend on which, and what a crate must do without: `make lint`."""

import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The layers, lowest first. A crate depends on crates of lower layers, and of its own layer on those in SIBLINGS.
LAYERS = [
    {"brain", "lqn", "kerberos"},
    {"wire"},
    {"proxy", "admin", "cluster", "agent", "bench", "client", "acme"},
    {"config"},
    {"import", "balancer"},
    {"supervisor"},
    {"cli"},
]
# The only uses of a crate of the same layer, and why the two are not apart.
SIBLINGS = set()

# The dependencies that a crate must do without, because its callers rely on it.
WITHOUT = {
    "brain": {"tokio", "clap", "rustix"},
    "wire": {"tokio", "clap", "rustix"},
    "config": {"tokio", "clap"},
    "import": {"tokio", "clap", "rustix"},
    "balancer": {"clap"},
    "supervisor": {"clap"},
}


def dependencies(crate):
    """Returns the names of a crate's dependencies, without those of its tests."""
    with (ROOT / "crates" / crate / "Cargo.toml").open("rb") as file:
        return set(tomllib.load(file).get("dependencies", {}))


def own(names):
    """Returns the crates of this workspace among dependencies."""
    return {name.removeprefix("plimsoll-") for name in names if name.startswith("plimsoll-")}


class Scan(unittest.TestCase):
    def test_each_crate_has_a_layer(self):
        crates = {path.parent.name for path in (ROOT / "crates").glob("*/Cargo.toml")}
        self.assertEqual(crates, set().union(*LAYERS))

    def test_a_crate_depends_on_lower_layers_only(self):
        found = []
        for level, crates in enumerate(LAYERS):
            lower = set().union(*LAYERS[:level])
            for crate in sorted(crates):
                for used in sorted(own(dependencies(crate)) - lower):
                    if (crate, used) not in SIBLINGS:
                        found.append(f"{crate} depends on {used}, which is not below it")
        self.assertEqual([], found)

    def test_a_crate_does_without_what_its_callers_forbid(self):
        found = {crate: dependencies(crate) & forbidden for crate, forbidden in WITHOUT.items()}
        self.assertEqual({}, {crate: names for crate, names in found.items() if names})


if __name__ == "__main__":
    unittest.main()
