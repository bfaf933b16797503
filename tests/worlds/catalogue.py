"""The worlds. A new one is a function in a file of its kind, and a line here.

Those of the short form run in `make test`: what they count depends on no machine, and each takes 25 seconds
at most. The longest come first, since so many are played at once.
"""

from . import changes, faults, fleets, held, mixed, ordinary, overload, pauses, sessions

SHORT = [
    ordinary.day_and_night,
    held.streams,
    held.grpc_streams,
    held.sockets,
    held.plain_sockets,
    held.slow_posts,
    held.zero_window,
    changes.rolling_update,
    faults.frozen,
    sessions.per_session,
    sessions.on_demand,
    faults.crawling,
    faults.failing,
    faults.cold_return,
    pauses.paused,
    pauses.collections,
    held.slow_readers,
    fleets.two_balancers,
    ordinary.new_connections,
    ordinary.http2_clients,
    ordinary.grpc_calls,
    ordinary.downloads,
    changes.reloads,
    ordinary.calm,
    fleets.thousand_members,
    ordinary.crowd,
]

LONG = [
    ordinary.sudden_morning,
    mixed.mixed,
    ordinary.long_ones,
    ordinary.impatient,
    ordinary.uploads,
    held.side_car_streams,
    held.reconnecting_streams,
    faults.hung,
    faults.hung_alike,
    faults.deploy,
    overload.cold_burst,
    overload.bursts,
    overload.spike,
    overload.surge,
    sessions.resting_sessions,
    sessions.idle_sessions,
    sessions.side_car_sessions,
    sessions.mixed_sources,
    fleets.unequal_members,
    fleets.near_and_far,
    fleets.mixed_fleet,
    fleets.side_cars,
    pauses.idle_group,
    overload.closed_loop,
]

ALL = SHORT + LONG


def named(name):
    """Returns the world of a name, or None."""
    return next((world for world in ALL if world.name == name), None)
