from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, clouds

from evergrow.cli.pages import evaluation_page
from evergrow.learner.evaluation import evaluate_predictions
from evergrow.learner.modelfile import open_model

CLASSES = ("<b>bold</b>", 'quo"te', "plain")


class Page(HTMLParser):
    """All tags, texts and attributes of a page; complains about tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def result():
    truth = [CLASSES[0]] * 4 + [CLASSES[1]] * 3 + [CLASSES[2]] * 3
    guess = [CLASSES[0]] * 3 + [CLASSES[1]] * 4 + [CLASSES[2]] * 3
    order = sorted(CLASSES)
    return evaluate_predictions(truth, guess, order)


def test_page_shows_the_matrix(result):
    page = Page(evaluation_page(result, title="Three & more"))
    cells = [values for tag, values in page.tags if tag == "rect" and values.get("class") in ("hit", "miss")]
    assert [values["class"] for values in cells].count("miss") == 1
    assert len(cells) == 4
    words = [text for text in page.text if "answered as" in text]
    assert f"{CLASSES[0]} answered as {CLASSES[1]}: 1 of 4" in words
    assert "90.0 %" in page.text
    assert "Three & more" in page.text


def test_page_is_one_file_and_safe(result):
    text = evaluation_page(result, title="<script>alert(1)</script>")
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" not in {tag for tag, _ in page.tags}
    for tag, values in page.tags:
        assert not {"src", "href", "onclick"} & set(values), tag
    assert "url(" not in text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text


def test_page_of_many_classes_and_of_none_wrong():
    names = [f"class {number:03}" for number in range(120)]
    page = Page(evaluation_page(evaluate_predictions(names, names, names), title="many"))
    assert sum(tag == "rect" and values.get("class") == "hit" for tag, values in page.tags) == 120
    assert "None: every answer was right." in page.text


def test_figures_are_the_librarys(shell, model, first):
    values = shell.json("evaluate", model, first, "--report", "page.html")
    X, y = clouds(NAMES[:3], 10, 100)  # the test part
    expected = open_model(model).evaluate((X, y))
    assert values["accuracy"] == expected.accuracy
    assert values["confusion"] == expected.confusion.tolist()
    assert values["n_known"] == 30
    assert values["unknown"] is None
    assert Page(Path("page.html").read_text()).text


def test_lines_for_people(shell, model, first):
    X, _ = clouds(NAMES[:3], 40, 100)
    answers = open_model(model).predict(X)
    X = np.concatenate([X[answers == name][:10] for name in NAMES[:3]])
    y = np.repeat(NAMES[:3], 10)
    y[:4] = "bee"  # four that are called ants
    np.savez("wrong.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    output = shell.run("evaluate", model, "wrong.npz").stdout
    assert "accuracy           86.7 % of 30 samples" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["bee", "14", "71.4", "%", "100.0", "%"] in rows
    assert ["bee", "ant", "4", "28.6", "%"] in rows


def test_bar_for_scripts(shell, model, first):
    shell.run("evaluate", model, first, "--min-accuracy", 0.9)
    X, y = clouds(NAMES[:3], 10, 100)
    np.savez("wrong.npz", X_train=X, y_train=y[::-1], X_test=X, y_test=y[::-1])
    values = shell.json("evaluate", model, "wrong.npz", "--min-accuracy", 0.9, code=1)
    assert "accuracy must be at least 90.0 %, got 33.3 %" in values["warnings"][0]
    assert "share between 0 and 1" in shell.error("evaluate", model, first, "--min-accuracy", 90)


def test_unknown_classes_are_reported(shell, model, first, later):
    values = shell.json("evaluate", model, first, "--unknown", later, "--report", "page.html")["unknown"]
    learner = open_model(model)
    known, _ = clouds(NAMES[:3], 10, 100)
    other = np.concatenate([clouds(NAMES[3:], 20, 1)[0], clouds(NAMES[3:], 10, 101)[0]])  # both parts
    a, b = learner.novelty_score(known), learner.novelty_score(other)
    auroc = np.mean(b[:, None] > a[None, :]) + 0.5 * np.mean(b[:, None] == a[None, :])
    assert values["auroc"] == pytest.approx(auroc)
    assert values["detection_rate"] == pytest.approx(np.mean(b > learner.threshold(0.05)))
    assert "Unknown classes" in Page(Path("page.html").read_text()).text
    output = shell.run("evaluate", model, first, "--unknown", later).stdout
    assert "unknown spotted" in output
    assert "(5.0 % aimed at)" in output


def test_classes_never_learned_are_told_apart(shell, model, later):
    X, y = clouds(NAMES[2:4], 10, 100)
    np.savez("both.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    output = shell.run("evaluate", model, "both.npz").stdout
    assert "10 samples of dog; not in the accuracy" in output


def test_nothing_is_written_on_bad_input(shell, model):
    assert "absent" in shell.error("evaluate", model, "absent.npz", "--report", "page.html")
    assert not Path("page.html").exists()
    assert "--report must be in an existing folder" in shell.error("evaluate", model, model, "--report", "no/p.html")


def test_images_left_out_deserve_a_look(shell, image_model, images):
    Path(images, "lying", "9.png").write_bytes(b"no image")
    assert "9.png" in shell.error("evaluate", image_model, images)
    values = shell.json("evaluate", image_model, images, "--on-error", "skip", code=1)
    assert values["left_out"] == ["lying/9.png"]
    assert values["n_known"] == 18
