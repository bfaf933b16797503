"""Tests: a row that breaks beside others is played again alone with `--short`, and only then."""

import asyncio
import io
import unittest
from unittest import mock

from . import __main__ as program
from .rows import Row
from .table import Table


class Again(unittest.TestCase):
    def played(self, again):
        """Returns how often each row was played, and the rows that count."""
        plan = [[Row("calm", "adaptive", 1)], [Row("streams", "adaptive", 1)]]
        times = {}

        async def play(row, _length):
            times[row.world] = times.get(row.world, 0) + 1
            row.broken = ["too few"] if row.world == "streams" and times["streams"] == 1 else []

        table = Table(io.StringIO(), [(row.world, row.strategy) for rows in plan for row in rows])
        player = program.Player(table, 2, 1.0, again)
        with mock.patch.object(program, "play", play):
            asyncio.run(player.all(plan))
        return times, player.rows

    def test_a_row_that_breaks_beside_others_is_played_again_alone(self):
        times, rows = self.played(True)
        self.assertEqual({"calm": 1, "streams": 2}, times)
        self.assertEqual([False, False], [bool(row.broken) for row in rows])
        self.assertEqual(2, len(rows))

    def test_the_long_form_plays_each_row_once(self):
        times, rows = self.played(False)
        self.assertEqual({"calm": 1, "streams": 1}, times)
        self.assertEqual(1, sum(bool(row.broken) for row in rows))


if __name__ == "__main__":
    unittest.main()
