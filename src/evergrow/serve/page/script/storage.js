/* The browser's small storages, or memory where the browser forbids them. */

/** Return a storage of the browser; one in memory if the browser refuses access. */
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

/** Lasts until the tab is closed. */
export const tabStorage = storageOrMemory(() => sessionStorage);

/** Lasts until the user clears it. */
export const lastingStorage = storageOrMemory(() => localStorage);
