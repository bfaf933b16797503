"""The servers behind the proxies: nginx, one process each, answers from memory.

`/0`, `/1k` and `/64k` answer bodies of these sizes; the largest comes from a file that is kept open and sent with
sendfile, because nginx takes no string of that length in its configuration. To a POST of a path below `/grpc/` they answer
a message of that size as gRPC does, with a trailer that says that all is well; that needs HTTP/2.

Some say of themselves with each answer what `plimsoll agent --side-car` would say: a server with room, which promises a slot with
every second answer.
"""

import contextlib
import tempfile
from pathlib import Path

from .process import HOST, Child, free_port

BODIES = {"0": 0, "1k": 1024, "64k": 64 * 1024}

CONFIG = """\
daemon off;
master_process off;
pid {where}/pid;
error_log stderr error;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  sendfile on;
  tcp_nopush on;
  open_file_cache max=8 inactive=3600s;
  open_file_cache_valid 3600s;
  client_body_temp_path {where}/client;
  proxy_temp_path {where}/proxy;
  fastcgi_temp_path {where}/fastcgi;
  uwsgi_temp_path {where}/uwsgi;
  scgi_temp_path {where}/scgi;
  default_type application/octet-stream;
  {reports}
  server {{
    listen {host}:{port} {speaks} backlog=16384;
    location = /0 {{ return 200 ""; }}
    location = /1k {{ return 200 "{kilobyte}"; }}
    location = /64k {{ root {where}; }}
    location /grpc/ {{
      root {where};
      default_type application/grpc;
      add_trailer grpc-status 0;
      # Files are not posted to: the error brings the file.
      error_page 405 =200 $uri;
    }}
  }}
}}
"""


REPORTS = """\
split_clients $request_id $slot { 50% ", named_metrics.slot=1"; * ""; }
  add_header endpoint-load-metrics "TEXT named_metrics.rif=3, named_metrics.knee=7.81, named_metrics.work=0.041250, \
named_metrics.mean=3.12, named_metrics.sojourn=0.044120$slot";
"""
"""What adaptive reads. The times are those of a server under valgrind, so that slots do not expire before the next request."""


@contextlib.contextmanager
def origins(count, cores=None, speaks="", reports=False):
    """Runs `count` origins that speak HTTP/1.1, or only "http2"; gives their list of (port, `Child`)."""
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(count):
            where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plimsoll-origin-")))
            port = free_port()
            (where / "64k").write_bytes(b"x" * BODIES["64k"])
            (where / "grpc").mkdir()
            for name, length in BODIES.items():
                (where / "grpc" / name).write_bytes(b"\0" + length.to_bytes(4, "big") + b"x" * length)
            config = where / "nginx.conf"
            said = REPORTS if reports else ""
            text = CONFIG.format(
                where=where, host=HOST, port=port, speaks=speaks, kilobyte="x" * BODIES["1k"], reports=said
            )
            config.write_text(text)
            command = ["nginx", "-p", where, "-e", "stderr", "-c", config]
            child = stack.enter_context(Child(command, where / "log", cores))
            child.await_port(port)
            running.append((port, child))
        yield running
