/* Samples as thumbnails, or as lines of text if they are not images. */

import { icon, make } from "./dom.js";
import { wordsOf } from "./samples.js";

/** Return an element with the image of a sample, or its text. */
export function looks(sample, describe) {
  if (!sample.blob) return make("span.said", { title: wordsOf(sample) }, wordsOf(sample));
  sample.address ??= URL.createObjectURL(sample.blob);
  return make("img", { src: sample.address, alt: describe, loading: "lazy", decoding: "async", draggable: false });
}

/**
 * Return a sample as an entry of a list.
 * @param {Object} sample - The sample.
 * @param {string} describe - Description for screen readers.
 * @param {Array<{icon: string, words: string, work: function}>} actions - Buttons on it.
 */
export function thumb(sample, describe, actions = []) {
  const described = sample.held ? `${describe}, for testing` : describe;
  const picture = looks(sample, described);
  const entry = make("li.thumb", {
    title: sample.held ? "For testing: it is never taught" : null, data: { id: sample.id },
  }, sample.blob ? make("span.picture", {}, picture) : picture,
  actions.map((action) => make("button.round.small", {
    type: "button", title: action.words, aria: { label: `${action.words}: ${described}` },
    on: { click: (event) => action.work(event.currentTarget) },
  }, icon(action.icon))));
  entry.classList.toggle("line", !sample.blob);
  entry.classList.toggle("waiting", Boolean(sample.waiting));
  entry.classList.toggle("held", sample.held && !sample.waiting);
  return entry;
}
