"""A server of gRPC (grpcio) with nothing but the health service: it serves, but not `shop`. Says on standard error which port it has."""

import sys
from concurrent import futures

import grpc

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Health(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/grpc.health.v1.Health/Check":
            return grpc.unary_unary_rpc_method_handler(lambda asked, call: NOT_SERVING if b"shop" in asked else SERVING)
        return None


server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Health()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("port", port, file=sys.stderr, flush=True)
server.wait_for_termination()
