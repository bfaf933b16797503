"""A world: what is there, what happens, what is counted, and its bound."""

import collections
import dataclasses
import typing

ANSWERED, REFUSED, FAILED, GAVE_UP = 200, 503, 0, -1
"""Statuses that are told apart; whatever else comes has failed."""

PEERS = ("haproxy", "nginx")
"""Other balancers that worlds can be played with."""

HAPROXY = PEERS[:1]
"""The one of them that speaks HTTP/2 and HTTP/1.1 on one port, or to members."""

PATIENCE = 30.0
"""Seconds for which clients wait for an answer, so that a slow machine loses none."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is there when a world begins."""

    members: int = 4
    work: tuple = ({},)
    """What each member is like (`member.Work`); the last is that of all that follow."""
    apart: bool = False
    """A process for each member, so that one alone can be ended or stopped."""
    fast: bool = False
    """Members that answer in microseconds: nginx."""
    side_cars: int = 0
    """So many of the members, the first, are behind side-cars of one agent."""
    reports: bool = False
    """The agent reports to the balancer."""
    balancers: int = 1
    threads: int = 2
    strategy: str = ""
    """Stands for `adaptive` in worlds that are about something else; they have no other rows."""
    listener: str = ""
    group: str = ""
    """Lines of the listener and of the group in the balancer's configuration."""
    tls: bool = False
    """The balancer has a second listener, of HTTPS."""
    http2: bool = False
    """Members speak HTTP/2 alone."""
    health: str = "10s"
    """Time limit of health checks, which are made each half second; long, so that a busy machine fails
    none. Empty: none are made."""
    peers: tuple = PEERS
    """Other balancers that can be told all that happens."""

    def work_of(self, member):
        """Returns what a member is like."""
        return self.work[min(member, len(self.work) - 1)]


@dataclasses.dataclass
class Outcome:
    """What was counted in a world. Times are in milliseconds, from when a request was due."""

    sent: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    gave_up: int = 0
    p50: float = 0.0
    p99: float = 0.0
    reasons: dict = dataclasses.field(default_factory=dict)
    """How many were not answered for what reason, as the balancer says in `plimsoll-reason`."""
    figures: dict = dataclasses.field(default_factory=dict)
    """What else the world counts, by name."""

    def share(self):
        """Returns the share of the requests that were answered."""
        return self.answered / max(self.sent, 1)

    def with_figures(self, **figures):
        """Returns the same with more figures."""
        return dataclasses.replace(self, figures={**self.figures, **figures})


class Answer(typing.NamedTuple):
    """What a client hears: a status, and why if the balancer says so."""

    status: int
    reason: str = ""


class Asked(typing.NamedTuple):
    """A request: when it was due since the first, what was heard, and how many seconds after it was due."""

    due: float
    answer: Answer
    took: float


def tally(asked, patience=PATIENCE):
    """Returns the outcome of requests; what was answered later than `patience` is given up."""
    late = [one.answer.status == ANSWERED and one.took > patience for one in asked]
    statuses = collections.Counter(
        GAVE_UP if is_late else one.answer.status for one, is_late in zip(asked, late)
    )
    times = sorted(one.took for one in asked) or [0.0]
    answered, refused, gave_up = statuses[ANSWERED], statuses[REFUSED], statuses[GAVE_UP]
    return Outcome(
        sent=len(asked),
        answered=answered,
        refused=refused,
        failed=len(asked) - answered - refused - gave_up,
        gave_up=gave_up,
        p50=times[len(times) // 2] * 1e3,
        p99=times[int(len(times) * 0.99)] * 1e3,
        reasons=dict(collections.Counter(one.answer.reason for one in asked if one.answer.reason)),
    )


@dataclasses.dataclass(frozen=True)
class Bound:
    """A condition on counts, and its words."""

    words: str
    holds: object
    """From an `Outcome` to bool."""


def answered(share):
    """At least such a share of the requests is answered."""
    return Bound(
        f"at least {100 * share:g} % answered", lambda outcome: outcome.answered >= share * outcome.sent
    )


def all_but(count):
    """All requests are answered but so many at most."""
    words = f"all answered but {count}" if count else "all answered"
    return Bound(words, lambda outcome: outcome.sent - outcome.answered <= count)


def none_refused():
    """No request is refused."""
    return Bound("none refused", lambda outcome: outcome.refused == 0)


def at_least(name, least):
    """A figure is so large at least."""
    return Bound(f"{name} at least {least:g}", lambda outcome: outcome.figures[name] >= least)


def at_most(name, most):
    """A figure is so large at most."""
    return Bound(f"{name} at most {most:g}", lambda outcome: outcome.figures[name] <= most)


@dataclasses.dataclass(frozen=True)
class World:
    """A world, as `@world` makes one of a function that plays it on a `Stage` and returns an `Outcome`."""

    play: object
    setup: Setup
    counts: str
    """What is counted."""
    bounds: tuple
    quiet: bool = False
    """It needs the machine for itself, or nearly: what it counts grows worse where others keep the cores
    busy."""
    alone: bool = False
    """It fills the machine's cores, so that no other world runs beside it."""
    comparable: bool = True
    """Requests are answered alike by all strategies: law 1 is judged."""

    @property
    def name(self):
        return self.play.__name__

    @property
    def happens(self):
        """What happens, in words."""
        return " ".join(self.play.__doc__.split())

    def broken(self, outcome):
        """Returns the words of the bounds that do not hold."""
        return [bound.words for bound in self.bounds if not bound.holds(outcome)]


def world(setup, counts, bounds, **more):
    """Makes a world of the function below it."""
    return lambda play: World(play, setup, counts, tuple(bounds), **more)
