"""Servers and a client of gRPC (grpcio) that finds them by xDS. Told line by line what to do; answers each line with one.

    go ADDRESS      where the control plane is; calls begin when the servers are found
    delay NAME MS   the server takes so long for each call
    count SECONDS   calls that each server answered in that time, in the order of the servers, and how many failed so far
    stop            no more calls

Prints the ports of the servers first."""

import json
import os
import sys
import threading
import time
from concurrent import futures

import grpc

SERVERS = 3
CALLERS = 8


def same(message):
    return message


class Server(grpc.GenericRpcHandler):
    def __init__(self):
        self.delay = 0.002
        self.count = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(2 * CALLERS))
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.unary)

    def unary(self, request, call):
        self.count += 1
        # sleeps: the server's service time
        time.sleep(self.delay)
        return request


def bootstrap(address):
    return json.dumps(
        {
            "xds_servers": [
                {
                    "server_uri": address,
                    "channel_creds": [{"type": "insecure"}],
                    "server_features": ["xds_v3"],
                }
            ],
            "node": {"id": "stock-grpcio"},
        }
    )


class Client:
    def __init__(self, address):
        os.environ["GRPC_XDS_BOOTSTRAP_CONFIG"] = bootstrap(address)
        channel = grpc.insecure_channel("xds:///web")
        self.call = channel.unary_unary("/t/Unary", same, same)
        self.call(b"", timeout=30, wait_for_ready=True)
        self.failed = []
        self.going = True
        self.callers = [threading.Thread(target=self.go, daemon=True) for _ in range(CALLERS)]
        for caller in self.callers:
            caller.start()

    def go(self):
        while self.going:
            try:
                # Without wait_for_ready: a call that finds no server has failed.
                self.call(b"x", timeout=10)
            except grpc.RpcError as error:
                self.failed.append(str(error.code()) + " " + str(error.details()))

    def stop(self):
        self.going = False
        for caller in self.callers:
            caller.join()


def main():
    servers = [Server() for _ in range(SERVERS)]
    print(*(server.port for server in servers), flush=True)
    client = None
    for line in sys.stdin:
        word, *rest = line.split()
        answer = "ok"
        if word == "go":
            client = Client(rest[0])
        elif word == "delay":
            servers[int(rest[0])].delay = float(rest[1]) / 1000
        elif word == "count":
            before = [server.count for server in servers]
            # sleeps: the window in which is counted, of which shares are taken
            time.sleep(float(rest[0]))
            counts = [server.count - count for server, count in zip(servers, before)]
            answer = " ".join(map(str, counts)) + " " + str(len(client.failed))
            for failure in client.failed[:3]:
                print(failure, file=sys.stderr)
        elif word == "stop":
            client.stop()
        print(answer, flush=True)


main()
