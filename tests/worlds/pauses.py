"""Worlds in which processes stand still, or the machine's cores are busy with something else."""

from .clients import Http2
from .clock import pause
from .world import HAPROXY, Setup, all_but, answered, none_refused, world


@world(Setup(), "all requests", [answered(0.999)])
async def paused(stage):
    """The balancer stands still for 0.3 of each second, as a throttled container does, six times."""
    load = stage.load()
    running = load.start(60, 18)
    await pause(3)
    for _ in range(6):
        await stage.freeze(stage.balancers, 0.3)
        await pause(0.7)
    await running
    return load.outcome()


@world(Setup(), "all requests", [all_but(0)])
async def collections(stage):
    """All members stand still for 0.6 s together, as for a collection of garbage, four times."""
    load = stage.load()
    running = load.start(60, 18)
    await pause(3)
    for _ in range(4):
        await stage.freeze(stage.members, 0.6)
        await pause(2.4)
    await running
    return load.outcome()


@world(
    Setup(members=1, peers=HAPROXY, work=({"workers": 64, "mean": 100, "constant": True},)),
    "the bursts",
    [none_refused()],
    alone=True,
)
async def idle_group(stage):
    """The machine's cores are busy with something else; each five seconds 50 requests come at once over
    HTTP/2."""
    for _ in range(4):
        stage.busy_loop()
    client = Http2(stage.doors, connections=5)
    load = stage.load(client)
    for _ in range(4):
        await pause(5)
        await load.burst(50)
    await client.close()
    return load.outcome()
