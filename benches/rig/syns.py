"""SYNs on the loopback, seen from outside of client and server: when each connection was first asked for, and how often
it was asked for again. A filter in the kernel lets nothing else through, so that watching costs little, and only packets
that come in are taken, so that each is seen once. If the kernel had to drop any, there is no count but an error."""

import ctypes
import socket
import struct
import threading

from .process import Failed

ETH_P_IP, SO_ATTACH_FILTER, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 0x0800, 26, 33, 35
SOL_PACKET, PACKET_STATISTICS = 263, 6

# tcpdump -dd 'ip and tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn', for Ethernet, which the loopback looks like.
FILTER = (
    (0x28, 0, 0, 12), (0x15, 0, 7, 0x0800), (0x30, 0, 0, 23), (0x15, 0, 5, 6), (0xB1, 0, 0, 14), (0x50, 0, 0, 27),
    (0x54, 0, 0, 0x12), (0x15, 0, 1, 2), (0x06, 0, 0, 64), (0x06, 0, 0, 0),
)  # fmt: skip


class Syns:
    """Watches until `stop()`."""

    def __init__(self, port):
        self.port = port
        self.firsts, self.repeats, self.seen = [], 0, set()
        self.ending = False
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
        code = b"".join(struct.pack("HBBI", *step) for step in FILTER)
        self.code = ctypes.create_string_buffer(code)
        program = struct.pack("HL", len(FILTER), ctypes.addressof(self.code))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        # Room for a burst of some hundred thousand, should the reader have to wait for a core.
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 27)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.1)
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while True:
            try:
                packet, extra, _, _ = self.socket.recvmsg(128, 128)
            except TimeoutError:
                if self.ending:
                    return
                continue
            self.take(packet, extra)

    def take(self, packet, extra):
        at = 14 + (packet[14] & 15) * 4
        if len(packet) < at + 14 or packet[23] != 6 or packet[at + 13] & 0x12 != 2:
            return  # came before the filter was there
        source, target, sequence = struct.unpack_from("!HHI", packet, at)
        if target != self.port:
            return
        if (source, sequence) in self.seen:
            self.repeats += 1
            return
        self.seen.add((source, sequence))
        seconds, nanos = struct.unpack("qq", extra[0][2])
        self.firsts.append(seconds + nanos / 1e9)

    def stop(self):
        """The moments of the first SYNs, sorted, and the number of repeated ones; `Failed` if some were not seen."""
        self.ending = True
        self.thread.join()
        _, dropped = struct.unpack("II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self.socket.close()
        if dropped:
            raise Failed(f"{dropped} SYNs were not seen: the watcher had to wait too long for a core")
        return sorted(self.firsts), self.repeats
