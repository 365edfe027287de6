/* Sort many images by their predicted class. A few are read at a time; only predictions stay in memory. */

import { pauseAfter } from "./api.js";
import { contentOf } from "./reading.js";
import { isUnknown, nearestOf, presentEvent } from "./samples.js";
import { isDoubtful, isUnfamiliar } from "./strictness.js";

const AT_ONCE = 24; // images per request
const COVERAGE = 0.95; // fraction of images whose set of classes has their class
const MOST_NAMED = 3; // number of classes of a set that are named
const LANES = 2; // requests at the same time, which limits the images that are unpacked in memory

export const UNKNOWN = "unknown";
export const UNSURE = "unsure";
export const UNREADABLE = "unreadable";

/** Return the group of a class. Its name differs from the names of the special groups. */
export const groupOfClass = (name) => `class:${name}`;

/** Return the class of a group; null for the groups of unknown, unsure and unreadable images. */
export const classOfGroup = (group) => (group.startsWith("class:") ? group.slice(6) : null);

/**
 * Predict images and store the predictions in their items.
 * @param {OpenModel} model - The model.
 * @param {Array} items - Items as returned by itemOf.
 * @param {function(Array)} onProgress - Called with the items of each request that was answered.
 * @param {AbortSignal} signal - Stops it.
 */
export async function predictItems(model, items, onProgress, signal) {
  let next = 0;
  async function lane() {
    while (next < items.length && !signal.aborted) {
      const part = items.slice(next, next + AT_ONCE);
      next += part.length;
      await predictPart(model, part, signal);
      onProgress(part);
    }
  }
  await Promise.all(Array.from({ length: LANES }, lane));
}

/** Predict the items of one request. */
async function predictPart(model, part, signal) {
  const readable = [];
  for (const item of part) {
    if (signal.aborted) return;
    try {
      readable.push({ item, content: await contentOf(item.image) });
    } catch (error) {
      if (error.kind === "offline" || error.kind === "busy") throw error;
      Object.assign(item, { done: true, error: error.message });
    }
  }
  for (let tries = 0; readable.length && !signal.aborted; tries += 1) {
    try {
      const contents = readable.map(({ content }) => content);
      const response = await model.predict(contents, { signal, coverage: COVERAGE });
      readable.forEach(({ item }, i) => note(model, item, response, i));
      return;
    } catch (problem) {
      if (!["busy", "offline"].includes(problem.kind)) throw problem;
      await pauseAfter(problem, tries);
    }
  }
}

/** Store prediction i of a response in an item. */
function note(model, item, { answers, measure, revision }, i) {
  const answer = answers[i];
  Object.assign(item, {
    done: true,
    error: "",
    label: nearestOf(answer),
    unknown: isUnknown(answer),
    value: measure === "probability" ? answer.top?.[0]?.value ?? null : null,
    novelty: answer.novelty ?? null,
    familiarity: answer.familiarity ?? null,
    candidates: answer.set ?? null,
    revision,
    event: presentEvent(model.record, null), // the change after which its names were current
  });
}

/** Prediction of an item before there is any. */
export const NO_PREDICTION = {
  done: false, error: "", label: "", value: null, novelty: null, familiarity: null, unknown: false, revision: null,
  event: null, candidates: null,
};

/**
 * Return an image as an item. moved: group to which the user moved it. sample: sample that was taught. key: key in the
 * store of this browser, null if it is not stored. familiarity: fraction of known images that are at least as novel.
 * candidates: the classes that the image may show, most likely first; null if the model cannot tell.
 */
export function itemOf(image, id) {
  return { image, id, ...NO_PREDICTION, moved: null, taught: false, sample: null, key: null };
}

/** Return the group of an item. Predictions outside of the limits (see strictness.js) are unsure. */
export function groupOf(item, limits) {
  if (item.moved) return item.moved;
  if (item.error) return UNREADABLE;
  if (item.unknown) return UNKNOWN;
  return isUnfamiliar(item, limits) || isDoubtful(item, limits) ? UNSURE : groupOfClass(item.label);
}

/** Compare two items of a group: corrected ones first, then the least familiar, then the least certain. */
export function byUrgency(one, other) {
  return Number(!one.moved) - Number(!other.moved)
    || (one.familiarity ?? 1) - (other.familiarity ?? 1)
    || (other.novelty ?? 0) - (one.novelty ?? 0)
    || (one.value ?? 0) - (other.value ?? 0);
}

// -- in words --------------------------------------------------------------------------------------------------------

/** Return the state of an image that the user moved. */
function stateOf({ taught, sample, done, unknown, label, moved }) {
  const isConfirmed = done && moved === (unknown ? UNKNOWN : groupOfClass(label));
  if (!taught) return isConfirmed ? "Confirmed" : "Corrected";
  if (!sample?.waiting) return "Taught";
  return sample.waiting.error ? "Not taught" : "Waiting";
}

/** Return a probability in percent, rounded down so that 79.6 is not shown as the 80 that would be certain. */
const percentOf = ({ value }) => (value === null ? "" : `${Math.floor(100 * value)} %`);

/** Return what the model had said about a corrected image. */
function formerAnswer(item) {
  if (!item.done || !item.label) return "";
  return item.unknown ? "The model said: unknown" : `The model said: ${item.label} ${percentOf(item)}`.trim();
}

/** Return the classes that an image may show as a question. Return "" if there is only one, or if there are none. */
function candidatesInWords({ candidates }) {
  if (!candidates || candidates.length < 2) return "";
  const named = candidates.slice(0, MOST_NAMED);
  if (candidates.length > MOST_NAMED) return `One of ${candidates.length}: ${named.join(", ")}…`;
  return `${named.slice(0, -1).join(", ")} or ${named.at(-1)}?`;
}

/** Return the prediction of an item in a few words. Unknown and unfamiliar images have no percentage. */
export function answerOf(item, limits) {
  if (item.moved) return [stateOf(item), formerAnswer(item)].filter(Boolean).join(". ");
  if (item.error) return item.error;
  if (item.unknown) return `Like ${item.label}?`;
  if (isDoubtful(item, limits)) return candidatesInWords(item) || `${percentOf(item)} ${item.label}?`;
  return isUnfamiliar(item, limits) ? `${item.label}? Unfamiliar` : percentOf(item);
}

// -- files -----------------------------------------------------------------------------------------------------------

/** Return a text as a cell of a CSV table. */
function cellOf(text) {
  const plain = String(text).replace(/[\u0000-\u001f\u007f]/g, " ");
  const safe = /^[=+\-@]/.test(plain) ? `'${plain}` : plain; // otherwise spreadsheets take it for a formula
  return /[",']/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Return an item as a line of the table. Only images that have a predicted class have a probability. */
function lineOf(item, limits) {
  const group = groupOf(item, limits);
  const isPredicted = !item.moved && !item.unknown && !item.error;
  const probability = isPredicted && item.value !== null ? item.value.toFixed(4) : "";
  const novelty = item.novelty === null || item.error ? "" : Number(item.novelty.toPrecision(6));
  const name = item.moved ? classOfGroup(group) ?? "" : isPredicted && item.label || "";
  const note = item.moved ? "corrected" : item.error;
  const destination = classOfGroup(group) ?? group;
  return [item.image.name, name, probability, destination, note, novelty].map(cellOf).join(",");
}

/** Return a CSV table of all items. */
export function tableOf(items, limits) {
  const lines = items.filter((item) => item.done).map((item) => `${lineOf(item, limits)}\r\n`);
  return new Blob([`file,answer,probability,destination,note,novelty\r\n${lines.join("")}`], { type: "text/csv" });
}

/** Return a similar name that is valid for files and folders on every system. */
export function fileName(name) {
  const plain = name.normalize("NFC").replace(/[\p{C}<>:"/\\|?*]/gu, "_").trim().replace(/^[.\-~ ]/, "_")
    .slice(0, 120).replace(/[. ]+$/, "") || "_";
  return /^(con|prn|aux|nul|com\d|lpt\d)$/i.test(plain.split(".")[0]) ? `_${plain}` : plain;
}

/** Return the path of every image in a zip of folders. Paths are different also without regard to case. */
export function pathsOf(items, limits) {
  const taken = new Set();
  const free = (wanted, ending = "") => {
    let path = wanted + ending;
    for (let n = 2; taken.has(path.toLowerCase()); n += 1) path = `${wanted} (${n})${ending}`;
    taken.add(path.toLowerCase());
    return path;
  };
  const folders = new Map([UNKNOWN, UNSURE].map((group) => [group, free(group)])); // they get these names
  return items.filter((item) => item.done && groupOf(item, limits) !== UNREADABLE).map((item) => {
    const group = groupOf(item, limits);
    if (!folders.has(group)) folders.set(group, free(fileName(classOfGroup(group))));
    const [, stem, ending = ""] = fileName(item.image.name.split("/").pop()).match(/^(.*?)(\.[^.]*)?$/s);
    return { path: free(`${folders.get(group)}/${stem}`, ending), packed: item.image.packed };
  });
}
