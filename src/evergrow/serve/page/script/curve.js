/* Would more examples help? Accuracy by examples per class, as a chart and in words. */

import { ask } from "./api.js";
import { fill, iconButton, make } from "./dom.js";
import { attempt } from "./notice.js";
import { bodyOf, countOf, labelling } from "./samples.js";

const MOST = 600; // maximum number of examples that are sent
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [560, 240, 52, 24, 14, 44];
const SPACE = "http://www.w3.org/2000/svg";

/** Return a section with a button that measures the curve. */
export function curveSection(model) {
  const problems = make("div.problems");
  const result = make("div.stack", { aria: { live: "polite" } });
  const button = iconButton("search", "Would more examples help?", () => void attempt(problems, async () => {
    button.disabled = true;
    fill(result, make("p.soft", {}, "Learning some of the examples and testing on the others…"));
    try {
      fill(result, drawn(model.kind, await measured(model)));
    } catch (error) {
      fill(result);
      throw error;
    } finally {
      button.disabled = false;
    }
  }));
  return make("section.stack.curve", {}, make("div.row", {}, button), problems, result);
}

/** Return the learning curve, measured on evenly spaced examples of this browser. */
async function measured(model) {
  const labelOf = labelling(model.record);
  const all = model.classes.flatMap((one) => [...one.taught, ...one.held]);
  const step = Math.max(1, all.length / MOST);
  const some = all.filter((_, i) => Math.floor(i / step) !== Math.floor((i - 1) / step));
  if (!some.length) throw new Error("This browser keeps no examples of this model.");
  return ask(`${model.path}/learning-curve`, bodyOf(model.kind, some, { labels: some.map(labelOf) }));
}

/** Return the curve in words and as a chart. */
function drawn(kind, { sizes, accuracy, interval, gain, median_samples: samples, recall_gains: gains }) {
  const points = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}`;
  const [middle, low, high] = gain;
  const more = middle < 0.005 ? "Ten more examples of each class would hardly help."
    : `Ten more examples of each class would add about ${points(middle)} points (${points(Math.max(0, low))} to `
      + `${points(high)}).`;
  const gained = Object.entries(gains).filter(([, value]) => value > 0.02).slice(0, 3).map(([name]) => name);
  const which = gained.length ? ` ${gained.join(", ")} gained most from their last examples.` : "";
  return [make("p", {}, more + which), picture(sizes, accuracy, interval, samples, gain, more),
    make("p.hint", {}, `Measured on the examples in this browser, ${countOf(kind, samples)} of a class in the middle. `
      + "The band shows where the figure lies in nine of ten cases; the dashed end is a forecast.")];
}

/** Return the chart: accuracy with its interval, and a dashed forecast. */
function picture(sizes, accuracy, interval, samples, gain, words) {
  const ends = [...sizes, samples + 10];
  const forecast = gain.map((value) => Math.min(1, accuracy.at(-1) + value));
  const least = Math.max(0, Math.min(...interval.map(([low]) => low), ...forecast) - 0.02);
  const [first, last] = [Math.log(ends[0]), Math.log(ends.at(-1))];
  const x = (size) => LEFT + (WIDTH - LEFT - RIGHT) * ((Math.log(size) - first) / Math.max(1e-9, last - first));
  const y = (fraction) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((fraction - least) / (1 - least));
  const line = (pairs) => pairs.map(([size, fraction]) => `${x(size).toFixed(1)},${y(fraction).toFixed(1)}`).join(" ");
  const band = [...sizes.map((size, i) => [size, interval[i][1]]),
    ...sizes.map((size, i) => [size, interval[i][0]]).reverse()];
  const end = samples + 10;
  const ticks = [0, 1, 2, 3].map((i) => least + (i * (1 - least)) / 3);
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, class: "curve-picture" },
    ...ticks.map((fraction) => shape("line", {
      x1: LEFT, x2: WIDTH - RIGHT, y1: y(fraction), y2: y(fraction), class: "grid",
    })),
    shape("polygon", { points: line(band), class: "band" }),
    shape("polyline", { points: line(sizes.map((size, i) => [size, accuracy[i]])), class: "line" }),
    shape("polyline", { points: line([[sizes.at(-1), accuracy.at(-1)], [end, forecast[0]]]), class: "line dashed" }),
    shape("line", { x1: x(end), x2: x(end), y1: y(forecast[1]), y2: y(forecast[2]), class: "line" }),
    ...ticks.map((fraction) => shape("text", { x: LEFT - 8, y: y(fraction) + 4, "text-anchor": "end" },
      `${Math.round(100 * fraction)} %`)),
    ...ends.map((size) => shape("text", { x: x(size), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, `${size}`)),
    shape("text", { x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "examples of each class"));
}

/** Return an SVG element. */
function shape(name, attributes, ...children) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
