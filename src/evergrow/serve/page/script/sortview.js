/* Sort: group many images by class, correct them, and download a table or folders. */

import { save } from "./api.js";
import { announce, fill, iconButton, make, plural } from "./dom.js";
import { askFor, field, meantName } from "./dialogs.js";
import { settleCopies } from "./importing.js";
import { chooser, IMAGES_AND_ZIPS, imagesIn } from "./inputs.js";
import { attempt, confirmDone } from "./notice.js";
import { keptContentOf } from "./reading.js";
import { guardLeaving } from "./leaving.js";
import { caution, presentEvent, raiseRefused } from "./samples.js";
import { SortBar } from "./sortbar.js";
import { SortGroup } from "./sortgroup.js";
import {
  byUrgency, classOfGroup, groupOf, groupOfClass, pathsOf, predictItems, tableOf, UNKNOWN, UNREADABLE, UNSURE,
} from "./sorting.js";
import { askToRemove, KeepingNote } from "./sortkeeping.js";
import { SortSet } from "./sortset.js";
import { Comparison, groupUnknown } from "./sortstudies.js";
import { limitsOf } from "./strictness.js";
import { packedBlob, zipOf } from "./zip.js";

const REDRAW = 250; // milliseconds between updates while predictions arrive
const FEW = 24; // number of groups up to which all are open at first
const TITLES = { [UNSURE]: "Unsure", [UNKNOWN]: "Unknown", [UNREADABLE]: "Could not be read" };
const HELP = "Drag an image to its group, or select some and name their class. "
  + "Keys: arrows move the focus, Space selects, 1 to 9 or M moves to a class, U to unknown, Enter enlarges.";

export class SortView {
  constructor(model) {
    Object.assign(this, { model, shown: false, groups: new Map(), selected: new Set(), running: null });
    this.stopped = false; // by the user; predictions then wait until the user continues
    this.set = new SortSet(model);
    this.keeping = new KeepingNote(this.set, () => this.goOn());
    this.problems = make("div.problems");
    this.list = make("div.groups");
    this.start = this.startPanel();
    this.bar = new SortBar(model, this.actions());
    this.choice = this.selectionBar();
    this.rough = make("p.hint");
    this.comparison = new Comparison(this);
    this.about = make("div.about", {}, this.bar.costs.element, this.rough, make("p.hint.keys", {}, HELP),
      this.comparison.element);
    this.element = make("div.sort", {}, this.start, this.bar.element, this.problems, this.keeping.element, this.about,
      this.list, this.keeping.kept, this.choice);
    this.listen();
    this.arrange();
    this.ready = this.load();
  }

  listen() {
    const { model } = this;
    const { signal } = model;
    signal.addEventListener("abort", () => this.running?.abort());
    document.addEventListener("keydown", (event) => this.key(event), { signal });
    model.addEventListener("change", () => this.follow());
    this.set.addEventListener("change", () => this.arrange());
    guardLeaving(() => this.set.isAtRisk(), signal);
  }

  /** Return the functions that the toolbar calls. */
  actions() {
    return {
      limit: () => this.arrange(),
      stop: () => {
        this.stopped = true;
        this.running?.abort();
      },
      again: () => void this.run(this.items.filter((item) => this.isOutdated(item))),
      teach: () => void this.teachCorrections(),
      group: () => void groupUnknown(this),
      compare: () => void this.comparison.run(),
      table: () => save(tableOf(this.items, this.limits), "sorted.csv"),
      zip: () => void this.saveZip(),
      remove: () => this.askToRemoveAll(),
    };
  }

  get items() { return this.set.items; }

  /** Show the images that are stored in this browser. */
  load() {
    return attempt(this.problems, async () => {
      await this.set.load();
      this.follow();
    });
  }

  /** Update everything after a change of the model by any client. */
  follow() {
    for (const item of this.set.follow()) item.done = false; // its predicted class is gone
    this.arrange();
    this.goOn();
  }

  /** Predict images that have no prediction, unless the user stopped it. */
  goOn() {
    if (this.running || this.stopped || !this.model.isReady) return;
    const waiting = this.items.filter((item) => !item.done);
    if (waiting.length) void this.run(waiting);
  }

  get limits() { return limitsOf(this.model); }

  // -- what is above the images ------------------------------------------------------------------------------------

  /** Return the panel with ways to bring images. */
  startPanel() {
    const take = (coming) => this.take(coming);
    const folder = chooser({ webkitdirectory: true, id: "sort-folder" }, take);
    const files = chooser({ multiple: true, accept: IMAGES_AND_ZIPS, id: "sort-files" }, take);
    this.waiting = make("p.soft", { hidden: true }, "The model sorts once it has a class. Teach one first.");
    return make("section.ways-in", {}, make("h2.small", {}, "Sort images by what they show"),
      make("ul", {}, make("li", {}, "Drop a folder or a zip of any size anywhere on this page, or choose one."),
        make("li", {}, "Check the groups, drag what is wrong, and download a table or a zip of folders."),
        make("li", {}, "Nothing is learned unless you teach your corrections. Images stay in this browser only.")),
      this.waiting, make("div.actions", {}, iconButton("folder", "Choose a folder", () => folder.click()), folder,
        iconButton("image", "Choose a zip or images", () => files.click()), files));
  }

  /** Return the controls for selected images. */
  selectionBar() {
    this.chosen = make("span", { role: "status" });
    const name = make("input", {
      required: true, maxLength: 200, autocomplete: "off", id: "move-to", placeholder: "Class", list: "known-classes",
      aria: { label: "Move the selected images to the class" },
    });
    return make("form.selection", { hidden: true, on: { submit: async (event) => {
      event.preventDefault();
      const meant = await meantName(this.model.classes, name.value.trim());
      if (!meant) return;
      name.value = "";
      this.move([...this.selected], groupOfClass(meant));
    } } }, this.chosen, name, make("button.primary", { type: "submit" }, "Move"),
    iconButton("close", "Select none", () => this.select([]), { quiet: true }));
  }

  /** Show what can be done now. */
  showState() {
    const { items } = this;
    const nCorrections = this.corrections().length;
    this.start.hidden = items.length > 0;
    this.about.hidden = !items.length;
    this.waiting.hidden = this.model.isReady;
    this.rough.textContent = caution(this.model.kind, this.model.classes);
    this.bar.update(items, {
      isRunning: Boolean(this.running),
      nUnknown: this.unknown().length,
      nCorrections,
      nOutdated: items.filter((item) => this.isOutdated(item)).length,
    });
    this.comparison.dropIfOutdated();
    this.model.dispatchEvent(new CustomEvent("corrected", { detail: nCorrections }));
  }

  /** Return whether the prediction of an item is missing or of an earlier state of the model. */
  isOutdated(item) {
    if (item.moved) return false;
    return !item.done || !item.error && item.revision !== this.model.record.revision;
  }

  // -- in, and asked about -----------------------------------------------------------------------------------------

  /** Sort dropped or chosen images, in addition to those that are there. */
  take(coming) {
    return attempt(this.problems, async () => {
      const images = imagesIn(await coming);
      await this.ready;
      if (!this.model.isReady) {
        this.model.addEventListener("change", () => { if (this.model.isReady) fill(this.problems); });
        throw new Error("The model sorts once it has a class. Teach one first.");
      }
      await this.run(this.set.add(images));
    });
  }

  /** Predict images, and those that are left from earlier requests. */
  async run(items) {
    const left = this.running ? this.items.filter((item) => !item.done) : [];
    const asked = [...new Set([...left, ...items])];
    const running = new AbortController();
    this.running?.abort();
    this.running = running;
    this.stopped = false;
    for (const item of asked) item.done = false;
    this.arrange();
    await attempt(this.problems, async () => {
      try {
        await predictItems(this.model, asked, (some) => this.answered(some), running.signal);
      } finally {
        if (this.running === running) this.running = null;
        this.arrange();
      }
    });
    if (!running.signal.aborted) announce(this.bar.state.textContent);
  }

  /** Note that items were predicted, and update the groups soon. */
  answered(items) {
    this.set.changed(items.filter((item) => item.done && !item.gone));
    this.timer ??= setTimeout(() => { this.timer = null; this.arrange(); }, REDRAW);
  }

  /** Put every image into its group and show the groups: those to check first, then the classes. */
  arrange() {
    const members = this.membersOfGroups();
    let at = 0;
    for (const [group, items] of members) {
      if (!this.groups.has(group)) {
        this.groups.set(group, new SortGroup(this, group, TITLES[group] ?? classOfGroup(group)));
      }
      const shown = this.groups.get(group);
      const present = this.list.children[at] ?? null;
      if (present !== shown.element) this.list.insertBefore(shown.element, present);
      shown.openAtFirst(at < FEW);
      shown.show(items, this.limits);
      at += 1;
    }
    for (const [group, { element }] of this.groups) {
      if (members.has(group)) continue;
      element.remove();
      this.groups.delete(group);
    }
    this.list.hidden = !this.items.length;
    this.showState();
  }

  /** Return the items of all groups as a Map. They are put in order when all predictions are there. */
  membersOfGroups() {
    const members = new Map([UNSURE, UNKNOWN, UNREADABLE].map((group) => [group, []]));
    for (const { name } of this.model.classes) members.set(groupOfClass(name), []);
    for (const item of this.items) {
      if (!item.done && !item.moved) continue;
      const group = groupOf(item, this.limits);
      if (!members.has(group)) members.set(group, []);
      members.get(group).push(item);
    }
    if (!this.running) for (const items of members.values()) items.sort(byUrgency);
    return members;
  }

  askToRemoveAll() {
    const corrected = this.items.filter((item) => item.moved && !item.taught).length;
    askToRemove(this.items.length, corrected, async () => {
      this.running?.abort();
      this.select([]);
      await this.set.discard();
    });
  }

  // -- corrected ---------------------------------------------------------------------------------------------------

  /** Select images for the next action. */
  select(items) {
    this.selected = new Set(items);
    this.choice.hidden = !items.length;
    this.chosen.textContent = `${items.length} selected`;
    for (const group of this.groups.values()) group.showSelection();
  }

  /** Select an item, or end its selection. */
  toggle(item) {
    const next = new Set(this.selected);
    if (!next.delete(item)) next.add(item);
    this.select([...next]);
  }

  /** Return the items of an action on one: all selected ones if it is selected, otherwise only this one. */
  meant(item) { return this.selected.has(item) ? [...this.selected] : [item]; }

  /** Move items to a group. */
  move(items, group) {
    if (group === UNSURE || group === UNREADABLE) return;
    const readable = items.filter((item) => !item.error);
    for (const item of readable) Object.assign(item, { moved: group, taught: false, sample: null });
    this.set.changed(readable);
    this.select([]);
    this.arrange();
    announce(`${plural(readable.length, "image")} moved to ${TITLES[group] ?? classOfGroup(group)}`);
  }

  /** Ask for the name of a class and move images there. */
  askMove(items) {
    const name = make("input", { required: true, maxLength: 200, autocomplete: "off", list: "known-classes" });
    askFor({
      title: `Move ${plural(items.length, "image")}`, fields: [field("To the class", name)], verb: "Move",
      work: async () => {
        const meant = await meantName(this.model.classes, name.value.trim());
        if (meant) this.move(items, groupOfClass(meant));
      },
    });
    name.focus();
  }

  key(event) {
    const item = this.focused();
    if (!this.shown || !item || event.ctrlKey || event.metaKey || event.altKey) return;
    const numbered = this.model.classes[Number(event.key) - 1];
    const work = numbered ? () => this.move(this.meant(item), groupOfClass(numbered.name)) : {
      m: () => this.askMove(this.meant(item)), u: () => this.move(this.meant(item), UNKNOWN),
      Escape: () => this.select([]),
    }[event.key];
    if (!work) return;
    event.preventDefault();
    const { group, index } = this.focusIndex();
    work();
    group.focusAt(index);
  }

  /** Return the group and index of the focused image, to focus it again after an update. */
  focusIndex() {
    const group = [...this.groups.values()].find((one) => one.element.contains(document.activeElement));
    return { group, index: group?.indexOfFocus() ?? -1 };
  }

  /** Return the item of the focused image. */
  focused() {
    const { group, index } = this.focusIndex();
    return group?.items[index] ?? null;
  }

  /** Return the items that were moved to a class and not taught. */
  corrections() {
    return this.items.filter((item) => item.moved && classOfGroup(item.moved) && !item.taught);
  }

  unknown() { return this.items.filter((item) => item.done && groupOf(item, this.limits) === UNKNOWN); }

  known() { return this.items.filter((item) => item.done && !item.moved && classOfGroup(groupOf(item, this.limits))); }

  teachCorrections() {
    return attempt(this.problems, () => this.teachItems(this.corrections()));
  }

  /** Teach items as the classes to which they were moved. Return false if the user cancelled. */
  async teachItems(items) {
    this.bar.teach.disabled = true;
    try {
      const named = items.map(({ image, moved }) => ({ image, label: classOfGroup(moved) }));
      const settled = await settleCopies(this.model, named);
      if (!settled) return false;
      const shown = [];
      for (const { image, label } of settled) shown.push({ label, content: await keptContentOf(image) });
      const lesson = shown.length ? await this.model.add(shown, { hold: false, atOnce: 1024 }) : { samples: [] };
      const samples = new Map(settled.map(({ image }, i) => [image, lesson.samples[i]]));
      await this.set.taught(items, named.map(({ image, label }) => samples.get(image) ?? this.copyOf(label)));
      raiseRefused(this.model.kind, lesson.samples);
      const them = shown.length === 1 ? "it" : "them";
      if (!this.model.stalled) confirmDone(`Learned ${plural(shown.length, "correction")}. Undo takes ${them} back.`);
      return true;
    } finally {
      this.arrange();
    }
  }

  /** Return a stand-in for the sample of an image that was taught before and is not taught again. */
  copyOf(label) { return { isCopy: true, events: [presentEvent(this.model.record, label)] }; }

  /** Save a zip with one folder per group and a table. */
  saveZip() {
    return attempt(this.problems, async () => {
      this.bar.zip.disabled = true;
      try {
        const files = pathsOf(this.items, this.limits);
        const table = tableOf(this.items, this.limits);
        files.push({ path: "sorted.csv", packed: () => packedBlob(table) });
        const showProgress = (n) => { this.bar.state.textContent = `Packing ${n} of ${files.length}…`; };
        save(await zipOf(files, showProgress), "sorted.zip");
      } finally {
        this.showState();
      }
    });
  }
}
