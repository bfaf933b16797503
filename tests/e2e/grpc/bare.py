"""A server of gRPC (grpcio) that has no service at all. Says on standard error which port it has."""

import sys
from concurrent import futures

import grpc

server = grpc.server(futures.ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("port", port, file=sys.stderr, flush=True)
server.wait_for_termination()
