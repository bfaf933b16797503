"""A server with state: it counts what each session asks for, in its own memory.

    member.py PORT STORE

Sessions are known by the cookie `sid`. Asked by `POST /release` the server writes them into the folder STORE and forgets them; who is
asked for a session that it does not know looks there. For a while after that it keeps none to itself: requests may still come until the
balancer sends them elsewhere. Port 0 takes a free one; the address is printed.
"""

import http.cookies
import http.server
import os
import sys
import threading
import time
import uuid

# Seconds for which requests may still come after sessions were released.
LATE = 10.0


class Sessions:
    """Those that are here, and a store that all servers reach."""

    def __init__(self, store):
        self.store = store
        self.here = {}
        self.released = -LATE
        self.lock = threading.Lock()

    def count(self, sid):
        """One more; how many there were. A session is in one place: whoever takes it out of the store has it."""
        with self.lock:
            before = self.here.get(sid)
            if before is None:
                before = self.take(sid)
            self.here[sid] = before + 1
            if time.monotonic() - self.released < LATE:
                self.put()
            return before + 1

    def take(self, sid):
        mine = self.path(sid) + "." + str(os.getpid())
        try:
            # Of two servers that try this one succeeds.
            os.rename(self.path(sid), mine)
        except FileNotFoundError:
            return 0
        with open(mine, encoding="ascii") as file:
            count = int(file.read())
        os.unlink(mine)
        return count

    def release(self):
        """All of them go to the store."""
        with self.lock:
            self.released = time.monotonic()
            self.put()

    def put(self):
        for sid, count in self.here.items():
            beside = f"{self.path(sid)}.{os.getpid()}.new"
            with open(beside, "w", encoding="ascii") as file:
                file.write(str(count))
            os.rename(beside, self.path(sid))
        self.here.clear()

    def path(self, sid):
        return os.path.join(self.store, sid)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sessions: Sessions

    def do_GET(self):
        cookies = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        known = cookies["sid"].value if "sid" in cookies else ""
        sid = known if known.isalnum() else uuid.uuid4().hex
        self.answer(200, f"{self.server.server_port} {self.sessions.count(sid)}\n", sid)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/release":
            self.sessions.release()
        self.answer(200 if self.path == "/release" else 404, "")

    def answer(self, status, text, sid=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if sid:
            self.send_header("Set-Cookie", f"sid={sid}; HttpOnly")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def main():
    Handler.sessions = Sessions(sys.argv[2])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()


main()
