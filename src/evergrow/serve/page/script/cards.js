/* The cards of the classes of a model, with the samples that are stored in this browser. */

import { countToHold, labelling } from "./samples.js";

/**
 * Divide samples among the cards of their classes. Samples that are in the model again become visible.
 * @param {Object} record - The description of the model by the service.
 * @param {Object} settings - Settings of the model, see store.js. "empty" lists only classes that are not in the model.
 * @param {Array} samples - All samples in this browser.
 * @returns {{classes: Array, aside: Array, queue: Array}} Cards as { name, count, taught, held, waiting }, samples that
 *   are no longer in the model, and samples without a label.
 */
export function cardsOf(record, settings, samples) {
  const labelOf = labelling(record);
  const counts = new Map(record.classes.map((one) => [one.name, one.samples]));
  const cards = new Map();
  const card = (name) => {
    if (!cards.has(name)) cards.set(name, { name, count: counts.get(name) ?? 0, taught: [], held: [], waiting: [] });
    return cards.get(name);
  };
  for (const name of orderedNames(record, settings, counts)) card(name);
  const aside = [];
  const queue = [];
  for (const sample of samples) {
    const label = labelOf(sample);
    if (sample.queued) queue.push(sample);
    else if (sample.waiting) card(label).waiting.push(sample);
    else if (label !== null && counts.has(label)) {
      sample.hidden = false;
      card(label)[sample.held ? "held" : "taught"].push(sample);
    } else if (!sample.hidden && !sample.keptId) aside.push(sample);
  }
  return { classes: [...cards.values()], aside, queue };
}

/** Return the names of all cards: in their stored order, then new classes as they were added, then empty cards. */
function orderedNames({ history }, { order, empty }, counts) {
  const added = new Map(history.flatMap(({ classes }) => classes).reverse().map((name, i) => [name, -i]));
  const known = [...counts.keys()].sort((one, other) => added.get(one) - added.get(other));
  return [...new Set([...order, ...known, ...empty])].filter((name) => counts.has(name) || empty.includes(name));
}

/**
 * Mark some of the new samples of each class as held out.
 * @param {Array} samples - New samples.
 * @param {Array} classes - Cards, which tell how many samples of each class are taught and held out so far.
 * @param {number} share - Fraction to hold out.
 */
export function holdOut(samples, classes, share) {
  for (const label of new Set(samples.map((sample) => sample.wanted))) {
    const members = samples.filter((sample) => sample.wanted === label);
    const card = classes.find((one) => one.name === label);
    const { taught, held, waiting } = card ?? { taught: [], held: [], waiting: [] };
    const heldSoon = waiting.filter((one) => one.held).length;
    const taughtSoon = waiting.length - heldSoon;
    const n = countToHold(share, taught.length + taughtSoon, held.length + heldSoon, members.length);
    // The last frames of a recording differ most from its first ones.
    if (n) for (const sample of members.slice(-n)) sample.held = true;
  }
}
