"""Commands under ``evergrow lab``; importing this registers them."""

from evergrow.lab.commands import bench, methods, report  # noqa: F401
