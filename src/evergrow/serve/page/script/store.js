/*
 * The browser's store (IndexedDB): samples, images that are being sorted, and settings of each model.
 *
 * None of it is sent anywhere. If the browser forbids IndexedDB, everything stays in memory until the page is closed,
 * and the document gets the event "memory-only".
 */

const NAME = "evergrow";
const VERSION = 2;
const FULL = "This browser has no room left for this page. Free some space on this device, or remove images in Sort.";
const OLD_TAB = "An older version of this page is open in another tab. Close that tab, then reload this one.";
let opening = null;
let memory = null;
let full = false;
let lastUnkept = -(2 ** 40); // the latest id of a sample that the store had no room for; ids count down

/** Whether the store had no room for some samples. */
export const isFull = () => full;

/** Whether the store survives a reload. */
export const isLasting = () => memory === null;

/** A replacement for an IDBObjectStore, in memory, with the methods that this module uses. */
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

/** Keep everything in memory from now on. */
function useMemory() {
  memory ??= {
    samples: new MemoryStore("id"), models: new MemoryStore("name"), sorted: new MemoryStore("key"),
    sortedBytes: new MemoryStore(null),
  };
  document.dispatchEvent(new CustomEvent("memory-only"));
}

/** Create the object stores of the current version; "from" is the version that the browser has. */
function upgrade(database, from) {
  if (from < 1) {
    const samples = database.createObjectStore("samples", { keyPath: "id", autoIncrement: true });
    samples.createIndex("model", "model");
    database.createObjectStore("models", { keyPath: "name" });
  }
  const sorted = database.createObjectStore("sorted", { keyPath: "key", autoIncrement: true });
  sorted.createIndex("model", "model");
  database.createObjectStore("sortedBytes"); // separate, so that storing an answer does not write the image again
}

/** Return the database. Opened at the first call. */
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

/** Return the database, or null if everything stays in memory. */
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

/** Return an error with a message for people. Its kind is "full" if there is no room. */
function inWords(error) {
  if (error?.name !== "QuotaExceededError") return error ?? new Error("The browser could not keep this.");
  return Object.assign(new Error(FULL), { kind: "full" });
}

/**
 * Run a transaction: all of its changes are made, or none.
 * @param {string[]} names - Names of the object stores.
 * @param {"readonly"|"readwrite"} mode - Mode of the transaction.
 * @param {function(...Object): *} work - Called with the stores, in this order.
 * @returns {Promise} The result of the request that "work" returned, if it returned one.
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

/** Write to stores and return whether there was room. Without room, the document gets the event "store-full". */
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

/** Return the stored samples of a model. */
export function samplesOf(model) {
  return within(["samples"], "readonly", (store) => store.index("model").getAll(model));
}

/**
 * Store new or changed samples, and set the id of new ones. Without room they last until the page is closed; they can
 * still be taught, and the document gets the event "store-full".
 */
export async function keep(samples) {
  const ours = samples.filter((one) => !one.keptId); // the others are stored on the server
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

/** Delete samples from the store. */
export function drop(samples) {
  return within(["samples"], "readwrite", (store) => { for (const one of samples) store.delete(one.id); });
}

/** Return the fields of a sample that are stored. */
function plain(sample) {
  const { address, ...kept } = sample; // an object URL, which is valid until the page is closed
  if (kept.id === undefined) delete kept.id;
  return kept;
}

// -- images that are being sorted ------------------------------------------------------------------------------------

/** Return the records of all images that are being sorted with a model, without their contents. */
export function sortedOf(model) {
  return within(["sorted"], "readonly", (store) => store.index("model").getAll(model));
}

/** Return the number of images that are being sorted, by name of the model, as a Map. */
export async function sortedCounts() {
  const records = await within(["sorted"], "readonly", (store) => store.getAll());
  const counts = new Map();
  for (const { model } of records) counts.set(model, (counts.get(model) ?? 0) + 1);
  return counts;
}

/**
 * Store records of images that are being sorted.
 * @param {Array<{record: Object, bytes: Object|null}>} entries - Records with their contents, as in "sortedBytes".
 *   Null leaves the stored contents as they are.
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

/** Return the stored contents of an image, packed as in a zip: blob, method, size and crc. */
export async function sortedBytes(key) {
  const bytes = await within(["sortedBytes"], "readonly", (store) => store.get(key));
  if (!bytes) throw new Error("It was taught or discarded in another tab");
  return bytes;
}

/** Delete images that are being sorted, by their keys. */
export function dropSorted(keys) {
  return within(["sorted", "sortedBytes"], "readwrite", (records, bytes) => {
    for (const key of keys) {
      records.delete(key);
      bytes.delete(key);
    }
  });
}

// -- models ----------------------------------------------------------------------------------------------------------

/** Delete everything that is stored for a model. */
export async function dropModel(name) {
  await drop(await samplesOf(name));
  await dropSorted((await sortedOf(name)).map(({ key }) => key));
  await within(["models"], "readwrite", (store) => store.delete(name));
}

const DEFAULTS = { order: [], empty: [], share: 0.2, collapsed: [], imported: [], limits: null };

/**
 * Return the settings of a model.
 * @returns {Promise<Object>} name; order: names of classes in the order of their cards; empty: classes without samples;
 *   share: fraction held out for testing; collapsed: classes whose card is collapsed; imported: marks of the images of
 *   large imports; limits: limits of Sort as in strictness.js, null for the usual ones.
 */
export async function settingsOf(name) {
  return { name, ...DEFAULTS, ...(await within(["models"], "readonly", (store) => store.get(name))) };
}

/** Store the settings of a model. */
export function keepSettings(settings) {
  return withinRoom(["models"], (store) => store.put(settings));
}
