"""Small vision transformers with random weights, and images to show them."""

from tests.adapt.tuners.conftest import images, make_model, shaken  # noqa: F401
