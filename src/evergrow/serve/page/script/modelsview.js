/* The list of models: open, create or upload one, or create one from a folder. */

import { ask } from "./api.js";
import { brought } from "./importing.js";
import { bringsFiles, chooser, fromTransfer, imagesIn } from "./inputs.js";
import { phoneButton } from "./phone.js";
import { deleteModel } from "./deleting.js";
import { askToRemove } from "./sortkeeping.js";
import { dropSorted, sortedCounts, sortedOf } from "./store.js";
import { fill, icon, iconButton, make, plural } from "./dom.js";
import { askFor, field } from "./dialogs.js";
import { attempt } from "./notice.js";
import { countOf } from "./samples.js";
import { showTour, tourButton } from "./tour.js";

const MODEL = /\.evg$/i;
const KINDS = {
  images: { icon: "image", title: "Images", about: "From the camera, files or folders" },
  texts: { icon: "text", title: "Texts", about: "Sentences, typed or pasted" },
  features: { icon: "rows", title: "Numbers", about: "Rows of numbers that you computed" },
};

/** Show the list of models. */
export async function showModels(main) {
  const { models, read_only: readOnly } = await ask("/models");
  const problems = make("div.problems");
  const entries = models.map((model) => entry(model, main, readOnly));
  const list = entries.length ? make("ul.models", {}, entries) : nothingYet();
  const take = (file) => attempt(problems, () => upload(file));
  const begin = (coming) => attempt(problems, async () => createFrom(imagesIn(await coming)));
  const actions = readOnly ? make("p.soft", {}, "Read only") : make("div.actions", {},
    iconButton("plus", "New model", () => void createModel(), { kind: ".primary" }), fromFolder(begin),
    uploadButton(take));
  fill(main, make("section.page", { aria: { labelledby: "models-title" } },
    make("div.heading", {}, make("div", {}, make("h1", { id: "models-title" }, "Models"),
      make("p.soft", {}, "Show a few examples to teach a class. Teach more, or undo, at any time.")), actions),
    problems, list, await leftFromSort(models), make("div.row.aside", {}, tourButton(), phoneButton())));
  // Files that are dropped here create a model. The list listens only while it is shown.
  const view = main.firstElementChild;
  const drop = (event) => {
    if (!view.isConnected) removeEventListener("drop", drop);
    else if (!readOnly && bringsFiles(event)) {
      const model = [...event.dataTransfer.files].find((file) => MODEL.test(file.name));
      void (model ? take(model) : begin(fromTransfer(event.dataTransfer)));
    }
  };
  addEventListener("drop", drop);
  showTour();
}

/** Return a note about images in this browser that were sorted with models that the service does not have. */
async function leftFromSort(models) {
  const names = new Set(models.map(({ name }) => name));
  const gone = [...await sortedCounts()].filter(([name]) => !names.has(name));
  return gone.map(([name, n]) => {
    const line = make("div.notice.mild", {}, icon("warning"),
      make("p", {}, `This browser keeps ${plural(n, "image")} from sorting with “${name}”, which is not here.`),
      iconButton("close", "Remove them", () => void discardLeft(name, line)));
    return line;
  });
}

/** Remove the images of a missing model from this browser. */
async function discardLeft(name, line) {
  const records = await sortedOf(name);
  askToRemove(records.length, records.filter(({ moved }) => moved).length, async () => {
    await dropSorted(records.map(({ key }) => key));
    line.remove();
  });
}

/** Create a model from a folder with class folders, or from a zip of it. */
async function createFrom(images) {
  const path = images[0].name.split("/");
  await createModel(path.length > 2 ? path[0] : "", images);
}

function fromFolder(begin) {
  const folder = chooser({ webkitdirectory: true, id: "begin-folder" }, begin);
  return [iconButton("folder", "From a folder", () => folder.click()), folder];
}

/** Return a model as an entry of the list. */
function entry(model, main, readOnly) {
  const damaged = model.state === "damaged";
  const classes = plural(model.n_classes, "class", "classes");
  const counts = damaged ? "" : `${classes} · ${countOf(model.kind, model.n_samples)}`;
  const inside = [
    make("span.badge", {}, icon(KINDS[model.kind]?.icon ?? "warning")),
    make("span.words", {}, make("strong", {}, model.name),
      make("span.soft", {}, damaged ? `Cannot be read: ${model.error}` : counts)),
    model.state === "starting" && make("span.soft", {}, "Empty"),
  ];
  const remove = damaged && !readOnly && iconButton("bin", `Delete ${model.name}`,
    () => deleteModel(model.name, { done: () => void showModels(main) }), { quiet: true });
  return make("li", {}, damaged ? make("div.tile", {}, inside, remove)
    : make("a.tile", { href: `#/m/${encodeURIComponent(model.name)}` }, inside));
}

function nothingYet() {
  return make("section.models.ways-in", {}, make("h2.small", {}, "No model yet. How to begin:"), make("ul", {},
    make("li", {}, "New model: name two classes, and show them to the camera, as files or as sentences."),
    make("li", {}, "From a folder: one folder of images per class. You can also drop it, or a zip of it, here."),
    make("li", {}, "Upload: a model file (.evg) from somebody else. You can also drop it here.")));
}

function uploadButton(take) {
  const chosen = () => {
    const [file] = input.files;
    input.value = "";
    if (file) void take(file);
  };
  const input = make("input", { type: "file", accept: ".evg", hidden: true, on: { change: chosen } });
  return [iconButton("upload", "Upload", () => input.click()), input];
}

/** Upload a model file and open the model. */
async function upload(file) {
  const name = file.name.replace(MODEL, "");
  await ask(`/models/upload?name=${encodeURIComponent(name)}`, { body: file, type: "application/octet-stream" });
  location.hash = `#/m/${encodeURIComponent(name)}`;
}

/**
 * Ask for a name and create a model.
 * @param {string} wanted - Suggested name.
 * @param {Array|null} images - Images to teach it first.
 */
async function createModel(wanted = "", images = null) {
  const name = make("input", {
    required: true, maxLength: 64, autocomplete: "off", placeholder: "My birds", value: wanted,
  });
  const choices = Object.entries(KINDS).map(([value, kind], i) => make("label.choice", {},
    make("input", { type: "radio", name: "kind", value, checked: i === 0, on: { change: () => offer(value) } }),
    icon(kind.icon), make("span", {}, make("strong", {}, kind.title), make("span.soft", {}, kind.about))));
  const backbone = make("select");
  const backboneField = make("details", {}, make("summary", {}, "More choices"), field("Network", backbone,
    "What turns images or sentences into numbers. Teaching never changes it."));
  let offered = [];
  function offer(kind) {
    const fitting = offered.filter((one) => one.kind === kind);
    fill(backbone, make("option", { value: "auto" }, "Automatic: the strongest installed"),
      fitting.map((one) => make("option", { value: one.name }, `${one.name} (${one.about})`)));
    backboneField.hidden = kind === "features";
  }
  askFor({
    title: images ? `New model from ${plural(images.length, "image")}` : "New model",
    fields: [
      field("Name", name), make("fieldset.choices", { hidden: images !== null },
        make("legend", {}, "It learns"), choices), backboneField,
    ],
    verb: "Create",
    work: async (form) => {
      const kind = new FormData(form).get("kind");
      const made = await ask("/models", { json: { name: name.value.trim(), kind, backbone: backbone.value } });
      brought.images = images;
      location.hash = `#/m/${encodeURIComponent(made.name)}`;
    },
  });
  offer("images");
  name.focus();
  offered = (await ask("/backbones").catch(() => ({ backbones: [] }))).backbones;
  offer(document.querySelector("dialog input[name=kind]:checked")?.value ?? "images");
}
