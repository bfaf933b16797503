"""A member of a balancer's group, lent to a client that reaches it by itself."""

from __future__ import annotations

import json
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import TracebackType
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Type
from urllib.parse import quote, urlsplit

from ._words import Busy, Silence, Unknown, Unserved


class Lease:
    """A member, for a while. To be renewed before it ends, which may bring another member, and released at the end.

    Not to be used by several threads at once.
    """

    #: The member as the balancer's configuration has it.
    member: str
    #: Where it is: an IP address.
    host: str
    port: int
    #: The lease's number.
    lease: str
    #: For how long it was given, or last renewed.
    lease_seconds: float
    #: Did the last answer name another member than the one before?
    moved: bool
    #: Why it is this member.
    why: str

    def __init__(self, door: _Door, group: str, said: Dict[str, Any]) -> None:
        self._door = door
        self._path = f"/v1/groups/{quote(group, safe='')}/bind"
        self._over = False
        self._take(said)

    def _take(self, said: Dict[str, Any]) -> None:
        try:
            names = str(said["member"]), str(said["lease"]), str(said["why"])
            host, _, port = str(said["address"]).rpartition(":")
            where = host.strip("[]"), int(port)
            seconds, moved = float(said["lease_seconds"]), bool(said["moved"])
        except (KeyError, TypeError, ValueError) as error:
            raise Silence(f"it is no balancer: {error!r} in its answer {str(said)[:80]}") from error
        self.member, self.lease, self.why = names
        self.host, self.port = where
        self.lease_seconds, self.moved = seconds, moved
        self._ends = time.monotonic() + self.lease_seconds

    @property
    def address(self) -> Tuple[str, int]:
        """As `socket.create_connection` takes it."""
        return self.host, self.port

    @property
    def left(self) -> float:
        """Seconds until it ends; 0 when it has."""
        return max(0.0, self._ends - time.monotonic())

    def renew(self, *, lease_seconds: Optional[float] = None, exclude: Sequence[str] = ()) -> bool:
        """Prolongs it; True if the client is to go to another member, which this is of from then on. A member of `exclude`, that
        could not be reached, say, is left if there is another.

        Raises `Unknown` if it has ended: then `bind` again.
        """
        said = self._door.ask("POST", f"{self._path}/{self.lease}", _wish(None, lease_seconds, exclude))
        self._take(said)
        return self.moved

    def release(self) -> None:
        """Gives it back. To do so again, or after it has ended, does nothing."""
        if not self._over:
            self._over = True
            try:
                self._door.ask("DELETE", f"{self._path}/{self.lease}", None)
            except Unknown:
                pass

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Unserved:
            # It ends by itself.
            pass

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(
    url: str,
    group: str,
    *,
    key: Optional[str] = None,
    lease_seconds: Optional[float] = None,
    exclude: Sequence[str] = (),
    timeout: float = 5.0,
    context: Optional[ssl.SSLContext] = None,
    headers: Optional[Mapping[str, str]] = None,
) -> Lease:
    """A member of a balancer's group, and a lease of it.

    `url` is where the balancer takes reports (`[admin] reports`), such as `"http://10.0.0.9:9901"`, or its control over TLS;
    for that `context` has the certificates and `headers` a token. `key` says who the client is: it gets the member that belongs to
    the key, or that it has a lease of already. `lease_seconds` is from 1 to 3600, a minute if it is not said. Members named in `exclude` are
    not taken. Each answer is waited for `timeout` seconds.

    Raises ValueError for what cannot be asked, PermissionError if one may not, and a kind of `Unserved` otherwise: `Unknown` for a
    group that is not there, `Busy` if no member can take one more, `Silence` if the balancer does not answer.
    """
    door = _Door(url, timeout, context, headers)
    path = f"/v1/groups/{quote(group, safe='')}/bind"
    return Lease(door, group, door.ask("POST", path, _wish(key, lease_seconds, exclude)))


def _wish(key: Optional[str], lease_seconds: Optional[float], exclude: Sequence[str]) -> Dict[str, Any]:
    if isinstance(exclude, str):
        raise ValueError("exclude: give several names, and not one text")
    wish: Dict[str, Any] = {"exclude": list(exclude)} if exclude else {}
    if key is not None:
        wish["key"] = key
    if lease_seconds is not None:
        wish["lease_seconds"] = lease_seconds
    return wish


class _Door:
    """Where a balancer is asked; each question has a connection of its own."""

    def __init__(
        self,
        url: str,
        timeout: float,
        context: Optional[ssl.SSLContext],
        headers: Optional[Mapping[str, str]],
    ) -> None:
        parts = urlsplit(url)
        plain = not parts.path.strip("/") and not parts.query and not parts.username
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
            raise ValueError(f"{url!r} is not where a balancer is, such as http://10.0.0.9:9901")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._timeout, self._context, self._headers = timeout, context, dict(headers or {})

    def ask(self, method: str, path: str, body: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        connection: HTTPConnection
        if self._secure:
            connection = HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
        else:
            connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            sent = json.dumps(body) if body is not None else None
            connection.request(method, path, sent, {"Content-Type": "application/json", **self._headers})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, HTTPException) as error:
            raise Silence(f"{self._host}: {error}") from error
        finally:
            connection.close()
        try:
            said = json.loads(text) if text else {}
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise Silence(f"{self._host}: it is no balancer: {text[:80]!r}")
        if answer.status in (200, 204):
            return said
        why = str(said.get("error", answer.reason))
        if answer.status == 404:
            raise Unknown(why)
        if answer.status in (429, 503):
            raise Busy(why)
        if answer.status == 400:
            raise ValueError(why)
        if answer.status in (401, 403):
            raise PermissionError(why)
        raise Unserved(why)
