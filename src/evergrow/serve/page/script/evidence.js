/* Where a prediction comes from: the image with coloured evidence, or the words of a text with their weights. */

import { ask } from "./api.js";
import { action, announce, fill, make } from "./dom.js";
import { attempt } from "./notice.js";
import { bodyOf } from "./samples.js";

/** Return whether the predictions of a model can be explained: it has two classes, and samples with parts. */
export const isExplainable = (model) =>
  model.kind !== "features" && model.classes.filter((one) => one.count).length > 1;

/**
 * Return a button for each question about a prediction. A second press shows the sample again.
 * @param {OpenModel} model - The model.
 * @param {HTMLElement} place - Element with the sample, which the evidence replaces while it is shown.
 * @param {function(): Promise} contentOf - Returns the sample as content of a request.
 * @param {string[]} names - The most likely classes: "Why the first", and "why the first, not the second".
 * @returns {HTMLElement} The buttons, below which problems are shown.
 */
export function whyButtons(model, place, contentOf, names) {
  const problems = make("div.problems");
  const [why, rival] = names;
  const before = [...place.childNodes];
  const buttons = [];
  const press = (button, against) => attempt(problems, async () => {
    const isShown = button.getAttribute("aria-pressed") === "true";
    for (const one of buttons) one.setAttribute("aria-pressed", "false");
    if (isShown) {
      fill(place, before);
      return;
    }
    button.disabled = true;
    try {
      const found = await explained(model, await contentOf(), why, against);
      fill(place, evidenceOf(found));
      button.setAttribute("aria-pressed", "true");
      announce(`Evidence for ${why} is shown.`);
    } finally {
      button.disabled = false;
    }
  });
  const questions = [[`Why ${why}?`, null]];
  if (rival) questions.push([`Why not ${rival}?`, rival]);
  for (const [words, against] of questions) {
    const button = action(() => press(button, against), words);
    button.setAttribute("aria-pressed", "false");
    buttons.push(button);
  }
  return make("div.why", {}, make("div.questions", {}, buttons), problems);
}

/** Return the evidence for a class of one sample, against another class or all others. */
function explained(model, content, why, against) {
  const fields = against ? { why, against } : { why };
  return ask(`${model.path}/explain`, bodyOf(model.kind, [content], fields));
}

/** Return an element that shows evidence. */
function evidenceOf({ label, against, picture, words }) {
  const describe = against ? `Evidence for ${label} and not ${against}` : `Evidence for ${label}`;
  if (picture) return make("img.evidence", { src: `data:image/png;base64,${picture}`, alt: describe });
  const marked = words.map(({ word, evidence }) => {
    const mark = make("mark", { title: evidence.toFixed(2) }, word);
    mark.style.setProperty("--weight", String(Math.max(0, evidence)));
    return [mark, " "];
  });
  return make("span.said.evidence", { role: "img", aria: { label: describe } }, marked);
}
