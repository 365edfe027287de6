/* The view of a model: its name and tabs, and the live prediction at the side. */

import { fill, iconButton, make, plural } from "./dom.js";
import { brought } from "./importing.js";
import { bringsFiles, fromTransfer } from "./inputs.js";
import { attempt, confirmDone } from "./notice.js";
import { ClassesView } from "./classesview.js";
import { LiveView } from "./liveview.js";
import { QueueView } from "./queueview.js";
import { AccuracyView } from "./accuracyview.js";
import { SortView } from "./sortview.js";
import { inWords, TimelineView } from "./timelineview.js";
import { changesThatHold, countOf } from "./samples.js";
import { ShareView } from "./shareview.js";

export class ModelView {
  /**
   * @param {OpenModel} model - The model.
   * @param {HTMLElement} main - Element for the view.
   * @param {HTMLElement} where - Element for the name of the model.
   */
  constructor(model, main, where) {
    Object.assign(this, { model, main, where });
    this.views = {
      teach: { title: "Teach", view: new ClassesView(model) },
      ...(model.kind === "images" && { sort: { title: "Sort", view: new SortView(model) } }),
      review: { title: "Review", view: new QueueView(model) },
      accuracy: { title: "Accuracy", view: new AccuracyView(model) },
      timeline: { title: "Timeline", view: new TimelineView(model) },
      share: { title: "Download", view: new ShareView(model) },
    };
    this.live = new LiveView(model);
    this.current = "teach";
  }

  /** Build all views. They update themselves when the model changes. */
  show() {
    this.counts = make("p.soft", { id: "counts" });
    this.problems = make("div.problems");
    this.undo = iconButton("undo", "Undo", () => this.undoLast());
    this.undo.id = "undo";
    this.redo = iconButton("redo", "Redo", () => this.redoLast());
    this.redo.id = "redo";
    this.tabs = Object.entries(this.views).map(([key, { title }]) => make("button", {
      type: "button", role: "tab", id: `tab-${key}`, aria: { controls: `panel-${key}`, selected: false }, tabIndex: -1,
      on: { click: () => this.open(key) },
    }, title, make("span.count", { hidden: true })));
    this.panels = Object.entries(this.views).map(([key, { view }]) => make("section.panel", {
      role: "tabpanel", id: `panel-${key}`, aria: { labelledby: `tab-${key}` }, hidden: true, tabIndex: -1,
    }, view.element));
    const tablist = make("div.tabs", {
      role: "tablist", aria: { label: "Views" }, on: { keydown: (event) => this.moveTab(event) },
    }, this.tabs);
    const title = make("div", {}, make("h1", {}, this.model.name), this.counts);
    this.element = make("div.model", {},
      make("div.heading", {}, title, make("div.actions", {}, this.undo, this.redo)),
      this.problems, make("div.split", {}, this.live.element, make("div.work", {}, tablist, this.panels)));
    fill(this.main, this.element);
    fill(this.where, make("a", { href: "#/" }, "All models"));
    this.model.addEventListener("change", () => this.update());
    this.model.addEventListener("corrected", ({ detail }) => this.showCorrections(detail));
    this.listenForDrops();
    this.open("teach", { focus: false });
    this.update();
    if (brought.images && this.model.kind === "images") this.take({ images: brought.images });
    brought.images = null;
  }

  /** Pass files that are dropped on the page to the open view; teach them if it takes no files. */
  listenForDrops() {
    const { signal } = this.model;
    if (this.model.kind !== "images") return;
    const mark = (on) => document.body.classList.toggle("dropping", on);
    addEventListener("dragover", (event) => mark(bringsFiles(event)), { signal });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); }, { signal });
    addEventListener("drop", (event) => {
      mark(false);
      if (bringsFiles(event)) this.take(fromTransfer(event.dataTransfer));
    }, { signal });
    addEventListener("drop", () => mark(false), { signal, capture: true });
    this.model.addEventListener("brought", (event) => this.take(event.detail));
  }

  take(coming) {
    if (!this.views[this.current].view.take) this.open("teach", { focus: false });
    void this.views[this.current].view.take(coming);
  }

  update() {
    const { record, queue, readOnly } = this.model;
    this.counts.textContent = [
      plural(record.classes.length, "class", "classes"),
      countOf(record.kind, record.n_samples),
      ...(record.state === "ready" ? [] : ["answers once it knows a class"]),
      ...(readOnly ? ["read only"] : []),
    ].join(" · ");
    this.undo.disabled = !record.revisions.length || readOnly;
    this.redo.hidden = !record.redoable || Boolean(readOnly);
    this.main.classList.toggle("read-only", Boolean(readOnly));
    const badge = this.tabs[Object.keys(this.views).indexOf("review")].querySelector(".count");
    badge.hidden = !queue.length;
    badge.textContent = queue.length;
  }

  /** Show on the tab of Sort the number of corrections that are not taught yet. */
  showCorrections(n) {
    const badge = this.tabs[Object.keys(this.views).indexOf("sort")].querySelector(".count");
    badge.hidden = !n;
    badge.textContent = n;
  }

  /** Open the view of a tab. */
  open(key, { focus = true } = {}) {
    this.current = key;
    this.element.dataset.tab = key;
    Object.keys(this.views).forEach((name, i) => {
      const chosen = name === key;
      this.tabs[i].setAttribute("aria-selected", String(chosen));
      this.tabs[i].tabIndex = chosen ? 0 : -1;
      this.panels[i].hidden = !chosen;
      this.views[name].view.shown = chosen;
      if (chosen && focus) this.tabs[i].focus();
    });
    this.views[key].view.open?.();
  }

  /** Move between tabs with arrow keys. */
  moveTab(event) {
    const keys = Object.keys(this.views);
    const at = keys.indexOf(this.current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: keys.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.open(keys[(to + keys.length) % keys.length]);
  }

  async undoLast() {
    await attempt(this.problems, async () => {
      const changes = changesThatHold(this.model.record.history);
      const undone = changes.findLast(({ what }) => !["rollback", "redo"].includes(what));
      await this.model.rollBack(this.model.record.revisions.at(-1));
      confirmDone(`Undone: ${inWords(undone, this.model.kind)}.`);
    }, { reload: () => this.model.refresh() });
  }

  async redoLast() {
    await attempt(this.problems, async () => {
      await this.model.redo();
      confirmDone("Redone.");
      this.undo.focus(); // the button may be gone now
    }, { reload: () => this.model.refresh() });
  }
}
