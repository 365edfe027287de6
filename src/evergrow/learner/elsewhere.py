"""Learning that an engine does: on several processes or machines, shard by shard.

The engines stand above this room and know learners; a learner knows only where to find them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from evergrow.core.errors import ParameterError
from evergrow.core.wording import setting

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner


def learn_elsewhere(learner: Learner, engine: Any, what: str, data: Any, **given: Any) -> None:
    """Let an engine teach a learner data.

    Parameters
    ----------
    learner : Learner
        What learns.
    engine : str or Engine
        ``"local"``, ``"ray"``, or an engine with settings of its own.
    what : {"fit", "partial_fit"}
        Whether what is known is forgotten first.
    data : str, path-like or Source
        What every worker can read for itself.
    **given
        Arguments that no engine takes, which must be None.
    """
    for name, value in given.items():
        if value is not None:
            raise ParameterError(
                f"{setting(name)} must be left out with {setting('engine')}, got {type(value).__name__}"
            )
    engines = importlib.import_module("evergrow.engine.engines")
    getattr(engines.engine_of(engine), what)(learner, data)
