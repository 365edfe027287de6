/* Sorting many images by what they show: a few are read and asked about at a time, and only answers are remembered. */

import { pauseAfter } from "./api.js";
import { contentOf } from "./reading.js";
import { isUnknown, nearestOf, presentEvent } from "./samples.js";

const AT_ONCE = 24; // images in one question
const LANES = 2; // questions on their way: at most so many images are unpacked at the same moment

export const UNKNOWN = "unknown";
export const UNSURE = "unsure";
export const UNREADABLE = "unreadable";

/** Return the group of a class; special groups have names that no class group has. */
export const groupOf = (name) => `class:${name}`;

/** Return the class of a group; null for what is unknown, unsure or unreadable. */
export const classOf = (group) => (group.startsWith("class:") ? group.slice(6) : null);

/**
 * Ask about images and note the answers in them.
 * @param {OpenModel} model - What is asked.
 * @param {Array} items - As itemOf makes them.
 * @param {function(Array)} onProgress - Called after every answer with the items that were asked about.
 * @param {AbortSignal} signal - Ends it.
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
      const told = await model.predict(readable.map(({ content }) => content), { signal });
      readable.forEach(({ item }, i) => note(model, item, told, i));
      return;
    } catch (problem) {
      if (!["busy", "offline"].includes(problem.kind)) throw problem;
      await pauseAfter(problem, tries);
    }
  }
}

function note(model, item, { answers, measure, revision }, i) {
  const answer = answers[i];
  Object.assign(item, {
    done: true, error: "", label: nearestOf(answer), unknown: isUnknown(answer), revision,
    value: measure === "probability" ? answer.top?.[0]?.value ?? null : null,
    event: presentEvent(model.record, null), // when the names in it were current
  });
}

/**
 * Return an image as it is sorted. moved is the group that people put it into; sample is what was taught of it; key is
 * its place in this browser's store, none while it is not kept.
 */
export function itemOf(image, id) {
  return {
    image, id, done: false, error: "", label: "", value: null, unknown: false, moved: null, taught: false,
    sample: null, revision: null, event: null, key: null,
  };
}

/** Return the group of an item where answers below a probability are unsure. */
export function placeOf(item, least) {
  if (item.moved) return item.moved;
  if (item.error) return UNREADABLE;
  if (item.unknown) return UNKNOWN;
  return item.value !== null && item.value < least ? UNSURE : groupOf(item.label);
}

/** Return what became of a correction. */
function stateOf({ taught, sample }) {
  if (!taught) return "Corrected";
  if (!sample?.waiting) return "Taught";
  return sample.waiting.error ? "Not taught" : "Waiting";
}

/** Return the answer about an item in few words; what is unknown has no percentage. */
export function answerOf(item, place) {
  if (item.moved) return stateOf(item);
  if (item.error) return item.error;
  if (item.unknown) return `Like ${item.label}?`;
  const sure = item.value === null ? "" : `${Math.floor(100 * item.value)} %`; // 79.6 is not the 80 that was asked for
  return place === UNSURE ? `${sure} ${item.label}?` : sure;
}

// -- out again -------------------------------------------------------------------------------------------------------

/** Return the table of everything that was sorted, with the columns that the command writes. */
export function tableOf(items, least) {
  const cell = (text) => {
    const plain = String(text).replace(/[\u0000-\u001f\u007f]/g, " ");
    const safe = /^[=+\-@]/.test(plain) ? `'${plain}` : plain; // which no spreadsheet takes for a formula
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

/** Return a name as near to this one as a folder or a file may have on every system. */
export function fileName(name) {
  const plain = name.normalize("NFC").replace(/[\p{C}<>:"/\\|?*]/gu, "_").trim().replace(/^[.\-~ ]/, "_")
    .slice(0, 120).replace(/[. ]+$/, "") || "_";
  return /^(con|prn|aux|nul|com\d|lpt\d)$/i.test(plain.split(".")[0]) ? `_${plain}` : plain;
}

/** Return where every image goes in a zip of folders; no two are the same where case does not count. */
export function pathsOf(items, least) {
  const taken = new Set();
  const free = (wanted, ending = "") => {
    let path = wanted + ending;
    for (let n = 2; taken.has(path.toLowerCase()); n += 1) path = `${wanted} (${n})${ending}`;
    taken.add(path.toLowerCase());
    return path;
  };
  const folders = new Map([UNKNOWN, UNSURE].map((group) => [group, free(group)])); // these names are theirs
  return items.filter((item) => item.done && placeOf(item, least) !== UNREADABLE).map((item) => {
    const place = placeOf(item, least);
    if (!folders.has(place)) folders.set(place, free(fileName(classOf(place))));
    const [, stem, ending = ""] = fileName(item.image.name.split("/").pop()).match(/^(.*?)(\.[^.]*)?$/s);
    return { path: free(`${folders.get(place)}/${stem}`, ending), packed: item.image.packed };
  });
}
