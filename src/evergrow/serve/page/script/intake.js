/* What people drop, paste or choose: images, folders with all that is in them, zips and texts; the rest is left. */

import { make } from "./dom.js";
import { crcOf, entriesOf, packedBlob, plainBlob } from "./zip.js";

const IMAGE = /\.(jpe?g|png|webp|gif|bmp|avif|tiff?|hei[cf]|hif)$/i;
const TEXT = /\.(txt|csv|tsv)$/i;
const ZIP = /\.zip$/i;

/** What file dialogs offer where images are wanted. */
export const IMAGES_AND_ZIPS = "image/*,.tif,.tiff,.heic,.heif,.zip";

const isZip = (file) => ZIP.test(file.name) || file.type === "application/zip";
const isImage = (name, type = "") => IMAGE.test(name) || type.startsWith("image/");

/** Whether a drag brings files, and not a part of this page. */
export const bringsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/**
 * Return what a drop or a paste holds.
 * @param {DataTransfer} transfer - Of the event; what it holds is only there until the event ends, so it is read first.
 * @returns {Promise<Object>} images as imageOf makes them, lines of text files, and text.
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

/** Return a hidden file input that hands over what was chosen; click() opens the dialog. */
export function chooser(settings, take) {
  const input = make("input", { type: "file", hidden: true, tabIndex: -1, ...settings });
  input.addEventListener("change", () => {
    if (input.files.length) take(fromChosen(input.files));
    input.value = "";
  });
  return input;
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

/**
 * Return an image that was brought; nothing of it is read yet.
 * read returns its bytes, packed how it would lie in a zip, and mark the same words for the same bytes. stored is what
 * this browser keeps: as packed, but without the checksum where that is not known yet.
 */
function imageOf(name, { read, packed, stored = packed, crc = null, size }) {
  const sum = async () => crc ?? (await packed()).crc;
  return { name, size, read, packed, stored, mark: async () => `${size}-${await sum()}` };
}

function fromDisk(path, file) {
  const { size } = file;
  const stored = async () => ({ blob: file, method: 0, size, crc: null });
  return imageOf(path, { read: async () => file, packed: () => packedBlob(file), stored, size });
}

/**
 * Return an image that this browser keeps.
 * @param {string} name - Its path, as it was brought.
 * @param {number} size - Its bytes.
 * @param {function(): Promise<Object>} stored - Returns what is kept.
 */
export function imageFromStore(name, size, stored) {
  const read = async () => plainBlob(await stored(), name);
  const packed = async () => {
    const bytes = await stored();
    return { ...bytes, crc: bytes.crc ?? await crcOf(bytes.blob) };
  };
  return imageOf(name, { read, packed, stored, size });
}

async function sorted(files) {
  const images = [];
  const lines = [];
  for (const { path, file } of files) {
    if (path.split("/").some((part) => part.startsWith("."))) continue;
    if (isZip(file)) {
      const inside = (await entriesOf(file)).filter((entry) => isImage(entry.name));
      images.push(...inside.map((entry) => imageOf(entry.name, entry)));
    } else if (isImage(path, file.type)) images.push(fromDisk(path, file));
    else if (TEXT.test(path)) lines.push(await file.text());
  }
  const { compare } = new Intl.Collator("en", { numeric: true });
  images.sort((one, other) => compare(one.name, other.name));
  return { images, lines: lines.join("\n") };
}
