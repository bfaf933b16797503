"""The client for asyncio: the library's event-loop functions, with asyncio as the loop. No thread."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Dict, Optional, Type, Union

from ._library import Daemons, Handle, Keys, Service
from ._words import Member, Pick


class AsyncClient:
    """A client of a cluster, for any number of tasks of one event loop: the one in which it picks first.

    What it is told is what `Client` is told. Names of daemons are looked up when it is made, which may take a while.
    """

    def __init__(
        self,
        daemons: Daemons,
        keys: Keys,
        *,
        multicast: Optional[str] = None,
        multicast_if: Optional[str] = None,
        lottery: bool = False,
        attempts: int = 0,
    ) -> None:
        self._handle = Handle(daemons, keys, multicast, multicast_if, lottery, attempts)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._timer: Optional[asyncio.TimerHandle] = None
        self._waiting: Dict[int, asyncio.Future[Pick]] = {}
        self._tags = 0

    async def pick(self, service: Service, info: bytes = b"") -> Pick:
        """The member that is to serve; a service has a name or a number. `info` is for the daemons' applications, at most 1000
        bytes. Raises `Unserved` if there is nobody."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.add_reader(self._handle.fd(), self._turn)
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop")
        self._tags += 1
        tag = self._tags
        self._handle.ask(service, info, tag)
        future: asyncio.Future[Pick] = loop.create_future()
        self._waiting[tag] = future
        try:
            # It may be there at once; if not, there is a time to wait for.
            self._take(loop)
            return await future
        finally:
            # Who gives up leaves nothing behind.
            self._waiting.pop(tag, None)

    def failed(self, member: Union[Member, int]) -> None:
        """A member that was picked failed: not that one again for five seconds."""
        self._handle.failed(member if isinstance(member, int) else member.number)

    def close(self) -> None:
        """Ends it, and cancels whoever waits. To do so again does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.remove_reader(self._handle.fd())
            except ValueError:
                # It was closed before.
                pass
        self._handle.close()
        for future in self._waiting.values():
            future.cancel()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _turn(self) -> None:
        """Something has come, or it is time."""
        self._handle.process()
        if self._loop is not None:
            self._take(self._loop)

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            came = self._handle.next()
            if came is None:
                break
            tag, outcome = came
            future = self._waiting.get(tag)
            if future is None or future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if self._timer is not None:
            self._timer.cancel()
        time = self._handle.timeout()
        self._timer = None if time is None else loop.call_later(time, self._turn)
