/* One model: its name and tabs above, what is asked of it live at the side. */

import { fill, iconButton, make, plural } from "./dom.js";
import { attempt, confirmDone } from "./notice.js";
import { ClassesView } from "./classesview.js";
import { LiveView } from "./liveview.js";
import { QueueView } from "./queueview.js";
import { AccuracyView } from "./accuracyview.js";
import { TimelineView } from "./timelineview.js";
import { ShareView } from "./shareview.js";

export class ModelView {
  /**
   * @param {OpenModel} model - What to show.
   * @param {HTMLElement} main - Where.
   * @param {HTMLElement} where - Where its name goes.
   */
  constructor(model, main, where) {
    Object.assign(this, { model, main, where });
    this.views = {
      teach: { title: "Teach", view: new ClassesView(model) },
      review: { title: "Review", view: new QueueView(model) },
      accuracy: { title: "Accuracy", view: new AccuracyView(model) },
      timeline: { title: "Timeline", view: new TimelineView(model) },
      share: { title: "Use it", view: new ShareView(model) },
    };
    this.live = new LiveView(model);
    this.current = "teach";
  }

  /** Build everything once; the views follow the model by themselves. */
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
    fill(this.main, make("div.model", {},
      make("div.heading", {}, make("div", {}, make("h1", {}, this.model.name), this.counts),
        make("div.actions", {}, this.undo, this.redo)),
      this.problems, make("div.split", {}, this.live.element, make("div.work", {}, tablist, this.panels))));
    fill(this.where, make("a", { href: "#/" }, "All models"));
    this.model.addEventListener("change", () => this.update());
    this.open("teach", { focus: false });
    this.update();
  }

  update() {
    const { record, queue, readOnly } = this.model;
    this.counts.textContent = [
      plural(record.classes.length, "class", "classes"),
      plural(record.n_samples, "sample"),
      record.state === "ready" ? `revision ${record.revision}` : "answers from the first class on",
      ...(readOnly ? ["read only"] : []),
    ].join(" · ");
    this.undo.disabled = !record.revisions.length || readOnly;
    this.redo.hidden = !record.redoable || Boolean(readOnly);
    this.main.classList.toggle("read-only", Boolean(readOnly));
    const badge = this.tabs[1].querySelector(".count");
    badge.hidden = !queue.length;
    badge.textContent = queue.length;
  }

  open(key, { focus = true } = {}) {
    this.current = key;
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
      const answer = await this.model.rollBack(this.model.record.revisions.at(-1));
      confirmDone(`Back at revision ${answer.revision}.`);
    }, { reload: () => this.model.refresh() });
  }

  async redoLast() {
    await attempt(this.problems, async () => {
      const answer = await this.model.redo();
      confirmDone(`At revision ${answer.revision} again.`);
      this.undo.focus(); // the button may be gone now
    }, { reload: () => this.model.refresh() });
  }
}
