/* Prepare images for the service: scale, encode, and compute a hash of how they look. */

import { previewOf } from "./api.js";

const MOST = 512; // pixels of the longer side; networks take smaller images
const QUALITY = 0.9;
const SMALL = 2 ** 20; // bytes up to which a small image is sent unchanged, so that predictions equal those of commands
const PLAIN = /\.(jpe?g|png|webp)$/i;

/** Return a canvas with an image, scaled down to at most "most" pixels on the longer side. */
function drawn(source, width, height, most = MOST) {
  const scale = Math.min(1, most / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: most < MOST });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // background of transparent images, as in viewers
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(source, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** Return a canvas as a JPEG blob. */
function encoded(canvas) {
  return new Promise((resolve, reject) => {
    const take = (blob) => (blob ? resolve(blob) : reject(new Error("the image could not be encoded")));
    canvas.toBlob(take, "image/jpeg", QUALITY);
  });
}

/** Return the current frame of the camera as a sample: { blob, look }. */
export async function fromVideo(video, most = MOST) {
  const canvas = drawn(video, video.videoWidth, video.videoHeight, most);
  return { blob: await encoded(canvas), look: look(canvas) };
}

/** Return an image file as a sample: { blob, look }. Raise an error with its name if it cannot be read. */
export async function fromFile(file, most = MOST) {
  const { bitmap, preview } = await bitmapOf(file);
  try {
    const canvas = drawn(bitmap, bitmap.width, bitmap.height, most);
    const small = canvas.width === bitmap.width && file.size <= SMALL && PLAIN.test(file.name);
    return { blob: preview ?? (small ? file : await encoded(canvas)), look: look(canvas) };
  } finally {
    bitmap.close();
  }
}

/** Return the pixels of an image file. The service converts what browsers cannot read (TIFF, HEIC, 16 bits). */
async function bitmapOf(file) {
  const settings = { imageOrientation: "from-image" };
  if (!(await isDeep(file))) {
    try {
      return { bitmap: await createImageBitmap(file, settings) };
    } catch { /* the service may be able to read it */ }
  }
  try {
    const preview = await previewOf(file);
    return { bitmap: await createImageBitmap(preview, settings), preview };
  } catch (error) {
    if (error.kind && error.kind !== "refused") throw error;
    const [, remedy] = error.message.match(/: ([^:]*pip install.*)$/) ?? []; // a missing package
    const why = remedy ? `: ${remedy}` : "";
    throw new Error(`“${file.name || "What was pasted"}” is not an image that can be read${why}`);
  }
}

/** Return whether a file is a PNG with 16 bits. Browsers drop the lower eight; the service and commands do not. */
async function isDeep(file) {
  const head = new Uint8Array(await file.slice(0, 25).arrayBuffer());
  return head[1] === 0x50 && head[2] === 0x4e && head[3] === 0x47 && head[24] === 16;
}

/**
 * Return a difference hash of an image as 16 hexadecimal digits: 64 bits that say where it gets brighter from left to
 * right. Images that look alike differ in few bits.
 */
function look(canvas) {
  const small = document.createElement("canvas");
  small.width = 9;
  small.height = 8;
  const context = small.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(canvas, 0, 0, 9, 8);
  const { data } = context.getImageData(0, 0, 9, 8);
  const grey = (i) => 0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2];
  let digits = "";
  for (let row = 0; row < 8; row += 1) {
    let byte = 0;
    for (let column = 0; column < 8; column += 1) {
      byte = 2 * byte + (grey(9 * row + column) < grey(9 * row + column + 1) ? 1 : 0);
    }
    digits += byte.toString(16).padStart(2, "0");
  }
  return digits;
}

const BITS = Array.from({ length: 256 }, (_, n) => n.toString(2).replaceAll("0", "").length);

/** Return the number of different bits of two hashes. */
export function difference(one, other) {
  let bits = 0;
  for (let i = 0; i < 16; i += 2) {
    bits += BITS[parseInt(one.slice(i, i + 2), 16) ^ parseInt(other.slice(i, i + 2), 16)];
  }
  return bits;
}

/** Number of bits up to which two images look the same. */
export const ALIKE = 4;
