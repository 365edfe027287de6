/* Unlabelled samples: suggest which to label next, group unknown ones, learn them without labels. */

import { ask } from "./api.js";
import { action, fill, make, plural } from "./dom.js";
import { meantName, openWindow } from "./dialogs.js";
import { attempt, confirmDone } from "./notice.js";
import { bodyOf, changesThatHold, countOf } from "./samples.js";

const SHOWN = 12; // images shown of a group

/** Return the words of a button that groups unknown samples, of which at most so many are grouped at once. */
export function groupWords(n, most) {
  return n > most ? `Group ${most} of ${n.toLocaleString("en")} unknown ones` : `Group the ${n} unknown ones`;
}

/** Maximum number of samples per request. */
export const MOST = 500;

/** Return the ids of suggested samples of the queue, the most useful first, without near-duplicates. */
export async function suggested(model, samples) {
  const asked = samples.slice(0, MOST);
  const { order } = await ask(`${model.path}/suggest`, bodyOf(model.kind, asked, { n: asked.length }));
  return order.map((i) => asked[i].id);
}

/** Learn samples as their predicted class, as one change. */
export async function learnUnlabelled(model, samples) {
  const answer = await ask(`${model.path}/learn-unlabelled`, {
    ...bodyOf(model.kind, samples), once: crypto.randomUUID?.(),
  });
  await model.follow(answer);
  const rest = samples.length - answer.change.samples;
  const left = rest ? ` ${rest} more were not learned: they look unknown or are copies.` : "";
  confirmDone(`Learned from ${countOf(model.kind, answer.change.samples)} without labels.${left}`);
}

/** Return whether the model still has samples that it learned without labels. */
export function hasGuesses(history) {
  return changesThatHold(history).findLast(({ what }) => what.endsWith("unlabelled"))?.what === "unlabelled";
}

/** Unlearn everything that was learned without labels. */
export async function forgetUnlabelled(model) {
  const settings = { json: {}, match: model.record.etag, once: crypto.randomUUID?.() };
  await model.follow(await ask(`${model.path}/forget-unlabelled`, settings));
  confirmDone("Forgotten. The model now knows labelled examples only.");
}

/**
 * Show groups of similar unknown samples in a window. A group that gets a name is learned as a class.
 * @param {OpenModel} model - The model.
 * @param {Array<{content: Object, isUnknown: boolean, look: function(): HTMLElement}>} things - Unknown samples, and
 *   some known ones, whose similarity within a class sets how similar the samples of a group must be.
 * @param {function(number[], string): Promise} learn - Teaches samples, by their indices, under a name.
 */
export async function openGroups(model, things, learn) {
  const asked = things.slice(0, MOST);
  const unknown = [...asked.keys()].filter((i) => asked[i].isUnknown); // also those moved to Unknown
  const contents = asked.map(({ content }) => content);
  const { groups } = await ask(`${model.path}/groups`, bodyOf(model.kind, contents, { unknown }));
  const place = make("div.stack");
  const dialog = openWindow("Unknown ones that look alike", [make("p.soft", {}, groups.length
    ? "Give a group a name, and it is learned as a class. The most typical ones come first."
    : "No groups found: too few images look alike."), place], { wide: true });
  fill(place, groups.map((members, i) => groupForm(members, i, asked, model, learn)));
  place.querySelector("input")?.focus();
  return dialog;
}

/** Return a group with a form to name it. */
function groupForm(members, i, asked, model, learn) {
  const problems = make("div.problems");
  const name = make("input", {
    required: true, maxLength: 200, autocomplete: "off", placeholder: "What are these?", list: "known-classes",
    aria: { label: `Name of group ${i + 1}` },
  });
  const button = make("button.primary", { type: "submit" }, `Teach ${members.length}`);
  button.setAttribute("aria-label", `Teach ${members.length}, group ${i + 1}`);
  const thumbs = make("ul.thumbs");
  const show = (n) => fill(thumbs, members.slice(0, n).map((at) => make("li.thumb", {}, asked[at].look())));
  const more = members.length > SHOWN && action((event) => {
    show(members.length);
    event.currentTarget.remove();
  }, `Show all ${members.length}`);
  if (more) more.classList.add("link");
  show(SHOWN);
  const form = make("form.group-form", { aria: { label: `Group ${i + 1}` }, on: { submit: async (event) => {
    event.preventDefault();
    const wanted = await meantName(model.classes, name.value.trim());
    if (!wanted) return;
    button.disabled = true;
    const done = await attempt(problems, () => learn(members, wanted));
    button.disabled = false;
    if (done) fill(form, make("p", { role: "status" }, `Learned ${plural(members.length, "example")} of ${wanted}.`));
  } } }, thumbs, more, make("div.row", {}, name, button), problems);
  return form;
}
