/* What people drop, paste or choose: images, folders with all that is in them, zips and texts; the rest is left. */

import { entriesOf } from "./zip.js";

const IMAGE = /\.(jpe?g|png|webp|gif|bmp|avif)$/i;
const TEXT = /\.(txt|csv|tsv)$/i;
const ZIP = /\.zip$/i;

const isZip = (file) => ZIP.test(file.name) || file.type === "application/zip";
const isImage = (name, type = "") => IMAGE.test(name) || type.startsWith("image/");

/** Return the last folder of a path, which names a class where none was chosen. */
export const folderOf = (path) => path.split("/").slice(-2, -1)[0] ?? "";

/**
 * Return what a drop or a paste holds.
 * @param {DataTransfer} transfer - Of the event; what it holds is only there until the event ends, so it is read first.
 * @returns {Promise<Object>} images as {name, folder, read}, zips as {file, size}, lines of text files, and text.
 */
export async function fromTransfer(transfer) {
  const entries = [...transfer.items].map((item) => (item.kind === "file" ? item.webkitGetAsEntry?.() : null));
  const plain = [...transfer.files];
  const text = transfer.getData("text/plain");
  const files = [];
  if (entries.some(Boolean)) {
    for (const entry of entries) if (entry) await walk(entry, files);
  } else {
    files.push(...plain.map((file) => ({ path: file.name, file })));
  }
  return { text: files.length ? "" : text, ...(await sorted(files)) };
}

/** Return what was chosen in a file dialog. */
export function fromChosen(list) {
  return sorted([...list].map((file) => ({ path: file.webkitRelativePath || file.name, file })));
}

async function walk(entry, files) {
  if (entry.isFile) {
    const file = await new Promise((ok, no) => { entry.file(ok, no); });
    files.push({ path: entry.fullPath.replace(/^\//, ""), file });
    return;
  }
  const reader = entry.createReader();
  for (;;) { // a reader hands out a hundred at a time
    const batch = await new Promise((ok, no) => { reader.readEntries(ok, no); });
    if (!batch.length) return;
    for (const inner of batch) await walk(inner, files);
  }
}

async function sorted(files) {
  const images = [];
  const zips = [];
  const lines = [];
  for (const { path, file } of files) {
    if (isZip(file)) {
      const inside = (await entriesOf(file)).filter((entry) => isImage(entry.name));
      zips.push({ file, size: inside.length });
      images.push(...inside.map(({ name, read }) => ({ name, folder: folderOf(name), read, zip: file })));
    } else if (isImage(path, file.type)) {
      images.push({ name: path, folder: folderOf(path), read: async () => file });
    } else if (TEXT.test(path)) {
      lines.push(await file.text());
    }
  }
  images.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
  return { images, zips, lines: lines.join("\n") };
}
