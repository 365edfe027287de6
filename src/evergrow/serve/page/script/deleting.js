/* Deleting a model for good: its name is typed first, since nothing brings it back. */

import { modelPath, send } from "./api.js";
import { make } from "./dom.js";
import { askFor, field } from "./dialogs.js";
import { dropDrafts } from "./drafts.js";
import { confirmDone } from "./notice.js";
import { dropModel } from "./store.js";

/**
 * Ask for the name of a model and delete it, with what this browser keeps of it.
 * @param {string} name - The model.
 * @param {Object} [settings] - etag: of the model as it was seen, none for one that cannot be read; done: called after.
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
