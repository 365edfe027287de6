/* All models: open one, make one, or bring one. */

import { ask } from "./api.js";
import { deleteModel } from "./deleting.js";
import { fill, icon, iconButton, make, plural } from "./dom.js";
import { askFor, field } from "./dialogs.js";
import { attempt } from "./notice.js";

const KINDS = {
  images: { icon: "image", title: "Images", about: "From the camera, files or folders" },
  texts: { icon: "text", title: "Texts", about: "Sentences, typed or pasted" },
  features: { icon: "rows", title: "Features", about: "Rows of numbers that you computed" },
};

/** Show the list of models. */
export async function showModels(main) {
  const { models, read_only: readOnly } = await ask("/models");
  const problems = make("div.problems");
  const entries = models.map((model) => entry(model, main, readOnly));
  const list = entries.length ? make("ul.models", {}, entries) : nothingYet();
  const actions = readOnly ? make("p.soft", {}, "Read only") : make("div.actions", {}, uploadButton(problems),
    iconButton("plus", "New model", createModel, { kind: ".primary" }));
  fill(main, make("section.page", { aria: { labelledby: "models-title" } },
    make("div.heading", {}, make("div", {}, make("h1", { id: "models-title" }, "Models"),
      make("p.soft", {}, "Show a few examples to teach a class. Teach more, or undo, at any time.")), actions),
    problems, list));
}

function entry(model, main, readOnly) {
  const damaged = model.state === "damaged";
  const counts = `${plural(model.n_classes, "class", "classes")} · ${plural(model.n_samples, "sample")}`;
  const inside = [
    make("span.badge", {}, icon(KINDS[model.kind]?.icon ?? "warning")),
    make("span.words", {}, make("strong", {}, model.name),
      make("span.soft", {}, damaged ? `Cannot be read: ${model.error}` : counts)),
    !damaged && make("span.soft.revision", {},
      model.state === "starting" ? "Just begun" : `Revision ${model.revision}`),
  ];
  const remove = damaged && !readOnly && iconButton("bin", `Delete ${model.name}`,
    () => deleteModel(model.name, { done: () => void showModels(main) }), { quiet: true });
  return make("li", {}, damaged ? make("div.tile", {}, inside, remove)
    : make("a.tile", { href: `#/m/${encodeURIComponent(model.name)}` }, inside));
}

function nothingYet() {
  return make("div.models.empty", {}, make("p", {}, "No model yet."),
    make("p.soft", {}, "Make a model, name two classes, and hold a button while you show them to the camera."));
}

function uploadButton(problems) {
  const input = make("input", { type: "file", accept: ".evg", hidden: true, on: { change: () => upload() } });
  async function upload() {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    await attempt(problems, async () => {
      const name = file.name.replace(/\.evg$/i, "");
      await ask(`/models/upload?name=${encodeURIComponent(name)}`, { body: file, type: "application/octet-stream" });
      location.hash = `#/m/${encodeURIComponent(name)}`;
    });
  }
  return [iconButton("upload", "Upload", () => input.click()), input];
}

async function createModel() {
  const name = make("input", { required: true, maxLength: 64, autocomplete: "off", placeholder: "birds" });
  const choices = Object.entries(KINDS).map(([value, kind], i) => make("label.choice", {},
    make("input", { type: "radio", name: "kind", value, checked: i === 0, on: { change: () => offer(value) } }),
    icon(kind.icon), make("span", {}, make("strong", {}, kind.title), make("span.soft", {}, kind.about))));
  const backbone = make("select");
  const backboneField = field("Backbone", backbone,
    "The network that turns samples into numbers. Teaching never changes it.");
  let offered = [];
  function offer(kind) {
    const fitting = offered.filter((one) => one.kind === kind);
    fill(backbone, make("option", { value: "auto" }, "Automatic: the strongest installed"),
      fitting.map((one) => make("option", { value: one.name }, `${one.name} (${one.about})`)));
    backboneField.hidden = kind === "features";
  }
  askFor({
    title: "New model",
    fields: [
      field("Name", name), make("fieldset.choices", {}, make("legend", {}, "It learns"), choices), backboneField,
    ],
    verb: "Create",
    work: async (form) => {
      const kind = new FormData(form).get("kind");
      const made = await ask("/models", { json: { name: name.value.trim(), kind, backbone: backbone.value } });
      location.hash = `#/m/${encodeURIComponent(made.name)}`;
    },
  });
  offer("images");
  name.focus();
  offered = (await ask("/backbones").catch(() => ({ backbones: [] }))).backbones;
  offer(document.querySelector("dialog input[name=kind]:checked")?.value ?? "images");
}
