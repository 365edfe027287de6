/* How often the model is right, on samples that it was never taught, and what it confuses with what. */

import { action, fill, make, plural } from "./dom.js";
import { openWindow } from "./dialogs.js";
import { attempt } from "./notice.js";
import { nearCopies } from "./samples.js";
import { keepSettings } from "./store.js";
import { thumb } from "./thumbs.js";

const MOST = 500; // samples in one test
const SETTLED = 400;
const SHARES = [["0", "none"], ["0.1", "every tenth"], ["0.2", "every fifth"], ["0.34", "every third"]];

export class AccuracyView {
  constructor(model) {
    Object.assign(this, { model, shown: false, tested: "" });
    this.problems = make("div.problems");
    this.result = make("div.result", { aria: { live: "polite" } });
    this.element = make("div.accuracy", {}, this.result, this.problems, this.shareChoice());
    model.addEventListener("change", () => this.follow());
  }

  open() { this.follow(); }

  get held() { return this.model.classes.flatMap((one) => one.held).slice(-MOST); }

  shareChoice() {
    const select = make("select", { id: "share", on: { change: () => {
      this.model.settings.share = Number(select.value);
      void keepSettings(this.model.settings);
    } } }, SHARES.map(([value, words]) => make("option", {
      value, selected: Number(value) === this.model.settings.share,
    }, words)));
    return make("div.field.inline", {}, make("label", { htmlFor: "share" }, "Share of new samples to hold out"), select,
      make("p.hint", {}, "Held-out samples stay in this browser, test the model and are never taught."));
  }

  follow() {
    const { held } = this;
    const key = `${this.model.record.revision} ${held.map((one) => one.id).join()}`;
    if (!this.shown || key === this.tested) return;
    clearTimeout(this.timer);
    if (!this.model.isReady || !held.length) {
      this.tested = "";
      fill(this.result, make("p.empty.soft", {}, this.model.isReady
        ? "Nothing is held out yet. Every fifth sample of a class is kept for this test."
        : "The model answers as soon as it knows a class."));
      return;
    }
    this.timer = setTimeout(() => void attempt(this.problems, async () => {
      const told = await this.model.evaluate(held);
      this.tested = key;
      this.draw(held, told);
    }), SETTLED);
  }

  draw(held, told) {
    const taught = this.model.classes.flatMap((one) => one.taught);
    const copies = nearCopies(held, taught);
    const right = (i) => told.predicted[i] === told.labels[i];
    const own = held.map((_, i) => i).filter((i) => !copies.has(held[i]));
    const counted = own.length ? own : held.map((_, i) => i);
    const hits = counted.filter(right).length;
    const share = hits / counted.length;
    const classes = told.classes.filter((name) => told.labels.includes(name) || told.predicted.includes(name));
    fill(this.result, make("div.score", {}, make("p.figure", {}, `${Math.round(100 * share)} %`), make("div", {},
      make("p", {}, `${hits} of ${plural(counted.length, "held-out sample")} answered right.`),
      make("p.soft", {}, "None of them was ever taught."),
      copies.size > 0 && make("p.soft", {}, own.length
        ? `Left out: ${copies.size} more that look just like a taught one.`
        : "All of them look just like taught ones, so this says little. Hold out images from another moment."),
      counted.length < 30 && make("p.soft", {},
        `With so few samples the true figure may be ${spread(share, counted.length)}.`))),
    this.table(held, told, classes));
  }

  table(held, told, classes) {
    const cell = (label, predicted) => {
      const inside = held.filter((_, i) => told.labels[i] === label && told.predicted[i] === predicted);
      const kind = label === predicted ? "right" : "wrong";
      if (!inside.length) return make("td.none", {}, make("span", { aria: { hidden: true } }, "·"));
      const words = `${label} answered as ${predicted}: ${inside.length}`;
      const button = action(() => this.openCell(label, predicted, inside), inside.length);
      button.setAttribute("aria-label", `${words}, show them`);
      return make(`td.${kind}`, {}, button);
    };
    const head = (name, scope) => make("th", { scope, title: name }, make("span", {}, name));
    const row = (label) => make("tr", {}, head(label, "row"), classes.map((predicted) => cell(label, predicted)));
    const hint = "Rows: the true class. Columns: the answer. Click a number to see its samples.";
    return make("div.scroll", { tabIndex: 0, role: "region", aria: { label: "Confusion table" } },
      make("p.hint", { id: "confusion-hint" }, hint),
      make("table.confusion", { aria: { describedby: "confusion-hint" } },
        make("thead", {}, make("tr", {}, make("td"), classes.map((name) => head(name, "col")))),
        make("tbody", {}, classes.map(row))));
  }

  openCell(label, predicted, samples) {
    const problems = make("div.problems");
    const right = label === predicted;
    const act = (work) => attempt(problems, async () => { await work(); dialog.close(); });
    const teach = action(() => act(() => this.model.teachAgain(samples, label)),
      `Teach ${samples.length === 1 ? "it" : "them"} as ${label}`);
    teach.classList.add("primary");
    const dialog = openWindow(right ? `${label}, answered right` : `${label}, answered as ${predicted}`, [
      make("p.soft", {}, right ? "These held-out samples were answered right."
        : "Check the label. Teaching a sample removes it from the test."),
      make("ul.thumbs.large", {}, samples.map((sample) => thumb(sample, `held out from ${label}`, [
        { icon: "close", words: "Remove", work: () => act(() => this.model.remove([sample])) },
      ]))), problems, make("div.actions", {}, teach),
    ], { wide: true });
  }
}

/** Return where the true share lies with 95 % (Wilson's interval). */
function spread(share, n) {
  const z = 1.96;
  const middle = (share + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const half = (z * Math.sqrt((share * (1 - share)) / n + (z * z) / (4 * n * n))) / (1 + (z * z) / n);
  const percent = (value) => Math.round(100 * Math.max(0, Math.min(1, value)));
  return `${percent(middle - half)} to ${percent(middle + half)} %`;
}
