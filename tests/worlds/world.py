"""A world: what is there, what happens, what is counted, and its bound."""

import dataclasses

ANSWERED, REFUSED, FAILED, GAVE_UP = 200, 503, 0, -1
"""Statuses that are told apart; whatever else comes has failed."""

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
    """The one that stands for `adaptive`, in worlds that are about something else; they have no other rows."""
    listener: str = ""
    group: str = ""
    """Lines of the listener and of the group in the balancer's configuration."""
    http2: bool = False
    """Members speak HTTP/2 alone."""
    health: bool = True
    """Health checks, each half second."""
    peers: bool = True
    """HAProxy and nginx can be told all that happens."""

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
    figures: dict = dataclasses.field(default_factory=dict)
    """What else the world counts, by name."""

    def share(self):
        """Returns the share of the requests that were answered."""
        return self.answered / max(self.sent, 1)

    def with_figures(self, **figures):
        """Returns the same with more figures."""
        return dataclasses.replace(self, figures={**self.figures, **figures})


def tally(rows, patience=PATIENCE):
    """Returns the outcome of (due, status, seconds); what was answered later than `patience` is given up."""
    settled = [(GAVE_UP if status == ANSWERED and took > patience else status, took) for _, status, took in rows]
    count = lambda wanted: sum(status == wanted for status, _ in settled)
    times = sorted(took for _, took in settled) or [0.0]
    answered, refused, gave_up = count(ANSWERED), count(REFUSED), count(GAVE_UP)
    return Outcome(
        sent=len(settled),
        answered=answered,
        refused=refused,
        failed=len(settled) - answered - refused - gave_up,
        gave_up=gave_up,
        p50=times[len(times) // 2] * 1e3,
        p99=times[int(len(times) * 0.99)] * 1e3,
    )


@dataclasses.dataclass(frozen=True)
class Bound:
    """A condition on counts, and its words."""

    words: str
    holds: object
    """From an `Outcome` to bool."""


def answered(share):
    """At least such a share of the requests is answered."""
    return Bound(f"at least {100 * share:g} % answered", lambda outcome: outcome.answered >= share * outcome.sent)


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
    """It needs the machine for itself, or nearly: what it counts grows worse where others keep the cores busy."""
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
