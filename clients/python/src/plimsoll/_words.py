"""What comes of asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Member:
    """A member of the cluster: its number, and where it serves."""

    number: int
    host: str
    port: int

    @property
    def address(self) -> Tuple[str, int]:
        """As `socket.create_connection` takes it."""
        return self.host, self.port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Pick(Member):
    """Who is to serve, members to try if it does not do (best first), and what its application says."""

    further: Tuple[Member, ...] = ()
    info: bytes = b""

    def __str__(self) -> str:
        return super().__str__()


class Unserved(Exception):
    """Who serves could not be found out."""


class Silence(Unserved):
    """No daemon answered."""


class Busy(Unserved):
    """No member can serve it now."""


class Unknown(Unserved):
    """No member offers it."""


class Draining(Unserved):
    """All members that offer it are going."""


class TooMany(Unserved):
    """Too many requests are on their way."""
