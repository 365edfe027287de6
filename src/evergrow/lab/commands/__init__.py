"""Commands under ``evergrow lab``. Importing this module registers them."""

from evergrow.lab.commands import bench, data, methods, report  # noqa: F401
