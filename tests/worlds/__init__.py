"""Ordinary days of a load balancer, on real sockets.

A world starts servers and a balancer, has clients send what clients send on such a day, and counts what is
answered, refused, failed and given up. It says what happens, what is counted, and a bound on the counts.
Nothing is judged by how long it took: members work by timers and rates are low, so that a slow machine
changes no verdict. Latencies are printed for the eye.

    python3 -B -m tests.worlds                             all worlds with the default strategy
    python3 -B -m tests.worlds --short                     those of `make test`
    python3 -B -m tests.worlds -s adaptive,least_request,haproxy hung surge
    python3 -B -m tests.worlds --list

Where strategies without admission run beside `adaptive`, law 1 is judged, too: `adaptive` answers at least
as large a share as the best of them, less half a percent.

`world.py` says what a world is and `catalogue.py` lists them all: a new one is a function in a file of its
kind, and its name in that list. `stage.py` runs members and a balancer, `load.py` and `clients.py` are the
clients, `member.py` is the servers. `play.py` plays one world in a process of its own; `__main__.py` plays
many beside each other.
"""
