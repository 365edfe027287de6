"""Stand-in for the Hugging Face Hub: downloads and uploads.

Repositories are dictionaries of files; every commit makes a new revision and old ones
stay."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub import HfApi, get_token

TOKEN = "hf_stand_in_token"
DATE = "2026-01-02T03:04:05.000Z"


@dataclass
class Repository:
    private: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(
        default_factory=lambda: [("0" * 40, {})]
    )
    messages: list[str] = field(default_factory=list)

    def add(self, files: dict[str, bytes], message: str = "") -> str:
        number = hashlib.sha1(
            f"{len(self.commits)}{sorted(files)}".encode()
        ).hexdigest()
        self.commits.append((number, {**self.commits[-1][1], **files}))
        self.messages.append(message)
        return number

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


@dataclass
class Hub:
    """Repositories by type and name, and the routes that were asked for."""

    address: str = ""
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stop_after: int | None = None
    """Bytes of a file after which the connection breaks and the hub goes down."""
    is_down: bool = False
    alters_files: bool = False
    """Whether files arrive with other bytes than their checksum says."""

    def repository(self, name: str, kind: str = "models") -> Repository:
        return self.repositories.setdefault((kind, name), Repository())

    def files(self, name: str) -> dict[str, bytes]:
        return self.repositories["models", name].commits[-1][1]

    def create_repo(
        self, api: HfApi, repo_id: str, private: bool | None = None, **_: Any
    ) -> SimpleNamespace:
        """Stand for the client's method of this name."""
        if (api.token or get_token()) != TOKEN:
            raise PermissionError("401: invalid credentials")
        self.repository(repo_id).private |= bool(private)
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(
        self, repo_id: str, folder_path: Path, commit_message: str, **_: Any
    ) -> SimpleNamespace:
        """Stand for the client's method of this name."""
        files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        number = self.repository(repo_id).add(files, commit_message)
        return SimpleNamespace(commit_url=f"{self.address}/{repo_id}/commit/{number}")


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def do_HEAD(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        api = r"/api/(?P<kind>models|datasets)/"
        name = r"(?P<name>[\w.-]+/[\w.-]+)"
        routes = {
            f"{api}{name}/tree/(?P<revision>[^/]+)/?(?P<below>.*)": self._tree,
            f"{api}{name}(?:/revision/(?P<revision>.+))?": self._described,
            rf"/(?P<kind>datasets/)?{name}/resolve/(?P<revision>[^/]+)/(?P<path>.+)": (
                self._resolve
            ),
        }
        for pattern, route in routes.items():
            found = re.fullmatch(pattern, path)
            if found:
                route(**found.groupdict())
                return
        self._missing("EntryNotFound")

    do_GET = do_HEAD  # noqa: N815

    # -- answers -----------------------------------------------------------------------

    def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        stop_after = self.hub.stop_after
        if stop_after is not None and len(body) > stop_after:
            body = body[:stop_after]
            self.hub.is_down = True
            self.close_connection = True
        self.wfile.write(body)

    def _json(self, values: Any) -> None:
        self._send(json.dumps(values).encode())

    def _missing(self, what: str, **headers: str) -> None:
        self._send(
            b"{}",
            404,
            X_Error_Code=what,
            X_Error_Message=f"{what} not found",
            **headers,
        )

    # -- routes ------------------------------------------------------------------------

    def _found(
        self, kind: str | None, name: str, revision: str | None
    ) -> tuple[str, dict[str, bytes]] | None:
        repository = self.hub.repositories.get(((kind or "models").rstrip("/"), name))
        if repository is None:
            self._missing("RepoNotFound")
            return None
        commit = repository.at(revision or "main")
        if commit is None:
            self._missing("RevisionNotFound")
        return commit

    def _described(self, kind: str, name: str, revision: str | None) -> None:
        found = self._found(kind, name, revision)
        if found is not None:
            siblings = [{"rfilename": path} for path in found[1]]
            values = {
                "_id": "1",
                "id": name,
                "sha": found[0],
                "private": False,
                "gated": False,
                "disabled": False,
            }
            values |= {
                "siblings": siblings,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "lastModified": DATE,
            }
            self._json(values)

    def _tree(self, kind: str, name: str, revision: str, below: str) -> None:
        found = self._found(kind, name, revision)
        if found is None:
            return
        entries = [
            _entry(path, data)
            for path, data in found[1].items()
            if path.startswith(below)
        ]
        folders = {
            path.rpartition("/")[0]
            for path in found[1]
            if "/" in path and path.startswith(below)
        } - {below}
        self._json(
            [
                *entries,
                *(
                    {"type": "directory", "oid": "1" * 40, "size": 0, "path": item}
                    for item in folders
                ),
            ]
        )

    def _resolve(self, kind: str | None, name: str, revision: str, path: str) -> None:
        found = self._found(kind, name, revision)
        if found is None:
            return
        if path not in found[1]:
            self._missing("EntryNotFound", X_Repo_Commit=found[0])
            return
        data = found[1][path]
        etag = f'"{_checksum(path, data)}"'
        headers = {
            "ETag": etag,
            "X_Repo_Commit": found[0],
            "Content_Type": "application/octet-stream",
        }
        if self.hub.is_down:
            self._send(b"", 503)
            return
        if self.hub.alters_files:
            data = bytes(byte ^ 1 for byte in data)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._send(data, **headers)
            return
        self.hub.asked[-1] += f" from {wanted[1]}"
        first = int(wanted[1])
        last = min(int(wanted[2] or len(data) - 1), len(data) - 1)
        self._send(
            data[first : last + 1],
            206,
            Content_Range=f"bytes {first}-{last}/{len(data)}",
            **headers,
        )


def _checksum(path: str, data: bytes) -> str:
    """Return git's checksum of small files, and SHA-256 of weights and models."""
    if path.endswith((".json", ".txt")):
        return hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()
    return hashlib.sha256(data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {
        "type": "file",
        "oid": hashlib.sha1(data).hexdigest(),
        "size": len(data),
        "path": path,
    }


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve a stand-in on a free port until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
