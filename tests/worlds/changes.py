"""Worlds in which an operator works: updates of the members, reloads of the configuration."""

from .clock import pause
from .world import Setup, all_but, world

EVERYTHING = "all requests"


@world(Setup(apart=True, peers=()), EVERYTHING, [all_but(0)])
async def rolling_update(stage):
    """Each member in turn is drained, ended, started again cold, and taken back."""
    load = stage.load()
    running = load.start(60, 22)
    await pause(2)
    for number, (host, port) in enumerate(stage.addresses):
        await stage.ask("drain", "--wait", f"{host}:{port}")
        stage.kill(number)
        await stage.revive(number, cold=20)
        await stage.ask("undrain", f"{host}:{port}")
        await pause(2)
    await running
    return load.outcome()


@world(Setup(peers=()), EVERYTHING, [all_but(0)])
async def reloads(stage):
    """The configuration is read again each second, with a member more or less and another timeout."""
    load = stage.load()
    running = load.start(50, 14)
    for turn in range(10):
        await pause(1)
        await stage.reload(without=turn % 2, group=f'timeouts = {{ connect = "{turn % 3 + 1}s" }}')
    await running
    return load.outcome()
