/* The model that is open: what the service says of it, the samples that this browser keeps of it, and every change. */

import { ask, modelPath, pauseAfter, Problem } from "./api.js";
import { evaluateKept, removeKept, syncKept, takeOver } from "./kept.js";
import { keep, drop, keepSettings, samplesOf, settingsOf } from "./store.js";
import {
  bodyOf, countToHold, eventOf, labelling, lastLabel, lessonOf, newSample, presentEvent, raiseRefused,
} from "./samples.js";

const AT_ONCE = 32; // samples in one lesson: short enough that progress shows
const TESTED = 200; // samples in one test: few enough for any limit of a request
const AGAIN = 3000; // milliseconds until an unreachable service is tried again

export class OpenModel extends EventTarget {
  constructor(name) {
    super();
    Object.assign(this, { name, record: null, samples: [], settings: null, warnings: new Map(), stalled: null });
    Object.assign(this, { sending: false, whole: true, turn: 0 }); // whole: whether the record is all from the service
    this.ending = new AbortController();
  }

  /** Ends when another model is opened; what listens to the whole page listens until then. */
  get signal() { return this.ending.signal; }
  get closed() { return this.ending.signal.aborted; }
  get kind() { return this.record.kind; }
  get isReady() { return this.record.state === "ready"; }
  get path() { return modelPath(this.name); }

  /** Read everything, from the service and from this browser, and go on with what waits to be taught. */
  async load() {
    this.record = await ask(this.path);
    [this.samples, this.settings] = await Promise.all([samplesOf(this.name), settingsOf(this.name)]);
    await this.dropUnreachable();
    this.arrange();
    void syncKept(this).then(() => this.teachWaiting());
    return this;
  }

  /** Drop the bytes of samples that were deleted so long ago that no undo can bring them back. */
  async dropUnreachable() {
    const [oldest = Infinity] = this.record.revisions;
    const labelOf = labelling(this.record);
    const gone = this.samples.filter((sample) => sample.hidden && !sample.queued && !sample.waiting
      && labelOf(sample) === null && (sample.events.at(-1)?.revision ?? 0) <= oldest);
    if (this.isReady && gone.length) await drop(gone);
    if (this.isReady) this.samples = this.samples.filter((sample) => !gone.includes(sample));
  }

  /** Stop everything that goes on in the background. */
  close() {
    this.ending.abort();
    clearTimeout(this.timer);
  }

  /** Ask the service what the model is now; nothing happens where it is the same. */
  async refresh() {
    const { turn } = this;
    const record = await ask(this.path, { seen: this.whole ? this.record.etag : null });
    if (!record || turn !== this.turn) return; // what was asked before a change may be answered after it
    this.accept(record);
    this.whole = true;
  }

  accept(record) {
    this.turn += 1;
    this.record = record;
    this.arrange();
  }

  /** Work out the cards from counts of the service and samples of this browser, and tell the views. */
  arrange() {
    const labelOf = labelling(this.record);
    const counts = new Map(this.record.classes.map(({ name, samples }) => [name, samples]));
    const cards = new Map();
    const card = (name) => {
      if (!cards.has(name)) cards.set(name, { name, count: counts.get(name) ?? 0, taught: [], held: [], waiting: [] });
      return cards.get(name);
    };
    const { settings } = this;
    settings.empty = settings.empty.filter((name) => !counts.has(name));
    const added = new Map(this.record.history.flatMap(({ classes }) => classes).reverse().map((name, i) => [name, -i]));
    const known = [...counts.keys()].sort((one, other) => added.get(one) - added.get(other));
    settings.order = [...new Set([...settings.order, ...known, ...settings.empty])];
    for (const name of settings.order) if (counts.has(name) || settings.empty.includes(name)) card(name);
    this.aside = [];
    this.queue = [];
    for (const sample of this.samples) {
      const label = labelOf(sample);
      if (sample.queued) this.queue.push(sample);
      else if (sample.waiting) card(label).waiting.push(sample);
      else if (label !== null && counts.has(label)) {
        sample.hidden = false;
        card(label)[sample.held ? "held" : "taught"].push(sample);
      }
      else if (!sample.hidden && !sample.keptId) this.aside.push(sample);
    }
    settings.order = [...cards.keys()];
    this.classes = [...cards.values()];
    this.dispatchEvent(new Event("change"));
  }

  // -- samples in and out ------------------------------------------------------------------------------------------

  /** Add a card for a class that has no samples yet; it is only in this browser until it gets some. */
  async addClass(name) {
    if (this.classes.some((one) => one.name === name)) throw new Error(`There is already a class “${name}”.`);
    this.settings.empty.push(name);
    await this.arrangeAndKeep();
  }

  /**
   * Keep samples in this browser and teach them, but for the share that is kept for testing.
   * @param {Array<{label: string, content: Object}>} shown - Samples with their labels.
   * @param {Object} [settings] - hold: whether some are kept for testing; atOnce: how many are one change.
   * @returns {Promise<{taught: number, held: number, samples: Array}>} How many are taught and kept for testing, and
   *   the samples in the order of what was shown.
   */
  async add(shown, { hold = true, atOnce = AT_ONCE } = {}) {
    const samples = shown.map(({ label, content }) => newSample(this.name, content, label));
    if (hold) this.holdOut(samples);
    this.batch(samples, atOnce);
    const held = samples.filter((sample) => sample.held).length;
    await keep(samples);
    this.samples.push(...samples);
    this.arrange();
    await this.teachWaiting();
    return { taught: samples.length - held, held, samples };
  }

  holdOut(samples) {
    for (const label of new Set(samples.map((sample) => sample.wanted))) {
      const mine = samples.filter((sample) => sample.wanted === label);
      const known = this.classes.find((one) => one.name === label) ?? { taught: [], held: [], waiting: [] };
      const [held, taught] = [known.waiting.filter((one) => one.held), known.waiting.filter((one) => !one.held)];
      const n = countToHold(
        this.settings.share, known.taught.length + taught.length, known.held.length + held.length, mine.length,
      );
      // The last ones of a recording are those that are the least like the first.
      if (n) for (const sample of mine.slice(-n)) sample.held = true;
    }
  }

  /** Give samples the keys under which they are sent: the service counts a key once, however often it comes. */
  batch(samples, atOnce = AT_ONCE) {
    const taught = samples.filter((sample) => !sample.held);
    let key = "";
    taught.forEach((sample, i) => {
      if (i % atOnce === 0) key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
      sample.waiting = { key, error: "" };
    });
    for (const sample of samples) if (sample.held) sample.waiting = { key: key || "held", error: "" };
  }

  /** Teach what waits, one lesson after the other, until nothing waits or something stands in the way. */
  async teachWaiting() {
    if (this.sending || this.closed) return;
    this.sending = true;
    clearTimeout(this.timer);
    if (this.nextBatch().length) this.arrange(); // so that the cards say what goes on
    try {
      let tries = 0;
      for (let batch = this.nextBatch(); batch.length && !this.closed; batch = this.nextBatch()) {
        try {
          await this.teach(batch);
          this.stalled = null;
          tries = 0;
        } catch (problem) {
          if (!(problem instanceof Problem)) throw problem;
          this.stalled = problem;
          if (problem.kind === "busy") {
            this.arrange();
            await pauseAfter(problem, tries);
            tries += 1;
          } else if (problem.kind === "offline" || problem.kind === "token") {
            if (problem.kind === "offline") this.timer = setTimeout(() => void this.teachWaiting(), AGAIN);
            break;
          } else {
            this.stalled = null;
            for (const sample of batch) sample.waiting.error = problem.message;
            await keep(batch);
          }
        }
      }
    } finally {
      this.sending = false;
      this.arrange();
      if (this.kept?.on) await syncKept(this);
    }
  }

  nextBatch() {
    const first = this.samples.find((sample) => sample.waiting && !sample.waiting.error);
    return first ? this.samples.filter((sample) => sample.waiting?.key === first.waiting.key) : [];
  }

  async teach(batch) {
    const taught = batch.filter((sample) => !sample.held);
    let answer = null;
    if (taught.length) {
      const labels = taught.map((sample) => sample.wanted);
      for (const sample of taught) sample.waiting.sent = true;
      const noted = keep(taught); // from now on it may have been learned, even if the answer is lost
      answer = await ask(`${this.path}/teach`, {
        ...lessonOf(this.kind, taught, labels), once: taught[0].waiting.key,
      });
      await noted;
      this.warnings.clear();
      for (const label of new Set(labels)) this.warnings.set(label, answer.warnings);
    }
    for (const sample of batch) {
      sample.events.push(answer ? eventOf(answer, sample.wanted) : presentEvent(this.record, sample.wanted));
      sample.waiting = null;
    }
    await keep(batch);
    if (answer) await this.follow(answer);
  }

  /** Take over what a change answered; the rest of the record is read again. */
  async follow(answer) {
    const { classes, revision, etag, n_samples: total, state } = answer;
    const history = [...this.record.history, answer.change];
    const revisions = [...new Set([...this.record.revisions, this.record.revision])]; // so that undo takes back this
    this.accept({ ...this.record, classes, revision, etag, n_samples: total, state, history, revisions, redoable: 0 });
    await keepSettings(this.settings);
    await this.readWhole();
  }

  /** Read the record after a change. That is done, so a failure here is no problem of it, and is made up for later. */
  async readWhole() {
    this.whole = false;
    try {
      await this.refresh();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
    }
  }

  /** Send again what was refused, after whatever was wrong was put right. */
  async retry(samples) {
    for (const sample of samples) sample.waiting.error = "";
    await keep(samples);
    await this.teachWaiting();
  }

  /** Take samples out of the model, exactly: the same bytes go to the service again. */
  async remove(samples) {
    if (samples.some(({ waiting }) => waiting?.sent && !waiting.error)) {
      throw new Error("This example is being sent. Delete it afterwards.");
    }
    const labelOf = labelling(this.record);
    const taught = samples.filter((sample) => !sample.held && !sample.waiting && labelOf(sample) !== null);
    const other = samples.filter((sample) => !taught.includes(sample));
    if (taught.length) {
      const labels = taught.map((sample) => labelOf(sample));
      const answer = await ask(`${this.path}/unlearn`, {
        ...lessonOf(this.kind, taught, labels), once: crypto.randomUUID?.(),
      });
      for (const sample of taught) {
        sample.events.push(eventOf(answer, null));
        sample.hidden = true; // undo brings it back to its card, otherwise it is not seen again
      }
      await keep(taught);
      await this.follow(answer);
    }
    if (other.length) {
      await removeKept(this, other);
      await drop(other);
      this.samples = this.samples.filter((sample) => !other.includes(sample));
      this.arrange();
    }
  }

  /** Teach samples that are kept but not in the model: those that were held out, undone or queued. */
  async teachAgain(samples, label = null, { hold = false, atOnce = AT_ONCE } = {}) {
    for (const sample of samples) {
      sample.wanted = label ?? lastLabel(sample);
      Object.assign(sample, { held: false, queued: false, hidden: false });
    }
    const late = await takeOver(this, samples); // two people may label the same image: one of them is first
    this.samples = this.samples.filter((sample) => !late.includes(sample));
    const ours = samples.filter((sample) => !late.includes(sample));
    if (hold) this.holdOut(ours);
    this.batch(ours, atOnce);
    await keep(ours);
    this.arrange();
    await this.teachWaiting();
    if (late.length) throw new Error("Somebody else has labelled this image already.");
    raiseRefused(this.kind, ours);
  }

  /** Put samples into the queue, to be labelled later; they are in this browser only. */
  async enqueue(contents) {
    const samples = contents.map((content) => ({ ...newSample(this.name, content, null), queued: true }));
    await keep(samples);
    this.samples.push(...samples);
    this.arrange();
    if (this.kept?.on) await syncKept(this);
  }

  // -- classes and revisions ---------------------------------------------------------------------------------------

  /** Give a class another name. */
  async rename(old, name) {
    const settings = this.settings;
    const place = (list) => list.map((one) => (one === old ? name : one));
    if (this.record.classes.some((one) => one.name === old)) {
      await this.changeClasses("rename", { old, new: name }, [old], name, () => {
        settings.order = place(settings.order);
      });
    } else {
      if (this.classes.some((one) => one.name === name)) throw new Error(`There is already a class “${name}”.`);
      [settings.order, settings.empty] = [place(settings.order), place(settings.empty)];
      await this.arrangeAndKeep();
    }
  }

  /** Make several classes one. */
  merge(names, into) {
    return this.changeClasses("merge-classes", { names, into }, names, into);
  }

  /** Forget a class and all its samples; undo brings both back. */
  async forget(name) {
    if (this.record.classes.some((one) => one.name === name)) {
      await this.changeClasses("forget", { names: [name] }, [name], null);
    }
    this.settings.empty = this.settings.empty.filter((one) => one !== name);
    await this.arrangeAndKeep();
  }

  async changeClasses(route, json, names, label, before = () => {}) {
    const labelOf = labelling(this.record);
    const touched = this.samples.filter((sample) => names.includes(labelOf(sample)));
    const answer = await ask(`${this.path}/${route}`, { json, match: this.record.etag, once: crypto.randomUUID?.() });
    before();
    for (const sample of touched) {
      if (sample.waiting) sample.wanted = label ?? sample.wanted;
      else sample.events.push(eventOf(answer, label));
      if (label === null) sample.hidden = true;
    }
    await keep(touched);
    await this.follow(answer);
  }

  /** Go back to a revision; samples that came later are set aside in this browser. */
  async rollBack(to) {
    const answer = await ask(`${this.path}/rollback`, {
      json: { to }, match: this.record.etag, once: crypto.randomUUID?.(),
    });
    this.turn += 1;
    await this.readWhole();
    return answer;
  }

  /** Take the latest undo back; samples that it set aside are in the model again. */
  async redo() {
    const answer = await ask(`${this.path}/redo`, {
      json: { n: 1 }, match: this.record.etag, once: crypto.randomUUID?.(),
    });
    this.turn += 1;
    await this.readWhole();
    return answer;
  }

  /** Remember which cards show their names alone. */
  setCollapsed(names, away) {
    const others = this.settings.collapsed.filter((name) => !names.includes(name));
    this.settings.collapsed = away ? [...others, ...names] : others;
    void keepSettings(this.settings);
  }

  async arrangeAndKeep() {
    this.arrange();
    await keepSettings(this.settings);
  }

  // -- questions ---------------------------------------------------------------------------------------------------

  /** Return the answers about samples; a model that was changed by someone else meanwhile is read again. */
  async predict(contents, { signal } = {}) {
    const answer = await ask(`${this.path}/predict`, { ...bodyOf(this.kind, contents, { k: 3 }), signal });
    if (answer.revision !== this.record.revision) void this.refresh().catch(() => {});
    return answer;
  }

  /** Return the true classes of samples and what the model takes each for. */
  async evaluate(samples) {
    if (this.kept?.on) return evaluateKept(this, samples);
    const labelOf = labelling(this.record);
    const labels = samples.map((sample) => labelOf(sample));
    const predicted = [];
    for (let at = 0; at < samples.length; at += TESTED) {
      const part = { labels: labels.slice(at, at + TESTED) };
      const body = bodyOf(this.kind, samples.slice(at, at + TESTED), part);
      predicted.push(...(await ask(`${this.path}/evaluate`, body)).predicted);
    }
    return { tested: samples, labels, predicted };
  }
}
