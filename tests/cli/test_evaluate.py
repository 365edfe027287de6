import base64
import dataclasses
import io
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import NAMES, clouds

from evergrow.cli.evaluation_page import SHOWN, evaluation_page
from evergrow.data.items import Images, Texts
from evergrow.learner.evaluation import EvaluatedSamples, evaluate_predictions
from evergrow.learner.modelfile import open_model

CLASSES = ("<b>bold</b>", 'quo"te', "plain")


class Page(HTMLParser):
    """Tags, texts and attributes of a page. All tags must be closed."""

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
    cells = [
        values
        for tag, values in page.tags
        if tag == "td" and values.get("class") in ("hit", "miss")
    ]
    assert [values["class"] for values in cells].count("miss") == 1
    assert len(cells) == 4
    assert f"{CLASSES[0]} answered as {CLASSES[1]}: 1 of 4" in [
        values["title"] for values in cells
    ]
    assert "90.0 %" in page.text
    assert "Three & more" in page.text


def test_page_has_no_external_resources_and_no_injected_tags(result):
    text = evaluation_page(result, title="<script>alert(1)</script>")
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" not in {tag for tag, _ in page.tags}
    for tag, values in page.tags:
        assert not {"src", "href"} & set(values), tag
        assert not [name for name in values if name.startswith("on")], tag
    assert "url(" not in text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text


def test_page_of_many_classes_has_no_matrix():
    names = [f"class {number:03}" for number in range(120)]
    page = Page(
        evaluation_page(evaluate_predictions(names, names, names), title="many")
    )
    assert not any(
        values.get("class") == "hit" for _, values in page.tags
    )  # too many classes for a matrix
    assert "None: every answer was right." in page.text


def test_evaluate_equals_learner_evaluate(shell, model, first):
    values = shell.json("evaluate", model, first, "--report", "page.html")
    X, y = clouds(NAMES[:3], 10, 100)  # the test part
    expected = open_model(model).evaluate((X, y))
    assert values["accuracy"] == expected.accuracy
    assert values["confusion"] == expected.confusion.tolist()
    assert values["n_known"] == 30
    assert values["unknown"] is None
    assert Page(Path("page.html").read_text()).text


def test_wrong_classes_and_confused_pairs_are_printed(shell, model, first):
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


def test_accuracy_below_the_minimum_exits_with_1(shell, model, first):
    shell.run("evaluate", model, first, "--min-accuracy", 0.9)
    X, y = clouds(NAMES[:3], 10, 100)
    np.savez("wrong.npz", X_train=X, y_train=y[::-1], X_test=X, y_test=y[::-1])
    values = shell.json("evaluate", model, "wrong.npz", "--min-accuracy", 0.9, code=1)
    assert "accuracy is 33.3 %, below the 90.0 %" in values["warnings"][0]
    assert "--min-accuracy" in shell.error(
        "evaluate", model, first, "--min-accuracy", 90
    )


def test_unknown_classes_are_reported(shell, model, first, later):
    values = shell.json(
        "evaluate", model, first, "--unknown", later, "--report", "page.html"
    )["unknown"]
    learner = open_model(model)
    known, _ = clouds(NAMES[:3], 10, 100)
    other = np.concatenate(
        [clouds(NAMES[3:], 20, 1)[0], clouds(NAMES[3:], 10, 101)[0]]
    )  # both parts
    a = learner.novelty_score(known)
    b = learner.novelty_score(other)
    auroc = np.mean(b[:, None] > a[None, :]) + 0.5 * np.mean(b[:, None] == a[None, :])
    assert values["auroc"] == pytest.approx(auroc)
    assert values["detection_rate"] == pytest.approx(
        np.mean(b > learner.state_.threshold(0.05))
    )
    assert "Unknown classes" in Page(Path("page.html").read_text()).text
    output = shell.run("evaluate", model, first, "--unknown", later).stdout
    assert "unknown spotted" in output
    assert "(5.0 % aimed at)" in output


def test_unlearned_classes_do_not_count_in_the_accuracy(shell, model, later):
    X, y = clouds(NAMES[2:4], 10, 100)
    np.savez("both.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    output = shell.run("evaluate", model, "both.npz").stdout
    assert "10 samples of dog; not in the accuracy" in output


def test_bad_input_writes_no_report(shell, model):
    assert "absent" in shell.error(
        "evaluate", model, "absent.npz", "--report", "page.html"
    )
    assert not Path("page.html").exists()
    assert "There is no folder no for --report" in shell.error(
        "evaluate", model, model, "--report", "no/p.html"
    )


# -- wrong answers on the page ----


def answered(truth, guess, items=None, certainty=None):
    """Return an evaluation with its samples."""
    names = sorted({*truth, *guess})
    samples = EvaluatedSamples(
        items,
        np.arange(len(truth)),
        np.array(truth, np.str_),
        np.array(guess, np.str_),
        certainty,
    )
    return dataclasses.replace(
        evaluate_predictions(truth, guess, names), samples=samples
    )


def test_wrong_answers_are_sorted_by_certainty_and_linked():
    truth = ["a", "a", "a", "b", "b"]
    guess = ["b", "b", "a", "b", "a"]
    texts = Texts(("mild <i>", "wild", "right", "fine", "odd & even"))
    result = answered(truth, guess, texts, np.array([0.6, 0.9, 0.99, 0.8, 0.7]))
    page = Page(evaluation_page(result, title="texts"))
    shown = [
        text
        for text in page.text
        if text in ("mild <i>", "wild", "right", "fine", "odd & even")
    ]
    assert shown == [
        "wild",
        "mild <i>",
        "odd & even",
    ]  # most certain first, the class with most mistakes first
    targets = [
        values["id"] for tag, values in page.tags if tag == "figure" and "id" in values
    ]
    links = [values["href"] for tag, values in page.tags if tag == "a"]
    assert (
        sorted(set(links))
        == sorted(f"#{target}" for target in targets)
        == ["#mistake-0-1", "#mistake-1-0"]
    )
    assert len(links) == 4  # from the matrix and from the table of pairs
    assert "i" not in {tag for tag, values in page.tags if "style" not in values}


def test_images_are_thumbnails_and_unreadable_ones_names(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a.png", 'b" onerror="x.png', "gone.png"):
        Image.fromarray(rng.integers(0, 256, (900, 1200, 3), dtype=np.uint8)).save(
            tmp_path / name
        )
    (tmp_path / "gone.png").write_text("no image")
    items = Images(("a.png", 'b" onerror="x.png', "gone.png"), root=tmp_path)
    page = Page(
        evaluation_page(
            answered(["a", "a", "b"], ["b", "b", "a"], items), title="images"
        )
    )
    images = [values for tag, values in page.tags if tag == "img"]
    assert [values["alt"] for values in images] == ["a.png", 'b" onerror="x.png']
    assert all(set(values) == {"src", "alt", "title"} for values in images)
    for values in images:
        prefix, _, body = values["src"].partition(",")
        assert prefix == "data:image/jpeg;base64"
        assert max(Image.open(io.BytesIO(base64.b64decode(body))).size) == 128
        assert len(body) < 20_000
    assert "gone.png" in page.text


def test_page_size_is_limited():
    names = [f"{number:04} " + "long " * 60 for number in range(3000)]
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(names, 4)).tolist()
    guess = rng.permutation(truth).tolist()
    texts = Texts(tuple("word " * 2000 for _ in truth))
    text = evaluation_page(
        answered(truth, guess, texts, rng.random(len(truth))), title="wrong"
    )
    assert len(text) < 6 * 2**20
    page = Page(text)
    assert sum(values.get("class") == "mistake" for _, values in page.tags) == SHOWN
    targets = {values["id"] for _, values in page.tags if "id" in values}
    links = {values["href"] for tag, values in page.tags if tag == "a"}
    assert {link[1:] for link in links} <= targets


def test_report_shows_wrong_images(shell, image_model, images):
    Path("swapped").mkdir()
    for mine, theirs in (("lying", "standing"), ("standing", "lying")):
        Path("swapped", mine).symlink_to(Path(images, theirs).resolve())
    shell.run("evaluate", image_model, "swapped", "--report", "page.html")
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    answers = open_model(image_model).evaluate("swapped", keep_samples=True)
    wrong = int((answers.samples.true != answers.samples.predicted).sum())
    assert sum(tag == "img" for tag, _ in page.tags) == wrong > 10
    assert "Wrong answers" in page.text


def test_evaluate_keeps_samples_only_on_request(shell, model, first):
    learner = open_model(model)
    assert learner.evaluate(first).samples is None
    kept = learner.evaluate(first, keep_samples=True).samples
    X = np.load(first)["X_test"]
    np.testing.assert_array_equal(kept.predicted, learner.predict(X))
    np.testing.assert_allclose(kept.certainty, learner.predict_proba(X).max(axis=1))


def test_an_unreadable_image_of_unknown_data_exits_with_1(shell, image_model, images):
    others = Path("others", "moth")
    others.mkdir(parents=True)
    for number in range(2):
        shutil.copy(images / "lying" / f"{number}.png", others)
    (others / "broken.png").write_bytes(b"not an image")
    values = shell.json(
        *("evaluate", image_model, images, "--unknown", "others"),
        *("--on-error", "skip"),
        code=1,
    )
    assert [Path(name).name for name in values["left_out"]] == ["broken.png"]
    assert values["unknown"]["n_unknown"] == 2


def test_an_unreadable_image_of_the_curve_exits_with_1(shell, image_model, images):
    for part in ("train", "test"):
        shutil.copytree(images, Path("parts", part))
    Path("parts", "train", "lying", "broken.png").write_bytes(b"not an image")
    values = shell.json(
        "evaluate", image_model, "parts", "--curve", "--on-error", "skip", code=1
    )
    assert values["left_out"] == []
    left_out = values["curve"]["left_out"]
    assert [Path(name).name for name in left_out] == ["broken.png"]
