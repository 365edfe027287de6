/*
 * What this browser keeps: samples, images that are being sorted, and a few settings of each model.
 *
 * Nothing of it is sent anywhere. If the browser forbids IndexedDB, everything is kept in memory until the page is
 * closed; the event "memory-only" of the document says so.
 */

const NAME = "evergrow";
const VERSION = 2;
const FULL = "This browser has no room left for this page. Free some space on this device, or discard images in Sort.";
const OLD_TAB = "An older version of this page is open in another tab. Close that tab, then reload this one.";
let opening = null;
let memory = null;
let full = false;
let lastUnkept = -(2 ** 40); // ids of samples that the store has no room for, counted downwards

/** Whether there was no room for samples. */
export const isFull = () => full;

/** Whether what is kept is still there after a reload. */
export const isLasting = () => memory === null;

/** An object store in memory, with the few methods that this module uses. */
class MemoryStore {
  constructor(keyPath) {
    this.keyPath = keyPath;
    this.values = new Map();
    this.lastKey = 0;
  }

  put(value, key = value[this.keyPath]) {
    if (key === undefined) this.lastKey += 1;
    const used = key ?? this.lastKey;
    this.values.set(used, this.keyPath ? { ...value, [this.keyPath]: used } : value);
    return { result: used };
  }

  get(key) { return { result: this.values.get(key) }; }

  getAll() { return { result: [...this.values.values()] }; }

  delete(key) { this.values.delete(key); }

  index(name) {
    return { getAll: (wanted) => ({ result: this.getAll().result.filter((value) => value[name] === wanted) }) };
  }
}

function useMemory() {
  memory ??= {
    samples: new MemoryStore("id"), models: new MemoryStore("name"), sorted: new MemoryStore("key"),
    sortedBytes: new MemoryStore(null),
  };
  document.dispatchEvent(new CustomEvent("memory-only"));
}

function upgrade(database, from) {
  if (from < 1) {
    const samples = database.createObjectStore("samples", { keyPath: "id", autoIncrement: true });
    samples.createIndex("model", "model");
    database.createObjectStore("models", { keyPath: "name" });
  }
  const sorted = database.createObjectStore("sorted", { keyPath: "key", autoIncrement: true });
  sorted.createIndex("model", "model");
  database.createObjectStore("sortedBytes"); // apart, so that an answer is noted without writing the image again
}

function open() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = (event) => upgrade(request.result, event.oldVersion);
    request.onblocked = () => reject(new Error(OLD_TAB));
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const database = request.result;
      const forget = () => { opening = null; };
      database.onclose = forget;
      database.onversionchange = () => {
        database.close();
        forget();
      };
      resolve(database);
    };
  });
  return opening;
}

async function opened() {
  if (memory) return null;
  try {
    return await open();
  } catch (error) {
    opening = null;
    if (error.message === OLD_TAB) throw error;
    useMemory(); // a private window, or site data is blocked
    return null;
  }
}

/** Return an error in words that people can act on. */
function inWords(error) {
  if (error?.name !== "QuotaExceededError") return error ?? new Error("The browser could not keep this.");
  return Object.assign(new Error(FULL), { kind: "full" });
}

/**
 * Run one transaction over stores; it is all done or not at all.
 * @param {string[]} names - Of the stores, which are handed to the work in this order.
 */
async function within(names, mode, work) {
  const database = await opened();
  if (!database) return work(...names.map((name) => memory[name]))?.result;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(names, mode, { durability: "strict" });
    const fail = () => reject(inWords(transaction.error));
    transaction.onerror = fail;
    transaction.onabort = fail;
    const result = work(...names.map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => resolve(result instanceof IDBRequest ? result.result : undefined);
  });
}

/** Write to stores and return whether there was room; if there was none, an event of the document says so. */
async function withinRoom(names, work) {
  try {
    await within(names, "readwrite", (...stores) => { work(...stores); });
    return true;
  } catch (error) {
    if (error.kind !== "full") throw error;
    full = true;
    document.dispatchEvent(new CustomEvent("store-full"));
    return false;
  }
}

// -- samples ---------------------------------------------------------------------------------------------------------

/** Return all samples of a model. */
export function samplesOf(model) {
  return within(["samples"], "readonly", (store) => store.index("model").getAll(model));
}

/**
 * Keep new samples and give each its id, or write changed ones again. Without room for them they last until the page is
 * closed, and the event "store-full" of the document says so: teaching goes on.
 */
export async function keep(samples) {
  const ours = samples.filter((one) => !one.keptId); // the server keeps the others
  const requests = [];
  const done = await withinRoom(["samples"], (store) => {
    for (const one of ours) requests.push(store.put(plain(one)));
  });
  for (const [i, one] of ours.entries()) {
    if (done) one.id = requests[i].result;
    else if (one.id === undefined) {
      lastUnkept -= 1;
      one.id = lastUnkept;
    }
  }
}

/** Drop samples for good. */
export function drop(samples) {
  return within(["samples"], "readwrite", (store) => { for (const one of samples) store.delete(one.id); });
}

function plain(sample) {
  const { address, ...kept } = sample; // the address of an image lives as long as the page
  if (kept.id === undefined) delete kept.id;
  return kept;
}

// -- images that are being sorted ------------------------------------------------------------------------------------

/** Return the records of all images that are being sorted with a model, without their bytes. */
export function sortedOf(model) {
  return within(["sorted"], "readonly", (store) => store.index("model").getAll(model));
}

/** Return how many images are being sorted with each model: a map of names to counts. */
export async function sortedCounts() {
  const records = await within(["sorted"], "readonly", (store) => store.getAll());
  const counts = new Map();
  for (const { model } of records) counts.set(model, (counts.get(model) ?? 0) + 1);
  return counts;
}

/**
 * Write records of images that are being sorted.
 * @param {Array<{record: Object, bytes: Object|null}>} entries - The bytes of new records; null keeps those there are.
 * @returns {Promise<number[]>} The keys of the records.
 */
export async function keepSorted(entries) {
  const requests = [];
  await within(["sorted", "sortedBytes"], "readwrite", (records, bytes) => {
    for (const entry of entries) {
      const request = records.put(entry.record);
      requests.push(request);
      if (!entry.bytes) continue;
      const put = () => { bytes.put(entry.bytes, request.result); };
      if (request instanceof IDBRequest) request.onsuccess = put;
      else put();
    }
  });
  return requests.map((request) => request.result);
}

/** Return how the bytes of an image lie in the store: blob, method, size and crc, as in a zip. */
export async function sortedBytes(key) {
  const bytes = await within(["sortedBytes"], "readonly", (store) => store.get(key));
  if (!bytes) throw new Error("It was taught or discarded in another tab");
  return bytes;
}

/** Drop images that are being sorted. */
export function dropSorted(keys) {
  return within(["sorted", "sortedBytes"], "readwrite", (records, bytes) => {
    for (const key of keys) {
      records.delete(key);
      bytes.delete(key);
    }
  });
}

// -- models ----------------------------------------------------------------------------------------------------------

/** Drop everything that is kept of a model. */
export async function dropModel(name) {
  await drop(await samplesOf(name));
  await dropSorted((await sortedOf(name)).map(({ key }) => key));
  await within(["models"], "readwrite", (store) => store.delete(name));
}

const DEFAULTS = { order: [], empty: [], share: 0.2, collapsed: [], imported: [] };

/** Return the settings of a model: order of its cards, cards without samples, share that is held out, large imports. */
export async function settingsOf(name) {
  return { name, ...DEFAULTS, ...(await within(["models"], "readonly", (store) => store.get(name))) };
}

/** Keep the settings of a model. */
export function keepSettings(settings) {
  return withinRoom(["models"], (store) => store.put(settings));
}
