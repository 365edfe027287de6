/* How strict Sort is: the limits between filed images and images to check, and what these limits cost. */

import { ask, Problem } from "./api.js";
import { fill, make } from "./dom.js";
import { keepSettings } from "./store.js";

/** Limits in percent by how many strangers are expected. They equal STRICTNESS in evergrow.tools.strictness. */
export const STEPS = {
  few: { falseAlarm: 5, probability: 80 },
  some: { falseAlarm: 15, probability: 70 },
  many: { falseAlarm: 30, probability: 70 },
};
const USUAL = "some";
const LEAST_STRICT = 5; // percent; with less, images that the service calls unknown would count as filed
const MOST_STRICT = 50;
const MOST_SENT = 30_000; // predictions per request, which the service limits
const SETTLED = 300; // milliseconds after the last change until the service is asked

/** Return the limits of a model, as the user last set them in this browser. */
export const limitsOf = (model) => model.settings.limits ?? STEPS[USUAL];

/** Return whether an image is less familiar than the limits allow. Without a calibration no image is. */
export const isUnfamiliar = ({ familiarity }, { falseAlarm }) => (
  familiarity !== null && familiarity <= falseAlarm / 100
);

/** Return whether the probability of a prediction is below the limits. */
export const isDoubtful = ({ value }, { probability }) => value !== null && value < probability / 100;

// -- controls --------------------------------------------------------------------------------------------------------

/** Three steps for the number of strangers, and a slider for each limit. */
export class StrictnessControls {
  /**
   * @param {OpenModel} model - The model. Its settings keep the limits.
   * @param {function()} onChange - Called after the limits changed.
   */
  constructor(model, onChange) {
    Object.assign(this, { model, onChange });
    this.familiarity = slider("strict-familiarity", LEAST_STRICT, MOST_STRICT, () => this.readSliders());
    this.certainty = slider("strict-certainty", 0, 100, () => this.readSliders());
    this.steps = Object.keys(STEPS).map((step) => this.stepOf(step));
    this.sliders = make("div.sliders", { id: "strict-sliders" },
      sliderRow("How strict about strangers", this.familiarity),
      sliderRow("How certain about the class", this.certainty));
    const legend = make("legend", {}, "Strangers", make("span", {}, " expected")); // phones show the first word
    this.element = make("div.strictness", {},
      make("fieldset.steps", {}, legend, make("div.segments", {}, this.steps)), this.openButton(), this.sliders);
    this.show();
  }

  /** Return the button that shows the sliders on phones. Wider windows always show them. */
  openButton() {
    const button = make("button.link.fine", {
      type: "button", aria: { expanded: false, controls: "strict-sliders" }, on: { click: () => {
        const isOpen = this.sliders.classList.toggle("open");
        button.setAttribute("aria-expanded", String(isOpen));
      } },
    }, "Fine-tune");
    return button;
  }

  /** Return the button of a step. */
  stepOf(step) {
    const choose = () => this.set(STEPS[step]);
    const input = make("input", { type: "radio", name: "strangers", value: step, on: { change: choose } });
    return make("label.segment", {}, input, make("span", {}, step.charAt(0).toUpperCase() + step.slice(1)));
  }

  readSliders() {
    this.set({ falseAlarm: Number(this.familiarity.input.value), probability: Number(this.certainty.input.value) });
  }

  /** Set the limits and keep them in this browser. */
  set(limits) {
    this.model.settings.limits = limits;
    void keepSettings(this.model.settings);
    this.show();
    this.onChange();
  }

  /** Show the limits of the model. */
  show() {
    const { falseAlarm, probability } = limitsOf(this.model);
    showValue(this.familiarity, falseAlarm, `Check the ${falseAlarm} % least familiar`);
    showValue(this.certainty, probability, `At least ${probability} % certain`);
    for (const label of this.steps) {
      const input = label.firstChild;
      const step = STEPS[input.value];
      input.checked = step.falseAlarm === falseAlarm && step.probability === probability;
    }
  }
}

/** Return a slider and the text beside it as { input, output }. */
function slider(id, min, max, onInput) {
  const input = make("input", { type: "range", id, min, max, step: 1, on: { input: onInput } });
  return { input, output: make("output", { htmlFor: id }) };
}

function sliderRow(words, { input, output }) {
  return make("div.slider", {}, make("label", { htmlFor: input.id }, words), output, input);
}

function showValue({ input, output }, value, words) {
  input.value = value;
  input.setAttribute("aria-valuetext", words);
  input.title = words;
  output.textContent = `${value} %`;
}

// -- what the limits cost --------------------------------------------------------------------------------------------

/**
 * Return what limits cost, as measured by the service.
 * @param {OpenModel} model - The model.
 * @param {Object} limits - As in STEPS.
 * @param {Array<{novelty: number, value: number}>} predictions - Predictions of the present revision, maybe none. The
 *   service estimates how many of them are of classes that were never taught.
 */
export async function costOf(model, limits, predictions = []) {
  const step = Math.max(1, predictions.length / MOST_SENT);
  const some = predictions.filter((_, i) => Math.floor(i / step) !== Math.floor((i - 1) / step));
  const samples = some.map(({ novelty, value }) => ({
    novelty: Number(novelty.toPrecision(6)), probability: Math.min(1, Number((value ?? 1).toFixed(4))),
  }));
  const cost = await ask(`${model.path}/strictness`, {
    json: { false_alarm: limits.falseAlarm / 100, probability: limits.probability / 100, samples },
  });
  const scale = predictions.length / Math.max(1, some.length);
  return { ...cost, scale };
}

/** Return the beginning of a sentence about a fraction of known images. */
const shareOfKnown = (fraction) => (
  fraction < 0.005 ? "Fewer than 1 in 100" : `About ${Math.round(100 * fraction)} of 100`
);

/** Return a fraction of strangers in words. */
function shareOfStrangers(fraction) {
  if (fraction < 0.01) return "fewer than 1 in 100 strangers";
  const isRare = fraction < 0.28; // so that "1 in 4" is not used for a third
  return isRare ? `about 1 in ${Math.round(1 / fraction)} strangers`
    : `about ${Math.round(100 * fraction)} of 100 strangers`;
}

/** Return in words what limits cost. */
export function costInWords({ known_not_accepted: notFiled, unknown_accepted: filed }) {
  if (notFiled === null) {
    return "The model cannot recognise strangers yet. Teach two or more images of a class at once.";
  }
  const known = `${shareOfKnown(notFiled)} known images will land in Unsure or Unknown`;
  if (filed === null) {
    return `${known}. How many strangers may still be filed is not known yet: it takes at least four classes with `
      + "several images each.";
  }
  return `${known}; ${shareOfStrangers(filed)} (images of things you never taught) may still be filed.`;
}

/** Return sentences about how many unknown things are noticed. */
export function noticedInWords({ known_not_accepted: notFiled, unknown_accepted: filed }, kind) {
  if (notFiled === null) {
    return ["It cannot tell yet what it was never taught. Teach two or more examples of a class at once."];
  }
  const where = kind === "images" ? " with the strictness that is set under Sort" : "";
  const known = `${shareOfKnown(notFiled)} examples of known classes are doubted as well.`;
  if (filed === null) {
    return [`How many unknown things would be noticed${where} is not known yet: it takes at least four classes with `
      + "several examples each.", known];
  }
  const noticed = Math.round(100 * (1 - filed));
  return [`About ${noticed} of 100 unknown things would be noticed${where}: the model says unknown or unsure. The `
    + "others would be taken for a known class. This was measured on the classes of this model while each was new.",
  known];
}

/** Return in words how many of n filed images may be strangers. */
export function estimateInWords({ estimate, scale }, n) {
  if (estimate === null || !n) return "";
  const [low, high] = estimate.accepted_interval.map((value) => Math.min(n, Math.round(scale * value)));
  const filed = Math.min(n, Math.round(scale * estimate.accepted));
  const range = low === high ? "" : ` (probably ${low} to ${high})`;
  const images = n === 1 ? "the one filed image" : `the ${n.toLocaleString("en")} filed images`;
  return `Of ${images}, about ${filed}${range} may be strangers.`;
}

/** Says what the limits of Sort cost, and how many filed images may be strangers. */
export class CostNote {
  constructor(model) {
    this.model = model;
    this.cost = make("p.cost");
    this.estimate = make("p.estimate");
    this.element = make("div.costs", { role: "status" }, this.cost, this.estimate);
    model.signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  /**
   * Describe limits soon, unless nothing has changed.
   * @param {Object} limits - As in STEPS.
   * @param {Array} predictions - Predictions of the present revision; none while images are being sorted.
   * @param {number} nFiled - Number of these that are filed.
   */
  update(limits, predictions, nFiled) {
    const { record, isReady } = this.model;
    const key = JSON.stringify([record.revision, limits, predictions.length, nFiled, isReady]);
    if (key === this.key) return;
    this.key = key;
    clearTimeout(this.timer);
    if (!predictions.length) fill(this.estimate);
    if (isReady) this.timer = setTimeout(() => void this.describe(key, limits, predictions, nFiled), SETTLED);
    else fill(this.cost);
  }

  /** Ask the service and show its answer, unless something has changed meanwhile. */
  async describe(key, limits, predictions, nFiled) {
    try {
      const cost = await costOf(this.model, limits, predictions);
      if (key !== this.key) return;
      fill(this.cost, costInWords(cost));
      fill(this.estimate, estimateInWords(cost, nFiled));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (key === this.key) this.key = ""; // asked again at the next change
    }
  }
}
