"""Servers and a client of gRPC (grpcio). Told line by line what to do; answers each line with one.

    bootstrap ADDRESS   where the control plane of targets such as xds:///web is
    call TARGET N       N calls, one after the other: how many each server answered, in the order of the servers
    hold TARGET         a call that does not end: which server has it
    release             ends all of them

Prints the ports of the servers first; they are called m0, m1 and so on."""

import json
import os
import sys
import threading
from concurrent import futures

import grpc

SERVERS = 3


def same(message):
    return message


class Server(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.name = name.encode()
        self.going = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(16))
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details):
        if details.method == "/t/Hold":
            return grpc.unary_stream_rpc_method_handler(self.hold)
        return grpc.unary_unary_rpc_method_handler(lambda request, call: self.name)

    def hold(self, request, call):
        going = self.going
        yield self.name
        # Longer than any test.
        going.wait(3600)

    def release(self):
        self.going.set()
        self.going = threading.Event()


class Client:
    def __init__(self):
        self.channels = {}
        self.held = []

    def channel(self, target):
        if target not in self.channels:
            self.channels[target] = grpc.insecure_channel(target)
        return self.channels[target]

    def call(self, target, count):
        call = self.channel(target).unary_unary("/t/Unary", same, same)
        return [call(b"x", timeout=20, wait_for_ready=True).decode() for _ in range(count)]

    def hold(self, target):
        held = self.channel(target).unary_stream("/t/Hold", same, same)(b"x", wait_for_ready=True)
        self.held.append(held)
        return next(held).decode()

    def release(self, servers):
        for server in servers:
            server.release()
        for held in self.held:
            assert not list(held)
        self.held = []


def main():
    servers = [Server("m%d" % number) for number in range(SERVERS)]
    print(*(server.port for server in servers), flush=True)
    client = Client()
    for line in sys.stdin:
        word, *rest = line.split()
        answer = "ok"
        if word == "bootstrap":
            credentials = [{"type": "insecure"}]
            server = {"server_uri": rest[0], "channel_creds": credentials, "server_features": ["xds_v3"]}
            os.environ["GRPC_XDS_BOOTSTRAP_CONFIG"] = json.dumps(
                {"xds_servers": [server], "node": {"id": "one-group"}}
            )
        elif word == "call":
            names = client.call(rest[0], int(rest[1]))
            answer = " ".join(str(names.count("m%d" % number)) for number in range(SERVERS))
        elif word == "hold":
            answer = client.hold(rest[0])
        elif word == "release":
            client.release(servers)
        print(answer, flush=True)


main()
