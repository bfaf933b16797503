"""Changes of members at a steady rate, and how long each takes until a request sees it.

Who makes a change does not wait for it: several hands make them, each over a connection of its own, and one watcher asks the group
again and again, every two milliseconds at first, until the answer comes from the member that it should come from.
"""

import base64
import collections
import http.client
import itertools
import json
import os
import queue
import socket
import threading
import time

from .fleet import HEAVY, LITTLE, MUCH

HANDS = 4
PATIENCE = 10.0
"""Seconds after which a change counts as never seen."""


class Control(http.client.HTTPConnection):
    """HTTP over the control socket."""

    def __init__(self, path):
        super().__init__("plimsoll", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def ask(self, method, path, body=None):
        """The answer's body; an error for anything but success."""
        self.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = self.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {text[:200].decode(errors='replace')}")
        return text


class Way:
    """One way to change the members of groups of the stage: `on` has the heavy member serve, `off` has it not."""

    def __init__(self, fleet, stage):
        self.fleet, self.way = fleet, stage.way
        self.there = {group: stage.way == "operator" for group in range(stage.first, stage.first + stage.count)}
        self.turns = itertools.cycle(self.there)
        self.registered = set()

    def next(self, busy):
        """A group in which nothing is under way, and whether its heavy member is to serve; None if all are busy."""
        for _ in self.there:
            group = next(self.turns)
            if group not in busy:
                self.there[group] = not self.there[group]
                return group, self.there[group]
        return None

    def make(self, control, etcd, group, there):
        """Makes the change."""
        member = self.fleet.heavy()
        if self.way == "operator":
            verb = "undrain" if there else "drain"
            control.ask("POST", f"/v1/{verb}", {"member": member, "group": f"g{group}"})
        elif self.way == "registered":
            control.ask(*({True: "PUT", False: "DELETE"}[there], f"/v1/groups/g{group}/members/{member}"), *([{"capacity": MUCH}] if there else []))
        elif self.way == "weight":
            control.ask("PUT", f"/v1/groups/g{group}/members/{member}", {"capacity": MUCH if there else LITTLE})
        elif self.way == "file":
            path = self.fleet.file(group)
            fresh = path.with_suffix(".fresh")
            fresh.write_text(f'members = [{{ address = "{member}", capacity = {MUCH} }}]\n' if there else "members = []\n")
            os.replace(fresh, path)
        elif self.way == "etcd":
            key = base64.b64encode(f"/bench/g{group}/heavy".encode()).decode()
            value = base64.b64encode(json.dumps({"address": member, "capacity": MUCH}).encode()).decode()
            call = ("put", {"key": key, "value": value}) if there else ("deleterange", {"key": key})
            etcd.request("POST", f"/v3/kv/{call[0]}", json.dumps(call[1]))
            answer = etcd.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise OSError(f"etcd: {answer.status} {text[:200]!r}")


class Watcher:
    """Asks groups until they show what was changed."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.asked = {}

    def shows(self, group, heavy):
        """Whether the next request to a group is served by the heavy member, or by another, as it should be."""
        connection = self.asked.get(group)
        if connection is None:
            connection = self.asked[group] = socket.create_connection(self.fleet.listener(group), timeout=30)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.partition(b"\r\n\r\n")[2]:
            more = connection.recv(4096)
            if not more:
                raise OSError("the balancer closed a connection")
            answer += more
        if answer[9:12] != b"200":
            raise OSError(answer[:60].decode(errors="replace"))
        return (answer.rpartition(b"\n")[2].decode() == heavy[0]) is heavy[1]

    def close(self):
        for connection in self.asked.values():
            connection.close()


def run(fleet, stages, etcd_port, rate, seconds):
    """Makes `rate` changes a second for so long. Seconds from each change to its effect, and that each took to make, by way;
    how many were made late because a group was busy."""
    ways = [Way(fleet, stage) for stage in stages]
    orders = queue.Queue()
    under_way, lock = {}, threading.Lock()
    made, seen, lost = collections.defaultdict(list), collections.defaultdict(list), collections.Counter()
    failures, queued = [], set()

    def hand():
        control = Control(fleet.control())
        etcd = http.client.HTTPConnection("127.0.0.1", etcd_port, timeout=30) if etcd_port else None
        while (order := orders.get()) is not None:
            way, group, there = order
            began = time.monotonic()
            with lock:
                under_way[group] = (way, there, began)
                queued.discard(group)
            try:
                way.make(control, etcd, group, there)
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{way.way}: {error}")
                with lock:
                    under_way.pop(group, None)
                continue
            made[way.way].append(time.monotonic() - began)

    hands = [threading.Thread(target=hand, daemon=True) for _ in range(HANDS)]
    for one in hands:
        one.start()
    watcher, turn, skipped = Watcher(fleet), itertools.cycle(ways), 0
    try:
        begun = time.monotonic()
        count = 0
        asked_at = {}
        while True:
            now = time.monotonic()
            while now < begun + seconds and count < (now - begun) * rate:
                count += 1
                way = next(turn)
                with lock:
                    busy = set(under_way) | queued
                found = way.next(busy)
                if found is None:
                    skipped += 1
                    continue
                with lock:
                    queued.add(found[0])
                orders.put((way, *found))
            with lock:
                looking = list(under_way.items())
            for group, (way, there, began) in looking:
                now = time.monotonic()
                # Who has waited for long is asked for more rarely.
                if now - asked_at.get(group, 0) < max(0.002, (now - began) / 20):
                    continue
                asked_at[group] = now
                if watcher.shows(group, (HEAVY, there)):
                    seen[way.way].append(time.monotonic() - began)
                elif now - began > PATIENCE:
                    lost[way.way] += 1
                else:
                    continue
                with lock:
                    under_way.pop(group, None)
            if time.monotonic() > begun + seconds and not under_way and not queued and orders.empty():
                break
            if time.monotonic() > begun + seconds + 3 * PATIENCE:
                break
            time.sleep(0.0005)
    finally:
        for _ in hands:
            orders.put(None)
        watcher.close()
    if failures and len(failures) > count / 20:
        raise OSError(f"{len(failures)} changes could not be made: {failures[0]}")
    return {"made": made, "seen": seen, "lost": dict(lost), "skipped": skipped, "failures": failures[:5], "asked_for": count}
