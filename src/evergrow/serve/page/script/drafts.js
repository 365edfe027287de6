/* Drafts: text that is typed but not sent yet. They survive a reload, and visits to other models. */

import { tabStorage } from "./storage.js";

const keyOf = (name) => `evergrow-drafts ${name}`;

/** Return the drafts of a model: a Map of fields to texts. */
function draftsOf(name) {
  try {
    return new Map(JSON.parse(tabStorage.getItem(keyOf(name)) ?? "[]"));
  } catch { // another script of this origin wrote there
    return new Map();
  }
}

/** Store the draft of a field. An empty text removes it. */
function setDraft(model, field, text) {
  const drafts = draftsOf(model.name);
  drafts.delete(field);
  if (text) drafts.set(field, text);
  try {
    tabStorage.setItem(keyOf(model.name), JSON.stringify([...drafts]));
  } catch { /* no room: the text is only in the field */ }
}

/**
 * Keep the text of a field in this tab until the field is emptied.
 * @param {HTMLTextAreaElement} box - The field.
 * @param {OpenModel} model - The model that the text is meant for.
 * @param {string} field - Name of the field, unique within the model.
 */
export function keepDraft(box, model, field) {
  box.value = draftsOf(model.name).get(field) ?? "";
  box.addEventListener("input", () => setDraft(model, field, box.value));
}

/** Empty a field after its text was used. */
export function clearDraft(box, model, field) {
  box.value = "";
  setDraft(model, field, "");
}

/** Move the draft of a field to another field, unless that has a draft. */
export function moveDraft(model, from, to) {
  const drafts = draftsOf(model.name);
  if (!drafts.has(from) || drafts.has(to)) return;
  setDraft(model, to, drafts.get(from));
  setDraft(model, from, "");
}

/** Remove all drafts of a model. */
export function dropDrafts(name) {
  tabStorage.removeItem(keyOf(name));
}
