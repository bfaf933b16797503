"""Asks the daemons of a lottery who serves: a client of a cluster without a balancer.

    import plimsoll

    with plimsoll.Client("10.0.0.1:7447,10.0.0.2:7447", keys="lottery.keys") as client:
        pick = client.pick("web")
        print(pick.host, pick.port)

or asks a balancer for a member of a group:

    with plimsoll.bind("http://10.0.0.9:9901", "web") as lease:
        print(lease.host, lease.port)

`Client` is for threads, `AsyncClient` for asyncio. Both ask one daemon and learn of the others, use an answer again for as long as
its daemon allows, ask again what got no answer, leave a member alone that `failed`, and read the keys again when their file
changes.
"""

from ._async_client import AsyncClient
from ._client import Client
from ._lease import Lease, bind
from ._library import version
from ._words import Busy, Draining, Member, Pick, Silence, TooMany, Unknown, Unserved

__all__ = [
    "AsyncClient",
    "Busy",
    "Client",
    "Draining",
    "Lease",
    "Member",
    "Pick",
    "Silence",
    "TooMany",
    "Unknown",
    "Unserved",
    "__version__",
    "bind",
]

__version__ = version()

# So that a traceback names them as programs do.
for _kind in (Busy, Draining, Lease, Member, Pick, Silence, TooMany, Unknown, Unserved):
    _kind.__module__ = __name__
