"""Worlds of clients that are bound to a member: per session, and on demand.

Where one of four members has all sessions at first, `first_available` has put them there. `even` is what
the member with the fewest requests served, as a share of that with the most.
"""

from .clock import pause
from .world import Setup, all_but, at_least, at_most, world

ON_DEMAND = 'binding = "on_demand"\nrebind = "silent"'
RATE = 'monitor = { metric = "requests_per_second", source = "%s" }'
PASSIVE, PUSHED = RATE % "passive", RATE % "push"
SESSIONS, GAP = 12, 0.05
"""Clients, and seconds between an answer and the next request."""


def even(before, after):
    """Returns the least of the requests that members served, as a share of the most."""
    served = [there - here for here, there in zip(before, after)]
    return min(served) / max(1, *served)


async def spread(stage, clients, ends, last):
    """Runs the sessions for `ends` seconds; returns how even members were in the `last` ones, and the moves
    in them."""
    running = clients.start(SESSIONS, ends, GAP)
    await pause(ends - last)
    served, moves = await stage.served(), await stage.moves()
    await running
    return even(served, await stage.served()), await stage.moves() - moves


@world(
    Setup(strategy="first_available", listener=ON_DEMAND, group=PASSIVE, peers=()),
    "requests of each member in the last eight of 22 seconds",
    [all_but(0), at_least("even", 0.4), at_least("even after the silence", 0.4)],
)
async def idle_sessions(stage):
    """12 sessions, all with one member at first; 150 s of silence; the same again."""
    return await around_silence(stage, 150)


@world(
    Setup(strategy="first_available", listener=ON_DEMAND, group=PASSIVE, peers=()),
    "requests of each member in the last eight of 22 seconds",
    [all_but(0), at_least("even", 0.4), at_least("even after the silence", 0.4)],
)
async def resting_sessions(stage):
    """12 sessions, all with one member at first; five seconds of silence; the same again."""
    return await around_silence(stage, 5)


async def around_silence(stage, seconds):
    first, second = stage.crowd(), stage.crowd()
    before, _ = await spread(stage, first, 22, 8)
    await pause(seconds)
    after, _ = await spread(stage, second, 22, 8)
    first.rows += second.rows
    return first.outcome().with_figures(**{"even": before, "even after the silence": after})


AT_REST = [all_but(0), at_least("even", 0.4), at_most("moves", 36), at_most("moves in the last 20 s", 0)]


@world(
    Setup(strategy="first_available", listener=ON_DEMAND, group=PUSHED, side_cars=4, reports=True, peers=()),
    "moves of sessions, three each at most, and requests of each member in the last 20 of 60 seconds",
    AT_REST,
)
async def side_car_sessions(stage):
    """12 sessions, all with one member at first; side-cars report the requests a second."""
    return await until_rest(stage)


@world(
    Setup(strategy="first_available", listener=ON_DEMAND, group=PASSIVE, side_cars=4, reports=True, peers=()),
    "moves of sessions, three each at most, and requests of each member in the last 20 of 60 seconds",
    AT_REST,
)
async def mixed_sources(stage):
    """12 sessions, all with one member at first; the balancer counts itself, and side-cars report all the
    same."""
    return await until_rest(stage)


async def until_rest(stage):
    clients = stage.crowd()
    least, late = await spread(stage, clients, 60, 20)
    figures = {"even": least, "moves": await stage.moves(), "moves in the last 20 s": late}
    return clients.outcome().with_figures(**figures)


@world(
    Setup(listener='binding = "per_session"', peers=()),
    "all requests, and requests of each member after the two seconds",
    [all_but(0), at_least("even", 0.4)],
)
async def per_session(stage):
    """40 clients are bound per session; all members are up to 80 ms slower for two seconds, once."""
    return await bound(stage)


@world(
    Setup(listener=ON_DEMAND, group=PASSIVE, peers=()),
    "all requests, and requests of each member after the two seconds",
    [all_but(0), at_least("even", 0.4)],
)
async def on_demand(stage):
    """40 clients are bound on demand; all members are up to 80 ms slower for two seconds, once."""
    return await bound(stage)


async def bound(stage):
    clients = stage.crowd()
    running = clients.start(40, 20, lambda number: 0.4 + 0.02 * number)
    await pause(4)
    await stage.hiccup(80, 2)
    await pause(4)
    served = await stage.served()
    await running
    return clients.outcome().with_figures(even=even(served, await stage.served()))
