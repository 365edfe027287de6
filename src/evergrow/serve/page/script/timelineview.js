/* Every change of the model, the newest first, each with a way back to it. */

import { fill, iconButton, make, plural } from "./dom.js";
import { attempt, confirmDone } from "./notice.js";

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
      const isPast = !["rollback", "redo"].includes(change.what) && record.revisions.includes(change.revision);
      const back = isPast && !readOnly && iconButton("undo", "Go back to here", () => this.goBack(change.revision));
      const about = [when(change.when), `revision ${change.revision}`, ...(change.note ? [change.note] : [])];
      return make(i === 0 ? "li.now" : "li", {},
        make("div", {}, make("p", {}, told(change)), make("p.soft", {}, about.join(" · "))),
        i === 0 ? make("span.badge-text", {}, "Now") : back);
    }));
  }

  async goBack(revision) {
    await attempt(this.problems, async () => {
      await this.model.rollBack(revision);
      const { aside } = this.model;
      const kept = aside.length ? ` ${plural(aside.length, "sample")} set aside under Teach.` : "";
      confirmDone(`Back at revision ${revision}.${kept}`);
    }, { reload: () => this.model.refresh() });
  }
}

/** Return a change in words. */
export function told({ what, samples, classes, names = {} }) {
  const more = classes.length > 4 ? ` and ${classes.length - 4} more` : "";
  const listed = classes.slice(0, 4).join(", ") + more;
  const renamed = Object.entries(names).map(([old, name]) => `${old} to ${name}`).join(", ");
  const n = plural(samples, "sample");
  const words = {
    begin: "Created, empty",
    fit: `Began with ${listed}: ${n}`,
    update: listed ? `Learned ${n}, new: ${listed}` : `Learned ${n}`,
    unlearn: listed ? `Unlearned ${n}, and with them ${listed}` : `Unlearned ${n}`,
    forget: `Forgot ${listed}: ${n}`,
    rename: `Renamed ${renamed || listed}`,
    "merge-classes": `Merged ${Object.keys(names).join(", ")} into ${Object.values(names)[0] ?? listed}`,
    merge: `Merged another model: ${n}`,
    rollback: "Went back",
    redo: "Went forward again",
    relabel: `Gave ${n} another class`,
  };
  return words[what] ?? `${what}: ${n}`;
}

function when(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}
