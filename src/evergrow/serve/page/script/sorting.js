/* Sort many images by their predicted class. A few are read at a time; only predictions stay in memory. */

import { pauseAfter } from "./api.js";
import { contentOf } from "./reading.js";
import { isUnknown, nearestOf, presentEvent } from "./samples.js";

const AT_ONCE = 24; // images per request
const LANES = 2; // requests at the same time, which limits the images that are unpacked in memory

export const UNKNOWN = "unknown";
export const UNSURE = "unsure";
export const UNREADABLE = "unreadable";

/** Return the group of a class. Its name differs from the names of the special groups. */
export const groupOf = (name) => `class:${name}`;

/** Return the class of a group; null for the groups of unknown, unsure and unreadable images. */
export const classOf = (group) => (group.startsWith("class:") ? group.slice(6) : null);

/**
 * Predict images and store the predictions in their items.
 * @param {OpenModel} model - The model.
 * @param {Array} items - Items as returned by itemOf.
 * @param {function(Array)} onProgress - Called with the items of each request that was answered.
 * @param {AbortSignal} signal - Stops it.
 */
export async function askAbout(model, items, onProgress, signal) {
  let next = 0;
  async function lane() {
    while (next < items.length && !signal.aborted) {
      const part = items.slice(next, next + AT_ONCE);
      next += part.length;
      await askAboutSome(model, part, signal);
      onProgress(part);
    }
  }
  await Promise.all(Array.from({ length: LANES }, lane));
}

/** Predict the items of one request. */
async function askAboutSome(model, part, signal) {
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
      const response = await model.predict(readable.map(({ content }) => content), { signal });
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
    done: true, error: "", label: nearestOf(answer), unknown: isUnknown(answer), revision,
    value: measure === "probability" ? answer.top?.[0]?.value ?? null : null,
    event: presentEvent(model.record, null), // the change after which its names were current
  });
}

/**
 * Return an image as an item. moved: group to which the user moved it. sample: sample that was taught. key: key in the
 * store of this browser, null if it is not stored.
 */
export function itemOf(image, id) {
  return {
    image, id, done: false, error: "", label: "", value: null, unknown: false, moved: null, taught: false,
    sample: null, revision: null, event: null, key: null,
  };
}

/** Return the group of an item. Predictions below a probability are unsure. */
export function placeOf(item, least) {
  if (item.moved) return item.moved;
  if (item.error) return UNREADABLE;
  if (item.unknown) return UNKNOWN;
  return item.value !== null && item.value < least ? UNSURE : groupOf(item.label);
}

/** Return the state of a correction in words. */
function stateOf({ taught, sample }) {
  if (!taught) return "Corrected";
  if (!sample?.waiting) return "Taught";
  return sample.waiting.error ? "Not taught" : "Waiting";
}

/** Return the prediction of an item in a few words. Unknown images have no percentage. */
export function answerOf(item, place) {
  if (item.moved) return stateOf(item);
  if (item.error) return item.error;
  if (item.unknown) return `Like ${item.label}?`;
  // Rounded down, so that 79.6 is not shown as the 80 that would be sure.
  const sure = item.value === null ? "" : `${Math.floor(100 * item.value)} %`;
  return place === UNSURE ? `${sure} ${item.label}?` : sure;
}

// -- out again -------------------------------------------------------------------------------------------------------

/** Return a CSV table of all items, with the columns of the command "sort". */
export function tableOf(items, least) {
  const cell = (text) => {
    const plain = String(text).replace(/[\u0000-\u001f\u007f]/g, " ");
    const safe = /^[=+\-@]/.test(plain) ? `'${plain}` : plain; // otherwise spreadsheets take it for a formula
    return /[",']/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = items.filter((item) => item.done).map((item) => {
    const place = placeOf(item, least);
    const answer = item.moved ? classOf(place) ?? "" : item.unknown || item.error ? "" : item.label;
    const sure = item.moved || item.unknown || item.error || item.value === null ? "" : item.value.toFixed(4);
    const how = item.moved ? "corrected" : item.error ? item.error : "";
    return [item.image.name, answer, sure, classOf(place) ?? place, how].map(cell).join(",");
  });
  return new Blob([`file,answer,probability,place,note\r\n${rows.map((row) => `${row}\r\n`).join("")}`],
    { type: "text/csv" });
}

/** Return a similar name that is valid for files and folders on every system. */
export function fileName(name) {
  const plain = name.normalize("NFC").replace(/[\p{C}<>:"/\\|?*]/gu, "_").trim().replace(/^[.\-~ ]/, "_")
    .slice(0, 120).replace(/[. ]+$/, "") || "_";
  return /^(con|prn|aux|nul|com\d|lpt\d)$/i.test(plain.split(".")[0]) ? `_${plain}` : plain;
}

/** Return the path of every image in a zip of folders. Paths are different also without regard to case. */
export function pathsOf(items, least) {
  const taken = new Set();
  const free = (wanted, ending = "") => {
    let path = wanted + ending;
    for (let n = 2; taken.has(path.toLowerCase()); n += 1) path = `${wanted} (${n})${ending}`;
    taken.add(path.toLowerCase());
    return path;
  };
  const folders = new Map([UNKNOWN, UNSURE].map((group) => [group, free(group)])); // they get these names
  return items.filter((item) => item.done && placeOf(item, least) !== UNREADABLE).map((item) => {
    const place = placeOf(item, least);
    if (!folders.has(place)) folders.set(place, free(fileName(classOf(place))));
    const [, stem, ending = ""] = fileName(item.image.name.split("/").pop()).match(/^(.*?)(\.[^.]*)?$/s);
    return { path: free(`${folders.get(place)}/${stem}`, ending), packed: item.image.packed };
  });
}
