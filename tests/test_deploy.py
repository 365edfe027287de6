"""What docs/deploy.md says about containers, proxies, updates and backups works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs evergrow[serve]")

from tests.serve.running import Running, begin, until
from tests.serve.samples import rows
from tests.test_docs import blocks, run_line

from evergrow import Learner
from evergrow.learner.modelfile import commit, open_model
from evergrow.serve.client import Client

ROOT = Path(__file__).parents[1]
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
READ_ONLY = """
set -e
mount --make-rprivate /
for place in "$MODELS" "$TMPDIR"; do mount --bind "$place" "$place"; done
for place in $(cut -d' ' -f2 /proc/self/mounts); do
  case "$place" in
    "$MODELS"|"$TMPDIR"|/proc*|/sys*|/dev*) ;;
    *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;;
  esac
done
if touch "$MODELS/../writable" 2>/dev/null; then exit 77; fi
exec "$@"
"""


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def dockerfile(word: str) -> list[str]:
    """Return the command in JSON of an instruction of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (found,) = re.findall(rf"^{word}.*?(\[.*\])$", text, flags=re.MULTILINE)
    command: list[str] = json.loads(found)
    return command


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0 or not shutil.which("unshare"),
    reason="needs Linux, root and unshare",
)
def test_the_command_of_the_image_needs_no_writable_root(tmp_path: Path) -> None:
    port = free_port()
    models = tmp_path / "models"
    scratch = tmp_path / "scratch"
    models.mkdir()
    scratch.mkdir()
    tokens = tmp_path / "tokens"
    tokens.write_text("teach 0123456789abcdef0123456789abcdef\n")
    replaced = {
        "/models": str(models),
        "8080": str(port),
        "/run/secrets/evergrow-tokens": str(tokens),
    }
    command = [replaced.get(word, word) for word in dockerfile("ENTRYPOINT")]
    command[:1] = [sys.executable, "-m", "evergrow"]
    environment = {
        **os.environ,
        "MODELS": str(models),
        "TMPDIR": str(scratch),
        "HOME": str(scratch),
    }
    sandbox = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]
    health = [word.replace("8080", str(port)) for word in dockerfile("HEALTHCHECK")]
    health[0] = sys.executable
    with subprocess.Popen([*sandbox, *command], env=environment) as server:
        try:
            until(
                lambda: (
                    server.poll() is not None
                    or subprocess.run(health, capture_output=True).returncode == 0
                ),
                120,
            )
            if server.returncode in (1, 77):
                pytest.skip("needs the right to change mounts")
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"Authorization": "Bearer 0123456789abcdef0123456789abcdef"},
                trust_env=False,
                timeout=60,
            ) as client:
                begin(client)
                large = {"rows": np.zeros((600, 500)).tolist(), "label": "x"}
                made = {"name": "wide", "kind": "features"}
                assert client.post("/api/v1/models", json=made).status_code == 201
                teach = "/api/v1/models/wide/teach"
                assert client.post(teach, json=large).status_code == 200
        finally:
            server.terminate()
            assert server.wait(90) in (0, 77)
    assert open_model(models / "m.evg").state_.label_counts == {"0": 4, "1": 4}


@contextmanager
def proxy(folder: Path, ports: dict[str, int]) -> Iterator[str]:
    """Run nginx with the configuration of the page, and yield its address."""
    (config,) = (body for kind, body in blocks("deploy.md") if kind == "nginx")
    for old, new in ports.items():
        config = re.sub(rf":{old}\b", f":{new}", config)
    folder.mkdir()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    path = folder / "nginx.conf"
    path.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors;\n"
        f"events {{}}\nhttp {{ access_log off; {places}\n{config} }}\n"
    )
    if os.getuid() == 0:
        path.write_text("user root;\n" + path.read_text())
    server = subprocess.Popen([NGINX or "", "-e", folder / "errors", "-c", path])
    try:
        yield f"http://127.0.0.1:{ports['8000']}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_an_update_behind_the_proxy_leaves_no_gap(tmp_path: Path) -> None:
    models = tmp_path / "models"
    ports = {port: free_port() for port in ("8000", "8080", "8081", "8082")}

    def start(port: str) -> Running:
        is_reader = port != "8080"
        return Running(models, port=ports[port], read_only=is_reader)

    with ExitStack() as stack:
        running = {"8080": start("8080")}
        for port in ("8081", "8082"):
            running[port] = start(port)
        stack.callback(lambda: [service.kill() for service in running.values()])
        address = stack.enter_context(proxy(tmp_path / "nginx", ports))
        client = stack.enter_context(
            httpx.Client(base_url=address, trust_env=False, timeout=60)
        )
        until(lambda: _is_up(client))
        begin(client)
        codes: list[int] = []
        is_over = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=address, trust_env=False, timeout=60) as asking:
                while not is_over.is_set():
                    question = {"rows": rows(0, 1)}
                    sent = asking.post("/api/v1/models/m/predict", json=question)
                    codes.append(sent.status_code)
                    time.sleep(0.01)

        asker = threading.Thread(target=ask)
        asker.start()
        for port in ("8081", "8082", "8080"):
            n_before = len(codes)
            assert running[port].stop() == 0
            if port == "8080":
                timer = threading.Timer(1.0, _restart, (running, port, start))
                timer.start()
                with Client(address) as teacher:
                    teacher.teach("m", "0", rows=np.array(rows(0, 2, seed=9)))
                timer.join()
            else:
                running[port] = start(port)
            until(lambda n=n_before: len(codes) > n + 5)
        is_over.set()
        asker.join()
        assert set(codes) == {200}
        seen = client.post("/api/v1/models/m/predict", json={"rows": rows(0, 1)})
        assert seen.json()["revision"] == open_model(models / "m.evg").state_.revision
    assert open_model(models / "m.evg").state_.label_counts == {"0": 6, "1": 4}


def _is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _restart(running: dict[str, Running], port: str, start: Any) -> None:
    running[port] = start(port)


@pytest.mark.slow
def test_backup_and_restore_while_the_service_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    X = np.array(rows(0, 6) + rows(1, 6))
    learner = Learner(None, options={"n_units": 20}).fit(X, np.repeat(["0", "1"], 6))
    commit("models/birds.evg", learner)
    backup, restore = (body for kind, body in blocks("deploy.md") if kind == "sh")
    with Running(tmp_path / "models") as service, service.client() as client:
        for line in backup.strip().splitlines():
            run_line(line)
        taught = {"rows": rows(2, 3), "label": "2"}
        url = "/api/v1/models/birds"
        assert client.post(f"{url}/teach", json=taught).status_code == 200
        output = "".join(run_line(line) for line in restore.strip().splitlines())
        assert "classes          2" in output
        assert len(client.get(url).json()["classes"]) == 2
        assert client.post(f"{url}/teach", json=taught).status_code == 200
        assert len(client.get(url).json()["classes"]) == 3
    damaged = bytearray(Path("backup/birds.evg").read_bytes())
    damaged[-1] ^= 1
    Path("backup/birds.evg").write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        open_model("backup/birds.evg")
