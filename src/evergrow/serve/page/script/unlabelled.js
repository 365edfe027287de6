/* Things without labels, learned as what they look like. */

import { ask } from "./api.js";
import { confirmDone } from "./notice.js";
import { bodyOf, changesThatHold, countOf } from "./samples.js";

/** How many things are learned at once. */
export const MOST = 500;

/** Learn samples as what they look like, as one change. */
export async function learnUnlabelled(model, samples) {
  const answer = await ask(`${model.path}/learn-unlabelled`, {
    ...bodyOf(model.kind, samples), once: crypto.randomUUID?.(),
  });
  await model.follow(answer);
  const rest = samples.length - answer.change.samples;
  const left = rest ? ` ${rest} more look unknown, or are copies.` : "";
  confirmDone(`Learned from ${countOf(model.kind, answer.change.samples)} without labels.${left}`);
}

/** Whether the model holds anything that it learned without labels. */
export function hasGuesses(history) {
  return changesThatHold(history).findLast(({ what }) => what.endsWith("unlabelled"))?.what === "unlabelled";
}

/** Take out everything that was learned without labels. */
export async function forgetUnlabelled(model) {
  const settings = { json: {}, match: model.record.etag, once: crypto.randomUUID?.() };
  await model.follow(await ask(`${model.path}/forget-unlabelled`, settings));
  confirmDone("Forgotten: only what has a label counts again.");
}
