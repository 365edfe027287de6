"""Commands under ``evergrow lab``; importing this registers them."""

from evergrow.lab.commands import bench, data, methods, report  # noqa: F401
