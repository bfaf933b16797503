"""The stage: members, side-cars and balancers of a world, and what a world can do to them."""

import asyncio
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from benches.rig.process import HOST, Child, Failed, free_port, send

from .balancers import Place, balancer, binary, fast_members, plimsoll_config
from .clients import Http1
from .clock import pause
from .load import Crowd, Load
from .world import PEERS

READY = 60.0
"""Seconds until all members are up, at most."""

BUSY = "while True: pass"


class Stage:
    """Members and balancers that run. Use as a context manager: leaving it ends all of them."""

    def __init__(self, setup, strategy, seed, length=0):
        self.setup, self.strategy, self.seed, self.length = setup, strategy, seed, length
        self.chance = random.Random(seed)
        self.folder = tempfile.TemporaryDirectory(prefix="plimsoll-world-")
        self.where = Path(self.folder.name)
        self.running, self.members, self.balancers, self.places = [], [], [], []

    def __enter__(self):
        try:
            self.addresses = self.start_members()
            doors = self.start_side_cars()
            self.places = [self.place(number, doors) for number in range(self.setup.balancers)]
            self.balancers = [self.start_balancer(place) for place in self.places]
            self.await_members()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends all that was started."""
        for child in reversed(self.running):
            child.stop(seconds=0)
        self.folder.cleanup()

    def start(self, *command):
        """Runs a program until the stage ends."""
        child = Child(command, self.where / f"log-{len(self.running)}")
        self.running.append(child)
        return child

    # What is there at the beginning.

    def start_members(self):
        """Starts members, and returns the (host, port) of each."""
        hosts = [host(1, number) for number in range(self.setup.members)]
        crews = [[name] for name in hosts] if self.setup.apart else [hosts]
        addresses = []
        for crew in crews:
            port = free_port()
            addresses += [(name, port) for name in crew]
        if self.setup.fast:
            self.members = [self.start(*fast_members(self.where, addresses))]
        else:
            first = range(0, len(hosts), len(crews[0]))
            self.members = [self.start_crew(addresses[at : at + len(crews[0])], at) for at in first]
        for crew, child in zip(crews, self.members):
            child.await_port(dict(addresses)[crew[0]], host=crew[0])
        return addresses

    def start_crew(self, addresses, first, **more):
        """Starts a process of members; `more` is what they are like beside what the setup says."""
        works = {name: {**self.setup.work_of(first + at), **more} for at, (name, _) in enumerate(addresses)}
        told = {"port": addresses[0][1], "members": works, "seed": self.seed * 1000 + first}
        return self.start(sys.executable, "-B", "-m", "tests.worlds.member", json.dumps(told))

    def start_side_cars(self):
        """Starts side-cars, if there are any, and returns where balancers find each member."""
        self.reports = free_port() if self.setup.reports else 0
        if not self.setup.side_cars or self.strategy in PEERS:
            return self.addresses
        port = free_port()
        doors = [(host(2, number), port) for number in range(self.setup.side_cars)]
        words = []
        for (door, at), (name, behind) in zip(doors, self.addresses):
            words += ["--side-car", f"{door}:{at}={name}:{behind}"]
        words += ["--report-to", f"http://{HOST}:{self.reports}"] if self.reports else []
        agent = self.start(binary(), "agent", *words)
        for door, at in doors:
            agent.await_port(at, host=door)
        return doors + self.addresses[self.setup.side_cars :]

    def place(self, number, doors):
        secure = free_port() if self.setup.tls else 0
        return Place(self.where, free_port(), number, doors, self.setup, self.reports, secure)

    def start_balancer(self, place):
        child = self.start(*balancer(self.strategy)(place))
        child.await_port(place.port)
        return child

    def await_members(self):
        """Returns when the balancers take all members for usable."""
        if self.strategy in PEERS:
            return
        deadline = time.monotonic() + READY
        while not all(self.all_up(place) for place in self.places):
            if time.monotonic() > deadline:
                raise Failed(f"not all members are up after {READY:.0f} s:\n{self.balancers[0].last_words()}")
            # sleeps: polls
            time.sleep(0.1)

    def all_up(self, place):
        try:
            group = asyncio.run(self.told(place))
        except Failed:
            # It is about to listen at its control socket.
            return False
        return all(member["state"] == "up" for member in group["members"])

    # What a world does.

    @property
    def doors(self):
        """The (host, port) of each balancer."""
        return [(HOST, place.port) for place in self.places]

    @property
    def door(self):
        return self.doors[0]

    @property
    def secure_doors(self):
        """The (host, port) of each listener of HTTPS."""
        return [(HOST, place.secure) for place in self.places]

    def load(self, client=None):
        """Returns an open loop of requests, over HTTP/1.1 unless a client is given."""
        return Load(client or Http1(self.doors), self.chance)

    def crowd(self):
        """Returns clients that ask again and again."""
        return Crowd(self.doors)

    async def tell(self, *members, **changes):
        """Changes what members are like; all of them if none is named."""
        for number in members or range(len(self.addresses)):
            for name, value in changes.items():
                await self.of_member(number, f"/__set?{name}={float(value)}")

    async def done(self):
        """Returns what each member has done so far: requests served, and seconds that its workers were
        busy."""
        return [json.loads(await self.of_member(number, "/__told")) for number in range(len(self.addresses))]

    async def served(self):
        """Returns how many requests each member has served so far."""
        return [one["served"] for one in await self.done()]

    async def of_member(self, number, target):
        """Asks a member itself."""
        reader, writer = await asyncio.open_connection(*self.addresses[number])
        try:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: member\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        finally:
            writer.close()

    async def hiccup(self, milliseconds, seconds):
        """Has all members take up to so much longer, for a while."""
        await self.tell(extra=milliseconds)
        await pause(seconds)
        await self.tell(extra=0)

    async def freeze(self, children, seconds):
        """Stops processes for a while, as a throttled container or a collection of garbage does."""
        for child in children:
            send(child.pid, signal.SIGSTOP)
        await pause(seconds)
        for child in children:
            send(child.pid, signal.SIGCONT)

    def kill(self, number):
        """Ends a member that has a process of its own."""
        self.members[number].stop(seconds=0)

    async def revive(self, number, **more):
        """Starts a member again that has been ended; `more` is what it is like from now on."""
        child = self.members[number] = self.start_crew([self.addresses[number]], number, **more)
        await asyncio.to_thread(child.await_port, self.addresses[number][1], host=self.addresses[number][0])

    def busy_loop(self):
        """Keeps a core of the machine busy until the stage ends."""
        return self.start(sys.executable, "-c", BUSY)

    async def ask(self, *words, place=None):
        """Runs `plimsoll WORDS` against a balancer, and returns what it prints."""
        control = {"PLIMSOLL_CONTROL": f"unix:{(place or self.places[0]).path('control')}"}
        child = await asyncio.create_subprocess_exec(
            binary(), *words, env={**os.environ, **control}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await child.communicate()
        if child.returncode:
            raise Failed(f"plimsoll {' '.join(map(str, words))}: {err.decode().strip()}")
        return out.decode()

    async def told(self, place=None):
        """Returns what the balancer knows of its group."""
        return json.loads(await self.ask("members", "-o", "json", place=place))["groups"][0]

    async def moves(self):
        """Returns how many sessions were moved so far."""
        return sum(member["moved"] for member in (await self.told())["members"])

    async def reload(self, without=0, **changes):
        """Has the balancer read its configuration again, with changes to the setup and without the last
        members."""
        members = self.addresses[: len(self.addresses) - without]
        setup = dataclasses.replace(self.setup, **changes)
        place = dataclasses.replace(self.places[0], setup=setup, members=members)
        config = place.path("plimsoll.toml")
        config.write_text(plimsoll_config(place, self.strategy))
        await self.ask("-q", "reload", "-c", config)


def host(kind, number):
    """Returns a loopback address: 1 of a member, 2 of a side-car."""
    return f"127.{kind}.{(number + 1) >> 8}.{(number + 1) & 255}"
