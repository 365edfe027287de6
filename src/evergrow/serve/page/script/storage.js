/* Storages for short texts (Web Storage), in memory if the browser forbids them. */

/** Return the storage that "find" returns, or one in memory if the browser refuses access. */
function storageOrMemory(find) {
  try {
    const storage = find();
    storage.getItem("evergrow");
    return storage;
  } catch { // cookies and site data are blocked
    const values = new Map();
    return {
      getItem: (key) => values.get(key) ?? null,
      setItem: (key, value) => { values.set(key, String(value)); },
      removeItem: (key) => { values.delete(key); },
    };
  }
}

/** Storage that lasts until the tab is closed. */
export const tabStorage = storageOrMemory(() => sessionStorage);

/** Storage that lasts until the user clears it. */
export const lastingStorage = storageOrMemory(() => localStorage);
