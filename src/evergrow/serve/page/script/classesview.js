/* The classes of a model as cards, with a toolbar above, and samples that are no longer in the model below. */

import { action, fill, icon, iconButton, make, plural } from "./dom.js";
import { ClassCard } from "./classcard.js";
import { meantName } from "./dialogs.js";
import { moveDraft } from "./drafts.js";
import { importImages } from "./importing.js";
import { chooser, fromTransfer, imagesIn } from "./inputs.js";
import { attempt } from "./notice.js";
import { countOf, folded, lastLabel } from "./samples.js";
import { Suspects } from "./suspects.js";
import { thumb } from "./thumbs.js";

const MANY = 6; // number of classes up to which no search field is shown
const ORDERS = {
  own: ["As added", () => 0],
  name: ["By name", (one, other) => one.name.localeCompare(other.name, "en", { numeric: true })],
  most: ["Most first", (one, other) => other.count - one.count],
  fewest: ["Fewest first", (one, other) => one.count - other.count],
};

export class ClassesView {
  constructor(model) {
    Object.assign(this, { model, cards: new Map(), shown: false });
    this.problems = make("div.problems");
    this.list = make("div.cards");
    this.tray = make("section.tray", { aria: { label: "Kept but not in the model" }, hidden: true });
    this.none = this.nothingYet();
    this.suspects = new Suspects(model);
    this.bar = make("div.toolbar", { role: "group", aria: { label: "Classes" } }, this.addForm(), this.importButtons(),
      this.suspects.button, this.finder());
    this.hint = make("p.hint", {}, model.kind === "images"
      ? "Drop a folder with one folder per class, or a zip of it, anywhere on this page. Images without a folder go to "
        + "Review. The images you see here are kept in this browser only; the model keeps none."
      : "Every line is one example; Ctrl+Enter teaches it. What you see here is kept in this browser only.");
    this.element = make("div.board", {}, this.bar, this.problems, this.suspects.element, this.none, this.list,
      this.hint, this.tray);
    model.addEventListener("change", () => this.update());
    document.addEventListener("paste", (event) => this.paste(event), { signal: model.signal });
    this.update();
  }

  update() {
    const { classes } = this.model;
    const names = new Set(classes.map((one) => one.name));
    for (const [name, card] of this.cards) {
      if (!names.has(name)) {
        this.passOnDraft(name);
        card.element.remove();
        this.cards.delete(name);
      }
    }
    const wanted = folded(this.search.value);
    const order = [...classes].sort(ORDERS[this.order.value][1]);
    order.forEach((one, i) => {
      if (!this.cards.has(one.name)) this.cards.set(one.name, new ClassCard(this.model, one.name));
      const card = this.cards.get(one.name);
      if (this.list.children[i] !== card.element) {
        this.list.insertBefore(card.element, this.list.children[i] ?? null);
      }
      card.element.hidden = !folded(one.name).includes(wanted);
      card.update(one, classes);
    });
    this.none.hidden = classes.length > 0;
    this.find.hidden = classes.length <= MANY;
    this.folding.textContent = this.allCollapsed ? "Expand all" : "Collapse all";
    const found = order.filter((one) => folded(one.name).includes(wanted)).length;
    this.found.textContent = wanted ? `${found} of ${plural(classes.length, "class", "classes")}` : "";
    this.showTray();
  }

  /** Move the draft of a renamed class to the card of its new name. */
  passOnDraft(name) {
    const change = this.model.record.history.findLast(({ names }) => names && Object.hasOwn(names, name));
    if (change && change.names[name] !== name) {
      moveDraft(this.model, this.cards.get(name).draft, `class ${change.names[name]}`);
    }
  }

  // -- what is always in reach -------------------------------------------------------------------------------------

  addForm() {
    const name = make("input", {
      required: true, maxLength: 200, autocomplete: "off", placeholder: "New class",
      aria: { label: "Name of a new class" },
    });
    const problems = make("div.problems");
    return make("form.adding", {
      on: {
        submit: async (event) => {
          event.preventDefault();
          const typed = name.value.trim();
          const wanted = typed && await meantName(this.model.classes, typed);
          if (!wanted) return;
          const known = this.cards.has(wanted) && wanted !== typed; // the user meant an existing class
          if (!known && !(await attempt(problems, () => this.model.addClass(wanted)))) return;
          name.value = "";
          this.search.value = "";
          this.update();
          const { element } = this.cards.get(wanted);
          element.scrollIntoView({ block: "center" });
          element.querySelector(".ways button, .ways textarea")?.focus({ preventScroll: true });
        },
      },
    }, name, make("button", { type: "submit" }, icon("plus"), "Add a class"), problems);
  }

  importButtons() {
    if (this.model.kind !== "images") return null;
    const take = (coming) => this.take(coming);
    const folder = chooser({ webkitdirectory: true, id: "import-folder" }, take);
    const zip = chooser({ accept: ".zip", id: "import-zip" }, take);
    return make("div.row.importing", {}, iconButton("folder", "Import a folder", () => folder.click()), folder,
      iconButton("upload", "Import a zip", () => zip.click()), zip);
  }

  /** Return the search field and the order of the cards. */
  finder() {
    this.search = make("input", {
      type: "search", placeholder: "Find", aria: { label: "Find a class" }, on: { input: () => this.update() },
    });
    this.order = make("select", { aria: { label: "Order of the classes" }, on: { change: () => this.update() } },
      Object.entries(ORDERS).map(([value, [words]]) => make("option", { value }, words)));
    this.found = make("span.soft", { role: "status" });
    this.find = make("div.row.finding", { hidden: true }, this.search, this.order,
      this.folding = action(() => this.collapseAll(!this.allCollapsed), "Collapse all"), this.found);
    return this.find;
  }

  get allCollapsed() { return this.model.classes.every(({ name }) => this.model.settings.collapsed.includes(name)); }

  collapseAll(away) {
    for (const card of this.cards.values()) card.collapse(away, { kept: true });
    this.model.setCollapsed([...this.cards.keys()], away);
    this.folding.textContent = away ? "Expand all" : "Collapse all";
  }

  nothingYet() {
    const ways = this.model.kind === "images" ? [
      "Name a class above, then hold its button to record it from the camera, or choose or drop files on it.",
      "Import a folder with one folder per class, or a zip of it: by the buttons above, or drop it anywhere.",
      "Drop images without names: they go to Review, where you label them one by one.",
    ] : ["Name a class above, then type or paste examples of it, one per line.", "Drop a text file on a class."];
    return make("section.ways-in", {}, make("h2.small", {}, "No class yet. How to begin:"),
      make("ul", {}, ways.map((words) => make("li", {}, words))));
  }

  /** Show samples that are no longer in the model. */
  showTray() {
    const { aside } = this.model;
    this.tray.hidden = !aside.length;
    const key = aside.map((one) => one.id).join();
    if (this.tray.dataset.key === key) return;
    this.tray.dataset.key = key;
    const problems = make("div.problems");
    const labels = [...new Set(aside.map(lastLabel))];
    const listed = `${labels.slice(0, 3).join(", ")}${labels.length > 3 ? "…" : ""}`;
    const n = countOf(this.model.kind, aside.length);
    const about = `${n} of ${listed}, no longer in the model, kept in this browser only.`;
    fill(this.tray, make("header", {}, make("div", {}, make("h2.small", {}, "Set aside"), make("p.soft", {}, about)),
      make("div.actions", {},
        action(() => void attempt(problems, () => this.model.teachAgain([...aside])), "Teach again"),
        action(() => void attempt(problems, () => this.model.remove([...aside])), "Discard"))),
    problems, make("ul.thumbs", {}, aside.slice(0, 12).map((sample) => thumb(sample, lastLabel(sample)))));
  }

  // -- folders, zips and pasting -----------------------------------------------------------------------------------

  /** Teach dropped or chosen images. Each folder is a class. */
  take(coming) {
    return attempt(this.problems, async () => importImages(this.model, imagesIn(await coming), this.problems));
  }

  paste(event) {
    const active = document.activeElement;
    const name = active?.closest?.(".card")?.dataset.name;
    const typing = active?.matches?.("input, textarea");
    const files = event.clipboardData.files.length > 0;
    if (typing && !files) return; // let the browser insert the text
    if (!name || !this.cards.has(name)) return;
    event.preventDefault();
    void this.cards.get(name).take(fromTransfer(event.clipboardData));
  }
}
