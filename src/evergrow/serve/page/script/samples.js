/*
 * Samples of a model as this browser knows them.
 *
 * A sample holds its bytes as they were sent (blob, text or row) and a list of events: each says under which label it
 * was after which change of the model. The model's history tells what was undone, so the label of a sample is that of
 * its last event whose change was not; undo, by whomever, needs no bookkeeping here.
 */

import { sentence } from "./api.js";
import { plural } from "./dom.js";
import { ALIKE, difference } from "./imaging.js";

const NOUNS = { images: "image", texts: "text", features: "row" };

/** Return how many samples of a kind of model, in the word people have for them: 1 image, 2 texts, 3 rows. */
export const countOf = (kind, n) => plural(n, NOUNS[kind]);

/** Return samples by their classes in words: "4 images of Horned Grebe, 2 of Mallard". */
export function tally(kind, labels) {
  const counts = new Map();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  const [first, ...rest] = [...counts].sort((one, other) => other[1] - one[1]);
  if (!first) return countOf(kind, 0);
  const more = rest.length > 3 ? ` and ${plural(rest.length - 3, "more class", "more classes")}` : "";
  const listed = rest.slice(0, 3).map(([name, n]) => `, ${n} of ${name}`).join("");
  return `${countOf(kind, first[1])} of ${first[0]}${listed}${more}`;
}

const ENOUGH = 10; // examples of each class from which percentages say something

/** Return a warning that percentages are rough because classes have few examples, or an empty text. */
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

/** Return a name without case and spaces, for comparison. */
export const folded = (name) => name.normalize("NFKC").toLowerCase().replace(/\s+/g, "");

/** Return a new sample that waits to be taught. */
export function newSample(model, content, wanted) {
  return {
    model, ...content, wanted, at: Date.now(), events: [], held: false, queued: false, hidden: false, waiting: null,
  };
}

/** Return the event that a change was to samples that are now under a label; null for no label. */
export function eventOf(answer, label) {
  const { revision, when } = answer.change;
  return { revision, when, label };
}

/** Return the event of samples that are held out while the model stays as it is. */
export function presentEvent(record, label) {
  const latest = record.history.at(-1) ?? { revision: 0, when: "" };
  return { revision: latest.revision, when: latest.when, label };
}

/** Return the changes of a history, the oldest first, that the model as it is now went through. */
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
 * Return a function from a sample to its label in the model as it is now; null where it is not in it.
 * @param {Object} record - The model as the service describes it.
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
    // Classes may have been renamed since by someone else.
    const since = renamings.filter((change) => Date.parse(change.when) > Date.parse(last.when));
    return since.reduce(newName, last.label);
  };
}

/** Return the name of a class after a change that may have renamed it. */
const newName = (name, { names }) => (names && Object.hasOwn(names, name) ? names[name] : name);

/** Raise an error if the service refused some of the samples; they wait on the cards of their classes. */
export function raiseRefused(kind, samples) {
  const refused = samples.filter(({ waiting }) => waiting?.error);
  if (!refused.length) return;
  throw new Error(`${countOf(kind, refused.length)} could not be taught, and can be tried again under Teach. `
    + sentence(refused[0].waiting.error));
}

/** Return the label that a sample which is not in the model was last taught under: undo took back what came after. */
export const lastLabel = (sample) => sample.wanted;

/**
 * Return a function from a class name to its present name.
 * @param {Object} record - The model as the service describes it.
 * @param {{revision: number, when: string}} event - The latest change when the name was current.
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

/** Return the class that an answer names, or that an unknown thing looks most like. */
export const nearestOf = ({ label, nearest, top }) => label ?? nearest?.class ?? top?.[0]?.class ?? "";

/** Whether an answer says that the sample is unknown. */
export const isUnknown = ({ unknown, label }) => unknown === true || label === null;

/**
 * Return how many of n further samples of a class are held out, so that the share of all is.
 * @param {number} taught - How many of it are in the model, from this browser.
 * @param {number} held - How many of it are held out so far.
 */
export function countToHold(share, taught, held, n) {
  const least = taught ? 0 : Math.min(n, 2); // what is unknown is calibrated on classes that came with two at least
  return Math.max(0, Math.min(n - least, Math.floor(share * (taught + held + n) + 1e-9) - held));
}

/** Return the content of samples as the service takes it, for one kind of model. */
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

/** Return samples as the service learns or unlearns them, with a note for the timeline. */
export function lessonOf(kind, samples, labels) {
  return bodyOf(kind, samples, { labels, note: tally(kind, labels).slice(0, 500) });
}

/** Return the words of a sample that has no image. */
export const wordsOf = (sample) => sample.text ?? sample.row.map((value) => Number(value.toPrecision(4))).join(", ");

/** Return what was typed as samples of a model of texts or features: one per line. */
export function typedSamples(kind, typed) {
  const lines = typed.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  if (kind === "texts") return lines.map((text) => ({ text }));
  return lines.map((line, i) => {
    const row = line.split(/[\s,;]+/).filter(Boolean).map(Number);
    if (!row.every(Number.isFinite)) throw new Error(`Line ${i + 1} must be numbers separated by commas or spaces.`);
    return { row };
  });
}

const FEW = 5;

/**
 * Return what people should know about a class beside the others: few samples, or samples that are all alike.
 * @param {string[]} told - What the service said of it after the latest change.
 */
export function worries(one, all, told) {
  const found = told.filter((text) => !/fewer than \d+ samples/.test(text)).map(sentence); // said below in other words
  const others = all.filter((other) => other !== one && other.count).map((other) => other.count).sort((a, b) => a - b);
  const middle = others[Math.floor(others.length / 2)] ?? 0;
  if (one.count > 0 && middle >= FEW && one.count * 3 < middle) {
    found.push(`Only ${one.count}, other classes have about ${middle}. Teach more of these.`);
  }
  if (areAlike(one.taught)) found.push("These images look nearly the same. Turn or move it, or change the light.");
  return found;
}

/** Return whether samples are many images of few things: less than a quarter of them look different from all others. */
function areAlike(samples) {
  const looks = samples.slice(-60).map((sample) => sample.look).filter(Boolean);
  if (looks.length < FEW) return false;
  const different = [];
  for (const look of looks) if (!different.some((other) => difference(look, other) <= ALIKE)) different.push(look);
  return different.length <= looks.length / 4;
}

/** Return those samples that look like one that was taught: they say little about the accuracy. */
export function nearCopies(samples, taught) {
  const same = (one, other) => (one.look
    ? other.look !== undefined && difference(one.look, other.look) <= ALIKE
    : other.look === undefined && wordsOf(one) === wordsOf(other));
  return new Set(samples.filter((one) => taught.some((other) => same(one, other))));
}
