/* Download the model, copy examples of its use, or delete it. */

import { download, modelPath } from "./api.js";
import { deleteModel } from "./deleting.js";
import { fill, icon, iconButton, make } from "./dom.js";
import { attempt, confirmDone } from "./notice.js";
import { forSnippets, SNIPPETS } from "./snippets.js";

const FORMS = { command: "Command", python: "Python", curl: "curl" };

export class ShareView {
  constructor(model) {
    Object.assign(this, { model, shown: false });
    this.files = make("div.problems");
    this.task = make("select", { id: "task", on: { change: () => this.update() } },
      Object.entries(SNIPPETS).map(([value, { title }]) => make("option", { value }, title)));
    this.codes = make("div.codes");
    const graph = model.kind === "texts" ? "export.onnx?head_only=true" : "export.onnx"; // ONNX graphs cannot take text
    const saving = (route, ending) => (event) => this.save(event.currentTarget, route, ending);
    this.evg = iconButton("download", "Model file (.evg)", saving("download", ".evg"));
    this.onnx = iconButton("download", "For other programs (.onnx)", saving(graph, ".onnx"));
    this.about = make("p.soft");
    this.deleting = make("section", {}, make("h2", {}, "Delete it"),
      make("p.soft", {}, "Permanently, with its whole timeline."),
      make("div.row", {}, iconButton("bin", "Delete this model", () => this.deleteIt(), { kind: ".danger-text" })));
    this.element = make("div.stack.share", {}, make("section", {}, make("h2", {}, "Download"), this.about,
      make("div.row", {}, this.evg, this.onnx), this.files),
    make("section", {}, make("h2", {}, "Use it in programs"),
      make("div.field.inline", {}, make("label", { htmlFor: "task" }, "What to do"), this.task), this.codes),
    this.deleting);
    model.addEventListener("change", () => this.update());
    this.update();
  }

  update() {
    const { isReady, record, kind } = this.model;
    this.deleting.hidden = Boolean(this.model.readOnly);
    this.evg.disabled = this.onnx.disabled = !isReady;
    const network = record.backbone ? ` It uses the network ${record.backbone.name}.` : "";
    const graph = kind === "texts" ? " The file for other programs takes feature vectors of sentences, not text." : "";
    this.about.textContent = !isReady ? "You can download the model once it has a class."
      : `The whole model, without any of the ${kind === "features" ? "rows" : kind} it was taught.${network}${graph}`;
    const texts = SNIPPETS[this.task.value].of(forSnippets(this.model));
    const key = JSON.stringify(texts);
    if (this.codes.dataset.key === key) return;
    this.codes.dataset.key = key;
    fill(this.codes, Object.entries(FORMS).map(([form, title]) => make("figure.code", { data: { form } },
      make("figcaption", {}, title, make("button", {
        type: "button", aria: { label: `Copy as ${title}` }, on: { click: () => void this.copy(texts[form]) },
      }, icon("copy"), "Copy")),
      make("pre", { tabIndex: 0 }, make("code", {}, texts[form])))));
  }

  deleteIt() {
    const { model } = this;
    deleteModel(model.name, {
      etag: model.record.etag, reload: () => model.refresh(), done: () => { model.close(); location.hash = "#/"; },
    });
  }

  async copy(text) {
    await attempt(this.files, async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        throw new Error("The browser does not allow copying. Select the lines and copy them by hand.");
      }
      confirmDone("Copied.");
    });
  }

  /** Download a file of the model. */
  async save(button, route, ending) {
    button.disabled = true;
    button.classList.add("busy");
    await attempt(this.files, () => download(`${modelPath(this.model.name)}/${route}`, this.model.name + ending));
    button.classList.remove("busy");
    button.disabled = false;
  }
}
