"""The files of runs: in MLflow's artifact store, or in a folder of the server's machine.

This imports MLflow: an embedded store is read without it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from mlflow.entities import FileInfo
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request_safe
from mlflow.utils.uri import validate_path_is_safe
from requests import Response

from tracking.store import is_servers_folder, place_of_files


class ServersFolder(HttpArtifactRepository):
    """The files of a run in a folder of the server's machine: listed and read by the server.

    They are written to that folder, so on the server's machine alone.
    """

    def __init__(self, artifact_uri: str, tracking_uri: str) -> None:
        HttpArtifactRepository.__init__(self, artifact_uri, tracking_uri)
        self._run_id = re.split(r"[\\/]", artifact_uri.rstrip("/"))[-2:][0]

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Return what the server lists of the run, below `path`."""
        answer = self._ask("/api/2.0/mlflow/artifacts/list", path)
        return [
            FileInfo(validate_path_is_safe(file["path"]), file["is_dir"], file.get("file_size"))
            for file in answer.json().get("files", [])
        ]

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Copy a file to the folder."""
        LocalArtifactRepository(self.artifact_uri).log_artifact(local_file, artifact_path)

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        Path(local_path).write_bytes(self._ask("/get-artifact", remote_file_path).content)

    def _ask(self, endpoint: str, path: str | None) -> Response:
        asked = {"run_id": self._run_id} | ({} if path is None else {"path": path})
        creds = get_default_host_creds(self.tracking_uri)
        answer: Response = http_request_safe(creds, endpoint, "GET", params=asked)
        return answer

    def is_shared(self) -> bool:
        """Whether the server lists what this process writes; else nothing of the trial stays."""
        folder = Path(LocalArtifactRepository(self.artifact_uri).artifact_dir)
        trial, made, shared = folder / f"trial-{uuid4().hex}", [], False
        try:
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            trial.touch()
            shared = trial.name in {file.path for file in self.list_artifacts()}
        except OSError:  # this machine has no such place
            pass
        finally:
            with suppress(OSError):
                trial.unlink()
            for path in [] if shared else made:
                with suppress(OSError):
                    path.rmdir()
        return shared


def repository_of(tracking_uri: str, artifact_uri: str) -> ArtifactRepository:
    """Return what lists, reads and writes the files of a run."""
    if is_servers_folder(tracking_uri, artifact_uri):
        return ServersFolder(artifact_uri, tracking_uri)
    return get_artifact_repository(
        place_of_files(tracking_uri, artifact_uri), tracking_uri=tracking_uri
    )
