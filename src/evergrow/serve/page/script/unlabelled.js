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
  const list = make("div.stack");
  const dialog = openWindow("Unknown ones that look alike", [make("p.soft", {}, groups.length
    ? "Click what does not belong to its group, then name the group: it is learned as a class. The most typical ones "
      + "come first."
    : "No groups found: too few images look alike."), list], { wide: true });
  fill(list, groups.map((members, i) => new GroupForm(members, i + 1, asked, model, learn).element));
  list.querySelector("input")?.focus();
  return dialog;
}

/** A group of similar samples, from which some can be left out, with a form to name it. */
class GroupForm {
  /**
   * @param {number[]} members - Indices of the samples of the group.
   * @param {number} number - Number of the group.
   * @param {Array} things - All samples, as in openGroups.
   * @param {OpenModel} model - The model.
   * @param {function(number[], string): Promise} learn - As in openGroups.
   */
  constructor(members, number, things, model, learn) {
    Object.assign(this, { members, number, things, model, learn, leftOut: new Set() });
    this.problems = make("div.problems");
    this.name = make("input", {
      required: true, maxLength: 200, autocomplete: "off", placeholder: "What are these?", list: "known-classes",
      aria: { label: `Name of group ${number}` },
    });
    this.button = make("button.primary", { type: "submit" });
    this.thumbs = make("ul.thumbs");
    const more = members.length > SHOWN && action((event) => {
      this.show(members.length);
      event.currentTarget.remove();
    }, `Show all ${members.length}`);
    if (more) more.classList.add("link");
    this.show(SHOWN);
    this.element = make("form.group-form", {
      aria: { label: `Group ${number}` },
      on: {
        submit: (event) => {
          event.preventDefault();
          void this.teach();
        },
      },
    }, this.thumbs, more, make("div.row", {}, this.name, this.button), this.problems);
    this.update();
  }

  /** Show the first n samples. */
  show(n) {
    fill(this.thumbs, this.members.slice(0, n).map((index, i) => make("li.thumb", {}, this.picker(index, i + 1))));
  }

  /** Return the image of a sample as a button that leaves the sample out, or takes it in again. */
  picker(index, place) {
    const words = `Leave out number ${place} of group ${this.number}: `;
    const isOut = () => String(this.leftOut.has(index));
    const button = make("button.picker", {
      type: "button", title: "Leave it out, or take it in again", aria: { pressed: isOut() },
    }, make("span.unseen", {}, words), this.things[index].look());
    button.addEventListener("click", () => {
      if (!this.leftOut.delete(index)) this.leftOut.add(index);
      button.setAttribute("aria-pressed", isOut());
      this.update();
    });
    return button;
  }

  get chosen() { return this.members.filter((index) => !this.leftOut.has(index)); }

  update() {
    const n = this.chosen.length;
    this.button.textContent = `Teach ${n}`;
    this.button.setAttribute("aria-label", `Teach ${n}, group ${this.number}`);
    this.button.disabled = n === 0;
  }

  /** Teach the samples that are not left out. */
  async teach() {
    const { chosen } = this;
    const wanted = await meantName(this.model.classes, this.name.value.trim());
    if (!wanted || !chosen.length) return;
    this.button.disabled = true;
    const done = await attempt(this.problems, () => this.learn(chosen, wanted));
    this.button.disabled = false;
    if (!done) return;
    const rest = this.leftOut.size ? ` ${this.leftOut.size} left out.` : "";
    const words = `Learned ${plural(chosen.length, "example")} of ${wanted}.${rest}`;
    fill(this.element, make("p", { role: "status" }, words));
  }
}
