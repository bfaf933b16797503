#!/usr/bin/env python3
"""Records what real ORBs say into crates/wire/tests/giop: one message in each file, and index.txt, what is in them.

    tests/corba/capture.py [--parts TARGET/corba] [--into FOLDER] [ORB...]

A client and a server of the same ORB talk through a relay that cuts the stream into GIOP messages. Of messages that
differ in nothing but their number the first is kept, and the reference of each server. The index is made by a decoder
of its own (below), not by the code that is tested with these files. None of these ORBs sends a CancelRequest: a client
that gives up waiting keeps silent, or closes. Needs scripts/build-corba-parts and, for the Java ORBs, install-corba-java.
"""

import argparse
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TYPES = ["request", "reply", "cancel", "locate-request", "locate-reply", "close", "error", "fragment"]
REPLIES = ["ok", "user-exception", "system-exception", "forward", "forward-perm", "needs-addressing"]
LOCATES = ["unknown", "here", "forward", "forward-perm", "system-exception", "needs-addressing"]
LARGEST = 8500


class Cdr:
    """Reads values at their alignment, counted from the first byte of the message."""

    def __init__(self, data, little, at=0):
        self.data, self.order, self.at = data, "<" if little else ">", at

    def number(self, code):
        size = struct.calcsize(code)
        self.at += -self.at % size
        value = struct.unpack_from(self.order + code, self.data, self.at)[0]
        self.at += size
        return value

    def octets(self):
        length = self.number("I")
        self.at += length
        return self.data[self.at - length:self.at]

    def contexts(self):
        return [(self.number("I"), self.octets())[0] for _ in range(self.number("I"))]


class Message:
    """A whole message and what the index says of it."""

    def __init__(self, data, speaker):
        self.data, self.speaker = data, speaker
        self.minor, flags, self.type = data[5], data[6], TYPES[data[7]]
        self.little, self.more = bool(flags & 1), self.minor > 0 and bool(flags & 2)
        self.id, self.operation, self.note = None, None, ""
        cdr = Cdr(data, self.little, 12)
        if self.type in ("request", "reply"):
            getattr(self, self.type)(cdr)
        elif self.type.startswith("locate"):
            self.id = cdr.number("I")
            self.note = LOCATES[cdr.number("I")] if self.type == "locate-reply" else self.target(cdr)
        elif self.type == "cancel" or (self.type == "fragment" and self.minor == 2):
            self.id = cdr.number("I")

    def request(self, cdr):
        contexts = cdr.contexts() if self.minor < 2 else None
        self.id, expected = cdr.number("I"), cdr.number("B")
        cdr.at += 3 if self.minor > 0 else 0
        target = self.target(cdr)
        self.operation = cdr.octets()[:-1].decode()
        if self.minor < 2:
            cdr.octets()
        else:
            contexts = cdr.contexts()
        self.note = f"{self.operation} expected={expected} {target}{listed(contexts)} body@{self.body(cdr)}"

    def target(self, cdr):
        kind = cdr.number("H") if self.minor == 2 else 0
        if kind == 0:
            return "key=" + readable(cdr.octets())
        if kind == 2:
            cdr.number("I")
            cdr.octets()
            profiles = cdr.number("I")
            for _ in range(profiles):
                cdr.number("I"), cdr.octets()
            return f"reference={profiles}"
        return f"profile={cdr.number('I')}:{len(cdr.octets())}"

    def reply(self, cdr):
        contexts = cdr.contexts() if self.minor < 2 else None
        self.id, self.status = cdr.number("I"), cdr.number("I")
        contexts = contexts if self.minor < 2 else cdr.contexts()
        self.note = f"{REPLIES[self.status]}{listed(contexts)} body@{self.body(cdr)}"

    def body(self, cdr):
        return cdr.at if self.minor < 2 or cdr.at == len(self.data) else cdr.at + -cdr.at % 8

    def line(self, name):
        order = "little" if self.little else "big"
        more = "more" if self.more else "-"
        number = "-" if self.id is None else self.id
        return f"{name} {len(self.data)} 1.{self.minor} {order} {self.type} id={number} {more} {self.note}".rstrip()


def listed(contexts):
    return " contexts=" + (",".join(f"{tag:#x}" for tag in contexts) or "none")


def readable(octets):
    return octets.decode() if re.fullmatch(rb"[\w/.-]+", octets) else "0x" + octets.hex()


class Relay:
    """Listens, connects each client to the server, and keeps what both say, in order."""

    def __init__(self, port):
        self.server, self.heard, self.lock = port, [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self.server))
            for stream in (client, server):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for speaker, source, sink in (("client", client, server), ("server", server, client)):
                threading.Thread(target=self.carry, args=(speaker, source, sink), daemon=True).start()

    def carry(self, speaker, source, sink):
        try:
            while data := message(source):
                with self.lock:
                    self.heard.append(Message(data, speaker))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            # Ends the other half, too.
            for side in (source, sink):
                try:
                    side.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


def message(stream):
    head = exactly(stream, 12)
    if not head:
        return None
    size = struct.unpack_from("<I" if head[6] & 1 else ">I", head, 8)[0]
    return head + exactly(stream, size)


def exactly(stream, size):
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def aimed(ior, port, minor=2):
    """The reference with the relay's port and this version; components are left out of a 1.0 profile."""
    data = bytes.fromhex(ior[4:])
    cdr = Cdr(data, data[0], 4)
    cdr.octets()
    cdr.number("I"), cdr.number("I")
    profile = cdr.octets()
    inner = Cdr(profile, profile[0], 3)
    inner.octets()
    inner.at += inner.at % 2
    changed = bytearray(profile)
    changed[2] = minor
    struct.pack_into(inner.order + "H", changed, inner.at, port)
    inner.at += 2
    inner.octets()
    if minor == 0:
        changed = changed[:inner.at]
    start = cdr.at - len(profile)
    length = struct.pack(cdr.order + "I", len(changed))
    return "IOR:" + (data[:start - 4] + length + changed + data[cdr.at:]).hex()


class Orb:
    """How to start an ORB's server and client."""

    def __init__(self, name, parts):
        self.name, self.parts = name, parts
        self.java = name != "omniorb"
        self.running = []

    def command(self, program, orb_options, words):
        if not self.java:
            return [self.parts / "omniorb" / f"omniorb-{program}", *words, *orb_options]
        home = self.parts / self.name
        classes = {"jacorb": "org.jacorb.orb.ORB", "glassfish": "com.sun.corba.ee.impl.orb.ORBImpl"}[self.name]
        return ["java", "-cp", f"{home}/classes:{home}/lib/*", f"-Dorg.omg.CORBA.ORBClass={classes}",
                f"-Dorg.omg.CORBA.ORBSingletonClass={classes.replace('Impl', '')}Singleton",
                "-Dorg.omg.CORBA.SkipGmbalInit=true", *orb_options, program.capitalize(), *words]

    def server(self, options=(), words=()):
        port = free_port()
        if self.java:
            options = [*options, *{
                "jacorb": [f"-DOAPort={port}", "-DOAIAddr=127.0.0.1", "-Djacorb.implname=tests"],
                "glassfish": ["-Dorg.omg.CORBA.ORBServerId=1", "-Dcom.sun.corba.ee.ORBServerHost=127.0.0.1",
                              f"-Dcom.sun.corba.ee.POA.ORBPersistentServerPort={port}"],
            }[self.name]]
        else:
            words = ["--port", str(port), *words]
        process = subprocess.Popen(self.command("server", options, words), stderr=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, text=True)
        self.running.append(process)
        for line in process.stderr:
            if line.startswith("ready "):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return process, port, line.split()[1]
        sys.exit(f"{self.name}: the server does not start")

    def client(self, reference, words, options=()):
        run = subprocess.run(self.command("client", options, [reference, *words.split()]), capture_output=True,
                             text=True, timeout=60)
        print(f"{self.name}: {words}\n" + "".join(f"    {line}\n" for line in run.stdout.splitlines()), end="")

    def end(self):
        for process in self.running:
            process.kill()
            process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Album:
    """The messages that are kept, with their names."""

    def __init__(self, folder):
        self.folder, self.lines, self.seen = folder, {}, set()

    def keep(self, orb, messages, label="", only=None):
        operations, trains = {}, {}
        for one in messages:
            if one.operation:
                operations[one.id] = one.operation
            what = one.operation or operations.get(one.id, "")
            # A fragment is of the message that its speaker said last: one thread talks.
            if one.type in ("request", "reply"):
                trains[one.speaker] = [one.type, what]
            subject = trains[one.speaker] if one.type == "fragment" else [what]
            words = [f"1.{one.minor}", one.type, label, *subject]
            if one.type == "reply" and one.status:
                words.append(REPLIES[one.status])
            if one.type == "locate-reply":
                words.append(one.note)
            if one.type in ("close", "error"):
                words.append("by-" + one.speaker)
            name = orb + "-" + "-".join(word.strip("_").replace("_", "-") for word in words if word)
            if one.type == "fragment":
                name += "-" + str(sum(known.startswith(name) for known in self.seen) + 1)
            unwanted = only and not only(one) or one.type == "close" and label
            if unwanted or name in self.seen or len(one.data) > LARGEST:
                continue
            self.seen.add(name)
            (self.folder / f"{name}.bin").write_bytes(one.data)
            self.lines[f"{name}.bin"] = one.line(f"{name}.bin")

    def index(self):
        head = ["# What real ORBs said: file, bytes, GIOP version, byte order, type, request id, more fragments, and",
                "# what is in it. body@ is where the body begins, counted from the first byte of the message; the number",
                "# behind profile= is its tag and length, behind reference= how many profiles there are.",
                "# omniORB 4.2.5, JacORB 3.9, GlassFish ORB 5.0.0. Made by tests/corba/capture.py."]
        known = self.folder / "index.txt"
        if known.exists():
            for line in known.read_text().splitlines():
                if not line.startswith("#") and (self.folder / line.split()[0]).exists():
                    self.lines.setdefault(line.split()[0], line)
        known.write_text("\n".join(head + [self.lines[name] for name in sorted(self.lines)]) + "\n")


def record(orb, album):
    """Everything that can be had from this ORB."""
    _, port, ior = orb.server()
    (album.folder / f"{orb.name}.ior").write_text(ior + "\n")
    relay = Relay(port)
    # sleeps: a recording by hand, not a test
    take = lambda **named: (time.sleep(0.3), album.keep(orb.name, relay.heard, **named), relay.heard.clear())
    version = lambda minor: [] if orb.java else ["-ORBmaxGIOPVersion", f"1.{minor}"]

    orb.client(aimed(ior, relay.port), "who half 3.5 wide echo 1 note 1 noted fail user fail system locate")
    take()
    for minor in (0, 1):
        words = "who half 3.5 call 1 7 note 1 fail user fail system"
        orb.client(aimed(ior, relay.port, minor), words, version(minor))
        take()
    orb.client(f"corbaloc::127.0.0.1:{relay.port}/{escaped(key_of(ior))}", "is_a")
    take(label="corbaloc")
    orb.client(f"corbaloc:iiop:1.2@127.0.0.1:{relay.port}/Nothing", "who")
    take(label="unknown-key")

    # Just large enough to be cut. omniORB's are large: its requests will do.
    for minor in (1, 2):
        orb.client(aimed(ior, relay.port, minor), "blob 9000" if orb.java else "blob 8300", version(minor))
        take(only=lambda one: (one.more or one.type == "fragment") and (orb.java or one.speaker == "client"))

    junk(port, orb.name, album)
    addressing(orb, ior, album)
    closing(orb, album)
    if not orb.java:
        forwarding(orb, ior, album)


def key_of(ior):
    data = bytes.fromhex(ior[4:])
    cdr = Cdr(data, data[0], 4)
    cdr.octets()
    cdr.number("I"), cdr.number("I")
    profile = cdr.octets()
    inner = Cdr(profile, profile[0], 3)
    inner.octets()
    inner.number("H")
    return inner.octets()


def escaped(key):
    return "".join(chr(octet) if re.match(rb"[\w/.-]", bytes([octet])) else f"%{octet:02x}" for octet in key)


def junk(port, name, album):
    """What a server answers to something that is not GIOP."""
    for what, data in (("magic", b"GOIP\1\2\1\0\0\0\0\0"), ("version", b"GIOP\2\0\1\0\0\0\0\0")):
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.settimeout(3)
            stream.sendall(data)
            try:
                answer = message(stream)
            except OSError:
                answer = None
            if answer:
                album.keep(name, [Message(answer, "server")], label=what)


def addressing(orb, ior, album):
    """The request of a client that has been asked for the profile (1) or the whole reference (2)."""
    for disposition in (1, 2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reference = aimed(ior, listener.getsockname()[1])
            options = [] if orb.java else ["-ORBverifyObjectExistsAndType", "0"]
            asked = []

            def answer():
                stream = listener.accept()[0]
                stream.settimeout(5)
                try:
                    while data := message(stream):
                        one = Message(data, "client")
                        asked.append(one)
                        order = "<" if one.little else ">"
                        # NEEDS_ADDRESSING_MODE, the wanted disposition; to what comes then, TRANSIENT.
                        body = struct.pack(order + "IIIHxx", one.id, 5, 0, disposition)[:14]
                        if len(asked) > 1:
                            name = b"IDL:omg.org/CORBA/TRANSIENT:1.0\0"
                            body = struct.pack(f"{order}IIII{len(name)}sII", one.id, 2, 0, len(name), name, 0, 1)
                        head = b"GIOP\1\2" + bytes([one.little, 1]) + struct.pack(order + "I", len(body))
                        stream.sendall(head + body)
                        if len(asked) > 1:
                            return
                except OSError:
                    pass

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            client = subprocess.Popen(orb.command("client", options, [reference, "who"]), stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            thread.join(10)
            client.kill()
            client.wait()
            album.keep(orb.name, asked[1:2], label=["", "profile", "reference"][disposition])


def closing(orb, album):
    """A server that closes what is idle."""
    options = {"omniorb": ["-ORBscanGranularity", "1", "-ORBinConScanPeriod", "1"],
               "jacorb": ["-Djacorb.connection.server.timeout=700"], "glassfish": []}[orb.name]
    _, port, ior = orb.server(options)
    relay = Relay(port)
    orb.client(aimed(ior, relay.port), "loop 4 --interval 3900")
    album.keep(orb.name, relay.heard, only=lambda one: one.type == "close")


def forwarding(orb, ior, album):
    """LOCATION_FORWARD of a server that sheds."""
    server, port, own = orb.server(words=["--group", ior])
    relay = Relay(port)
    server.send_signal(10)
    time.sleep(0.3)  # sleeps: a recording by hand, not a test
    for minor in (0, 1, 2):
        orb.client(aimed(own, relay.port, minor), "who", ["-ORBmaxGIOPVersion", f"1.{minor}"])
        time.sleep(0.2)  # sleeps: a recording by hand, not a test
        album.keep(orb.name, relay.heard, label="shed", only=lambda one: one.type == "reply")
        relay.heard.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--parts", type=pathlib.Path, default=target / "corba")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "crates/wire/tests/giop")
    parser.add_argument("orbs", nargs="*", default=["omniorb", "jacorb", "glassfish"])
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    album = Album(options.into)
    for name in options.orbs:
        orb = Orb(name, options.parts)
        try:
            record(orb, album)
        finally:
            orb.end()
    album.index()


main()
