"""Waiting. A world is a timeline: time is its subject, and verdicts are counts."""

import asyncio


async def pause(seconds):
    """Lets so much time pass."""
    # sleeps: paces a world; what is judged are counts
    await asyncio.sleep(seconds)
