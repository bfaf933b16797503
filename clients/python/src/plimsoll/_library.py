"""The C library, as `plimsoll.h` has it: the only place that knows of pointers."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_size_t, c_ubyte
from ctypes import c_uint, c_uint16, c_uint32, c_uint64, c_void_p
from os import PathLike, fsencode
from pathlib import Path
from typing import Dict, Iterable, Iterator, NoReturn, Optional, Tuple, Type, Union

from ._words import Busy, Draining, Member, Pick, Silence, TooMany, Unknown

Daemons = Union[str, Iterable[str]]
Service = Union[str, int]
Keys = Union[str, "PathLike[str]"]

_FURTHER = 4
_INFO = 1000
_OK = 0
_NOTHING = 6
_FAULTS: Dict[int, Type[Exception]] = {
    1: Silence,
    2: Busy,
    3: Unknown,
    4: Draining,
    5: TooMany,
    16: ValueError,
    17: ValueError,
    18: OSError,
    19: OSError,
}


class _Options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("daemons", c_char_p),
        ("keys", c_char_p),
        ("multicast", c_char_p),
        ("multicast_if", c_char_p),
        ("lottery", c_uint),
        ("attempts", c_uint),
    ]


class _Member(Structure):
    _fields_ = [
        # A sockaddr_storage: 128 bytes that lie as a long does.
        ("address", c_uint64 * 16),
        ("address_len", c_uint32),
        ("number", c_uint16),
        ("text", c_char * 64),
    ]


class _Answer(Structure):
    _fields_ = [
        ("member", _Member),
        ("further", _Member * _FURTHER),
        ("further_len", c_size_t),
        ("info_len", c_size_t),
        ("info", c_ubyte * _INFO),
    ]


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).with_name("libplimsoll.so")))
    client, answer = c_void_p, POINTER(_Answer)
    library.plimsoll_open.argtypes = [POINTER(_Options), POINTER(c_void_p)]
    library.plimsoll_close.argtypes = [client]
    library.plimsoll_close.restype = None
    library.plimsoll_pick_with.argtypes = [client, c_char_p, c_char_p, c_size_t, answer]
    library.plimsoll_failed.argtypes = [client, c_uint16]
    library.plimsoll_ask.argtypes = [client, c_char_p, c_char_p, c_size_t, c_void_p]
    library.plimsoll_fd.argtypes = [client]
    library.plimsoll_timeout_ms.argtypes = [client]
    library.plimsoll_process.argtypes = [client]
    library.plimsoll_next.argtypes = [client, POINTER(c_void_p), answer]
    for text in (library.plimsoll_message, library.plimsoll_version):
        text.argtypes = []
        text.restype = c_char_p
    return library


_library = _load()


def version() -> str:
    """Of the library."""
    text: bytes = _library.plimsoll_version()
    return text.decode()


class Handle:
    """A client of the library. It lives until it was closed and no thread is in the middle of using it."""

    def __init__(
        self,
        daemons: Daemons,
        keys: Keys,
        multicast: Optional[str],
        multicast_if: Optional[str],
        lottery: bool,
        attempts: int,
    ) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._closed = True
        self._pointer = c_void_p()
        if not isinstance(daemons, str):
            daemons = ",".join(daemons)
        if not 0 <= attempts <= 255:
            raise ValueError("attempts are 1 to 255, or 0 for as many as usual")
        options = _Options(
            ctypes.sizeof(_Options),
            _text(daemons),
            _whole(fsencode(keys)),
            None if multicast is None else _text(multicast),
            None if multicast_if is None else _text(multicast_if),
            int(lottery),
            attempts,
        )
        code = _library.plimsoll_open(byref(options), byref(self._pointer))
        if code != _OK:
            _fail(code)
        self._closed = False

    def pick(self, service: Service, info: bytes) -> Pick:
        """Waits, without the interpreter's lock."""
        answer = _Answer()
        with self._use() as client:
            code = _library.plimsoll_pick_with(client, _service(service), info, len(info), byref(answer))
            if code != _OK:
                _fail(code)
        return _pick(answer)

    def failed(self, member: int) -> None:
        if not 0 <= member <= 65535:
            raise ValueError(f"{member} is no member's number")
        with self._use() as client:
            _library.plimsoll_failed(client, member)

    def ask(self, service: Service, info: bytes, tag: int) -> None:
        """Does not wait: `next` gives what came of it, with the tag."""
        with self._use() as client:
            code = _library.plimsoll_ask(client, _service(service), info, len(info), tag)
            if code != _OK:
                _fail(code)

    def fd(self) -> int:
        with self._use() as client:
            return int(_library.plimsoll_fd(client))

    def timeout(self) -> Optional[float]:
        """Seconds until `process` is to be called at the latest, if anything is waited for."""
        with self._use() as client:
            time = int(_library.plimsoll_timeout_ms(client))
        return None if time < 0 else time / 1000

    def process(self) -> None:
        with self._use() as client:
            _library.plimsoll_process(client)

    def next(self) -> Optional[Tuple[int, Union[Pick, Exception]]]:
        """What came of something that was asked for, with its tag."""
        tag, answer = c_void_p(), _Answer()
        with self._use() as client:
            code = _library.plimsoll_next(client, byref(tag), byref(answer))
            if code == _NOTHING:
                return None
            return tag.value or 0, _pick(answer) if code == _OK else _fault(code)

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
            idle = self._users == 0
        if not closed and idle:
            _library.plimsoll_close(self._pointer)

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def _use(self) -> Iterator[c_void_p]:
        with self._lock:
            if self._closed:
                raise ValueError("the client is closed")
            self._users += 1
        try:
            yield self._pointer
        finally:
            with self._lock:
                self._users -= 1
                last = self._closed and self._users == 0
            if last:
                _library.plimsoll_close(self._pointer)


def _fault(code: int) -> Exception:
    message: bytes = _library.plimsoll_message()
    return _FAULTS.get(code, RuntimeError)(message.decode())


def _fail(code: int) -> NoReturn:
    raise _fault(code)


def _text(text: str) -> bytes:
    return _whole(text.encode())


def _whole(text: bytes) -> bytes:
    if b"\0" in text:
        raise ValueError("there is a zero within a text")
    return text


def _service(service: Service) -> bytes:
    return _text(f"id:{service}" if isinstance(service, int) else service)


def _member(member: _Member) -> Tuple[int, str, int]:
    host, _, port = member.text.decode().rpartition(":")
    return member.number, host.strip("[]"), int(port)


def _pick(answer: _Answer) -> Pick:
    further = tuple(Member(*_member(answer.further[place])) for place in range(answer.further_len))
    return Pick(*_member(answer.member), further, bytes(answer.info[: answer.info_len]))
