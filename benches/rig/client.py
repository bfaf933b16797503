"""A closed-loop HTTP/1.1 client that sends an exact number of requests over connections it keeps.

wrk measures for a time; a gate must know to the request how much work the proxy did. Every connection has at most
one request under way. `run` lets all of them go as fast as they are answered, `in_turn` has one request under way
over all of them, so that nothing depends on how the proxy's events happen to be batched.
"""

import re
import select
import socket
import time

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
RECEIVE = 256 * 1024


class Refused(Exception):
    """The proxy closed a connection, answered something else than 200, or was silent for too long."""


class Crowd:
    """Keep-alive connections to one proxy that ask for one path. Use as a context manager."""

    def __init__(self, address, connections, path="/1k", patience=30.0):
        """`address` is (host, port); `patience` is the longest wait for any answer, in seconds."""
        host, port = address
        self.patience = patience
        self.request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: */*\r\n\r\n".encode()
        self.epoll = select.epoll()
        self.members = {}
        try:
            for _ in range(connections):
                connection = socket.create_connection(address, timeout=patience)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.members[connection.fileno()] = connection
                self.epoll.register(connection, select.EPOLLIN)
        except OSError:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes every connection."""
        for connection in self.members.values():
            connection.close()
        self.members.clear()
        self.epoll.close()

    def run(self, requests):
        """Sends `requests` in all, every connection as fast as it is answered; returns the seconds it took."""
        started = time.monotonic()
        unsent, unanswered = requests, 0
        parts = dict.fromkeys(self.members, b"")
        for connection in list(self.members.values())[:requests]:
            connection.sendall(self.request)
            unsent -= 1
            unanswered += 1
        while unanswered:
            ready = self.epoll.poll(self.patience)
            if not ready:
                raise Refused(f"{unanswered} requests without an answer for {self.patience:.0f} s")
            for number, _ in ready:
                parts[number] += self.receive(number)
                if not complete(parts[number]):
                    continue
                parts[number] = b""
                unanswered -= 1
                if unsent:
                    self.members[number].sendall(self.request)
                    unsent -= 1
                    unanswered += 1
        return time.monotonic() - started

    def in_turn(self, requests):
        """Sends `requests` in all, one at a time, going round the connections."""
        numbers = list(self.members)
        for turn in range(requests):
            number = numbers[turn % len(numbers)]
            self.members[number].sendall(self.request)
            answer = b""
            while not complete(answer):
                answer += self.receive(number)

    def lost(self):
        """How many connections the proxy has closed since the last answer."""
        return len(self.epoll.poll(0, len(self.members)))

    def receive(self, number):
        data = self.members[number].recv(RECEIVE)
        if not data:
            raise Refused("the proxy closed a connection")
        return data


def complete(answer):
    """Whether `answer` holds one whole answer; raises `Refused` if it is not a 200."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    if answer[9:12] != b"200":
        raise Refused("answered " + answer[: answer.find(b"\r\n")].decode("latin-1"))
    length = LENGTH.search(answer, 0, end + 2)
    if not length:
        raise Refused("answered without a Content-Length")
    return len(answer) >= end + 4 + int(length[1])
