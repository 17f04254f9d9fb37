"""A real HTTP proxy on localhost that does one request of a conversation wrong.

What can go wrong, by name: `refuse` (the connection breaks before the server sees the request),
`hang` (no answer, the server never sees it), `lost` (the server acts, its answer never arrives),
`half` (the server acts, the connection breaks within its answer), or a status such as `503`
instead of the server's own, also with a text: `(200, PAGE)`.
"""

import http.client
import socket
import struct
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PAGE = "<!DOCTYPE html><html><title>Sign in</title></html>"
WAYS = ("refuse", "hang", "lost", "half", "500", "503", "429", "401", "403")


class FaultyProxy:
    """`fail(n, way)`: from now on the n-th request (from 1) goes wrong, and `times` in all.

    With `only` those requests alone are counted whose method and path have it, such as `PUT`.
    """

    def __init__(self, upstream):
        self.upstream = upstream
        self.requests = []  # method and path of each since the last `fail`
        self.hit = threading.Event()
        self.delay_s = 0.0
        self._lock = threading.Lock()
        self._first, self._last, self._way, self._only = 0, 0, None, ""
        self._released = threading.Event()

    def fail(self, number, way, times=1, only=""):
        self._released = threading.Event()
        self.hit.clear()
        with self._lock:
            self.requests = []
            self._first, self._last, self._way = number, number + times - 1, way
            self._only = only

    def heal(self):
        self._way = None
        self._released.set()

    def take(self, line):
        """Count a request; how it is to go wrong, or None."""
        with self._lock:
            self.requests.append(line)
            counted = sum(self._only in each for each in self.requests)
            wrong = self._way is not None and self._first <= counted <= self._last
            wrong = wrong and self._only in line
        if wrong:
            self.hit.set()
        return self._way if wrong else None

    def wait_for_release(self):
        self._released.wait(timeout=120)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _serve(self):
        proxy = self.server.proxy
        how = self.headers.get("Transfer-Encoding", "")
        body = self._body()
        way = proxy.take(f"{self.command} {urlsplit(self.path).path} {how}".strip())
        time.sleep(proxy.delay_s)
        if way == "hang":
            proxy.wait_for_release()
        if way in ("hang", "refuse"):
            return self._break()
        if isinstance(way, tuple):
            return self._answer(way[0], {"Content-Type": "text/html"}, way[1].encode())
        if way is not None and way.isdigit():
            return self._answer(int(way), {"Retry-After": "600"}, b"the proxy says no")
        status, headers, content = self._ask(body)
        if way == "lost":
            return self._break()
        if way == "half":
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) + 100))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            return self._break()
        return self._answer(status, headers, content)

    def _body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []  # as requests sends an empty file
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        del self.headers["Transfer-Encoding"]
        return b"".join(chunks)

    def _ask(self, body):
        there = http.client.HTTPConnection(urlsplit(self.server.proxy.upstream).netloc, timeout=60)
        try:
            headers = {**self.headers, "Connection": "close"}
            there.request(self.command, self.path, body, headers)
            answer = there.getresponse()
            kind = {"Content-Type": answer.getheader("Content-Type") or "text/plain"}
            return answer.status, kind, answer.read()
        finally:
            there.close()

    def _answer(self, status, headers, content):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _break(self):
        """Reset the connection."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def finish(self):
        if not self.wfile.closed:
            super().finish()


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._serve)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request):
        if request.fileno() >= 0:
            super().shutdown_request(request)

    def handle_error(self, request, client_address):
        """A client that gave up is what these tests are about."""


@contextmanager
def faulty_proxy(upstream):
    """Yield a `FaultyProxy` in front of the server `upstream`, and its own URI."""
    proxy = FaultyProxy(upstream)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.proxy = proxy
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            proxy.heal()
            server.shutdown()
            thread.join(timeout=10)
