/* All classes of the model as cards, a place to add one, and what is kept but not in the model. */

import { action, fill, icon, make, plural } from "./dom.js";
import { ClassCard } from "./classcard.js";
import { fromTransfer } from "./intake.js";
import { attempt } from "./notice.js";
import { readImages } from "./reading.js";
import { lastLabel } from "./samples.js";
import { thumb } from "./thumbs.js";
import { teachZip } from "./jobs.js";

const UNPACKED_HERE = 400; // images of a zip that the browser unpacks itself, so that they show as thumbnails

export class ClassesView {
  constructor(model) {
    Object.assign(this, { model, cards: new Map(), shown: false });
    this.problems = make("div.problems");
    this.list = make("div.cards");
    this.tray = make("section.tray", { aria: { label: "Kept but not in the model" }, hidden: true });
    this.adding = this.addForm();
    this.hint = make("p.hint", {}, model.kind === "images"
      ? "Drop a folder with one folder per class, or a zip of it, anywhere here. Images without a folder go to Review."
      : "Every line is a sample. Ctrl+Enter teaches it.");
    this.element = make("div.board", {}, this.problems, this.list, this.hint, this.tray);
    model.addEventListener("change", () => this.update());
    this.listen();
    this.update();
  }

  update() {
    const { classes } = this.model;
    const names = new Set(classes.map((one) => one.name));
    for (const [name, card] of this.cards) {
      if (!names.has(name)) {
        card.element.remove();
        this.cards.delete(name);
      }
    }
    classes.forEach((one, i) => {
      if (!this.cards.has(one.name)) this.cards.set(one.name, new ClassCard(this.model, one.name));
      const { element } = this.cards.get(one.name);
      if (this.list.children[i] !== element) this.list.insertBefore(element, this.list.children[i] ?? null);
      this.cards.get(one.name).update(one, classes);
    });
    if (this.list.lastElementChild !== this.adding) this.list.append(this.adding);
    this.showTray();
  }

  addForm() {
    const name = make("input", {
      required: true, maxLength: 200, autocomplete: "off", placeholder: "Class name",
      aria: { label: "Name of a new class" },
    });
    const problems = make("div.problems");
    return make("form.card.adding", {
      on: {
        submit: async (event) => {
          event.preventDefault();
          const wanted = name.value.trim();
          if (!wanted) return;
          const done = await attempt(problems, () => this.model.addClass(wanted));
          if (done) {
            name.value = "";
            this.cards.get(wanted)?.element.querySelector(".ways button, .ways textarea")?.focus();
          }
        },
      },
    }, make("label", {}, make("h3", {}, "Add a class"), name),
    make("button", { type: "submit" }, icon("plus"), "Add"), problems);
  }

  showTray() {
    const { aside } = this.model;
    this.tray.hidden = !aside.length;
    const key = aside.map((one) => one.id).join();
    if (this.tray.dataset.key === key) return;
    this.tray.dataset.key = key;
    const problems = make("div.problems");
    const labels = [...new Set(aside.map(lastLabel))];
    const listed = `${labels.slice(0, 3).join(", ")}${labels.length > 3 ? "…" : ""}`;
    const about = `${plural(aside.length, "sample")} of ${listed}, no longer in the model, kept in this browser only.`;
    fill(this.tray, make("header", {}, make("div", {}, make("h3", {}, "Set aside"), make("p.soft", {}, about)),
      make("div.actions", {},
        action(() => void attempt(problems, () => this.model.teachAgain([...aside])), "Teach again"),
        action(() => void attempt(problems, () => this.model.remove([...aside])), "Discard"))),
    problems, make("ul.thumbs", {}, aside.slice(0, 12).map((sample) => thumb(sample, lastLabel(sample)))));
  }

  // -- folders, zips and pasting -----------------------------------------------------------------------------------

  listen() {
    const { element } = this;
    element.addEventListener("dragover", () => element.classList.add("over"));
    element.addEventListener("dragleave", (event) => {
      if (!element.contains(event.relatedTarget)) element.classList.remove("over");
    });
    element.addEventListener("drop", (event) => {
      element.classList.remove("over");
      void attempt(this.problems, () => this.takeFolders(fromTransfer(event.dataTransfer)));
    });
    document.addEventListener("paste", (event) => this.paste(event), { signal: this.model.signal });
  }

  paste(event) {
    const active = document.activeElement;
    const name = active?.closest?.(".card")?.dataset.name;
    const typing = active?.matches?.("input, textarea");
    const files = event.clipboardData.files.length > 0;
    if (typing && !files) return; // text goes where the cursor is
    if (!name || !this.cards.has(name)) return;
    event.preventDefault();
    void this.cards.get(name).take(fromTransfer(event.clipboardData));
  }

  async takeFolders(coming) {
    const { images, zips } = await coming;
    const large = zips.filter((zip) => zip.size > UNPACKED_HERE);
    const here = images.filter((image) => !large.some((zip) => zip.file === image.zip));
    if (!here.length && !large.length) throw new Error("No image found.");
    for (const zip of large) await teachZip(this.model, zip.file, this.problems);
    const named = here.filter((image) => image.folder);
    const loose = here.filter((image) => !image.folder);
    const progress = make("p.progress");
    if (here.length) this.problems.append(progress);
    const told = (done, total) => { progress.textContent = `Reading ${done} of ${total}…`; };
    const labelled = ({ content, folder }) => ({ label: folder, content });
    await readImages(named, (ready) => this.model.add(ready.map(labelled)), told);
    await readImages(loose, (ready) => this.model.enqueue(ready.map(({ content }) => content)), told);
    progress.remove();
  }
}
