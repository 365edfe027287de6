"""A real server of the S3 protocol on loopback, as fixtures to import."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


def upload(folder: Path, address: str) -> None:
    """Copy a folder to a storage."""
    import fsspec

    system, root = fsspec.core.url_to_fs(address)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            system.pipe_file(
                f"{root}/{file.relative_to(folder).as_posix()}", file.read_bytes()
            )


KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "a-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Start a server with an empty bucket ``data`` and a forbidden one ``closed``."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    import boto3

    # Drivers keep the address that they were made with
    s3fs.S3FileSystem.clear_instance_cache()

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    keys = {
        "aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
    }
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)
    for bucket in ("data", "closed"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="closed", Key="features.npz", Body=b"0" * 1000)
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": "arn:aws:s3:::closed/*",
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    client.put_bucket_policy(Bucket="closed", Policy=json.dumps(policy))
    yield address
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set server and credentials in the environment. Return a bucket's address."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(name, value)
    return "s3://data"
