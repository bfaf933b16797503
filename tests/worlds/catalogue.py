"""The worlds. A new one is a function in a file of its kind, and a line here.

Those of the short form run in `make test`: what they count depends on no machine, and each takes 25 seconds
at most.
"""

from . import changes, faults, fleets, held, ordinary, overload, pauses, sessions

SHORT = [
    ordinary.calm,
    ordinary.day_and_night,
]

LONG = [
    ordinary.new_connections,
    ordinary.http2_clients,
    ordinary.grpc_calls,
    ordinary.sudden_morning,
    ordinary.long_ones,
    ordinary.impatient,
    ordinary.crowd,
    ordinary.uploads,
    ordinary.downloads,
    held.streams,
    held.side_car_streams,
    held.grpc_streams,
    held.sockets,
    held.plain_sockets,
    held.slow_posts,
    held.zero_window,
    held.slow_readers,
    held.reconnecting_streams,
    faults.hung,
    faults.hung_alike,
    faults.crawling,
    faults.failing,
    faults.frozen,
    faults.deploy,
    faults.cold_return,
    changes.rolling_update,
    changes.reloads,
    pauses.paused,
    pauses.collections,
    overload.cold_burst,
    overload.bursts,
    overload.spike,
    overload.surge,
    sessions.per_session,
    sessions.on_demand,
    sessions.resting_sessions,
    sessions.idle_sessions,
    sessions.side_car_sessions,
    sessions.mixed_sources,
    fleets.unequal_members,
    fleets.near_and_far,
    fleets.mixed_fleet,
    fleets.side_cars,
    fleets.two_balancers,
    fleets.thousand_members,
    pauses.idle_group,
    overload.closed_loop,
]

ALL = SHORT + LONG


def named(name):
    """Returns the world of a name, or None."""
    return next((world for world in ALL if world.name == name), None)
