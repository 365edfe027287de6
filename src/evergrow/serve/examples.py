"""Examples of responses for the OpenAPI description.

``examples.json`` holds them. ``docs/reference/http.md`` shows the same examples. Tests
compare them with the description and with real responses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

EXAMPLES: dict[str, Any] = _FILE["schemas"]
"""Examples of responses by the name of their schema."""

ROUTE_EXAMPLES: dict[str, Any] = _FILE["routes"]
"""Examples of routes with the same schema as others, by the name of the function."""


def add_examples(document: dict[str, Any]) -> None:
    """Add an example to every JSON response without an error.

    Parameters
    ----------
    document : dict
        The OpenAPI description, which is changed.
    """
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                content = response.get("content", {}).get("application/json")
                if status.startswith("2") and content is not None:
                    content["example"] = _example(operation["operationId"], content)


def _example(operation: str, content: dict[str, Any]) -> Any:
    """Return the example of a response. Operations begin with their function's name."""
    schema = content["schema"]["$ref"].rpartition("/")[2]
    for function, example in ROUTE_EXAMPLES.items():
        if operation.startswith(f"{function}_api_"):
            return example
    return EXAMPLES[schema]
