"""Tests of what is made of counts: outcomes, bounds, verdicts, law 1, the order of play, the table."""

import io
import unittest

from .__main__ import document, planned, plays
from .catalogue import ALL, SHORT, named
from .rows import Row, exit_code, harm
from .table import Table, summary
from .world import (
    FAILED,
    GAVE_UP,
    Answer,
    Asked,
    Outcome,
    Setup,
    all_but,
    answered,
    at_least,
    at_most,
    none_refused,
    tally,
    world,
)


def asked(status, took=0.01, reason=""):
    return Asked(0.0, Answer(status, reason), took)


def row(strategy, done, sent=1000, broken=(), seed=1, name="calm"):
    return Row(name, strategy, seed, Outcome(sent=sent, answered=done), list(broken))


class Outcomes(unittest.TestCase):
    def test_each_request_is_counted_once(self):
        rows = [asked(200), asked(503, reason="shed"), asked(500), asked(FAILED), asked(GAVE_UP), asked(503)]
        outcome = tally(rows)
        counts = (outcome.sent, outcome.answered, outcome.refused, outcome.failed, outcome.gave_up)
        self.assertEqual(counts, (6, 1, 2, 2, 1))
        self.assertEqual(outcome.reasons, {"shed": 1})

    def test_what_is_late_is_given_up(self):
        outcome = tally([asked(200, took=0.9), asked(200, took=1.1), asked(503, took=2)], patience=1)
        self.assertEqual((outcome.answered, outcome.gave_up, outcome.refused), (1, 1, 1))

    def test_times_are_in_milliseconds(self):
        outcome = tally([asked(200, took=number / 1000) for number in range(1, 101)])
        self.assertAlmostEqual(outcome.p50, 51)
        self.assertAlmostEqual(outcome.p99, 100)

    def test_of_nothing_there_is_an_outcome(self):
        self.assertEqual((tally([]).sent, tally([]).share()), (0, 0))


class Bounds(unittest.TestCase):
    def test_each_bound_holds_to_its_edge(self):
        outcome = Outcome(sent=1000, answered=999, figures={"even": 0.4})
        held = [answered(0.999), all_but(1), none_refused(), at_least("even", 0.4), at_most("even", 0.4)]
        missed = [answered(0.9991), all_but(0), at_least("even", 0.41), at_most("even", 0.39)]
        self.assertEqual([bound.holds(outcome) for bound in held], [True] * len(held))
        self.assertEqual([bound.holds(outcome) for bound in missed], [False] * len(missed))
        self.assertFalse(none_refused().holds(Outcome(sent=1, refused=1)))

    def test_a_world_says_which_of_its_bounds_is_broken(self):
        @world(Setup(), "all", [answered(0.5), none_refused()])
        async def strange(stage):
            """Something
            happens."""

        self.assertEqual((strange.name, strange.happens), ("strange", "Something happens."))
        self.assertEqual(strange.broken(Outcome(sent=2, answered=1, refused=1)), ["none refused"])


class LawOne(unittest.TestCase):
    def test_half_a_percent_less_than_the_best_is_allowed_and_more_is_not(self):
        for done, breaks in ((995, False), (994, True)):
            rows = [row("adaptive", done), row("least_request", 1000), row("round_robin", 800)]
            found = harm(rows, {"calm"})
            self.assertEqual(bool(found), breaks)
        self.assertEqual((found[0].best, found[0].best_share), ("least_request", 1.0))

    def test_seeds_are_taken_together(self):
        rows = [row("adaptive", 990), row("least_request", 1000)]
        rows += [row("adaptive", 1000, seed=seed) for seed in (2, 3)]
        rows += [row("least_request", 1000, seed=seed) for seed in (2, 3)]
        self.assertEqual(harm(rows, {"calm"}), [])
        self.assertEqual(len(harm(rows[:2], {"calm"})), 1)

    def test_peers_and_worlds_that_are_not_comparable_do_not_count(self):
        rows = [row("adaptive", 900), row("haproxy", 1000), row("adaptive+open", 1000)]
        self.assertEqual(harm(rows, {"calm"}), [])
        self.assertEqual(harm([row("adaptive", 900), row("round_robin", 1000)], set()), [])


class Verdicts(unittest.TestCase):
    def test_only_adaptive_decides(self):
        self.assertEqual(exit_code([row("adaptive", 1000), row("haproxy", 1, broken=["all"])], []), 0)
        self.assertEqual(exit_code([row("adaptive", 1000, broken=["all"])], []), 1)
        self.assertEqual(
            exit_code([row("adaptive", 1000), Row("calm", "haproxy", 1, error="no port")], []), 2
        )
        self.assertEqual(exit_code([row("adaptive", 1000)], ["harm"]), 1)

    def test_the_summary_names_what_is_broken(self):
        rows = [
            row("adaptive", 1, broken=["all"]),
            row("adaptive", 1, name="surge"),
            Row("hung", "nginx", 1, error="x"),
        ]
        said = "\n".join(summary(rows, harm(rows, set())))
        self.assertIn("1 of 2 rows hold", said)
        self.assertIn("broken: calm", said)
        self.assertIn("not played: hung nginx", said)

    def test_the_document_has_all_rows_and_their_verdicts(self):
        told = document("plimsoll 1", [row("adaptive", 1, broken=["all"])], [])
        self.assertEqual((told["rows"][0]["verdict"], told["rows"][0]["outcome"]["answered"]), ("BROKEN", 1))


class Plan(unittest.TestCase):
    def test_each_seed_begins_with_another_strategy(self):
        plan = planned([named("calm")], ["adaptive", "least_request"], range(1, 4))
        firsts = [[one.strategy for one in rows] for rows in plan]
        self.assertEqual(firsts[0], firsts[2])
        self.assertEqual(firsts[0], firsts[1][::-1])

    def test_worlds_of_sessions_have_rows_of_adaptive_alone(self):
        self.assertFalse(plays(named("idle_sessions"), "least_request"))
        self.assertTrue(plays(named("idle_sessions"), "adaptive"))
        self.assertFalse(plays(named("rolling_update"), "haproxy"))

    def test_names_are_unique_and_worlds_say_what_they_are(self):
        names = [one.name for one in ALL]
        self.assertEqual(len(names), len(set(names)))
        for one in ALL:
            self.assertTrue(one.happens and one.counts and one.bounds, one.name)

    def test_the_short_form_needs_no_quiet_machine(self):
        self.assertEqual([one.name for one in SHORT if one.quiet or one.alone], [])


class Screen(io.StringIO):
    def isatty(self):
        return True


class Tables(unittest.TestCase):
    def shown(self, out):
        table = Table(out, [("calm", "adaptive"), ("surge", "haproxy")])
        table.head()
        table.begins("calm", "adaptive")
        table.ends("calm", "adaptive")
        table.row(row("adaptive", 990, broken=["all answered"]))
        return out.getvalue()

    def test_lines_are_plain_where_nobody_looks(self):
        shown = self.shown(io.StringIO())
        self.assertNotIn("\x1b", shown)
        self.assertNotIn("\r", shown)
        self.assertEqual(len(shown.splitlines()), 2)
        self.assertIn("99.00 %", shown)
        self.assertIn("BROKEN  (asked for: all answered)", shown)

    def test_a_terminal_shows_what_is_played_and_what_is_left(self):
        shown = self.shown(Screen())
        self.assertIn("2 to come; now calm adaptive", shown)
        self.assertIn("\x1b[K", shown)


if __name__ == "__main__":
    unittest.main()
