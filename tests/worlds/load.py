"""Load: requests that leave when they are due, and clients that ask again and again."""

import asyncio
import time

from .clients import Ask, Http1
from .clock import pause
from .world import FAILED, GAVE_UP, PATIENCE, Answer, Asked, tally

PLAIN = Ask()


class Counted:
    """Requests, and what became of each."""

    def __init__(self):
        self.begun, self.rows = time.monotonic(), []

    async def count(self, client, ask, due=None, patience=PATIENCE):
        """Makes a request and counts what becomes of it."""
        due = time.monotonic() if due is None else due
        try:
            async with asyncio.timeout(patience + ask.over):
                answer = await client.ask(ask)
        except TimeoutError:
            answer = Answer(GAVE_UP)
        except (OSError, asyncio.IncompleteReadError) as error:
            answer = Answer(FAILED, type(error).__name__)
        took = max(time.monotonic() - due - ask.over, 0.0)
        self.rows.append(Asked(due - self.begun, answer, took))

    def start(self, *words, **more):
        """Runs beside what happens else; wait for what it returns."""
        return asyncio.create_task(self.run(*words, **more))

    def outcome(self, since=0.0, until=float("inf"), patience=PATIENCE):
        """Returns the outcome of what was due between two times."""
        return tally([row for row in self.rows if since <= row.due < until], patience)


class Load(Counted):
    """An open loop: requests arrive as Poisson's do, whatever became of those before."""

    def __init__(self, client, chance):
        super().__init__()
        self.client, self.chance = client, chance

    async def run(self, rate, seconds, ask=PLAIN, most=None, patience=PATIENCE):
        """Sends `rate` requests a second, or `rate(time)` of `most`. `ask` is a request, or draws one by
        chance."""
        self.begun = due = time.monotonic()
        waiting = []
        while (due := due + self.chance.expovariate(most or rate)) < self.begun + seconds:
            if most and self.chance.random() * most >= rate(due - self.begun):
                continue
            await pause(max(0.0, due - time.monotonic()))
            what = ask(self.chance) if callable(ask) else ask
            waiting.append(asyncio.create_task(self.count(self.client, what, due, patience)))
        await asyncio.gather(*waiting)

    async def burst(self, requests, ask=PLAIN):
        """Sends so many requests at once, and waits for them."""
        await asyncio.gather(*(self.count(self.client, ask) for _ in range(requests)))


class Crowd(Counted):
    """Clients with a connection of their own each, that wait for an answer and ask again after a while."""

    def __init__(self, doors):
        super().__init__()
        self.doors = doors

    async def run(self, clients, seconds, gap):
        """Runs so many clients; `gap` is in seconds, or `gap(client)`."""
        until = time.monotonic() + seconds
        waits = gap if callable(gap) else lambda _: gap
        await asyncio.gather(*(self.client(until, waits(number)) for number in range(clients)))

    async def client(self, until, gap):
        own = Http1(self.doors)
        while time.monotonic() < until:
            await self.count(own, PLAIN)
            await pause(gap)
        await own.close()
