/* Examples whose labels are likely wrong: listed after an import, each with buttons that correct or keep the label. */

import { ask, Problem } from "./api.js";
import { action, fill, make, plural } from "./dom.js";
import { attempt, confirmDone } from "./notice.js";
import { bodyOf, countOf, eventOf } from "./samples.js";
import { keep } from "./store.js";
import { looks } from "./thumbs.js";

const MOST = 500; // examples that are checked at once
const LEAST = 4; // examples of a class in this browser from which they are checked
const SHOWN = 24; // suspects that are listed at once

/** Move a taught sample from one class to another, as one change. */
async function relabel(model, sample, source, target) {
  const answer = await ask(`${model.path}/relabel`, {
    ...bodyOf(model.kind, [sample], { source, target }), once: crypto.randomUUID?.(),
  });
  sample.wanted = target;
  sample.events.push(eventOf(answer, target));
  await keep([sample]);
  await model.follow(answer);
}

/** A section with suspects, which is hidden while there are none, and a button that looks for them. */
export class Suspects {
  constructor(model) {
    Object.assign(this, { model, kept: new Set() }); // kept: "id label" of labels that the user found right
    this.button = action(() => void this.look(), "Check labels");
    this.words = make("p.soft", { role: "status" });
    this.problems = make("div.problems");
    this.list = make("ul.suspects");
    this.element = make("section.tray", { aria: { label: "Labels that look wrong" }, hidden: true },
      make("h2.small", {}, "Do these labels fit?"), this.words, this.problems, this.list);
    model.addEventListener("imported", () => void this.look({ quiet: true }));
    model.addEventListener("change", () => this.update());
    this.update();
  }

  update() {
    this.button.hidden = this.checked().length === 0;
    for (const entry of [...this.list.children]) {
      const { sample, label } = entry.suspect;
      if (!this.labelled(sample, label)) entry.remove(); // unlearned or moved meanwhile
    }
    if (!this.list.children.length) this.element.hidden = true;
  }

  /** Return whether a sample is taught as an example of a class. */
  labelled(sample, label) {
    return this.model.classes.some((one) => one.name === label && one.taught.includes(sample));
  }

  /** Return the samples to check, with their labels: the latest of classes with several examples. */
  checked() {
    const cards = this.model.classes.filter(({ taught }) => taught.length >= LEAST);
    if (cards.length < 2) return [];
    const pairs = cards.flatMap(({ name, taught }) => taught.map((sample) => ({ sample, label: name })));
    return pairs.sort((one, other) => other.sample.at - one.sample.at).slice(0, MOST);
  }

  /** Look for suspects. "quiet": show nothing if there are none, or if the service fails. */
  async look({ quiet = false } = {}) {
    const checked = this.checked();
    if (!checked.length) return;
    this.button.disabled = true;
    if (quiet) {
      await this.show(checked).catch(ignoreProblem);
    } else {
      const done = await attempt(this.problems, () => this.show(checked));
      if (!done) this.element.hidden = false; // it has the problem
      else if (this.element.hidden) confirmDone(`All labels of ${this.count(checked)} look right.`);
    }
    this.button.disabled = false;
  }

  /** Ask the service for suspects, and list them. */
  async show(checked) {
    const samples = checked.map(({ sample }) => sample);
    const labels = checked.map(({ label }) => label);
    const fields = { labels, learned: true, n: samples.length };
    const { suspects } = await ask(`${this.model.path}/suspects`, bodyOf(this.model.kind, samples, fields));
    const found = suspects.filter(({ likely }) => likely).map((one) => ({ ...one, sample: samples[one.sample] }))
      .filter(({ sample, label }) => !this.kept.has(`${sample.id} ${label}`) && this.labelled(sample, label));
    const more = found.length > SHOWN ? ` These are the ${SHOWN} that look most wrong.` : "";
    this.words.textContent = `${plural(found.length, "label")} of ${this.count(checked)} may be wrong.${more}`;
    fill(this.list, found.slice(0, SHOWN).map((one) => this.entry(one)));
    this.element.hidden = !found.length;
  }

  count(checked) {
    return countOf(this.model.kind, checked.length);
  }

  /** Return a suspect as an entry of the list. */
  entry(suspect) {
    const { sample, label, suggestion } = suspect;
    const entry = make("li.suspect", {}, looks(sample, `Taught as ${label}`),
      make("p", {}, "Taught as ", make("b", {}, label), ", looks like ", make("b", {}, suggestion)),
      make("div.row", {},
        action((event) => void this.move(suspect, event.currentTarget), `It is ${suggestion}`),
        action(() => this.keep(suspect, entry), `It is ${label}`)));
    entry.suspect = suspect;
    return entry;
  }

  /** Move a sample to the suggested class. The entry goes away with the change of the model. */
  async move({ sample, label, suggestion }, button) {
    button.disabled = true;
    const done = await attempt(this.problems, () => relabel(this.model, sample, label, suggestion));
    button.disabled = false;
    if (done) confirmDone(`Moved from ${label} to ${suggestion}.`);
  }

  /** Keep a label that the user found right. */
  keep({ sample, label }, entry) {
    this.kept.add(`${sample.id} ${label}`);
    entry.remove();
    this.update();
  }
}

/** Ignore a failure of the service. Raise other errors. */
function ignoreProblem(error) {
  if (!(error instanceof Problem)) throw error;
}
