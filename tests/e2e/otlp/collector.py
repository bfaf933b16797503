"""A collector of spans: OTLP over HTTP, read by Google's protobuf and by the numbers of opentelemetry-proto 1.5, which are written
down here once more. A field that is not among them is an error.

Prints its port first, then a line of JSON for each span. A line `answer STATUS` on standard input has all requests from then on answered
so, which is confirmed by the same line; with another status than 200 nothing of them is printed."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Field: number, type, repeated.
STRING, BYTES, BOOL, INT64, UINT32, DOUBLE, FIXED64, FIXED32, INT32 = 9, 12, 8, 3, 13, 1, 6, 7, 5
MESSAGES = {
    "Export": {"resource_spans": (1, "ResourceSpans", True)},
    "ResourceSpans": {
        "resource": (1, "Resource", False),
        "scope_spans": (2, "ScopeSpans", True),
        "schema_url": (3, STRING, False),
    },
    "Resource": {"attributes": (1, "KeyValue", True), "dropped_attributes_count": (2, UINT32, False)},
    "ScopeSpans": {
        "scope": (1, "Scope", False),
        "spans": (2, "Span", True),
        "schema_url": (3, STRING, False),
    },
    "Scope": {"name": (1, STRING, False), "version": (2, STRING, False)},
    "Span": {
        "trace_id": (1, BYTES, False),
        "span_id": (2, BYTES, False),
        "trace_state": (3, STRING, False),
        "parent_span_id": (4, BYTES, False),
        "name": (5, STRING, False),
        "kind": (6, INT32, False),
        "start_time_unix_nano": (7, FIXED64, False),
        "end_time_unix_nano": (8, FIXED64, False),
        "attributes": (9, "KeyValue", True),
        "dropped_attributes_count": (10, UINT32, False),
        "status": (15, "Status", False),
        "flags": (16, FIXED32, False),
    },
    "Status": {"message": (2, STRING, False), "code": (3, INT32, False)},
    "KeyValue": {"key": (1, STRING, False), "value": (2, "AnyValue", False)},
    "AnyValue": {
        "string_value": (1, STRING, False),
        "bool_value": (2, BOOL, False),
        "int_value": (3, INT64, False),
        "double_value": (4, DOUBLE, False),
    },
}


def export_class():
    file = descriptor_pb2.FileDescriptorProto(name="otlp.proto", package="otlp", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AnyValue":
            message.oneof_decl.add(name="value")
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                added.type, added.type_name = 11, ".otlp." + kind
            else:
                added.type = kind
            if name == "AnyValue":
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("otlp.Export"))


EXPORT = export_class()
answer = 200
printing = threading.Lock()


def known(message):
    """Panics if there is a field that nobody knows."""
    assert len(message.UnknownFields()) == 0, message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.label == field.LABEL_REPEATED else [value]:
                known(one)


def attributes(pairs):
    said = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        assert kind is not None and pair.key not in said, pair
        said[pair.key] = getattr(pair.value, kind)
    return said


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        status = answer
        try:
            assert self.path == "/v1/traces", self.path
            assert self.headers["content-type"] == "application/x-protobuf", self.headers
            assert self.headers["x-key"] == "secret", self.headers
            export = EXPORT.FromString(body)
            known(export)
            if status == 200:
                self.tell(export)
        except Exception as error:
            print(json.dumps({"error": repr(error)}), flush=True)
            status = 400
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def tell(self, export):
        for of in export.resource_spans:
            resource = attributes(of.resource.attributes)
            for scope in of.scope_spans:
                for span in scope.spans:
                    assert len(span.trace_id) == 16 and len(span.span_id) == 8, span
                    assert len(span.parent_span_id) in (0, 8), span
                    line = json.dumps(
                        {
                            "service": resource["service.name"],
                            "scope": scope.scope.name,
                            "trace": span.trace_id.hex(),
                            "span": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "state": span.trace_state,
                            "name": span.name,
                            "kind": span.kind,
                            "start": span.start_time_unix_nano,
                            "end": span.end_time_unix_nano,
                            "error": span.status.code,
                            "flags": span.flags,
                            "attributes": attributes(span.attributes),
                        }
                    )
                    with printing:
                        print(line, flush=True)

    def log_message(self, *_):
        pass


def main():
    global answer
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        answer = int(line.split()[1])
        with printing:
            print(line.strip(), flush=True)


main()
