/*
 * Samples of a model that are stored in this browser.
 *
 * A sample has its content as it was sent (blob, text or row) and a list of events. An event is the label that the
 * sample had after a change of the model. The current label of a sample is that of its last event whose change was not
 * undone according to the model's history, so undo by any client needs no update of samples.
 */

import { sentence } from "./api.js";
import { plural } from "./dom.js";
import { ALIKE, difference } from "./imaging.js";

const NOUNS = { images: "image", texts: "text", features: "row" };

/** Return a number of samples in words: "1 image", "2 texts", "3 rows". */
export const countOf = (kind, n) => plural(n, NOUNS[kind]);

/** Return the number of samples per class in words: "4 images of Horned Grebe, 2 of Mallard". */
export function tally(kind, labels) {
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  const [first, ...rest] = [...counts].sort((one, other) => other[1] - one[1]);
  if (!first) return countOf(kind, 0);
  const more = rest.length > 3 ? ` and ${plural(rest.length - 3, "more class", "more classes")}` : "";
  const listed = rest.slice(0, 3).map(([name, n]) => `, ${n} of ${name}`).join("");
  return `${countOf(kind, first[1])} of ${first[0]}${listed}${more}`;
}

const ENOUGH = 10; // examples per class from which on percentages are reliable

/** Return a warning if percentages are rough because classes have few examples; otherwise "". */
export function caution(kind, classes) {
  const taught = classes.filter((one) => one.count);
  if (taught.length === 1) return "The model has only one class, so the percentage means nothing. Teach another.";
  const few = taught.filter((one) => one.count < ENOUGH);
  if (!few.length) return "";
  const all = few.length === taught.length ? `all ${few.length}` : `${few.length} of ${taught.length}`;
  const who = few.length === 1 ? `${few[0].name} was taught with only ${countOf(kind, few[0].count)}`
    : `${all} classes were taught with fewer than ${countOf(kind, ENOUGH)}`;
  return `Percentages are rough guesses: ${who}.`;
}

/** Return a name in lower case without spaces, for comparison. */
export const folded = (name) => name.normalize("NFKC").toLowerCase().replace(/\s+/g, "");

/** Return a new sample; "wanted" is the label under which it will be taught. */
export function newSample(model, content, wanted) {
  return {
    model, ...content, wanted, at: Date.now(), events: [], held: false, queued: false, hidden: false, waiting: null,
  };
}

/** Return the event of samples that got a label (null for none) by a change. "answer" is the response to it. */
export function eventOf(answer, label) {
  const { revision, when } = answer.change;
  return { revision, when, label };
}

/** Return the event of samples that get a label without a change of the model, such as held-out ones. */
export function presentEvent(record, label) {
  const latest = record.history.at(-1) ?? { revision: 0, when: "" };
  return { revision: latest.revision, when: latest.when, label };
}

/** Return the changes of a history that were not undone, the oldest first. */
export function changesThatHold(history) {
  let [present, undone] = [[], []];
  for (const change of history) {
    const isLater = ({ what, revision }) => !["rollback", "redo"].includes(what) && revision > change.revision;
    if (change.what === "rollback") {
      undone = [...undone, ...present.filter(isLater)];
      present = present.filter((each) => !isLater(each));
    } else if (change.what === "redo") {
      present = [...present, ...undone.filter((each) => !isLater(each))];
      undone = undone.filter(isLater);
    }
    present.push(change);
  }
  return present;
}

/**
 * Return a function that returns the current label of a sample; null if it is not in the model.
 * @param {Object} record - The description of the model by the service.
 */
export function labelling(record) {
  const key = ({ revision, when }) => `${revision} ${when}`;
  const changes = changesThatHold(record.history);
  const present = new Set(changes.map(key));
  const holds = (event) => present.has(key(event));
  const renamings = changes.filter(({ what }) => what === "rename" || what === "merge-classes");
  return (sample) => {
    if (sample.queued) return null;
    if (sample.keptId) return sample.keptLabel; // the server follows renames
    if (sample.waiting) return sample.wanted;
    const last = sample.events.findLast(holds);
    if (!last || last.label === null) return null;
    // Other clients may have renamed classes since.
    const since = renamings.filter((change) => Date.parse(change.when) > Date.parse(last.when));
    return since.reduce(newName, last.label);
  };
}

/** Return the name of a class after a change, which may have renamed it. */
const newName = (name, { names }) => (names && Object.hasOwn(names, name) ? names[name] : name);

/** Raise an error if the service refused some of the samples. They stay on the cards of their classes. */
export function raiseRefused(kind, samples) {
  const refused = samples.filter(({ waiting }) => waiting?.error);
  if (!refused.length) return;
  throw new Error(`${countOf(kind, refused.length)} could not be taught, and can be tried again under Teach. `
    + sentence(refused[0].waiting.error));
}

/** Return the label of a sample that is no longer in the model: that of the last time it was taught. */
export const lastLabel = (sample) => sample.wanted;

/**
 * Return a function that returns the current name of a class by an earlier name.
 * @param {Object} record - The description of the model by the service.
 * @param {{revision: number, when: string}} event - The latest change at the time of the earlier name.
 */
export function renamedSince(record, event) {
  const at = record.history.findIndex(({ revision, when }) => revision === event.revision && when === event.when);
  if (at < 0) return (name) => name;
  const isRenaming = ({ what }) => what === "rename" || what === "merge-classes";
  const then = changesThatHold(record.history.slice(0, at + 1)).filter(isRenaming);
  const now = changesThatHold(record.history).filter(isRenaming);
  let shared = 0;
  while (then[shared] && then[shared] === now[shared]) shared += 1;
  const undone = then.slice(shared).filter(({ what }) => what === "rename").reverse();
  const back = (name, { names = {} }) => Object.keys(names).find((old) => names[old] === name) ?? name;
  return (name) => now.slice(shared).reduce(newName, undone.reduce(back, name));
}

/** Return the most likely class of a prediction, also if the sample is unknown. */
export const nearestOf = ({ label, nearest, top }) => label ?? nearest?.class ?? top?.[0]?.class ?? "";

/** Return whether a prediction says that the sample is unknown. */
export const isUnknown = ({ unknown, label }) => unknown === true || label === null;

const CLEAR_LEAD = 0.2; // difference of probabilities from which on one class is the answer

/** Return the second class if it is nearly as probable as the first, otherwise null. */
export function rivalOf({ top }, measure) {
  const [first, second] = top;
  return measure === "probability" && second && first.value - second.value < CLEAR_LEAD ? second.class : null;
}

/**
 * Return how many of n new samples of a class to hold out.
 * @param {number} share - Fraction of all samples of the class that is held out.
 * @param {number} taught - Number of its samples from this browser that were taught.
 * @param {number} held - Number of its samples that are held out so far.
 * @param {number} n - Number of new samples.
 */
export function countToHold(share, taught, held, n) {
  const least = taught ? 0 : Math.min(n, 2); // novelty is calibrated only on classes taught with two or more samples
  return Math.max(0, Math.min(n - least, Math.floor(share * (taught + held + n) + 1e-9) - held));
}

/** Divide samples into requests. Those of one request share an idempotency key, so that it counts only once. */
export function divideIntoRequests(samples, atOnce) {
  const taught = samples.filter((sample) => !sample.held);
  let key = "";
  taught.forEach((sample, i) => {
    if (i % atOnce === 0) key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    sample.waiting = { key, error: "" };
  });
  // Held-out samples belong to the last request; without one, they need no request.
  for (const sample of samples) if (sample.held) sample.waiting = { key: key || "held", error: "" };
}

/** Return samples as the body of a request, with further fields: settings for "send". */
export function bodyOf(kind, samples, fields = {}) {
  if (kind === "images") {
    const form = new FormData();
    samples.forEach((sample, i) => form.append("images", sample.blob, `${i}.jpg`));
    for (const [name, value] of Object.entries(fields)) {
      for (const entry of [value].flat()) form.append(name, entry);
    }
    return { body: form };
  }
  const key = kind === "texts" ? "texts" : "rows";
  return { json: { [key]: samples.map((sample) => sample.text ?? sample.row), ...fields } };
}

/** Return the body of a request that teaches or unlearns samples, with a note for the timeline. */
export function lessonOf(kind, samples, labels) {
  return bodyOf(kind, samples, { labels, note: tally(kind, labels).slice(0, 500) });
}

/** Return a text or a row of numbers as text. */
export const wordsOf = (sample) => sample.text ?? sample.row.map((value) => Number(value.toPrecision(4))).join(", ");

/** Return typed lines as samples of a model of texts or features. Raise an error for lines that are not numbers. */
export function typedSamples(kind, typed) {
  const lines = typed.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  if (kind === "texts") return lines.map((text) => ({ text }));
  return lines.map((line, i) => {
    const row = line.split(/[\s,;]+/).filter(Boolean).map(Number);
    if (!row.every(Number.isFinite)) throw new Error(`Line ${i + 1} must be numbers separated by commas or spaces.`);
    return { row };
  });
}

const FEW = 5; // samples below which a class is not compared with others

/**
 * Return warnings about a class: from the service, few samples, or samples that all look alike.
 * @param {Object} one - The class, as in OpenModel.classes.
 * @param {Object[]} all - All classes.
 * @param {string[]} warnings - Warnings of the service after the latest change.
 */
export function worries(one, all, warnings) {
  const found = warnings.filter((text) => !/fewer than \d+ samples/.test(text)).map(sentence); // see below
  const others = all.filter((other) => other !== one && other.count).map((other) => other.count).sort((a, b) => a - b);
  const middle = others[Math.floor(others.length / 2)] ?? 0;
  if (one.count > 0 && middle >= FEW && one.count * 3 < middle) {
    found.push(`Only ${one.count}, other classes have about ${middle}. Teach more of these.`);
  }
  if (areAlike(one.taught)) found.push("These images look nearly the same. Turn or move it, or change the light.");
  return found;
}

/** Return whether samples show few things many times: at most a quarter of the latest look different. */
function areAlike(samples) {
  const looks = samples.slice(-60).map((sample) => sample.look).filter(Boolean);
  if (looks.length < FEW) return false;
  const different = [];
  for (const look of looks) if (!different.some((other) => difference(look, other) <= ALIKE)) different.push(look);
  return different.length <= looks.length / 4;
}

/** Return the samples, as a Set, that look like a taught one. They say little about the accuracy. */
export function nearCopies(samples, taught) {
  const same = (one, other) => (one.look
    ? other.look !== undefined && difference(one.look, other.look) <= ALIKE
    : other.look === undefined && wordsOf(one) === wordsOf(other));
  return new Set(samples.filter((one) => taught.some((other) => same(one, other))));
}
