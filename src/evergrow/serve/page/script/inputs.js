/* Dropped, pasted or chosen files: images, also in folders and zips, and text files. Other files are ignored. */

import { make, plural } from "./dom.js";
import { crcOf, entriesOf, packedBlob, plainBlob } from "./zip.js";

const IMAGE = /\.(jpe?g|png|webp|gif|bmp|avif|tiff?|hei[cf]|hif)$/i;
const TEXT = /\.(txt|csv|tsv)$/i;
const ZIP = /\.zip$/i;
const MOST_NAMED = 80; // characters of a file name in a message

/** File types that dialogs for images offer. */
export const IMAGES_AND_ZIPS = "image/*,.tif,.tiff,.heic,.heif,.zip";

const isZip = (file) => ZIP.test(file.name) || file.type === "application/zip";
const isImage = (name, type = "") => IMAGE.test(name) || type.startsWith("image/");

/** Return whether a drag has files, and is not a part of this page. */
export const bringsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/**
 * Return the content of a drop or a paste.
 * @param {DataTransfer} transfer - Of the event. It is read before the event ends, when the browser empties it.
 * @returns {Promise<Object>} images: as returned by imageOf; lines: lines of text files; text; names: names of
 *   all files and folders; zipped: names of zips that contain zips.
 */
export async function fromTransfer(transfer) {
  const entries = [...transfer.items].map((item) => (item.kind === "file" ? item.webkitGetAsEntry?.() : null));
  const plain = [...transfer.files];
  const text = transfer.getData("text/plain");
  const names = plain.map(({ name }) => name);
  const files = [];
  if (entries.some(Boolean)) {
    for (const entry of entries) if (entry) await walk(entry, files);
  } else {
    files.push(...plain.map((file) => ({ path: file.name, file })));
  }
  return { text: names.length ? "" : text, names, ...(await sorted(files)) };
}

/** Return the content of files that were chosen in a dialog, as fromTransfer does. */
export async function fromChosen(list) {
  const files = [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
  const names = [...new Set(files.map(({ path }) => path.split("/")[0]))];
  return { names, ...(await sorted(files)) };
}

/**
 * Return the images of a drop, a paste or a dialog. If there is none, raise an error that names the files; its message
 * goes away by itself.
 */
export function imagesIn({ images, names = [], zipped = [] }) {
  if (images.length) return images;
  throw Object.assign(new Error(noImage(names, zipped)), { isPassing: true });
}

/** Return a message for files without an image. */
function noImage(names, [zip]) {
  if (zip) return `No image found in “${shortened(zip)}”, only other zips. Unpack it first, then bring the folder.`;
  if (!names.length) return "No image found: bring image files, folders or zips.";
  const [first, ...rest] = names;
  const more = rest.length ? ` and ${plural(rest.length, "other file")}` : "";
  return `No image found in “${shortened(first)}”${more}.`;
}

/** Return the end of a long name, which has the ending of the file. */
const shortened = (name) => (name.length > MOST_NAMED ? `…${name.slice(-MOST_NAMED)}` : name);

/** Return a hidden file input. click() opens its dialog, and the chosen files are passed to a function. */
export function chooser(settings, take) {
  const input = make("input", { type: "file", hidden: true, tabIndex: -1, ...settings });
  input.addEventListener("change", () => {
    if (input.files.length) take(fromChosen(input.files));
    input.value = "";
  });
  return input;
}

/** Add all files of a dropped folder to a list. */
async function walk(entry, files) {
  if (entry.isFile) {
    const file = await new Promise((ok, no) => { entry.file(ok, no); });
    files.push({ path: entry.fullPath.replace(/^\//, ""), file });
    return;
  }
  const reader = entry.createReader();
  for (;;) { // a reader returns at most a hundred entries per call
    const batch = await new Promise((ok, no) => { reader.readEntries(ok, no); });
    if (!batch.length) return;
    for (const inner of batch) await walk(inner, files);
  }
}

/**
 * Return an image. Nothing of it is read yet.
 *
 * Its functions return promises. read: the bytes. packed: the bytes as an entry of a zip. mark: a text that is the same
 * for the same bytes. stored: as packed, but without a checksum if that is not known yet.
 */
function imageOf(name, { read, packed, stored = packed, crc = null, size }) {
  const sum = async () => crc ?? (await packed()).crc;
  return { name, size, read, packed, stored, mark: async () => `${size}-${await sum()}` };
}

/** Return an image from a file that the user brought. */
function fromDisk(path, file) {
  const { size } = file;
  const stored = async () => ({ blob: file, method: 0, size, crc: null });
  return imageOf(path, { read: async () => file, packed: () => packedBlob(file), stored, size });
}

/**
 * Return an image from the store of this browser, as imageOf does.
 * @param {string} name - Its original path.
 * @param {number} size - Its size in bytes.
 * @param {function(): Promise<Object>} stored - Returns the stored contents.
 */
export function imageFromStore(name, size, stored) {
  const read = async () => plainBlob(await stored(), name);
  const packed = async () => {
    const bytes = await stored();
    return { ...bytes, crc: bytes.crc ?? await crcOf(bytes.blob) };
  };
  return imageOf(name, { read, packed, stored, size });
}

/** Divide files into images, also in zips, and lines of text. */
async function sorted(files) {
  const images = [];
  const lines = [];
  const zipped = [];
  for (const { path, file } of files) {
    if (path.split("/").some((part) => part.startsWith("."))) continue;
    if (isZip(file)) {
      const entries = await entriesOf(file);
      images.push(...entries.filter(({ name }) => isImage(name)).map((entry) => imageOf(entry.name, entry)));
      if (entries.some(({ name }) => ZIP.test(name))) zipped.push(file.name);
    } else if (isImage(path, file.type)) images.push(fromDisk(path, file));
    else if (TEXT.test(path)) lines.push(await file.text());
  }
  const { compare } = new Intl.Collator("en", { numeric: true });
  images.sort((one, other) => compare(one.name, other.name));
  return { images, lines: lines.join("\n"), zipped };
}
