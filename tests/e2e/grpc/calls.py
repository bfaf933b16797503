"""Three servers and a client of gRPC (grpcio). Prints where the servers are, reads where the balancer is, and ends with 0 if every
kind of call gets through and the calls are spread."""

import collections
import queue
import sys
import time
from concurrent import futures

import grpc


def same(message):
    return message


class Server(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.name = name
        self.server = grpc.server(futures.ThreadPoolExecutor(16))
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details):
        return {
            "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(lambda request, call: b"\x08\x01"),
            "/t/Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "/t/Down": grpc.unary_stream_rpc_method_handler(self.down),
            "/t/Up": grpc.stream_unary_rpc_method_handler(self.up),
            "/t/Both": grpc.stream_stream_rpc_method_handler(self.both),
        }.get(details.method)

    def unary(self, request, call):
        if request == b"fail":
            call.abort(grpc.StatusCode.NOT_FOUND, "as asked")
        if request == b"sleep":
            # sleeps: longer than its client waits
            time.sleep(5)
        call.set_trailing_metadata((("x-who", self.name),))
        return self.name.encode() + b":" + request

    def down(self, request, call):
        for number in range(int(request)):
            yield b"%d" % number

    def up(self, requests, call):
        return b"%d" % sum(len(request) for request in requests)

    def both(self, requests, call):
        for request in requests:
            yield b"again " + request


def main():
    servers = [Server("m%d" % number) for number in range(3)]
    print(*(server.port for server in servers), flush=True)
    channel = grpc.insecure_channel(sys.stdin.readline().strip())
    unary = channel.unary_unary("/t/Unary", same, same)
    # Until the balancer has found all of them healthy.
    seen = set()
    begun = time.monotonic()
    while len(seen) < 3:
        # bound: a safety net
        assert time.monotonic() - begun < 60, seen
        try:
            seen.add(unary(b"", timeout=60))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error

    spread = collections.Counter()
    for number in range(1000):
        message = b"x%d" % number
        answer, call = unary.with_call(message, timeout=60)
        who, rest = answer.split(b":")
        assert rest == message, answer
        assert ("x-who", who.decode()) in [tuple(pair) for pair in call.trailing_metadata()], who
        spread[who] += 1
    assert min(spread.values()) > 200, spread

    down = channel.unary_stream("/t/Down", same, same)
    assert list(down(b"1000", timeout=60)) == [b"%d" % number for number in range(1000)]
    up = channel.stream_unary("/t/Up", same, same)
    assert up((b"z" * 10000 for _ in range(300)), timeout=60) == b"3000000"
    both = channel.stream_stream("/t/Both", same, same)
    turns = queue.Queue()
    answers = both(iter(turns.get, None), timeout=60)
    for number in range(50):
        turns.put(b"%d" % number)
        assert next(answers) == b"again %d" % number
    turns.put(None)
    assert not list(answers)

    try:
        unary(b"fail", timeout=60)
        raise AssertionError("it was to fail")
    except grpc.RpcError as error:
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "as asked"), error
    try:
        unary(b"sleep", timeout=0.3)
        raise AssertionError("it was to take too long")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error

    for server in servers:
        server.server.stop(0)
    begun = time.monotonic()
    while True:
        # bound: a safety net
        assert time.monotonic() - begun < 60
        try:
            unary(b"x", timeout=60)
        except grpc.RpcError as error:
            if "no member" in error.details():
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error
                break
    print("spread", dict(spread))


if __name__ == "__main__":
    main()
