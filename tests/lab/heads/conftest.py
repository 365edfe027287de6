"""The small stream that all heads learn."""

from tests.head.conftest import arrays_fixture, stream  # noqa: F401
