/* Delete a model for good. Its name must be typed first. */

import { modelPath, send } from "./api.js";
import { make } from "./dom.js";
import { askFor, field } from "./dialogs.js";
import { dropDrafts } from "./drafts.js";
import { confirmDone } from "./notice.js";
import { dropModel } from "./store.js";

/**
 * Ask for the name of a model and delete the model, with its samples in this browser.
 * @param {string} name - Name of the model.
 * @param {Object} [settings] - etag: ETag that the model must still have, null for an unreadable model; done: called
 *   afterwards; reload: reads the model again if it has changed.
 */
export function deleteModel(name, { etag = null, done = () => {}, reload = null } = {}) {
  const typed = make("input", { required: true, autocomplete: "off", spellcheck: false });
  const dialog = askFor({
    title: `Delete ${name}?`,
    text: "The model, its whole timeline and its images in this browser are deleted. This cannot be undone. "
      + "Download the model file first if you may want it back.",
    fields: [field("Type the name of the model", typed)],
    verb: "Delete permanently",
    danger: true,
    reload,
    work: async () => {
      if (typed.value !== name) throw new Error(`Type “${name}” to delete it.`);
      await send(modelPath(name), { method: "DELETE", match: etag });
      await dropModel(name);
      dropDrafts(name);
      done();
      confirmDone(`${name} is deleted.`);
    },
  });
  const act = dialog.querySelector("button.danger");
  act.disabled = true;
  typed.addEventListener("input", () => { act.disabled = typed.value !== name; });
  typed.focus();
}
