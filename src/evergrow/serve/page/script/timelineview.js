/* The history of the model, the newest change first, with buttons to return to a change. */

import { fill, iconButton, make } from "./dom.js";
import { attempt, confirmDone } from "./notice.js";
import { changesThatHold, countOf } from "./samples.js";

export class TimelineView {
  constructor(model) {
    Object.assign(this, { model, shown: false });
    this.problems = make("div.problems");
    this.list = make("ol.timeline");
    this.element = make("div", {}, this.problems, this.list);
    model.addEventListener("change", () => this.update());
    this.update();
  }

  update() {
    const { record, readOnly } = this.model;
    const key = `${record.etag} ${record.revisions.join()} ${record.history.length}`;
    if (this.list.dataset.key === key) return;
    this.list.dataset.key = key;
    const changes = [...record.history].reverse();
    if (!changes.length) {
      fill(this.list, make("li.soft.empty", {}, "No changes yet."));
      return;
    }
    fill(this.list, changes.map((change, i) => {
      const why = i === 0 ? "" : whyNot(change, record, changes);
      const target = changes.find((one) => one.revision === change.revision && !isStep(one));
      const words = change.what === "rollback" && target ? `Went back to: ${inWords(target, record.kind)}`
        : inWords(change, record.kind);
      const about = [when(change.when), ...(change.note && !isTally(change) && !isStep(change) ? [change.note] : [])];
      const back = !why && !readOnly && iconButton("undo", "Go back to here", () => this.goBack(change, words));
      if (back) back.setAttribute("aria-label", `Go back to here: ${words}, ${when(change.when)}`);
      return make(i === 0 ? "li.now" : "li", {},
        make("div", {}, make("p", {}, words), make("p.soft", {}, about.join(" · "))),
        i === 0 ? make("span.badge-text", {}, "Now") : back || make("span.soft.why", {}, why));
    }));
  }

  async goBack(change, words) {
    await attempt(this.problems, async () => {
      await this.model.rollBack(change.revision);
      const { aside, kind } = this.model;
      const kept = aside.length ? ` ${countOf(kind, aside.length)} set aside under Teach.` : "";
      confirmDone(`Back at: ${words}.${kept}`);
    }, { reload: () => this.model.refresh() });
  }
}

/** Return why the model cannot go back to a change; "" if it can. */
function whyNot(change, record, changes) {
  if (change.what === "rollback") return "This was an undo: go back to the change that it names";
  if (change.what === "redo") return "This was a redo: go back to the change that it restored";
  if (!changesThatHold(record.history).includes(change)) {
    return record.redoable ? "Undone; Redo brings it back" : "Undone, and something else was taught since";
  }
  if (change.revision === record.revision) return "The model is here now";
  return record.revisions.includes(change.revision) ? "" : `Too old: the last ${record.revisions.length} can be undone`;
}

const isStep = ({ what }) => what === "rollback" || what === "redo";

/** Return whether the note of a change was written by this page and lists the samples. */
const isTally = ({ what, note }) => ["fit", "update", "unlearn"].includes(what)
  && /^[\d,]+ (image|text|row)s? of /.test(note);

/** Return a change in words. */
export function inWords({ what, samples, classes, names = {}, note = "" }, kind) {
  const more = classes.length > 4 ? ` and ${classes.length - 4} more` : "";
  const listed = classes.slice(0, 4).join(", ") + more;
  const renamed = Object.entries(names).map(([old, name]) => `${old} to ${name}`).join(", ");
  const n = isTally({ what, note }) ? note : countOf(kind, samples);
  const isPlain = isTally({ what, note }) && classes.length === 1;
  const fresh = isPlain ? ", a new class" : listed && `, new: ${listed}`;
  const words = {
    begin: "Created, empty",
    fit: isTally({ what, note }) ? `Began with ${note}` : `Began with ${listed}: ${n}`,
    update: `Learned ${n}${fresh}`,
    unlearn: listed ? `Unlearned ${n}, and with it the class ${listed}` : `Unlearned ${n}`,
    forget: `Forgot ${listed}: ${n}`,
    rename: `Renamed ${renamed || listed}`,
    "merge-classes": `Merged ${Object.keys(names).join(", ")} into ${Object.values(names)[0] ?? listed}`,
    merge: `Merged another model: ${n}`,
    rollback: "Went back",
    redo: "Went forward again",
    relabel: `Gave ${n} another class`,
    unlabelled: `Learned from ${n} without labels`,
    "forget-unlabelled": `Forgot ${n} that had been learned without labels`,
    fade: "Reduced the weight of everything learned before",
  };
  return words[what] ?? `${what}: ${n}`;
}

/** Return a time in words. */
function when(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}
