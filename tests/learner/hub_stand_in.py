"""The Hugging Face Hub's file interface on this machine: the routes that its client uses to publish and to fetch.

Repositories are dictionaries of files; every commit makes a new revision and old ones stay. Large and binary files go
through git LFS, as on the Hub itself, small texts through the commit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_stand_in_token"
USER = "me"


@dataclass
class Repository:
    private: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=lambda: [("0" * 40, {})])
    messages: list[str] = field(default_factory=list)

    def add(self, files: dict[str, bytes], message: str = "") -> str:
        number = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits.append((number, {**self.commits[-1][1], **files}))
        self.messages.append(message)
        return number

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


@dataclass
class Hub:
    """Repositories by type and name, uploaded large files, and the routes that were asked for."""

    address: str = ""
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def repository(self, name: str, kind: str = "models") -> Repository:
        return self.repositories.setdefault((kind, name), Repository())

    def files(self, name: str, kind: str = "models") -> dict[str, bytes]:
        return self.repositories[kind, name].commits[-1][1]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD  # noqa: N815

    # -- answers ----------------------------------------------------------------------------------------------

    def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, values: Any, status: int = 200, **headers: str) -> None:
        self._send(json.dumps(values).encode(), status, **headers)

    def _missing(self, what: str) -> None:
        self._json({"error": f"{what} not found"}, 404, X_Error_Code=what, X_Error_Message=f"{what} not found")

    # -- routes -----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.asked.append(f"{self.command} {path}")
        if not self._may(path):
            self._json({"error": "Invalid credentials"}, 401)
            return
        routes = (
            (r"/api/whoami-v2", self._whoami),
            (r"/api/repos/create", self._create),
            (r"/api/validate-yaml", self._validate),
            (r"/large/(?P<oid>\w+)", self._upload),
            (r"/(?P<name>[\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", self._batch),
            (r"/api/(?P<kind>models|datasets)/(?P<name>[\w.-]+/[\w.-]+)/preupload/(?P<revision>.+)", self._preupload),
            (r"/api/(?P<kind>models|datasets)/(?P<name>[\w.-]+/[\w.-]+)/commit/(?P<revision>.+)", self._commit),
            (r"/api/(?P<kind>models|datasets)/(?P<name>[\w.-]+/[\w.-]+)/paths-info/(?P<revision>[^/]+)", self._paths),
            (
                r"/api/(?P<kind>models|datasets)/(?P<name>[\w.-]+/[\w.-]+)/tree/(?P<revision>[^/]+)/?(?P<below>.*)",
                self._tree,
            ),
            (
                r"/api/(?P<kind>models|datasets)/(?P<name>[\w.-]+/[\w.-]+)(?:/revision/(?P<revision>.+))?",
                self._described,
            ),
            (
                r"/(?P<kind>datasets/)?(?P<name>[\w.-]+/[\w.-]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)",
                self._resolve,
            ),
        )
        for pattern, route in routes:
            found = re.fullmatch(pattern, path)
            if found:
                route(body, **found.groupdict())
                return
        self._missing("EntryNotFound")

    def _may(self, path: str) -> bool:
        """Reading is free; writing takes the token."""
        reads = self.command in ("GET", "HEAD") and "whoami" not in path
        return reads or path.startswith("/large/") or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _whoami(self, _: bytes) -> None:
        self._json({"type": "user", "name": USER, "orgs": []})

    def _create(self, body: bytes) -> None:
        wanted = json.loads(body)
        name = f"{wanted.get('organization') or USER}/{wanted['name']}"
        key = ("datasets" if wanted.get("type") == "dataset" else "models", name)
        if key in self.hub.repositories:
            self._json({"error": "You already created this repo", "url": f"{self.hub.address}/{name}"}, 409)
            return
        self.hub.repositories[key] = Repository(
            private=bool(wanted.get("private")) or wanted.get("visibility") == "private"
        )
        self._json({"url": f"{self.hub.address}/{name}", "name": name})

    def _validate(self, body: bytes) -> None:
        import yaml

        head = json.loads(body)["content"].split("---")[1]
        good = isinstance(yaml.safe_load(head), dict)
        self._json({"errors": [] if good else [{"message": "no metadata"}], "warnings": []}, 200 if good else 400)

    def _preupload(self, body: bytes, kind: str, name: str, revision: str) -> None:
        if (kind, name) not in self.hub.repositories:
            self._missing("RepoNotFound")
            return
        files = []
        for file in json.loads(body)["files"]:
            mode = "lfs" if b"\0" in base64.b64decode(file["sample"]) else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        self._json({"files": files})

    def _batch(self, body: bytes, name: str) -> None:
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.hub.address}/large/{entry['oid']}"}}}
            for entry in json.loads(body)["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def _upload(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.large[oid] = body
        self._send(b"")

    def _commit(self, body: bytes, kind: str, name: str, revision: str) -> None:
        entries = [json.loads(line) for line in body.splitlines()]
        files, message = {}, ""
        for entry in entries:
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        number = self.hub.repositories[kind, name].add(files, message)
        self._json({"commitUrl": f"{self.hub.address}/{name}/commit/{number}", "commitOid": number, "success": True})

    def _found(self, kind: str | None, name: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        repository = self.hub.repositories.get(((kind or "models").rstrip("/"), name))
        if repository is None:
            self._missing("RepoNotFound")
            return None
        commit = repository.at(revision or "main")
        if commit is None:
            self._missing("RevisionNotFound")
        return commit

    def _described(self, _: bytes, kind: str, name: str, revision: str | None) -> None:
        found = self._found(kind, name, revision)
        if found is not None:
            siblings = [{"rfilename": path} for path in found[1]]
            values = {"_id": "1", "id": name, "sha": found[0], "private": False, "gated": False, "disabled": False}
            values |= {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0, "lastModified": DATE}
            self._json(values)

    def _tree(self, _: bytes, kind: str, name: str, revision: str, below: str) -> None:
        found = self._found(kind, name, revision)
        if found is None:
            return
        entries = [_entry(path, data) for path, data in found[1].items() if path.startswith(below)]
        folders = {path.rpartition("/")[0] for path in found[1] if "/" in path and path.startswith(below)} - {below}
        self._json([*entries, *({"type": "directory", "oid": "1" * 40, "size": 0, "path": item} for item in folders)])

    def _paths(self, body: bytes, kind: str, name: str, revision: str) -> None:
        found = self._found(kind, name, revision)
        if found is None:
            return
        if self.headers.get("Content-Type", "").startswith("application/json"):
            wanted = json.loads(body)["paths"]
        else:
            wanted = [unquote(pair.partition("=")[2]) for pair in body.decode().split("&") if pair.startswith("paths")]
        self._json([_entry(path, found[1][path]) for path in wanted if path in found[1]])

    def _resolve(self, _: bytes, kind: str | None, name: str, revision: str, path: str) -> None:
        found = self._found(kind, name, revision)
        if found is None:
            return
        if path not in found[1]:
            self.send_response(404)
            for key, value in {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found[0]}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = found[1][path]
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {"ETag": etag, "X_Repo_Commit": found[0], "Content_Type": "application/octet-stream"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._send(data, **headers)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
        self._send(data[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(data)}", **headers)


DATE = "2026-01-02T03:04:05.000Z"


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}


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
