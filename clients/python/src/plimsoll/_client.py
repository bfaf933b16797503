"""The client for threads."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type, Union

from ._library import Daemons, Handle, Keys, Service
from ._words import Member, Pick


class Client:
    """A client of a cluster, for any number of threads.

    `daemons` are those to begin with, as `"HOST:PORT,HOST:PORT"` or several texts; one that is known is enough. `keys` is the
    file of the cluster's keys, or of those for clients. `multicast` is a group and port by which all are reached at once,
    `multicast_if` the address of the interface for that. With `lottery` all are asked at once, who draw among themselves. `attempts` says how often it asks
    before it gives up: 8 times, which take 1.3 s at the longest.

    Raises ValueError if one of them cannot be what it is, and OSError if no daemon's name is known.
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

    def pick(self, service: Service, info: bytes = b"") -> Pick:
        """Waits for the member that is to serve; a service has a name or a number. `info` is for the daemons' applications, at
        most 1000 bytes. Raises `Unserved` if there is nobody."""
        return self._handle.pick(service, info)

    def failed(self, member: Union[Member, int]) -> None:
        """A member that was picked failed: not that one again for five seconds."""
        self._handle.failed(member if isinstance(member, int) else member.number)

    def close(self) -> None:
        """Ends it, when no thread uses it any more. To do so again does nothing."""
        self._handle.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
