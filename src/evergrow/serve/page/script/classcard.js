/* The card of a class: its samples, and buttons to add more. */

import { action, fill, iconButton, icon, make } from "./dom.js";
import { clearDraft, keepDraft } from "./drafts.js";
import { askFor, field, meantName, openMenu } from "./dialogs.js";
import { attempt, confirmDone, showProblem } from "./notice.js";
import { importImages } from "./importing.js";
import { bringsFiles, chooser, fromTransfer, IMAGES_AND_ZIPS, imagesIn } from "./inputs.js";
import { holdButton } from "./recording.js";
import { countOf, typedSamples, worries } from "./samples.js";
import { thumb } from "./thumbs.js";

const SHOWN = 11; // thumbnails until "show all" is pressed

export class ClassCard {
  constructor(model, name) {
    Object.assign(this, { model, name, all: false });
    this.title = make("h2.small", { title: name }, name);
    this.count = make("p.soft.numbers");
    this.status = make("p.progress", { hidden: true });
    this.problems = make("div.problems");
    this.worries = make("ul.worries");
    this.thumbs = make("ul.thumbs", { aria: { label: `${name}, as taught from this browser` } });
    this.tests = make("p.hint", { hidden: true });
    this.more = make("button.link", { type: "button", hidden: true, on: { click: () => this.showAll(!this.all) } });
    this.fold = iconButton("fold", "", () => this.collapse(!this.body.hidden), { quiet: true });
    const openIt = (event) => openMenu(event.currentTarget, this.menu());
    const menu = iconButton("more", `More about ${name}`, openIt, { quiet: true });
    menu.setAttribute("aria-haspopup", "menu");
    this.body = make("div.body", {}, make("div.ways", {}, this.ways()), this.worries, this.thumbs, this.more,
      this.tests);
    this.element = make("article.card", { aria: { label: `Class ${name}` }, data: { name } },
      make("header", {}, make("div", {}, this.title, this.count), make("div.heads", {}, this.fold, menu)),
      this.status, this.problems, this.body);
    this.listenForDrops();
    this.collapse(model.settings.collapsed.includes(name), { kept: true });
  }

  /** Collapse or expand the card. */
  collapse(away, { kept = false } = {}) {
    this.body.hidden = away;
    this.element.classList.toggle("collapsed", away);
    const words = `${away ? "Expand" : "Collapse"} ${this.name}`;
    this.fold.title = words;
    this.fold.setAttribute("aria-label", words);
    this.fold.setAttribute("aria-expanded", String(!away));
    if (!kept) this.model.setCollapsed([this.name], away);
  }

  /** Show the current state of the class. */
  update(card, others) {
    Object.assign(this, { card, others });
    const held = card.held.length + card.waiting.filter((one) => one.held).length;
    const where = card.count || card.waiting.length ? "" : " · the empty class is in this browser only";
    this.count.textContent = countOf(this.model.kind, card.count) + (held ? ` · ${held} for testing` : where);
    this.tests.hidden = !held;
    this.tests.textContent = `Dashed: ${held === 1 ? "one is" : `${held} are`} set aside for testing and never taught.`;
    const coming = card.waiting.filter((one) => !one.held && !one.waiting.error).length;
    this.status.hidden = !coming;
    this.status.textContent = coming ? (this.model.sending ? `Learning ${coming}…` : `${coming} waiting`) : "";
    this.showRefused(card.waiting.filter((one) => one.waiting.error));
    const warnings = worries(card, others, this.model.warnings.get(this.name) ?? []);
    fill(this.worries, warnings.map((text) => make("li", {}, icon("warning"), text)));
    this.showThumbs([...card.waiting, ...card.taught, ...card.held].sort((a, b) => b.at - a.at || b.id - a.id));
  }

  showAll(all) {
    this.all = all;
    this.update(this.card, this.others);
  }

  showThumbs(samples) {
    const shown = this.all ? samples : samples.slice(0, this.model.kind === "images" ? SHOWN : 5);
    const key = shown.map((one) => `${one.id}${one.held}${Boolean(one.waiting)}`).join();
    this.more.hidden = samples.length <= shown.length && !this.all;
    this.more.textContent = this.all ? `Show fewer of ${this.name}` : `Show all ${samples.length} of ${this.name}`;
    if (this.thumbs.dataset.key === key) return; // unchanged, so the focus is not lost
    this.thumbs.dataset.key = key;
    fill(this.thumbs, shown.map((sample, i) => thumb(sample, `${this.name} ${samples.length - i}`, [{
      icon: "close",
      words: sample.held || sample.waiting ? "Remove" : "Delete and unlearn",
      work: (button) => this.remove(sample, button),
    }])));
  }

  /** Show samples that the service refused, with a button to try again. */
  showRefused(refused) {
    const key = refused.map((one) => one.id).join();
    if ((this.problems.dataset.key ?? "") === key) return;
    this.problems.dataset.key = key;
    if (!refused.length) { // no sample is refused any more
      fill(this.problems);
      return;
    }
    const and = (work) => () => { fill(this.problems); void work(); };
    fill(this.problems, make("div.notice", { role: "alert" }, icon("warning"),
      make("p", {}, `${countOf(this.model.kind, refused.length)} could not be taught. ${refused[0].waiting.error}`),
      action(and(() => this.model.retry(refused)), "Try again"),
      action(and(() => this.model.remove(refused)), "Discard")));
  }

  async remove(sample, button) {
    button.disabled = true;
    const done = await attempt(this.problems, async () => {
      const { held, waiting } = sample;
      await this.model.remove([sample]);
      confirmDone(held || waiting ? "Removed from this browser." : "Unlearned, as if it had never been taught.");
      this.thumbs.querySelector("button")?.focus();
    });
    if (!done) button.disabled = false;
  }

  // -- ways to show more -------------------------------------------------------------------------------------------

  /** Return the buttons or the field to add samples. */
  ways() {
    if (this.model.kind !== "images") return [this.typing()];
    const files = chooser({ multiple: true, accept: IMAGES_AND_ZIPS }, (coming) => this.take(coming));
    const choose = iconButton("folder", "Files", () => files.click());
    choose.setAttribute("aria-label", `Choose files of ${this.name}`);
    return [holdButton(this.name, {
      onFrame: (n) => { this.status.hidden = false; this.status.textContent = `${n} from the camera…`; },
      onEnd: (frames) => void attempt(this.problems, () => this.teach(frames)),
      onProblem: (error) => showProblem(this.problems, error),
    }), choose, files];
  }

  teach(contents) {
    return this.model.add(contents.map((content) => ({ label: this.name, content })));
  }

  typing() {
    const rows = this.model.kind === "features";
    const box = make("textarea", {
      rows: 2, placeholder: rows ? "0.1, 0.7, 0.2" : "One sentence per line",
      aria: { label: `${rows ? "Rows of numbers" : "Sentences"} of ${this.name}, one per line` },
    });
    keepDraft(box, this.model, this.draft);
    return make("form.typing", {
      on: {
        submit: (event) => {
          event.preventDefault();
          void this.takeText(box.value).then((done) => { if (done) clearDraft(box, this.model, this.draft); });
        },
        keydown: (event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
        },
      },
    }, box, make("button", { type: "submit", aria: { label: `Teach ${this.name}` } }, "Teach"));
  }

  /** Name of the draft of text that is typed but not taught. */
  get draft() { return `class ${this.name}`; }

  /** Append text to the field. */
  takeText(text) {
    return attempt(this.problems, async () => {
      const contents = typedSamples(this.model.kind, text);
      if (contents.length) await this.teach(contents);
    });
  }

  /** Teach dropped, pasted or chosen samples. */
  async take(coming) {
    const done = await attempt(this.problems, async () => {
      const brought = await coming;
      if (this.model.kind !== "images") {
        const typed = brought.lines || brought.text;
        if (!typed?.trim()) throw new Error("No text found.");
        await this.takeText(typed);
        return;
      }
      await importImages(this.model, imagesIn(brought), this.element.querySelector("header > div"), this.name);
    });
    return done;
  }

  listenForDrops() {
    const { element } = this;
    element.addEventListener("dragover", (event) => {
      if (!bringsFiles(event) && this.model.kind === "images") return;
      event.preventDefault();
      event.stopPropagation();
      element.classList.add("over");
    });
    element.addEventListener("dragleave", () => element.classList.remove("over"));
    element.addEventListener("drop", (event) => {
      if (!bringsFiles(event) && this.model.kind === "images") return;
      event.preventDefault();
      event.stopPropagation();
      element.classList.remove("over");
      void this.take(fromTransfer(event.dataTransfer));
    });
  }

  // -- the class itself --------------------------------------------------------------------------------------------

  menu() {
    const others = this.others.filter((one) => one.name !== this.name && one.count);
    const folder = chooser({ webkitdirectory: true }, (coming) => this.take(coming));
    return [
      { words: "Rename", work: () => this.rename() },
      this.card.count && others.length && { words: "Merge into another class", work: () => this.merge(others) },
      this.model.kind === "images" && { words: "Add a folder", work: () => folder.click() },
      { words: "Delete class", work: () => this.forget(), danger: true },
    ].filter(Boolean);
  }

  rename() {
    const name = make("input", { required: true, maxLength: 200, value: this.name, autocomplete: "off" });
    askFor({
      title: `Rename ${this.name}`, fields: [field("New name", name)], verb: "Rename",
      text: "Only the name changes. The model answers as before.",
      work: async () => {
        const wanted = name.value.trim();
        const others = this.model.classes.filter((one) => one.name !== this.name);
        const meant = wanted !== this.name && await meantName(others, wanted);
        if (meant && others.some((one) => one.name === meant)) {
          throw new Error(`There is already a class “${meant}”. To join the two, close this and merge them.`);
        }
        if (meant) await this.model.rename(this.name, meant);
      },
      reload: () => this.model.refresh(),
    });
    name.select();
  }

  merge(others) {
    const into = make("select", {}, others.map((one) => make("option", {}, one.name)));
    askFor({
      title: `Merge ${this.name}`, fields: [field("Into", into)], verb: "Merge",
      text: "Both become one class, as if you had taught them under one name.",
      work: () => this.model.merge([this.name, into.value], into.value),
      reload: () => this.model.refresh(),
    });
  }

  forget() {
    if (!this.card.count && !this.card.waiting.length) {
      void this.model.forget(this.name);
      return;
    }
    const counted = countOf(this.model.kind, this.card.count);
    const images = this.model.kept?.on
      ? " Test images of this class on the server are removed for good: undo does not bring them back." : "";
    askFor({
      title: `Delete ${this.name}?`, verb: "Delete class", danger: true,
      text: `${counted} will be forgotten. Undo brings the class back.${images}`,
      work: () => this.model.forget(this.name),
      reload: () => this.model.refresh(),
    });
  }
}
