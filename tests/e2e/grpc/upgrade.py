"""A server of gRPC and a client (grpcio) that calls it through a balancer on one channel. Prints where the server is, reads where the
balancer is, and calls until its input ends; ends with 0 if no call failed."""

import sys
import threading
import time
from concurrent import futures

import grpc


def same(message):
    return message


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, call: request)


def main():
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((Service(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    channel = grpc.insecure_channel(sys.stdin.readline().strip())
    unary = channel.unary_unary("/t/Unary", same, same)
    over = threading.Event()
    made, failed = [0] * 4, []

    def call(place):
        while not over.is_set():
            message = b"%d" % made[place]
            try:
                assert unary(message, timeout=30, wait_for_ready=False) == message
                made[place] += 1
            except Exception as error:
                failed.append(repr(error))
            # sleeps: paces the client
            time.sleep(0.01)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(made))]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    channel.close()
    server.stop(None)
    if failed or min(made) < 10:
        sys.exit("%d of %d calls failed: %s" % (len(failed), sum(made), failed[:5]))


main()
