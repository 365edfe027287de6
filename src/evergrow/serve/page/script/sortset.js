/*
 * The images that are being sorted with a model, with predictions and corrections. They are stored in this browser
 * until they are taught or discarded, and are not sent anywhere.
 *
 * Corrected images are always stored, and of the others as many as fit into KEPT_BYTES. Other tabs get a message after
 * each change and read the store again.
 */

import { imageFromStore } from "./inputs.js";
import { labelling, presentEvent, renamedSince } from "./samples.js";
import { classOfGroup, groupOfClass, itemOf, NO_PREDICTION } from "./sorting.js";
import { dropSorted, isLasting, keepSorted, sortedBytes, sortedOf } from "./store.js";

const KEPT_BYTES = 2 ** 30; // total size of stored images without a correction
const AT_ONCE = 24; // images per transaction
const SETTLED = 300; // milliseconds until predictions are stored, and until changes by other tabs are read
const KEPT_FIELDS = [
  "done", "error", "label", "value", "novelty", "familiarity", "unknown", "moved", "revision", "event",
  "candidates",
];

const tabs = new BroadcastChannel("evergrow-sort"); // messages are names of models whose images changed
const leftOver = new Map(); // promises of items that could not be stored, by model; they last until the page is closed

/** Return whether an item was corrected and not taught. */
const isCorrection = (item) => Boolean(item.moved) && !item.taught;

/** Return the first change of a model as a text. It differs between models of the same name. */
function birthOf({ history }) {
  const [first] = history;
  return first ? `${first.revision} ${first.when}` : "";
}

export class SortSet extends EventTarget {
  /** @param {OpenModel} model - The model that the images are sorted with. */
  constructor(model) {
    super();
    Object.assign(this, { model, items: [], foreign: [], loaded: false, lastId: 0, keptBytes: 0 });
    Object.assign(this, { dirty: new Set(), refused: new Set(), writing: null, isFull: false });
    this.turn = Promise.resolve();
    this.birth = birthOf(model.record);
    const { signal } = model;
    tabs.addEventListener("message", ({ data }) => { if (data === model.name) this.readSoon(); }, { signal });
    signal.addEventListener("abort", () => this.close());
  }

  /** Store what is not stored yet, in the background, and remember items that could not be stored. */
  close() {
    clearTimeout(this.reading);
    clearTimeout(this.timer);
    const rest = () => this.items.filter((item) => item.key === null && !item.taught);
    leftOver.set(this.model.name, this.flush().then(rest, rest));
  }

  /** Call functions that use the store one after the other. */
  alone(work) {
    const done = this.turn.then(work);
    this.turn = done.catch(() => {});
    return done;
  }

  // -- what is kept ------------------------------------------------------------------------------------------------

  /** Read the store. Items that were taught or discarded in another tab are removed. */
  async load() {
    const rest = await leftOver.get(this.model.name) ?? [];
    leftOver.delete(this.model.name);
    await this.alone(() => this.read());
    const mine = rest.filter((item) => item.birth === this.birth);
    for (const item of mine) {
      this.lastId += 1;
      item.id = this.lastId;
    }
    this.items.push(...mine);
    if (mine.length) this.changed(mine);
    this.items.sort((one, other) => one.order - other.order);
    this.tellSelf();
  }

  /** Update the items from the records in the store, except those with changes that are not stored yet. */
  async read() {
    const records = await sortedOf(this.model.name);
    const born = records.filter(({ birth }) => birth === this.birth);
    this.foreign = records.filter(({ birth }) => birth !== this.birth);
    const kept = new Map(born.map((record) => [record.key, record]));
    const gone = this.items.filter((item) => item.key !== null && !kept.has(item.key));
    this.removeFromList(gone);
    for (const item of this.items) {
      const record = kept.get(item.key);
      kept.delete(item.key);
      if (record && !this.dirty.has(item)) take(item, record);
    }
    this.items.push(...[...kept.values()].map((record) => this.restored(record)));
    this.keptBytes = born.reduce((sum, { moved, size }) => sum + (moved ? 0 : size), 0);
    this.loaded = true;
  }

  readSoon() {
    clearTimeout(this.reading);
    this.reading = setTimeout(() => void this.readAll().catch(() => {}), SETTLED);
  }

  async readAll() {
    await this.load();
    await this.model.refresh(); // the other tab may have taught images
  }

  /** Return the item of a stored record. */
  restored(record) {
    const { key, name, size } = record;
    const item = this.newItem(imageFromStore(name, size, () => sortedBytes(key)), record.order);
    item.key = key;
    return take(item, record);
  }

  newItem(image, order) {
    this.lastId += 1;
    return Object.assign(itemOf(image, this.lastId), { order, birth: this.birth });
  }

  /** Add images and return their items. */
  add(images) {
    const last = this.items.reduce((most, { order }) => Math.max(most, order), 0);
    const fresh = images.map((image, i) => this.newItem(image, last + 1 + i));
    this.items.push(...fresh);
    this.changed(fresh);
    return fresh;
  }

  /** Store changed items: corrections at once, predictions soon. */
  changed(items) {
    if (!items.length) return;
    for (const item of items) this.dirty.add(item);
    clearTimeout(this.timer);
    if (items.some(isCorrection)) void this.flush();
    else this.timer = setTimeout(() => void this.flush(), SETTLED);
  }

  /** Store all changed items. */
  flush() {
    this.writing ??= this.write().finally(() => { this.writing = null; });
    return this.writing;
  }

  /** Store changed items in parts, then tell other tabs and this page. */
  async write() {
    let wrote = false;
    for (let part = this.nextPart(); part.length; part = this.nextPart()) {
      for (const item of part) this.dirty.delete(item);
      wrote = await this.alone(() => this.writeSome(part)) || wrote;
    }
    if (wrote) this.tellOthers();
    this.tellSelf();
  }

  /** Return the items that are stored next: corrections first, then others while there is room. */
  nextPart() {
    const present = [...this.dirty].filter((item) => !item.gone && !item.taught);
    const corrections = present.filter(isCorrection);
    if (corrections.length) return corrections.slice(0, AT_ONCE);
    const part = [];
    let room = this.isFull ? 0 : KEPT_BYTES - this.keptBytes;
    for (const item of present) {
      if (part.length === AT_ONCE) break;
      const needed = item.key === null ? item.image.size : 0;
      if (needed && needed > room) continue;
      room -= needed;
      part.push(item);
    }
    if (!part.length) this.dirty.clear(); // no room for the others
    return part;
  }

  /** Store items. If that fails, store each alone, since one file may be unreadable. Return whether any was stored. */
  async writeSome(items) {
    const part = items.filter((item) => !item.gone && !item.taught);
    if (!part.length) return false;
    try {
      const entries = [];
      for (const item of part) {
        const bytes = item.key === null ? await item.image.stored() : null;
        entries.push({ record: this.recordOf(item), bytes });
      }
      const keys = await keepSorted(entries);
      part.forEach((item, i) => this.wrote(item, keys[i]));
      return true;
    } catch (error) {
      if (part.length === 1) return this.writeWithLessRoom(part[0], error);
      let wrote = false;
      for (const item of part) wrote = await this.writeSome([item]) || wrote;
      return wrote;
    }
  }

  /** Store a correction after removing images without a correction from the store. They stay in memory. */
  async writeWithLessRoom(item, error) {
    this.refused.add(item);
    if (error.kind !== "full") return false;
    this.isFull = true;
    const others = this.items.filter((one) => one.key !== null && !one.moved);
    if (!isCorrection(item) || !others.length) return false;
    const some = others.slice(-AT_ONCE);
    for (const { image } of some) await holdInMemory(image);
    await dropSorted(some.map(({ key }) => key));
    for (const one of some) one.key = null;
    return this.writeSome([item]);
  }

  /** Note that an item was stored under a key. */
  wrote(item, key) {
    this.refused.delete(item);
    if (item.key === null && !item.moved) this.keptBytes += item.image.size;
    item.key = key;
  }

  /** Return the record of an item for the store. */
  recordOf(item) {
    const { key, order } = item;
    const { name, size } = item.image;
    const fields = Object.fromEntries(KEPT_FIELDS.map((field) => [field, item[field]]));
    const record = { ...fields, model: this.model.name, birth: item.birth, order, name, size };
    return key === null ? record : { ...record, key };
  }

  isSaved(item) { return item.key !== null && !this.dirty.has(item); }

  /** Return whether corrections would be lost if the page were closed now. */
  isAtRisk() {
    const corrections = this.items.filter(isCorrection);
    return corrections.some((item) => !isLasting() || !this.isSaved(item) || this.refused.has(item));
  }

  /** Return the numbers of images and of corrections that a reload would lose. */
  unkept() {
    const settled = this.items.filter((item) => !item.taught && !this.dirty.has(item));
    const lost = settled.filter((item) => !isLasting() || item.key === null || this.refused.has(item));
    return { images: lost.length, corrections: lost.filter(isCorrection).length };
  }

  // -- taught and discarded ----------------------------------------------------------------------------------------

  /** Note that items were taught, as these samples. */
  async taught(items, samples) {
    items.forEach((item, i) => Object.assign(item, { taught: true, sample: samples[i] }));
    await this.dropTaught(items);
  }

  /** Remove taught items from the store. They stay on the page until it is closed. */
  async dropTaught(items) {
    await this.alone(async () => {
      const taught = items.filter((item) => item.taught);
      const stored = taught.filter(({ key }) => key !== null);
      for (const { image } of stored) await hold(image);
      await dropSorted(stored.map(({ key }) => key));
      for (const item of taught) {
        item.key = null;
        this.dirty.delete(item);
        this.refused.delete(item);
      }
    });
    this.tellOthers();
  }

  /** Remove all items, also from the store. */
  async discard() {
    const { items } = this;
    this.removeFromList(items);
    await this.alone(() => dropSorted(items.map(({ key }) => key).filter((key) => key !== null)));
    this.keptBytes = 0;
    this.isFull = false;
    this.tellOthers();
    this.tellSelf();
  }

  /** Remove items from the page. */
  removeFromList(items) {
    const gone = new Set(items);
    for (const item of gone) {
      item.gone = true;
      this.dirty.delete(item);
      this.refused.delete(item);
    }
    this.items = this.items.filter((item) => !gone.has(item));
  }

  /** Remove images that were sorted with another model of this name. */
  async discardForeign() {
    await dropSorted(this.foreign.map(({ key }) => key));
    await this.load();
    this.tellOthers();
  }

  /** Sort images of another model of this name with this one. Corrections stay. */
  async adoptForeign() {
    const event = presentEvent(this.model.record, null);
    const fresh = { ...NO_PREDICTION, birth: this.birth, event };
    await keepSorted(this.foreign.map((record) => ({ record: { ...record, ...fresh }, bytes: null })));
    await this.load();
    this.tellOthers();
  }

  // -- changes of the model ----------------------------------------------------------------------------------------

  /**
   * Update names of classes in all items after a change of the model by any client.
   * @returns {Array} Items whose predicted class is gone. They must be predicted again.
   */
  follow() {
    const { record } = this.model;
    const labelOf = labelling(record);
    const known = new Set(record.classes.map(({ name }) => name));
    const touched = [];
    const outdated = [];
    const renamers = new Map();
    const renamer = (event) => {
      const key = `${event.revision} ${event.when}`;
      if (!renamers.has(key)) renamers.set(key, renamedSince(record, event));
      return renamers.get(key);
    };
    const event = presentEvent(record, null);
    const present = new Set(this.model.samples);
    for (const item of this.items) {
      const before = `${item.label}\n${item.moved}\n${item.taught}`;
      const rename = renamer(item.event ?? event);
      item.label = rename(item.label);
      const candidates = item.candidates?.map(rename).filter((name) => known.has(name));
      item.candidates = candidates ? [...new Set(candidates)] : null;
      const { sample } = item;
      if (sample) followSample(item, present.has(sample) || sample.isCopy ? labelOf(sample) : null);
      else if (item.moved && classOfGroup(item.moved)) item.moved = groupOfClass(rename(classOfGroup(item.moved)));
      item.event = event;
      if (item.moved && !known.has(item.label)) item.label = ""; // the page does not name classes that are gone
      if (before !== `${item.label}\n${item.moved}\n${item.taught}`) touched.push(item);
      if (item.done && !item.moved && !item.error && !known.has(item.label)) outdated.push(item);
    }
    this.changed(touched.filter((item) => !item.taught));
    const again = touched.filter((item) => item.taught && item.key !== null); // after a redo
    if (again.length) void this.dropTaught(again).catch(() => {});
    return outdated;
  }

  tellOthers() { tabs.postMessage(this.model.name); }

  tellSelf() { this.dispatchEvent(new Event("change")); }
}

/** Copy the fields of a record into an item. Return the item. */
function take(item, record) {
  for (const field of KEPT_FIELDS) if (field in record) item[field] = record[field];
  return item;
}

/** Move a taught item to the class of its sample; if the sample was undone, to its predicted group. */
function followSample(item, label) {
  item.taught = label !== null;
  item.moved = label === null ? null : groupOfClass(label);
}

/** Let an image refer to its contents directly, since it will be removed from the store. */
async function hold(image) {
  const bytes = await image.stored();
  Object.assign(image, imageFromStore(image.name, image.size, async () => bytes));
}

/** Copy the contents of an image into memory, so that they can be removed from the store. */
async function holdInMemory(image) {
  const { blob, ...rest } = await image.stored();
  const bytes = { ...rest, blob: new Blob([await blob.arrayBuffer()], { type: blob.type }) };
  Object.assign(image, imageFromStore(image.name, image.size, async () => bytes));
}
