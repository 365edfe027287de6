// An evergrow model that was exported to ONNX, asked in a browser: images in, labels and probabilities out.
//
// Images are resized as Pillow does it, filter by filter and rounding by rounding, so that the graph sees what it would
// see in Python; a canvas resizes differently in every browser. The labels and the settings of the resizing
// are in the graph's metadata, which onnxruntime-web does not hand out: they are read from the file here.

import * as ort from "./ort.wasm.min.mjs";

ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
ort.env.wasm.numThreads = 1; // more take a server that isolates the page (COOP and COEP headers)

/** Open the graph in a file or at an address: a session, its labels, and how images are prepared for it. */
export async function openModel(source) {
  const bytes = new Uint8Array(
    source instanceof Blob ? await source.arrayBuffer() : await (await found(await fetch(source))).arrayBuffer(),
  );
  const about = readMetadata(bytes);
  const views = about["evergrow.views"] ?? (about["evergrow.preprocessing"] && `[${about["evergrow.preprocessing"]}]`);
  if (!("evergrow.labels" in about) || !views) {
    throw new Error("the graph must be one that evergrow exported from a model of images: no labels or preprocessing");
  }
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  return {
    session,
    labels: JSON.parse(about["evergrow.labels"]),
    views: JSON.parse(views),
    thresholds: JSON.parse(about["evergrow.novelty_thresholds"] ?? "[]"),
  };
}

function found(answer) {
  if (!answer.ok) throw new Error(`${answer.url} must be there, got ${answer.status}`);
  return answer;
}

/**
 * Classify an image file (a Blob): the label, all labels with their probability or score (likeliest first), the novelty,
 * and whether the image is unknown: more novel than all but a fraction `falseAlarm` of known images.
 */
export async function classify(model, file, falseAlarm = 0.05) {
  const [pixels, height, width] = sheet(await decode(file), model.views);
  const answer = await model.session.run({ pixels: new ort.Tensor("uint8", pixels, [1, 3, height, width]) });
  const values = (answer.probabilities ?? answer.scores).data;
  const ranked = model.labels.map((label, column) => ({ label, value: Number(values[column]) }));
  ranked.sort((a, b) => b.value - a.value);
  const novelty = answer.novelty ? Number(answer.novelty.data[0]) : null;
  const limit = model.thresholds.find((entry) => entry.false_alarm === falseAlarm);
  return {
    label: model.labels[Number(answer.label_index.data[0])],
    measure: answer.probabilities ? "probability" : "score",
    ranked,
    novelty,
    unknown: limit !== undefined && novelty > limit.threshold,
  };
}

// -- images -------------------------------------------------------------------------------------------------------

/** Return the pixels of an image file, the right way up, as {width, height, data} with four bytes each. */
export async function decode(file) {
  const image = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  image.close();
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

/** Return all views of an image side by side, black below the smaller ones, with the height and width of the sheet. */
export function sheet(image, views) {
  const height = Math.max(...views.map((how) => how.size[0]));
  const width = views.reduce((sum, how) => sum + how.size[1], 0);
  const pixels = new Uint8Array(3 * height * width);
  for (const how of views) {
    const [rows, columns] = how.size;
    const part = prepare(image, how);
    for (let line = 0; line < 3 * rows; line++) {
      const place = (Math.floor(line / rows) * height + (line % rows)) * width + (how.left ?? 0);
      pixels.set(part.subarray(line * columns, (line + 1) * columns), place);
    }
  }
  return [pixels, height, width];
}

/** Resize and crop an image as the model's metadata say; returns bytes in the order channel, row, column. */
export function prepare(image, how) {
  const [wantedHeight, wantedWidth] = how.size;
  const [height, width] = resizedSize(image, how);
  const resized = resample(image, width, height, how.interpolation);
  const fill = how.crop_mode === "border" ? how.mean.map((value) => roundEven(255 * value)) : [0, 0, 0];
  const tall = Math.max(height, wantedHeight);
  const wide = Math.max(width, wantedWidth);
  const top = roundEven((tall - wantedHeight) / 2) - Math.floor((tall - height) / 2);
  const left = roundEven((wide - wantedWidth) / 2) - Math.floor((wide - width) / 2);
  const area = wantedHeight * wantedWidth;
  const pixels = new Uint8Array(3 * area);
  for (let y = 0; y < wantedHeight; y++) {
    for (let x = 0; x < wantedWidth; x++) {
      const [row, column] = [y + top, x + left];
      const inside = row >= 0 && row < height && column >= 0 && column < width;
      for (let channel = 0; channel < 3; channel++) {
        const value = inside ? resized[(row * width + column) * 3 + channel] : fill[channel];
        pixels[channel * area + y * wantedWidth + x] = value;
      }
    }
  }
  return pixels;
}

function resizedSize({ width, height }, how) {
  if (how.crop_mode === "squash") return how.resize;
  if (how.crop_mode === "center" && how.resize[0] === how.resize[1]) {
    const short = how.resize[0];
    const long = Math.trunc((short * Math.max(height, width)) / Math.min(height, width));
    return height <= width ? [short, long] : [long, short];
  }
  const ratios = [height / how.resize[0], width / how.resize[1]];
  const ratio = how.crop_mode === "border" ? Math.max(...ratios) : Math.min(...ratios);
  return [Math.max(roundEven(height / ratio), 1), Math.max(roundEven(width / ratio), 1)];
}

/** Round as Python does: halves go to the even neighbour. */
function roundEven(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 === 0 ? below : below + 1;
}

// -- Pillow's resampling: separable filters, widened where an image shrinks, in fixed-point arithmetic ---------------

const BITS = 22; // of the fraction of a coefficient

const FILTERS = {
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  hamming: [1, hamming],
  bicubic: [2, bicubic],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

function hamming(x) {
  const distance = Math.abs(x);
  if (distance === 0) return 1;
  return distance >= 1 ? 0 : sinc(distance) * (0.54 + 0.46 * Math.cos(distance * Math.PI));
}

function bicubic(x) {
  const distance = Math.abs(x);
  if (distance < 1) return ((-0.5 + 2) * distance - (-0.5 + 3)) * distance * distance + 1;
  return distance < 2 ? (((distance - 5) * distance + 8) * distance - 4) * -0.5 : 0;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
}

/** Return for every place of a resized line the first place it is made of and the weights from there on. */
function coefficients(length, wanted, name) {
  if (!(name in FILTERS)) throw new Error(`interpolation must be one of ${Object.keys(FILTERS).join(", ")}, got ${name}`);
  const [reach, filter] = FILTERS[name];
  const scale = length / wanted;
  const stretch = Math.max(scale, 1);
  const support = reach * stretch;
  return Array.from({ length: wanted }, (_, place) => {
    const center = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(center - support + 0.5), 0);
    const count = Math.min(Math.trunc(center + support + 0.5), length) - first;
    const weights = Array.from({ length: count }, (_, step) => filter((step + first - center + 0.5) / stretch));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const fixed = weights.map((weight) => {
      const share = (total === 0 ? weight : weight / total) * 2 ** BITS;
      return Math.trunc(share < 0 ? share - 0.5 : share + 0.5);
    });
    return [first, fixed];
  });
}

/** Return an image of another size, three bytes a pixel: first along its rows, then along its columns. */
export function resample({ data, width, height }, wantedWidth, wantedHeight, filter) {
  const channels = data.length / (width * height);
  const across = width === wantedWidth ? null : coefficients(width, wantedWidth, filter);
  const rows = new Uint8ClampedArray(wantedWidth * height * 3);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < wantedWidth; x++) {
      const [first, weights] = across ? across[x] : [x, null];
      for (let channel = 0; channel < 3; channel++) {
        const start = (y * width + first) * channels + channel;
        rows[(y * wantedWidth + x) * 3 + channel] = weights ? weighed(data, start, channels, weights) : data[start];
      }
    }
  }
  if (height === wantedHeight) return rows;
  const down = coefficients(height, wantedHeight, filter);
  const columns = new Uint8ClampedArray(wantedWidth * wantedHeight * 3);
  const line = wantedWidth * 3;
  for (let y = 0; y < wantedHeight; y++) {
    const [first, weights] = down[y];
    for (let x = 0; x < line; x++) columns[y * line + x] = weighed(rows, first * line + x, line, weights);
  }
  return columns;
}

function weighed(data, start, step, weights) {
  let sum = 2 ** (BITS - 1);
  for (let place = 0; place < weights.length; place++) sum += data[start + place * step] * weights[place];
  return sum >> BITS; // what is below 0 or above 255 is clamped where it is written
}

// -- metadata of an ONNX file: field 14 of the model, pairs of a key (field 1) and a value (field 2) ------------------

/** Return the metadata in the bytes of an ONNX file, by key. */
export function readMetadata(bytes) {
  const metadata = {};
  for (const [field, part] of fields(bytes)) {
    if (field !== 14 || part === null) continue;
    const pair = {};
    for (const [number, text] of fields(part)) if (text !== null) pair[number] = new TextDecoder().decode(text);
    metadata[pair[1]] = pair[2] ?? "";
  }
  return metadata;
}

/** Yield the fields of a protocol buffer: their number, and their bytes where they have a length. */
function* fields(bytes) {
  let place = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      if (place >= bytes.length || factor > 2 ** 56) throw new Error("the file must be a whole ONNX graph");
      const byte = bytes[place++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (place < bytes.length) {
    const tag = varint();
    const [field, type] = [Math.floor(tag / 8), tag % 8];
    if (type === 2) {
      const length = varint();
      if (place + length > bytes.length) throw new Error("the file must be a whole ONNX graph");
      yield [field, bytes.subarray(place, place + length)];
      place += length;
    } else if (type === 0) {
      varint();
      yield [field, null];
    } else if (type === 1 || type === 5) {
      place += type === 1 ? 8 : 4;
      yield [field, null];
    } else {
      throw new Error("the file must be an ONNX graph");
    }
  }
}
