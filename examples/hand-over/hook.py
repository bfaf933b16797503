"""What the balancer tells before it takes a member's sessions away (`[group.drain_hook]`): has the member release them.

    hook.py PORT

Answers with 204 once the sessions can be taken up elsewhere, and with 502 if the member did not release them. Port 0 takes a free one;
the address is printed.
"""

import http.server
import json
import sys
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        status = 204
        try:
            release = urllib.request.Request(f"http://{told['member']}/release", data=b"", method="POST")
            with urllib.request.urlopen(release, timeout=4):
                pass
        except OSError as error:
            print(f"{told['member']}: {error}", file=sys.stderr)
            status = 502
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()


main()
