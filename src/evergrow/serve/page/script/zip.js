/* Read and write zips. Zips are untrusted, so sizes are limited. */

const END = 0x06054b50;
const END_64 = 0x06064b50;
const FINDS_END_64 = 0x07064b50;
const ENTRY = 0x02014b50;
const LOCAL = 0x04034b50;
const FULL = 0xffffffff; // in a field: the number is too large for it and is in the zip64 fields
const MOST_BYTES = 60 * 2 ** 20; // size of an unpacked file
const MOST_COMMENT = 65_557; // size of the end record with the longest comment
const MOST_DIRECTORY = 512 * 2 ** 20;

// -- reading ---------------------------------------------------------------------------------------------------------

/**
 * Return the files of a zip, without folders, hidden files and files of macOS.
 * @returns {Promise<Array>} As { name, size, crc, read, packed }. read() returns the unpacked contents, and packed()
 *   the entry as { blob, method, size, crc }.
 */
export async function entriesOf(zip) {
  const { count, size, start } = await endOf(zip);
  if (size > MOST_DIRECTORY) throw new Error(`${zip.name} is damaged`);
  const directory = new DataView(await zip.slice(start, start + size).arrayBuffer());
  const found = [];
  let at = 0;
  for (let i = 0; i < count; i += 1) {
    if (at + 46 > directory.byteLength || directory.getUint32(at, true) !== ENTRY) {
      throw new Error(`${zip.name} is damaged`);
    }
    const entry = entryAt(directory, at);
    at += entry.length;
    const base = entry.name.split("/").pop();
    if (base && !base.startsWith(".") && !entry.name.startsWith("__MACOSX/")) {
      const { name, size: full, crc } = entry;
      found.push({ name, size: full, crc, read: () => unpacked(zip, entry), packed: () => packed(zip, entry) });
    }
  }
  return found;
}

/** Find the directory of a zip. Return { count, size, start }: its entries, its bytes and where it starts. */
async function endOf(zip) {
  const from = Math.max(0, zip.size - MOST_COMMENT);
  const tail = new DataView(await zip.slice(from).arrayBuffer());
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== END) end -= 1;
  if (end < 0) throw new Error(`${zip.name} is not a readable zip file`);
  const plain = {
    count: tail.getUint16(end + 10, true), size: tail.getUint32(end + 12, true), start: tail.getUint32(end + 16, true),
  };
  if (end < 20 || tail.getUint32(end - 20, true) !== FINDS_END_64) return plain;
  const offset = Number(tail.getBigUint64(end - 12, true));
  const large = new DataView(await zip.slice(offset, offset + 56).arrayBuffer());
  if (large.byteLength < 56 || large.getUint32(0, true) !== END_64) throw new Error(`${zip.name} is damaged`);
  const [count, size, start] = [32, 40, 48].map((offset) => Number(large.getBigUint64(offset, true)));
  return { count, size, start };
}

/** Return the entry at a position of the directory. */
function entryAt(view, at) {
  const [names, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
  const length = 46 + names + extra + comment;
  if (at + length > view.byteLength) throw new Error("The zip is damaged");
  const bytes = new Uint8Array(view.buffer, view.byteOffset + at + 46, names);
  const entry = {
    name: new TextDecoder().decode(bytes),
    method: view.getUint16(at + 10, true),
    crc: view.getUint32(at + 16, true),
    size: view.getUint32(at + 24, true),
    packed: view.getUint32(at + 20, true),
    start: view.getUint32(at + 42, true),
    length,
  };
  for (let offset = at + 46 + names; offset + 4 <= at + 46 + names + extra;) {
    const [id, size] = [view.getUint16(offset, true), view.getUint16(offset + 2, true)];
    if (id === 1) readLarge(entry, view, offset + 4, offset + 4 + size);
    offset += 4 + size;
  }
  return entry;
}

/** Replace numbers of an entry that are too large for their fields by those in its zip64 field, in their order. */
function readLarge(entry, view, from, to) {
  let at = from;
  for (const key of ["size", "packed", "start"]) {
    if (entry[key] !== FULL || at + 8 > to) continue;
    entry[key] = Number(view.getBigUint64(at, true));
    at += 8;
  }
}

/** Return an entry without unpacking it. */
async function packed(zip, entry) {
  const head = new DataView(await zip.slice(entry.start, entry.start + 30).arrayBuffer());
  if (head.byteLength < 30 || head.getUint32(0, true) !== LOCAL) throw new Error(`${entry.name} is damaged`);
  const begin = entry.start + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const { method, size, crc } = entry;
  return { blob: zip.slice(begin, begin + entry.packed), method, size, crc };
}

/** Return the contents of an entry. */
async function unpacked(zip, entry) {
  if (entry.size > MOST_BYTES) throw new Error(`${entry.name} is too large for an image`);
  return plainBlob(await packed(zip, entry), entry.name);
}

/** Unpack an entry. Raise an error with its name if its compression is not supported. */
export async function plainBlob({ blob, method }, name) {
  if (method === 0) return blob;
  if (method !== 8) throw new Error(`${name} uses a compression that browsers do not support`);
  return bounded(blob.stream().pipeThrough(new DecompressionStream("deflate-raw")), name);
}

/** Read a stream into a blob, but no more than MOST_BYTES, since the size in an entry may be wrong. */
async function bounded(stream, name) {
  const pieces = [];
  let size = 0;
  for (const reader = stream.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(pieces);
    size += value.length;
    if (size > MOST_BYTES) {
      await reader.cancel();
      throw new Error(`${name} is too large for an image`);
    }
    pieces.push(value);
  }
}

// -- writing ---------------------------------------------------------------------------------------------------------

/** Table of the CRC-32. */
const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let value = n;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});

/** Return the CRC-32 of a blob. Reads it in pieces. */
export async function crcOf(blob) {
  let crc = FULL;
  for (const reader = blob.stream().getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return (crc ^ FULL) >>> 0;
    for (const byte of value) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  }
}

/** Return a blob as an entry of a zip, without compression. */
export async function packedBlob(blob) {
  return { blob, method: 0, size: blob.size, crc: await crcOf(blob) };
}

/** Return numbers as little-endian bytes; each number is [width in bytes, value]. */
function fields(...numbers) {
  const view = new DataView(new ArrayBuffer(numbers.reduce((sum, [width]) => sum + width, 0)));
  let at = 0;
  for (const [width, value] of numbers) {
    if (width === 8) view.setBigUint64(at, BigInt(value), true);
    else if (width === 4) view.setUint32(at, value, true);
    else view.setUint16(at, value, true);
    at += width;
  }
  return view;
}

/**
 * Return a zip as a blob. It refers to the files and does not copy them, so it can be larger than the memory.
 * @param {Array<{path: string, packed: function}>} files - Path of each file in the zip, and packed() as of entriesOf.
 * @param {function(number)} onProgress - Called with the number of files so far.
 */
export async function zipOf(files, onProgress = () => {}) {
  const parts = [];
  const directory = [];
  let at = 0;
  for (const [i, file] of files.entries()) {
    const { blob, method, size, crc } = await file.packed();
    const name = new TextEncoder().encode(file.path);
    const far = at >= FULL;
    const extra = far ? fields([2, 1], [2, 8], [8, at]) : new Uint8Array();
    const about = [[2, 0x0800], [2, method], [4, 0x00210000], [4, crc], [4, blob.size], [4, size], [2, name.length]];
    parts.push(fields([4, LOCAL], [2, 20], ...about, [2, 0]), name, blob);
    directory.push(fields([4, ENTRY], [2, 45], [2, 45], ...about, [2, extra.byteLength], [2, 0], [2, 0], [2, 0], [4, 0],
      [4, far ? FULL : at]), name, extra);
    at += 30 + name.length + blob.size;
    onProgress(i + 1);
  }
  const size = directory.reduce((sum, part) => sum + part.byteLength, 0);
  const n = files.length;
  const large = [fields([4, END_64], [8, 44], [2, 45], [2, 45], [4, 0], [4, 0], [8, n], [8, n], [8, size], [8, at]),
    fields([4, FINDS_END_64], [4, 0], [8, at + size], [4, 1])];
  const isLarge = n >= 0xffff || at >= FULL;
  const short = Math.min(n, 0xffff);
  const end = fields([4, END], [2, 0], [2, 0], [2, short], [2, short], [4, Math.min(size, FULL)],
    [4, Math.min(at, FULL)], [2, 0]);
  return new Blob([...parts, ...directory, ...(isLarge ? large : []), end], { type: "application/zip" });
}
