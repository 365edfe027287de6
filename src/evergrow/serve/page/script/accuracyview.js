/* Accuracy on test examples, and which classes are confused. */

import { action, fill, make, plural } from "./dom.js";
import { askFor, openWindow } from "./dialogs.js";
import { curveSection } from "./curve.js";
import { keepOnServer, syncKept, whereKept } from "./imagestore.js";
import { Problem } from "./api.js";
import { attempt, confirmDone } from "./notice.js";
import { countOf, nearCopies } from "./samples.js";
import { keepSettings } from "./store.js";
import { costOf, limitsOf, noticedInWords } from "./strictness.js";
import { thumb } from "./thumbs.js";

const SETTLED = 400;
const TABLE = 8; // number of classes up to which the table is open at first
const SHARES = [["0", "none"], ["0.1", "every tenth"], ["0.2", "every fifth"], ["0.34", "every third"]];

export class AccuracyView {
  constructor(model) {
    Object.assign(this, { model, shown: false, tested: "" });
    this.problems = make("div.problems");
    this.result = make("div.result", { aria: { live: "polite" } });
    this.where = make("p.hint");
    this.curve = curveSection(model);
    this.unknown = make("section.unknown", { hidden: true });
    this.element = make("div.accuracy", {}, this.result, this.unknown, this.problems, this.shareChoice(), this.where,
      this.serverChoice());
    model.addEventListener("change", () => this.follow());
  }

  open() {
    this.follow();
    void syncKept(this.model);
  }

  get held() { return this.model.classes.flatMap((one) => one.held); }

  /** Return the choice of the share that is held out. */
  shareChoice() {
    const select = make("select", { id: "share", on: { change: () => {
      this.model.settings.share = Number(select.value);
      void keepSettings(this.model.settings);
    } } }, SHARES.map(([value, words]) => make("option", {
      value, selected: Number(value) === this.model.settings.share,
    }, words)));
    return make("div.field.inline", {}, make("label", { htmlFor: "share" }, "Keep for testing"), select,
      make("p.hint", {}, "These examples are set aside for testing and never taught."));
  }

  /** Return the checkbox for storage on the server, which is off by default. */
  serverChoice() {
    const box = make("input", { type: "checkbox", id: "on-server", on: { change: () => this.chooseServer(box) } });
    this.server = make("div.field", { hidden: true }, make("label.option", {}, box,
      make("span", {}, "Keep test images and the review queue on the server")),
    make("p.hint", {}, "Everybody who uses this model then sees the same accuracy and labels the same queue. "
      + "Otherwise each browser keeps its own images, and the server stores none."));
    return this.server;
  }

  chooseServer(box) {
    const set = async (on) => {
      await keepOnServer(this.model, on);
      confirmDone(on ? "Images are kept on the server from now on." : "The images were removed from the server.");
    };
    this.choosing = true; // do not change the box until the service has answered
    const settled = () => {
      this.choosing = false;
      this.follow();
    };
    if (box.checked) {
      void attempt(this.problems, () => set(true)).then(settled);
      return;
    }
    askFor({
      title: "Remove the images from the server?", verb: "Remove", danger: true, work: () => set(false),
      text: "The test images and the review queue are removed from the server. What you see now stays in this browser.",
    }).addEventListener("close", settled);
  }

  /** Evaluate again if the model or its test samples have changed. */
  follow() {
    const { held } = this;
    const { kept, readOnly } = this.model;
    this.server.hidden = !kept || Boolean(readOnly);
    if (!this.choosing) this.server.querySelector("input").checked = Boolean(kept?.on);
    this.where.textContent = whereKept(this.model, held.length, "test");
    if (this.shown) void this.describeUnknown();
    const key = `${this.model.record.revision} ${held.map((one) => one.id).join()}`;
    if (!this.shown || key === this.tested) return;
    this.tested = "";
    clearTimeout(this.timer);
    if (!this.model.isReady || !held.length) {
      this.result.classList.remove("stale");
      fill(this.result, make("section.ways-in", {}, make("h2.small", {}, "Nothing to test with yet"), make("ul", {},
        make("li", {}, "Teach five or more examples of a class at once: every fifth is set aside for this test."),
        make("li", {}, "Label images under Review: some of them are set aside for this test too."))));
      return;
    }
    this.result.classList.add("stale"); // the result belongs to an earlier state of the model
    this.timer = setTimeout(() => void attempt(this.problems, async () => {
      const evaluation = await this.model.evaluate(held);
      this.tested = key;
      this.draw(evaluation);
    }), SETTLED);
  }

  /** Say which fraction of unknown things the model would notice. */
  async describeUnknown() {
    const { model } = this;
    const limits = limitsOf(model);
    const key = `${model.record.revision} ${limits.falseAlarm} ${limits.probability}`;
    if (key === this.described) return;
    this.described = key;
    this.unknown.hidden = true;
    if (!model.isReady) return;
    try {
      const words = noticedInWords(await costOf(model, limits), model.kind);
      if (key !== this.described) return;
      fill(this.unknown, make("h2.small", {}, "Things it was never taught"), words.map((text) => make("p", {}, text)));
      this.unknown.hidden = false;
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.described = ""; // asked again when the view opens
    }
  }

  /** Show the result of OpenModel.evaluate. */
  draw(evaluation) {
    const { kind } = this.model;
    const { tested: held, labels, predicted } = evaluation;
    const tested = held.map((sample, i) => ({ sample, label: labels[i], predicted: predicted[i] }));
    const copies = this.model.kept?.on ? new Set() // all clients must see the same number
      : nearCopies(held, this.model.classes.flatMap((one) => one.taught));
    const own = tested.filter(({ sample }) => !copies.has(sample));
    const counted = own.length ? own : tested; // all numbers below are about these
    const left = tested.filter((one) => !counted.includes(one));
    const hits = counted.filter(({ label, predicted }) => label === predicted).length;
    const share = hits / counted.length;
    this.result.classList.remove("stale");
    fill(this.result, make("div.score", {}, make("p.figure", {}, `${Math.round(100 * share)} %`), make("div", {},
      make("p", {}, `${hits} of ${countOf(kind, counted.length)} right. None of them was ever taught.`),
      left.length > 0 && make("p.soft", {}, `Not counted: ${left.length} that look just like a taught one. `,
        linkTo("Show them", () => openTested("Not counted", left))),
      !own.length && make("p.soft", {},
        "All of them look just like taught ones, so this accuracy means little. Add images from another moment."),
      counted.length < 30 && make("p.soft", {},
        `With so few examples the true accuracy may be ${spread(share, counted.length)}.`))),
    this.mistakes(counted), this.table(counted), this.curve);
  }

  /** Return a list of the mistakes, the most frequent first. */
  mistakes(counted) {
    const pairs = new Map();
    for (const one of counted) {
      const key = JSON.stringify([one.label, one.predicted]);
      if (one.label !== one.predicted) pairs.set(key, [...(pairs.get(key) ?? []), one]);
    }
    if (!pairs.size) return make("p.soft", {}, "No mistakes.");
    const listed = [...pairs.values()].sort((one, other) => other.length - one.length).map((wrong) => {
      const [{ label, predicted }] = wrong;
      const all = counted.filter((one) => one.label === label).length;
      return make("li", {}, linkTo(`${label} taken for ${predicted}: ${wrong.length} of ${all}`,
        () => this.openCell(label, predicted, wrong.map((one) => one.sample))));
    });
    return make("section.mistakes", {}, make("h2.small", {}, "Mistakes"), make("ol", {}, listed));
  }

  /** Return the confusion matrix as a table. With many classes it is closed at first. */
  table(counted) {
    const known = this.model.classes.map((one) => one.name);
    const classes = known.filter((name) => counted.some(({ label, predicted }) => [label, predicted].includes(name)));
    const cell = (label, predicted) => {
      const inside = counted.filter((one) => one.label === label && one.predicted === predicted);
      if (!inside.length) return make("td.none", {}, make("span", { aria: { hidden: true } }, "·"));
      const open = () => this.openCell(label, predicted, inside.map((one) => one.sample));
      const button = action(open, inside.length);
      button.setAttribute("aria-label", `${label} taken for ${predicted}: ${inside.length}, show them`);
      return make(`td.${label === predicted ? "right" : "wrong"}`, {}, button);
    };
    const head = (name, scope) => make("th", { scope, title: name }, make("span", {}, name));
    const row = (label) => make("tr", {}, head(label, "row"), classes.map((predicted) => cell(label, predicted)));
    const build = () => make("div.scroll", { tabIndex: 0, role: "region", aria: { label: "Table of answers" } },
      make("table.confusion", {},
        make("caption.hint", {}, "Rows: what it is. Columns: the answer. Click a number to see them."),
        make("thead", {}, make("tr", {}, make("td"), classes.map((name) => head(name, "col")))),
        make("tbody", {}, classes.map(row))));
    const details = make("details", { open: classes.length <= TABLE }, make("summary", {}, "All answers as a table"));
    const fillOnce = () => { if (details.open && details.children.length === 1) details.append(build()); };
    details.addEventListener("toggle", fillOnce);
    fillOnce();
    return details;
  }

  /** Show the samples of a cell of the confusion matrix in a window. */
  openCell(label, predicted, samples) {
    const problems = make("div.problems");
    const right = label === predicted;
    const act = (work) => attempt(problems, async () => { await work(); dialog.close(); });
    const teach = action(() => act(() => this.model.teachAgain(samples, label)),
      `Teach ${samples.length === 1 ? "it" : "them"} as ${label}`);
    teach.classList.add("primary");
    const dialog = openWindow(right ? `${label}, answered right` : `${label} taken for ${predicted}`, [
      make("p.soft", {}, right ? "These were answered right."
        : "Check what it is. Teaching one removes it from the test."),
      make("ul.thumbs.large", {}, samples.map((sample) => thumb(sample, label, [
        { icon: "close", words: "Remove", work: () => act(() => this.model.remove([sample])) },
      ]))), problems, make("div.actions", {}, teach),
    ], { wide: true });
  }
}

/** Return a button that looks like a link. */
function linkTo(words, work) {
  const button = action(work, words);
  button.classList.add("link");
  return button;
}

/** Show tested samples in a window. */
function openTested(title, tested) {
  const thumbs = tested.map(({ sample, label }) => thumb(sample, label));
  openWindow(title, [make("ul.thumbs.large", {}, thumbs)], { wide: true });
}

/** Return the 95 % confidence interval of a share of n (Wilson's interval) in words. */
function spread(share, n) {
  const z = 1.96;
  const middle = (share + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const half = (z * Math.sqrt((share * (1 - share)) / n + (z * z) / (4 * n * n))) / (1 + (z * z) / n);
  const percent = (value) => Math.round(100 * Math.max(0, Math.min(1, value)));
  return `${percent(middle - half)} to ${percent(middle + half)} %`;
}
