"""Tests of what bench-control writes and reckons; no balancer is needed."""

import tempfile
import tomllib
import unittest
from pathlib import Path

from control import WAYS, spread
from rig.changes import Way
from rig.fleet import MUCH, Fleet, Stage


class Fleets(unittest.TestCase):
    """The configuration."""

    def test_members_have_addresses_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            stages = tuple(Stage(way, place, 1) for place, way in enumerate(WAYS))
            fleet = Fleet(1000, 100, Path(folder), 8000, port=8100, stages=stages, etcd=2379)
            config = tomllib.loads(fleet.text())
        self.assertEqual((len(config["listener"]), len(config["group"])), (1000, 1000))
        self.assertEqual(len({one["address"] for one in config["listener"]}), 1000)
        members = [one for group in config["group"] for one in group["members"]]
        heavy = [one for one in members if isinstance(one, dict)]
        self.assertEqual(heavy, [{"address": "127.250.0.1:8000", "capacity": MUCH}])
        self.assertEqual(len({one for one in members if isinstance(one, str)}), 99_999)
        sources = [group.get("discover", [{}])[0] for group in config["group"][:5]]
        self.assertEqual([next(iter(source), None) for source in sources], [None, "registered", "registered", "file", "etcd"])

    def test_a_group_has_one_change_at_a_time(self):
        way = Way(None, Stage("operator", 7, 2))
        self.assertEqual([way.next(set()), way.next(set())], [(7, False), (8, False)])
        self.assertEqual(way.next({7}), (8, True))
        self.assertIsNone(way.next({7, 8}))
        self.assertEqual(way.next(set()), (7, True))

    def test_spread_is_of_what_was_measured(self):
        self.assertEqual(spread([3.0, 1.0, 2.0]), {"count": 3, "p50": 2.0, "p99": 3.0, "max": 3.0})


if __name__ == "__main__":
    unittest.main()
