/* The toolbar of Sort. Its parts keep their places while images are sorted: what cannot be used now is disabled. */

import { icon, iconButton, make, plural } from "./dom.js";
import { openMenu } from "./dialogs.js";
import { groupWords } from "./unlabelled.js";
import { CostNote, limitsOf, StrictnessControls } from "./strictness.js";
import { classOfGroup, groupOf } from "./sorting.js";
import { MOST_GROUPED } from "./sortstudies.js";

const LEAST_COMPARED = 20; // number of images from which on they can be compared with the taught ones

export class SortBar {
  /**
   * @param {OpenModel} model - The model.
   * @param {Object} actions - Functions by name: limit (the limits have changed), stop, again, teach, group, compare,
   *   table, zip, remove.
   */
  constructor(model, actions) {
    this.model = model;
    this.state = make("p.soft.state", { role: "status" });
    this.progress = make("progress", { aria: { label: "Images sorted" }, value: 0 });
    this.stop = iconButton("close", "Stop", actions.stop, { kind: ".turn" });
    this.again = iconButton("redo", "Sort again", actions.again, { kind: ".turn" });
    this.strictness = new StrictnessControls(model, actions.limit);
    this.costs = new CostNote(model);
    this.teach = iconButton("check", "", actions.teach, { kind: ".primary.counting" });
    this.group = iconButton("search", "", actions.group, { kind: ".counting" });
    this.others = this.otherButtons(actions);
    this.more = make("button.more", {
      type: "button", aria: { haspopup: "menu" }, on: { click: () => openMenu(this.more, this.menu()) },
    }, "More", icon("fold"));
    this.element = make("div.toolbar.sortbar", { role: "group", aria: { label: "Sorting" }, hidden: true },
      make("div.row.sorting", {}, this.state, this.progress, this.stop, this.again),
      this.strictness.element,
      make("div.row.doing", {}, this.teach, this.group, this.others, this.more));
  }

  /** Return the buttons that a phone shows as a menu. */
  otherButtons(actions) {
    this.compare = iconButton("image", "Compare with taught", actions.compare);
    this.table = iconButton("download", "Table (CSV)", actions.table);
    this.zip = iconButton("download", "Folders (zip)", actions.zip);
    const remove = iconButton("close", "Remove all", actions.remove);
    return [this.compare, this.table, this.zip, remove];
  }

  /** Return the entries of the menu on phones. */
  menu() {
    return this.others.filter((button) => !button.disabled && !button.hidden)
      .map((button) => ({ words: button.textContent, work: () => button.click() }));
  }

  /**
   * Show progress and counts, and enable the buttons that can be used now.
   * @param {Array} items - All images.
   * @param {Object} now - isRunning: whether images are being sorted; nUnknown, nCorrections: numbers of images;
   *   nOutdated: number of images whose prediction is missing or of an earlier state of the model.
   */
  update(items, { isRunning, nUnknown, nCorrections, nOutdated }) {
    const done = items.filter((item) => item.done).length;
    this.element.hidden = !items.length;
    this.progress.classList.toggle("idle", !isRunning);
    Object.assign(this.progress, { max: Math.max(1, items.length), value: done });
    this.state.textContent = this.stateInWords(items.length, done);
    this.stop.hidden = !isRunning;
    this.again.hidden = isRunning;
    this.again.disabled = !this.model.isReady || !nOutdated;
    this.again.lastChild.textContent = nOutdated && done < items.length ? "Go on" : "Sort again";
    this.teach.hidden = this.model.readOnly;
    this.teach.disabled = !nCorrections;
    this.teach.lastChild.textContent = `Teach ${nCorrections ? plural(nCorrections, "correction") : "corrections"}`;
    this.group.hidden = this.model.readOnly;
    this.group.disabled = isRunning || nUnknown < 2;
    this.group.lastChild.textContent = nUnknown < 2 ? "Group unknown ones" : groupWords(nUnknown, MOST_GROUPED);
    this.compare.disabled = isRunning || done < LEAST_COMPARED;
    this.table.disabled = !done;
    this.zip.disabled = !done;
    this.updateCosts(items, isRunning || nOutdated > 0);
  }

  stateInWords(all, done) {
    const images = plural(all, "image");
    if (done === all) return `${images} sorted`;
    const hint = this.model.isReady ? "" : ". Teach a class first";
    return `Sorted ${done.toLocaleString("en")} of ${images}${hint}`;
  }

  /** Describe the limits, and estimate the number of strangers once all images are sorted. */
  updateCosts(items, isUnfinished) {
    const limits = limitsOf(this.model);
    const isPredicted = (item) => item.done && !item.moved && item.value !== null && item.novelty !== null;
    const predictions = isUnfinished ? [] : items.filter(isPredicted);
    const nFiled = predictions.filter((item) => classOfGroup(groupOf(item, limits)) !== null).length;
    this.costs.update(limits, predictions, nFiled);
  }
}
