/* The open model: its description by the service, its samples in this browser, and all changes. */

import { ask, modelPath, pauseAfter, Problem } from "./api.js";
import { cardsOf, holdOut } from "./cards.js";
import { evaluateKept, removeKept, syncKept, takeOver } from "./imagestore.js";
import { keep, drop, keepSettings, samplesOf, settingsOf } from "./store.js";
import {
  bodyOf, divideIntoRequests, eventOf, labelling, lastLabel, lessonOf, newSample, presentEvent, raiseRefused,
} from "./samples.js";

const AT_ONCE = 32; // samples per request that teaches: few, so that progress is visible
const TESTED = 200; // samples per request that tests: few enough for its size limit
const AGAIN = 3000; // milliseconds until an unreachable service is called again

/**
 * The open model. It gets the event "change" after each change of its description or its samples.
 *
 * record: description by the service, null until load(). samples: all samples in this browser. classes: cards as
 * { name, count, taught, held, waiting }. aside: samples that are no longer in the model. queue: samples without a
 * label. warnings: latest warnings by class. stalled: Problem that keeps samples from being taught, or null.
 */
export class OpenModel extends EventTarget {
  constructor(name) {
    super();
    Object.assign(this, { name, record: null, samples: [], settings: null, warnings: new Map(), stalled: null });
    // whole: whether the service described all of "record"; turn: number of descriptions so far.
    Object.assign(this, { sending: false, whole: true, turn: 0 });
    this.ending = new AbortController();
  }

  /** Signal that is aborted when another model is opened, for listeners on the whole page. */
  get signal() { return this.ending.signal; }
  get closed() { return this.ending.signal.aborted; }
  get kind() { return this.record.kind; }
  get isReady() { return this.record.state === "ready"; }
  get path() { return modelPath(this.name); }

  /** Load the model from the service and its samples from this browser. Then teach samples that still wait. */
  async load() {
    this.record = await ask(this.path);
    [this.samples, this.settings] = await Promise.all([samplesOf(this.name), settingsOf(this.name)]);
    await this.dropUnreachable();
    this.arrange();
    void syncKept(this).then(() => this.teachWaiting());
    return this;
  }

  /** Delete stored samples that were unlearned so long ago that undo cannot restore them. */
  async dropUnreachable() {
    const [oldest = Infinity] = this.record.revisions;
    const labelOf = labelling(this.record);
    const gone = this.samples.filter((sample) => sample.hidden && !sample.queued && !sample.waiting
      && labelOf(sample) === null && (sample.events.at(-1)?.revision ?? 0) <= oldest);
    if (this.isReady && gone.length) await drop(gone);
    if (this.isReady) this.samples = this.samples.filter((sample) => !gone.includes(sample));
  }

  /** Stop all work in the background. */
  close() {
    this.ending.abort();
    clearTimeout(this.timer);
  }

  /** Read the description from the service. Does nothing if it is unchanged. */
  async refresh() {
    const { turn } = this;
    const record = await ask(this.path, { seen: this.whole ? this.record.etag : null });
    if (!record || turn !== this.turn) return; // the response may be older than a change made meanwhile
    this.accept(record);
    this.whole = true;
  }

  /** Replace the description. */
  accept(record) {
    this.turn += 1;
    this.record = record;
    this.arrange();
  }

  /** Divide the samples among the cards, and tell the views. */
  arrange() {
    const { settings } = this;
    settings.empty = settings.empty.filter((name) => !this.record.classes.some((one) => one.name === name));
    Object.assign(this, cardsOf(this.record, settings, this.samples));
    settings.order = this.classes.map(({ name }) => name);
    this.dispatchEvent(new Event("change"));
  }

  // -- samples in and out ------------------------------------------------------------------------------------------

  /** Add a card for a class without samples. Only this browser knows it until it gets some. */
  async addClass(name) {
    if (this.classes.some((one) => one.name === name)) throw new Error(`There is already a class “${name}”.`);
    this.settings.empty.push(name);
    await this.arrangeAndKeep();
  }

  /**
   * Store samples in this browser and teach them, except for a share that is held out for testing.
   * @param {Array<{label: string, content: Object}>} shown - Contents of samples with their labels.
   * @param {Object} [settings] - hold: whether some are held out; atOnce: number of samples per change.
   * @returns {Promise<{taught: number, held: number, samples: Array}>} Numbers of samples that are taught and held out,
   *   and the samples in the order of "shown".
   */
  async add(shown, { hold = true, atOnce = AT_ONCE } = {}) {
    const samples = shown.map(({ label, content }) => newSample(this.name, content, label));
    if (hold) holdOut(samples, this.classes, this.settings.share);
    divideIntoRequests(samples, atOnce);
    const held = samples.filter((sample) => sample.held).length;
    await keep(samples);
    this.samples.push(...samples);
    this.arrange();
    await this.teachWaiting();
    return { taught: samples.length - held, held, samples };
  }

  /**
   * Teach waiting samples, one request after the other. If the service is busy, wait and repeat; if it is unreachable,
   * try again later; if it needs a token, stop. Refused samples keep the error.
   */
  async teachWaiting() {
    if (this.sending || this.closed) return;
    this.sending = true;
    clearTimeout(this.timer);
    if (this.nextBatch().length) this.arrange(); // so that the cards show the progress
    try {
      let tries = 0;
      for (let batch = this.nextBatch(); batch.length && !this.closed; batch = this.nextBatch()) {
        const problem = await this.tryToTeach(batch);
        this.stalled = problem;
        if (problem === null) {
          tries = 0;
        } else if (problem.kind === "busy") {
          this.arrange();
          await pauseAfter(problem, tries);
          tries += 1;
        } else {
          if (problem.kind === "offline") this.timer = setTimeout(() => void this.teachWaiting(), AGAIN);
          break;
        }
      }
    } finally {
      this.sending = false;
      this.arrange();
      if (this.kept?.on) await syncKept(this);
    }
  }

  /**
   * Teach the samples of one request.
   * @returns {Promise<Problem|null>} The problem if they still wait. Null if they were taught or refused.
   */
  async tryToTeach(batch) {
    try {
      await this.teach(batch);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (["busy", "offline", "token"].includes(problem.kind)) return problem;
      for (const sample of batch) sample.waiting.error = problem.message;
      await keep(batch);
    }
    return null;
  }

  /** Return the waiting samples of the next request. */
  nextBatch() {
    const first = this.samples.find((sample) => sample.waiting && !sample.waiting.error);
    return first ? this.samples.filter((sample) => sample.waiting?.key === first.waiting.key) : [];
  }

  /** Teach the samples of one request, and note the change in all of them. */
  async teach(batch) {
    const taught = batch.filter((sample) => !sample.held);
    let answer = null;
    if (taught.length) {
      const labels = taught.map((sample) => sample.wanted);
      for (const sample of taught) sample.waiting.sent = true;
      const noted = keep(taught); // they may be learned from now on, even if the response is lost
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

  /** Update the description with the response to a change, then read the rest of it. */
  async follow(answer) {
    const { classes, revision, etag, n_samples: total, state } = answer;
    const history = [...this.record.history, answer.change];
    // The revision before this change, so that undo is offered for it.
    const revisions = [...new Set([...this.record.revisions, this.record.revision])];
    this.accept({ ...this.record, classes, revision, etag, n_samples: total, state, history, revisions, redoable: 0 });
    await keepSettings(this.settings);
    await this.readWhole();
  }

  /** Read the description after a change. A failure is ignored, since the change is done; it is read again later. */
  async readWhole() {
    this.whole = false;
    try {
      await this.refresh();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
    }
  }

  /** Send refused samples again. */
  async retry(samples) {
    for (const sample of samples) sample.waiting.error = "";
    await keep(samples);
    await this.teachWaiting();
  }

  /** Unlearn samples, or delete them if they are not in the model. Unlearning sends the same bytes again. */
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
        sample.hidden = true; // shown again only if undo restores it
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

  /**
   * Teach stored samples that are not in the model: held-out, undone or queued ones.
   * @param {Array} samples - The samples.
   * @param {string|null} label - Label of all of them. Default: the label of each when it was last taught.
   * @param {Object} [settings] - As in "add".
   */
  async teachAgain(samples, label = null, { hold = false, atOnce = AT_ONCE } = {}) {
    for (const sample of samples) {
      sample.wanted = label ?? lastLabel(sample);
      Object.assign(sample, { held: false, queued: false, hidden: false });
    }
    const late = await takeOver(this, samples); // taken by another client, which labelled the same image first
    this.samples = this.samples.filter((sample) => !late.includes(sample));
    const ours = samples.filter((sample) => !late.includes(sample));
    if (hold) holdOut(ours, this.classes, this.settings.share);
    divideIntoRequests(ours, atOnce);
    await keep(ours);
    this.arrange();
    await this.teachWaiting();
    if (late.length) throw new Error("Somebody else has labelled this image already.");
    raiseRefused(this.kind, ours);
  }

  /** Put samples into the review queue of this browser, to be labelled later. */
  async enqueue(contents) {
    const samples = contents.map((content) => ({ ...newSample(this.name, content, null), queued: true }));
    await keep(samples);
    this.samples.push(...samples);
    this.arrange();
    if (this.kept?.on) await syncKept(this);
  }

  // -- classes and revisions ---------------------------------------------------------------------------------------

  /** Rename a class. */
  async rename(old, name) {
    const settings = this.settings;
    const renamed = (list) => list.map((one) => (one === old ? name : one));
    if (this.record.classes.some((one) => one.name === old)) {
      await this.changeClasses("rename", { old, new: name }, [old], name, () => {
        settings.order = renamed(settings.order);
      });
    } else {
      if (this.classes.some((one) => one.name === name)) throw new Error(`There is already a class “${name}”.`);
      [settings.order, settings.empty] = [renamed(settings.order), renamed(settings.empty)];
      await this.arrangeAndKeep();
    }
  }

  /** Merge several classes into one. */
  merge(names, into) {
    return this.changeClasses("merge-classes", { names, into }, names, into);
  }

  /** Forget a class and all its samples. Undo restores both. */
  async forget(name) {
    if (this.record.classes.some((one) => one.name === name)) {
      await this.changeClasses("forget", { names: [name] }, [name], null);
    }
    this.settings.empty = this.settings.empty.filter((one) => one !== name);
    await this.arrangeAndKeep();
  }

  /**
   * Rename, merge or forget classes, and note the change in their samples.
   * @param {string} route - Last part of the path of the request.
   * @param {Object} json - Body of the request.
   * @param {string[]} names - The classes.
   * @param {string|null} label - New label of their samples; null if they are forgotten.
   * @param {function()} before - Called after the change, before the cards are drawn again.
   */
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

  /** Return to an earlier revision. Samples that were taught later are set aside in this browser. */
  async rollBack(to) {
    const answer = await ask(`${this.path}/rollback`, {
      json: { to }, match: this.record.etag, once: crypto.randomUUID?.(),
    });
    this.turn += 1;
    await this.readWhole();
    return answer;
  }

  /** Undo the latest rollback. Samples that it set aside are in the model again. */
  async redo() {
    const answer = await ask(`${this.path}/redo`, {
      json: { n: 1 }, match: this.record.etag, once: crypto.randomUUID?.(),
    });
    this.turn += 1;
    await this.readWhole();
    return answer;
  }

  /** Store which cards are collapsed. */
  setCollapsed(names, away) {
    const others = this.settings.collapsed.filter((name) => !names.includes(name));
    this.settings.collapsed = away ? [...others, ...names] : others;
    void keepSettings(this.settings);
  }

  /** Update the cards and store their settings. */
  async arrangeAndKeep() {
    this.arrange();
    await keepSettings(this.settings);
  }

  // -- questions ---------------------------------------------------------------------------------------------------

  /** Predict samples. If another client has changed the model meanwhile, its description is read again. */
  async predict(contents, { signal, coverage } = {}) {
    const fields = coverage && this.hasSets ? { k: 3, coverage } : { k: 3 };
    const answer = await ask(`${this.path}/predict`, { ...bodyOf(this.kind, contents, fields), signal });
    if (answer.revision !== this.record.revision) void this.refresh().catch(() => {});
    return answer;
  }

  /** Return whether the model has the held-out scores that prediction sets need. */
  get hasSets() { return this.record.method === "evergrow" && Boolean(this.record.thresholds); }

  /** Return { tested, labels, predicted } for held-out samples: the samples, their true and predicted classes. */
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
