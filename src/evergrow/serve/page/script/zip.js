/* Reading a zip in the browser, with the browser's own decompression; it is a stranger's, and everything has an end. */

const END = 0x06054b50;
const ENTRY = 0x02014b50;
const LOCAL = 0x04034b50;
const MOST_BYTES = 60 * 2 ** 20; // of one file once unpacked

/** Return the files of a zip as {name, read}, without folders, hidden files and what other systems leave behind. */
export async function entriesOf(zip) {
  const tail = new DataView(await zip.slice(Math.max(0, zip.size - 65_557)).arrayBuffer());
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== END) end -= 1;
  if (end < 0) throw new Error(`${zip.name} is not a readable zip file`);
  const count = tail.getUint16(end + 10, true);
  const size = tail.getUint32(end + 12, true);
  const start = tail.getUint32(end + 16, true);
  if (count === 0xffff || start === 0xffffffff) throw new Error(`${zip.name} is too large to unpack in the browser`);
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
      found.push({ name: entry.name, read: () => unpacked(zip, entry) });
    }
  }
  return found;
}

function entryAt(view, at) {
  const [names, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
  const bytes = new Uint8Array(view.buffer, view.byteOffset + at + 46, names);
  return {
    name: new TextDecoder().decode(bytes),
    method: view.getUint16(at + 10, true),
    packed: view.getUint32(at + 20, true),
    size: view.getUint32(at + 24, true),
    start: view.getUint32(at + 42, true),
    length: 46 + names + extra + comment,
  };
}

async function unpacked(zip, entry) {
  if (entry.size > MOST_BYTES) throw new Error(`${entry.name} is too large for an image`);
  const head = new DataView(await zip.slice(entry.start, entry.start + 30).arrayBuffer());
  if (head.byteLength < 30 || head.getUint32(0, true) !== LOCAL) throw new Error(`${entry.name} is damaged`);
  const begin = entry.start + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const content = zip.slice(begin, begin + entry.packed);
  if (entry.method === 0) return content;
  if (entry.method !== 8) throw new Error(`${entry.name} uses a compression that browsers do not support`);
  return bounded(content.stream().pipeThrough(new DecompressionStream("deflate-raw")), entry.name);
}

/** Read a stream to its end, but no further than an image may go: what an entry says of its size may be a lie. */
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
