import pytest
import torch

from evergrow.core.errors import DeviceError, InputError, ParameterError
from evergrow.core.registry import Registry
from evergrow.core.validation import check_matrix, check_number, resolve_device


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_check_number_rejects(value):
    with pytest.raises(ParameterError, match=r"alpha must be a number > 0, got"):
        check_number("alpha", value, low=0, low_open=True)


def test_check_number_integer():
    check_number("n", 3, low=1, integer=True)
    with pytest.raises(ParameterError, match="an integer >= 1"):
        check_number("n", 3.0, low=1, integer=True)


def test_check_matrix_says_where_the_nan_is():
    matrix = torch.zeros(4, 2)
    matrix[2, 1] = float("nan")
    with pytest.raises(InputError, match="first in row 2"):
        check_matrix("X", matrix)
    with pytest.raises(InputError, match="3 columns, got 2"):
        check_matrix("X", torch.zeros(4, 2), columns=3)
    with pytest.raises(InputError, match="2-D tensor"):
        check_matrix("X", torch.zeros(4))


def test_registry_refuses_a_name_twice():
    registry: Registry[int] = Registry("thing")
    registry.register("alpha")(1)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("alpha")(2)


def test_devices():
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(ParameterError, match="torch device"):
        resolve_device("gpu please")
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(DeviceError, match="must exist"):
        resolve_device(missing)
