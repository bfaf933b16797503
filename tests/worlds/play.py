"""Plays one world with one strategy, in a process of its own: python3 -m tests.worlds.play WORLD STRATEGY
SEED SECONDS.

Prints an `Outcome` as JSON; exit code 2 if it could not be played.
"""

import asyncio
import dataclasses
import json
import sys

from benches.rig.process import Failed, end_on_sigterm, raise_file_limit

from .catalogue import named
from .stage import Stage

FILES = 4096
"""Open files that a world may need."""


def main():
    name, strategy, seed, length = sys.argv[1:]
    end_on_sigterm()
    world = named(name)
    try:
        raise_file_limit(FILES)
        with Stage(world.setup, strategy, int(seed), float(length)) as stage:
            outcome = asyncio.run(world.play(stage))
    except (Failed, OSError) as error:
        print(f"{name}, {strategy}, seed {seed}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(outcome)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
