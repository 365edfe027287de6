"""Messages in the words of the command line: every option that they name exists, and no argument of Python is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

import evergrow
from evergrow.cli.main import app
from evergrow.cli.wording import SPELLED, words_of
from evergrow.core.wording import FieldWords, action, hint, setting, speaking

ROOT = Path(evergrow.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
PYTHON = re.compile(
    r"(?<![\w./{'-])[a-z]+(?:_[a-z]+)+(?![\w'])"  # an identifier of several words
    r"|\b[a-z_]+\(\)"  # a call
    r"|(?<![\w-])[a-z_]+=(?=['\"\w{])"  # an argument with a value
)
FROM_PYTHON_ONLY = (
    *("metrics.py", "methods/", "tuners/", "projections/", "linalg/", "streams/", "checks/", "bench/"),
    *("training/settings.py", "integrations/setfit.py", "integrations/mlflow.py"),
    "serve/",
)
"""Where settings are set in Python, in a spec or by a request, by the same names."""

NO_ARGUMENTS = {
    "decode_image": "a function, for who passes images of his own",
    "fine_label_names": "an entry of a file",
    "class_names": "an entry of a file",
    "state_dict": "torch's word for the contents of a file",
    "flatten_indices": "a function of Hugging Face's datasets",
    "save_to_disk": "a function of Hugging Face's datasets",
    "y_test": "an array of a file",
    "y_train": "an array of a file",
}


@dataclass(frozen=True)
class Message:
    """A text that is raised or warned, with what is filled in left out."""

    place: str
    text: str
    """Without what is filled in."""


def fixed_text(node: ast.expr) -> str:
    """Return the fixed parts of a text; ``{}`` stands for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(fixed_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        inner = [fixed_text(part) for part in advice_in(node.value)]
        return "{}" + " ".join(inner)
    if isinstance(node, ast.BinOp):
        return fixed_text(node.left) + fixed_text(node.right)
    if isinstance(node, ast.IfExp):
        return f"{fixed_text(node.body)} {fixed_text(node.orelse)}"
    return "{}"


def advice_in(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the fixed advice in a call of hint: it is a text too, with names filled in."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hint":
        yield node.args[1]
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)


def messages() -> list[Message]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name.endswith(("Error", "Warning")) or name in ("warn", "warn_line", "note_line"):
                    found.append(Message(f"{place}:{node.lineno}", fixed_text(node.args[0])))
    return found


MESSAGES = messages()


def commands() -> dict[str, set[str]]:
    """Return every command with its options."""
    found: dict[str, set[str]] = {}
    waiting = [("", get_command(app))]
    while waiting:
        name, item = waiting.pop()
        found[name] = {word for each in item.params for word in (*each.opts, *each.secondary_opts)}
        waiting += [(f"{name} {word}".strip(), inner) for word, inner in getattr(item, "commands", {}).items()]
    return found


def texts_of_cli() -> Iterator[tuple[str, str]]:
    """Yield every fixed text in the room of the command line, docstrings and help among them."""
    for path in sorted((ROOT / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.name}:{node.lineno}", node.value


def test_there_are_messages_to_walk():
    assert len(MESSAGES) > 500
    assert any("must be" in message.text for message in MESSAGES)


def test_every_option_in_a_message_exists():
    options = set().union(*commands().values(), {"--help"})
    texts = [*((message.place, message.text) for message in MESSAGES), *texts_of_cli()]
    named = [(place, word) for place, text in texts for word in OPTION.findall(text)]
    assert len(named) > 50
    assert [entry for entry in named if entry[1] not in options] == []


def test_no_message_names_an_argument_of_python():
    asked = [message for message in MESSAGES if not message.place.startswith(FROM_PYTHON_ONLY)]
    assert len(asked) > 350
    words = [(message.place, word) for message in asked for word in PYTHON.findall(message.text)]
    assert [entry for entry in words if entry[1] not in NO_ARGUMENTS] == []


def test_the_walk_would_notice():
    samples = ("set allow_empty to", "on_error='skip' leaves", "start from spawn()", "raise max_pixels if")
    assert all(PYTHON.search(text) for text in samples)
    assert not PYTHON.search("--on-error skip leaves such images out (in train/class_a.png)")


def test_messages_about_a_setting_of_a_command_ask_for_its_word():
    """Whatever a message begins with, ``<argument> must be``, is asked for where some command has such an option."""
    options = {each.name for command in walk(get_command(app)) for each in command.params if each.name} | set(SPELLED)
    named = [
        message
        for message in MESSAGES
        if (begin := re.match(r"([a-z_]+) must ", message.text)) and begin[1] in options and begin[1] not in NOUNS
    ]
    below = [message for message in named if not message.place.startswith((*FROM_PYTHON_ONLY, "cli/", "records/"))]
    assert [(message.place, message.text) for message in below] == []


NOUNS = {"items", "images", "classes", "text", "path", "key", "keys", "weights", "settings", "folder", "units"}
NOUNS |= {"features", "test", "names", "models"}
"""Parameters whose names are also what a message may be about."""


def walk(command):
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from walk(inner)


def test_every_argument_that_is_asked_for_has_a_word_on_some_command():
    """A hint that no command can follow would never be seen; a typing error in a name would hide it too."""
    unseen = {"split", "shape_directions", "image_column", "text_column", "label_column", "extract", "random_state"}
    unseen |= {"sample_weight"}  # which files and tables have not
    unseen |= {"repo"}  # of the Hub, which no command publishes to
    unseen |= {"labelled", "storage", "feature_column"}  # of sources, for who opens them in Python
    asked = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setting", "hint") and node.args:
                names = ast.literal_eval(node.args[0]) if isinstance(node.args[0], (ast.Constant, ast.Tuple)) else ()
                asked |= {names} if isinstance(names, str) else set(names)
    assert len(asked) > 20
    vocabularies = [words_of(app, name) for name in commands() if name and name not in GROUPS]
    wordless = {name for name in asked if not any(words.setting(name) for words in vocabularies)}
    assert wordless <= unseen


GROUPS = ("bench", "cache")


def test_words_of_every_place():
    fit = words_of(app, "fit")
    with speaking(fit):
        assert setting("weights") == "--weights"
        assert setting("weights", "/path/to my file") == "--weights '/path/to my file'"
        assert setting("random_state") == "--seed"
        assert setting("max_pixels") == "max pixels"
        assert hint("max_pixels", "; raise {}") == ""
        assert hint("cache", ", or do without by {}", False) == ", or do without by --no-cache"
        assert action("spawn") == "'evergrow spawn'"
    with speaking(words_of(app, "bench run")):
        assert setting("n_units") == "n_units"  # as the spec writes it
    with speaking(FieldWords(["weights"])):
        assert (setting("weights"), setting("on_error"), hint("on_error", "; {}")) == ("weights", "on error", "")
        assert action("spawn") == "spawn"
    assert (setting("weights"), hint("on_error", "; {} does", "skip")) == ("weights", "; on_error='skip' does")


def test_the_words_go_when_the_command_ends(shell, model, first):
    assert "--false-alarm must be" in shell.error("evaluate", model, first, "--false-alarm", 2)
    assert setting("false_alarm") == "false_alarm"


@pytest.mark.parametrize(
    ("command", "wanted", "unwanted"),
    [
        (("fit", "broken", *("--backbone", "test_resnet", "--weights", "random")), "--on-error skip", "on_error"),
        (("fit", "hollow"), "delete them", "allow_empty"),
        (("data", "hollow"), "go on without them by --allow-empty", "allow_empty"),
        (("fit", "odd.csv"), "must have a column", "text_column"),
        (("fit", "plain", "--backbone", "resnet18", "--weights", "bundled"), "--weights /path/to", "weights="),
        (("fit", "plain", "--weights", "bundeld"), "--weights must be", "None"),
        (("fit", "plain", "--device", "tpu"), "--device must be", "'torch"),
        (("data", "plain", "--test-size", "2"), "--test-size must be", "test_size"),
    ],
)
def test_mistakes_are_answered_by_options(shell, command, wanted, unwanted):
    for name in ("broken", "hollow", "plain"):
        for kind in ("a", "b"):
            Path(name, kind).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(Path(name, kind, "0.png"))
    Path("broken", "a", "0.png").write_text("no image")
    Path("hollow", "c").mkdir()
    Path("odd.csv").write_text("sentence,intent\nhello,greet\nbye,part\n")
    more = ("-m", "new.evg") if command[0] == "fit" else ()
    message = shell.error(*command, *more)
    assert wanted in message
    assert unwanted not in message


def test_merging_what_cannot_be_merged_names_commands(shell, first, model):
    shell.run("fit", first, "-m", "other.evg", "--units", 60, "--seed", 5)
    message = shell.error("merge", model, "other.evg", "-o", "all.evg")
    assert "'evergrow spawn'" in message
    assert "spawn()" not in message
