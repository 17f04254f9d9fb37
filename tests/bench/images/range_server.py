"""An HTTP server on localhost that serves one file, and misbehaves as its script says."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `body` at `url`; each request takes the next behaviour of `script`, then behaves."""

    def __init__(self, body):
        self.body = body
        self.script = []
        self.ranges = []  # the Range header of each request, or None
        self.url = ""


@contextmanager
def serving(body, name):
    server = Server(body)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            server.ranges.append(self.headers.get("Range"))
            behave(self, server, server.script.pop(0) if server.script else "well")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        server.url = f"http://127.0.0.1:{httpd.server_address[1]}/{name}"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()


def behave(handler, server, behaviour):
    if isinstance(behaviour, int):
        handler.send_response(behaviour)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(asked[1]) if asked and behaviour != "no ranges" else 0
    rest = server.body[start:]
    handler.send_response(200 if not start else 206 if rest else 416)
    handler.close_connection = behaviour in ("no length", "drop")
    if behaviour == "no length":
        handler.send_header("Connection", "close")
    else:
        handler.send_header("Content-Length", str(len(rest)))
    handler.end_headers()
    handler.wfile.write(rest[: len(rest) // 2] if behaviour == "drop" else rest)
