"""Worlds of members that are not alike: unequal, near and far, with and without side-cars, very many."""

from .clock import pause
from .world import Setup, all_but, at_least, at_most, world

EVERYTHING = "all requests"


@world(
    Setup(members=2, work=({"workers": 4, "mean": 40}, {"workers": 1, "mean": 40}), peers=()),
    "what is answered, and what the balancer says that members can do, as a share of what they did",
    [all_but(0), at_least("load line", 1), at_most("over it", 0)],
)
async def unequal_members(stage):
    """Members with four workers and with one; half of what they can do together comes."""
    load = stage.load()
    await load.run(60, 30)
    line = (await stage.told())["load_line"]
    outcome = load.outcome()
    high = line["capacity_high"]
    figures = {
        # One that is not known promises nothing that is too little.
        "load line": 1.0 if high is None else high / (outcome.answered / 30),
        "over it": int(line["headroom"] is not None and line["headroom"] < 0),
        "says at most": high or 0.0,
    }
    return outcome.with_figures(**figures)


NEAR = 14
"""Members near by, and as many far away."""


@world(
    Setup(
        members=2 * NEAR, work=({"workers": 2, "mean": 20},) * NEAR + ({"workers": 2, "mean": 20, "far": 30},)
    ),
    "requests that near members serve",
    [all_but(0), at_least("near", 0.6)],
)
async def near_and_far(stage):
    """14 members are near and 14 are 30 ms away; near ones alone could do twenty times what comes."""
    load = stage.load()
    running = load.start(60, 20)
    await pause(6)
    before = await stage.served()
    await running
    served = [there - here for here, there in zip(before, await stage.served())]
    return load.outcome().with_figures(near=sum(served[:NEAR]) / max(1, sum(served)))


@world(Setup(side_cars=2), EVERYTHING, [all_but(0)])
async def mixed_fleet(stage):
    """Two of four members are behind side-cars; all are up to 80 ms slower for two seconds, once."""
    load = stage.load()
    running = load.start(80, 16)
    await pause(6)
    await stage.hiccup(80, 2)
    await running
    return load.outcome()


@world(Setup(side_cars=4), EVERYTHING, [all_but(0)])
async def side_cars(stage):
    """All members are behind side-cars, and up to 80 ms slower for two seconds, once; then ten seconds of
    silence."""
    load, after = stage.load(), stage.load()
    running = load.start(80, 14)
    await pause(6)
    await stage.hiccup(80, 2)
    await running
    await pause(10)
    await after.run(120, 5)
    load.rows += after.rows
    return load.outcome()


@world(Setup(balancers=2), EVERYTHING, [all_but(0)])
async def two_balancers(stage):
    """Two balancers share the members, which are up to 80 ms slower for two seconds, once."""
    load = stage.load()
    running = load.start(60, 16)
    await pause(6)
    await stage.hiccup(80, 2)
    await running
    return load.outcome()


@world(Setup(members=1000, health=""), EVERYTHING, [all_but(0)])
async def thousand_members(stage):
    """A thousand members, and requests for a few of them."""
    load = stage.load()
    await load.run(60, 12)
    return load.outcome()
