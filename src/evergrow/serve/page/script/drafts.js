/* Text that is typed but not sent yet: it survives a reload and a look at another model. */

import { tabStorage } from "./storage.js";

const keyOf = (model, field) => `evergrow-draft ${JSON.stringify([model.name, field])}`;

/**
 * Keep the text of a field in this tab until the field is emptied.
 * @param {HTMLTextAreaElement} box - The field.
 * @param {OpenModel} model - The model that the text is meant for.
 * @param {string} field - Name of the field, unique within the model.
 */
export function keepDraft(box, model, field) {
  box.value = tabStorage.getItem(keyOf(model, field)) ?? "";
  box.addEventListener("input", () => setDraft(model, field, box.value));
}

/** Replace the draft of a field; the empty text removes it. */
export function setDraft(model, field, text) {
  try {
    if (text) tabStorage.setItem(keyOf(model, field), text);
    else tabStorage.removeItem(keyOf(model, field));
  } catch { /* the text is longer than the storage has room for: it stays in the field */ }
}

/** Empty a field after its text was used. */
export function clearDraft(box, model, field) {
  box.value = "";
  setDraft(model, field, "");
}

/** Move the draft of one field to another that has none. */
export function moveDraft(model, from, to) {
  const text = tabStorage.getItem(keyOf(model, from));
  if (!text || tabStorage.getItem(keyOf(model, to))) return;
  setDraft(model, to, text);
  setDraft(model, from, "");
}
