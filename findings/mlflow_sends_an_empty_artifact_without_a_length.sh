#!/usr/bin/env bash
# package: mlflow-skinny, with requests
# version: 3.17.2, 2.34.2
# expected: a file of no bytes is uploaded as one of one byte is, with Content-Length: 0
# guess: Content-Length: 0
# seen: a file of one byte has its length; an empty one goes out with Transfer-Encoding: chunked,
#   since requests takes a length of 0 for an unknown one. A proxy that asks for a length answers
#   411 to an empty console log and to nothing else of the same run.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    "mlflow-skinny==3.17.2" "requests==2.34.2"
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

seen = {}


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_PUT(self):
        length, encoding = self.headers["Content-Length"], self.headers["Transfer-Encoding"]
        seen[self.path.rsplit("/", 1)[1]] = length, encoding
        if encoding == "chunked":
            while int(self.rfile.readline(), 16):
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.rfile.read(int(length))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = MlflowArtifactsRepository(
    "mlflow-artifacts:/0/run/artifacts", tracking_uri=f"http://127.0.0.1:{server.server_port}"
)
for name, text in (("one.txt", "1"), ("empty.txt", "")):
    Path(name).write_text(text)
    store.log_artifact(name)
print(seen)
raise SystemExit(seen != {"one.txt": ("1", None), "empty.txt": (None, "chunked")})
END
