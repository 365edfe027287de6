/* What this browser keeps: samples (their bytes never stay on the server) and a few settings of each model. */

const NAME = "evergrow";
let opening = null;

function open() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      const samples = request.result.createObjectStore("samples", { keyPath: "id", autoIncrement: true });
      samples.createIndex("model", "model");
      request.result.createObjectStore("models", { keyPath: "name" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => { opening = null; reject(request.error); };
  });
  return opening;
}

/** Run one transaction over a store; it is all done or not at all. */
async function within(store, mode, work) {
  const database = await open();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(store, mode, { durability: "strict" });
    const result = work(transaction.objectStore(store));
    transaction.oncomplete = () => resolve(result instanceof IDBRequest ? result.result : undefined);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Return all samples of a model. */
export function samplesOf(model) {
  return within("samples", "readonly", (store) => store.index("model").getAll(model));
}

/** Keep new samples and give each its id, or write changed ones again. */
export async function keep(samples) {
  const ours = samples.filter((one) => !one.keptId); // the server keeps the others
  const requests = [];
  await within("samples", "readwrite", (store) => { for (const one of ours) requests.push(store.put(plain(one))); });
  ours.forEach((one, i) => { one.id = requests[i].result; });
}

/** Drop samples for good. */
export function drop(samples) {
  return within("samples", "readwrite", (store) => { for (const one of samples) store.delete(one.id); });
}

/** Drop everything that is kept of a model. */
export async function dropModel(name) {
  await drop(await samplesOf(name));
  await within("models", "readwrite", (store) => store.delete(name));
}

function plain(sample) {
  const { address, ...kept } = sample; // the address of an image lives as long as the page
  if (kept.id === undefined) delete kept.id;
  return kept;
}

const DEFAULTS = { order: [], empty: [], share: 0.2, collapsed: [], imported: [] };

/** Return the settings of a model: order of its cards, cards without samples, share that is held out, large imports. */
export async function settingsOf(name) {
  return { name, ...DEFAULTS, ...(await within("models", "readonly", (store) => store.get(name))) };
}

/** Keep the settings of a model. */
export function keepSettings(settings) {
  return within("models", "readwrite", (store) => store.put(settings));
}
