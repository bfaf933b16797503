"""Worlds in which a member is at fault: it hangs, crawls, fails, stands still, dies, or comes back cold."""

from .clock import pause
from .world import Setup, all_but, answered, none_refused, world

EVERYTHING = "all requests"
APART = Setup(apart=True)
PATIENCE = 5.0
"""Seconds for which clients wait for a member that hangs."""

TAIL = {"workers": 64, "mean": 20, "tail": True}


@world(
    Setup(work=({"workers": 64, "mean": 0.1}, TAIL)),
    EVERYTHING,
    [answered(0.996), none_refused()],
    quiet=True,
)
async def hung(stage):
    """The fastest of four answers nothing for ten seconds, but health checks; the others have a long tail."""
    load = stage.load()
    running = load.start(300, 24, patience=PATIENCE)
    await pause(6)
    await stage.tell(0, hang=True)
    await pause(10)
    await stage.tell(0, hang=False)
    await running
    return load.outcome()


@world(Setup(), EVERYTHING, [all_but(50), none_refused()], quiet=True)
async def hung_alike(stage):
    """One of four equal members answers nothing for eight seconds, but health checks: two seconds of its
    share may be lost."""
    load = stage.load()
    running = load.start(100, 18, patience=PATIENCE)
    await pause(4)
    await stage.tell(0, hang=True)
    await pause(8)
    await stage.tell(0, hang=False)
    await running
    return load.outcome()


@world(Setup(), EVERYTHING, [answered(0.996), none_refused()])
async def crawling(stage):
    """One of four takes two hundred times as long as the others for eight seconds."""
    load = stage.load()
    running = load.start(60, 18)
    await pause(4)
    await stage.tell(0, mean=1000)
    await pause(8)
    await stage.tell(0, mean=5)
    await running
    return load.outcome()


@world(Setup(), EVERYTHING, [all_but(30), none_refused()])
async def failing(stage):
    """One of four fails all at once, but health checks, for eight seconds: two seconds of its share may be
    lost."""
    load = stage.load()
    running = load.start(60, 18)
    await pause(4)
    await stage.tell(0, fail=True)
    await pause(8)
    await stage.tell(0, fail=False)
    await running
    return load.outcome()


@world(Setup(apart=True, health="1s"), EVERYTHING, [answered(0.998), none_refused()])
async def frozen(stage):
    """One of four stands still for four seconds, twice."""
    load = stage.load()
    running = load.start(60, 20)
    for _ in range(2):
        await pause(3)
        await stage.freeze(stage.members[:1], 4)
    await running
    return load.outcome()


@world(APART, EVERYTHING, [answered(0.999)])
async def deploy(stage):
    """Members are killed and started again, one after the other."""
    load = stage.load()
    running = load.start(150, 22)
    await pause(3)
    for number in range(4):
        stage.kill(number)
        await pause(2)
        await stage.revive(number)
        await pause(2)
    await running
    return load.outcome()


@world(APART, EVERYTHING, [answered(0.998), none_refused()])
async def cold_return(stage):
    """One of four is killed, and when it is back its first hundred requests take ten times as long."""
    load = stage.load()
    running = load.start(60, 18)
    await pause(3)
    stage.kill(0)
    await pause(3)
    await stage.revive(0, cold=100)
    await running
    return load.outcome()
