"""Rows: a world played once, and what the rows of `adaptive` say together.

A row of `adaptive` breaks if its world's bound does not hold. Law 1 is judged over all seeds of a world:
`adaptive` answers at least as large a share as the best of the strategies without admission that ran beside
it, less `SLACK`.
"""

import dataclasses

from .balancers import REFERENCES
from .world import Outcome

SLACK = 0.005
"""Share of the requests that `adaptive` may answer less."""

JUDGED = "adaptive"


@dataclasses.dataclass
class Row:
    """What one strategy did in a world that began with one seed."""

    world: str
    strategy: str
    seed: int
    outcome: Outcome | None = None
    broken: list = dataclasses.field(default_factory=list)
    """The bounds that do not hold, in words."""
    error: str = ""
    """Why there is no outcome."""

    def judged(self):
        """Returns whether it counts."""
        return self.strategy == JUDGED

    def verdict(self):
        if self.error:
            return "NOT PLAYED"
        return "BROKEN" if self.broken else "holds"


@dataclasses.dataclass(frozen=True)
class Harm:
    """A world in which `adaptive` answers less than a strategy without admission."""

    world: str
    share: float
    best: str
    best_share: float

    def __str__(self):
        return (
            f"{self.world}: adaptive answered {100 * self.share:.2f} %, "
            f"{self.best} {100 * self.best_share:.2f} % of the same"
        )


def harm(rows, comparable):
    """Returns the `Harm` of each of the worlds named in `comparable` in which law 1 does not hold."""
    found = []
    for world in dict.fromkeys(row.world for row in rows if row.world in comparable):
        shares = shares_of([row for row in rows if row.world == world and row.outcome])
        others = {strategy: share for strategy, share in shares.items() if strategy in REFERENCES}
        if JUDGED in shares and others:
            best = max(others, key=others.get)
            if shares[JUDGED] < others[best] - SLACK:
                found.append(Harm(world, shares[JUDGED], best, others[best]))
    return found


def shares_of(rows):
    """Returns the share that each strategy answered, over all seeds."""
    sums = {}
    for row in rows:
        answered, sent = sums.get(row.strategy, (0, 0))
        sums[row.strategy] = (answered + row.outcome.answered, sent + row.outcome.sent)
    return {strategy: answered / max(sent, 1) for strategy, (answered, sent) in sums.items()}


def exit_code(rows, harms):
    """Returns 0 if all is well, 1 if `adaptive` breaks something, 2 if something could not be played."""
    if any(row.broken and row.judged() for row in rows) or harms:
        return 1
    return 2 if any(row.error for row in rows) else 0
