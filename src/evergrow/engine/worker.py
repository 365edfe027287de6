"""A worker process: reads tasks as lines of JSON, does them, writes outcomes as lines of JSON.

Started by :mod:`evergrow.engine.local`. It ends with its input, also while it works: whoever gave the task is gone.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import TextIO

from evergrow.engine.running import PERFORM, Task, outcome_of


def main() -> None:
    """Do tasks until the input ends."""
    # What libraries print must not get between the outcomes: from here on it goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    perform = sys.argv[1] if len(sys.argv) > 1 else PERFORM
    tasks = queue.Queue[str]()
    threading.Thread(target=_listen, args=(sys.stdin, tasks), daemon=True).start()
    while True:
        values = json.loads(tasks.get())
        outcome = outcome_of(Task(values["work"], values["number"], values["about"]), perform)
        answers.write(json.dumps({"state": outcome.state, "told": outcome.told, "error": outcome.error}) + "\n")
        answers.flush()


def _listen(lines: TextIO, tasks: queue.Queue[str]) -> None:
    for line in lines:
        tasks.put(line)
    os._exit(0)  # nothing is half-written: results take their place in one step


if __name__ == "__main__":
    main()
