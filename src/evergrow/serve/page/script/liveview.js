/* The live prediction: of the camera, of a dropped image, or of typed text. */

import { announce, fill, icon, iconButton, make } from "./dom.js";
import { onReach, pauseAfter } from "./api.js";
import * as camera from "./camera.js";
import { meantName } from "./dialogs.js";
import { fromVideo } from "./imaging.js";
import { settleCopies } from "./importing.js";
import { chooser, fromTransfer, imagesIn } from "./inputs.js";
import { attempt, confirmDone, showProblem } from "./notice.js";
import { keptContentOf } from "./reading.js";
import { caution, isUnknown, raiseRefused, rivalOf, typedSamples } from "./samples.js";
import { isUnfamiliar, STEPS } from "./strictness.js";

const EVERY = 180; // minimum milliseconds between predictions of the camera
const SMALL = 320; // pixels of a frame that is predicted and not taught
const TYPING = 250; // milliseconds after the last key press until text is predicted
const SETTLED = 800; // milliseconds until a prediction that stays is announced
const NAMED_FRAMES = 5; // frames that are taught when the user names what the camera shows

export class LiveView {
  constructor(model) {
    Object.assign(this, { model, shown: null, said: "", asking: false });
    this.stage = make("div.stage");
    this.answer = make("div.answer", { aria: { live: "off" } });
    this.problems = make("div.problems");
    this.naming = this.namingForm();
    this.controls = make("div.controls");
    this.element = make("aside.live", { aria: { label: "Live answer" } }, this.stage,
      make("div.beside", {}, this.controls, this.problems, this.answer, this.naming));
    if (model.kind === "images") this.buildImages();
    else this.buildTyping();
    model.addEventListener("change", () => this.follow());
    onReach((now) => { if (now && !model.closed) void this.askAgain().catch(() => {}); });
    this.follow();
  }

  // -- where it looks ----------------------------------------------------------------------------------------------

  /** Build the controls for a model of images. */
  buildImages() {
    const toggle = () => void attempt(this.problems, () => this.toggle());
    this.switch = iconButton("camera", "Start camera", toggle, { kind: ".primary" });
    this.switch.id = "camera";
    const accept = "image/*,.tif,.tiff,.heic,.heif";
    const input = chooser({ accept, id: "live-file" }, (coming) => void this.look(coming));
    fill(this.controls, this.switch, iconButton("image", "Image", () => input.click()), input);
    this.element.addEventListener("dragover", (event) => {
      event.preventDefault();
      event.stopPropagation();
      this.element.classList.add("over");
    });
    this.element.addEventListener("dragleave", () => this.element.classList.remove("over"));
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      event.stopPropagation();
      this.element.classList.remove("over");
      void this.look(fromTransfer(event.dataTransfer));
    });
    document.addEventListener("paste", (event) => {
      const elsewhere = document.activeElement?.closest?.(".card, dialog, textarea, #panel-review, #panel-sort");
      if (!elsewhere && event.clipboardData.files.length) void this.look(fromTransfer(event.clipboardData));
    }, { signal: this.model.signal });
    const { signal } = this.model;
    camera.changes.addEventListener("change", () => this.cameraChanged(), { signal });
    this.cameraChanged();
  }

  /** Build the field for a model of texts or features. */
  buildTyping() {
    const rows = this.model.kind === "features";
    const box = make("textarea", { rows: 3, id: "live-text", placeholder: rows ? "0.1, 0.7, 0.2" : "Type a sentence" });
    let timer = null;
    box.addEventListener("input", () => {
      clearTimeout(timer);
      this.expect();
      timer = setTimeout(() => void this.askTyped(box.value), TYPING);
    });
    const words = rows ? "Ask about a row of numbers" : "Ask about a sentence";
    fill(this.stage, make("label.typed", {}, make("span", {}, words), box));
    this.element.classList.add("words");
  }

  async toggle() {
    if (camera.isOn()) camera.turnOff();
    else await camera.turnOn();
  }

  cameraChanged() {
    const on = camera.isOn();
    this.switch.lastChild.textContent = on ? "Stop camera" : "Start camera";
    this.switch.classList.toggle("primary", !on);
    this.stage.classList.toggle("on", on);
    this.element.classList.toggle("watching", on);
    if (on) {
      this.expect();
      fill(this.problems); // earlier problems with the camera are solved
      fill(this.stage, camera.video);
      void this.watch();
    } else if (!this.shown) {
      fill(this.stage, make("p.soft", {}, icon("image"), make("span", {}, "Start the camera, or drop an image here.")));
      this.clear();
    }
  }

  /** Predict frames of the camera while it is on and the view is visible. */
  async watch() {
    if (this.asking) return;
    this.asking = true;
    let tries = 0;
    try {
      while (camera.isOn() && this.element.isConnected && !this.model.closed) {
        const began = performance.now();
        const seen = !document.hidden && this.element.checkVisibility(); // otherwise no predictions are needed
        if (seen && this.model.isReady && camera.hasFrame()) {
          try {
            const frame = await fromVideo(camera.video, SMALL);
            const answer = await this.model.predict([frame]);
            if (camera.isOn() && !this.shown) this.show(answer); // unless an image was brought meanwhile
            tries = 0;
          } catch (problem) {
            if (!problem.kind) throw problem;
            if (problem.kind === "refused" || problem.kind === "token") showProblem(this.problems, problem);
            await pauseAfter(problem, tries);
            tries += 1;
          }
        }
        await new Promise((resolve) => setTimeout(resolve, Math.max(30, EVERY - (performance.now() - began))));
      }
    } finally {
      this.asking = false;
    }
  }

  /** Predict an image. Several images are passed on to the open view. */
  async look(coming) {
    const done = await attempt(this.problems, async () => {
      const images = imagesIn(await coming);
      if (images.length > 1) { // the open view takes folders and zips
        this.model.dispatchEvent(new CustomEvent("brought", { detail: { images } }));
        return;
      }
      this.expect();
      fill(this.stage);
      const content = await keptContentOf(images[0]);
      this.shown = content;
      this.image = images[0];
      camera.turnOff();
      const address = URL.createObjectURL(content.blob);
      const free = () => URL.revokeObjectURL(address);
      fill(this.stage, make("img", { src: address, alt: "The image to classify", on: { load: free } }));
      this.stage.classList.add("on");
      await this.askAgain();
    });
    if (done || this.shown) return;
    if (camera.isOn()) fill(this.stage, camera.video);
    else this.cameraChanged(); // show the hint again
  }

  /** Remove the last prediction, since another one will follow. */
  expect() {
    this.shown = null;
    this.naming.hidden = true;
    if (this.model.isReady) fill(this.answer, make("p.soft", {}, "Asking…"));
  }

  async askTyped(typed) {
    if (!typed.trim()) return this.clear();
    const done = await attempt(this.problems, async () => {
      [this.shown] = typedSamples(this.model.kind, typed.replaceAll("\n", " "));
      await this.askAgain();
    });
    return done || this.clear();
  }

  /** Predict the current sample. */
  async askAgain() {
    if (!this.shown || !this.model.isReady) return this.follow();
    const asked = this.shown;
    const answer = await this.model.predict([asked]);
    if (asked === this.shown) this.show(answer);
    return undefined;
  }

  /** Predict the same sample again after a change of the model. */
  follow() {
    fill(this.naming.querySelector("datalist"), this.model.classes.map((one) => make("option", { value: one.name })));
    if (!this.model.isReady) {
      fill(this.answer, make("p.soft", {}, "The model answers once it has a class."));
      this.naming.hidden = true;
      this.revision = null;
    } else if (this.revision !== this.model.record.revision) {
      this.revision = this.model.record.revision;
      if (this.shown) void attempt(this.problems, () => this.askAgain());
      else if (!camera.isOn()) this.clear();
    }
  }

  clear() {
    this.naming.hidden = true;
    if (this.model.isReady) fill(this.answer, make("p.soft", {}, "Ready to answer."));
  }

  // -- what it says ------------------------------------------------------------------------------------------------

  /** Show a prediction. */
  show({ answers: [answer], threshold, measure }) {
    const unknown = isUnknown(answer);
    const said = headline(answer, measure);
    const title = make("p.verdict", { data: { unknown: unknown || said !== answer.label } }, said);
    const details = unknown ? make("p.soft", {}, `Looks most like ${likeliest(answer.top)}.`)
      : make("ol.bars", {}, answer.top.map((one, i) => bar(one, i, measure)));
    const reason = unknown ? "" : whyUnsure(answer, measure);
    const rough = !unknown && (measure === "probability" ? this.caution(answer.top) : aboutOneClass(measure));
    fill(this.answer, title, reason && make("p.soft", {}, reason), details, rough && make("p.hint", {}, rough),
      novelty(answer.novelty, threshold));
    this.naming.hidden = this.model.readOnly;
    this.naming.classList.toggle("wanted", unknown);
    const label = this.naming.querySelector("label");
    label.textContent = unknown ? "Unknown. What is it?" : "Not right? Say what it is";
    if (said === this.said) return;
    this.said = said;
    clearTimeout(this.saying); // only predictions that stay are announced
    this.saying = setTimeout(() => announce(said), SETTLED);
  }

  /** Return a warning if one of these classes has few examples; otherwise "". */
  caution(top) {
    const named = this.model.classes.filter((one) => top.some((entry) => entry.class === one.name));
    return caution(this.model.kind, named) && caution(this.model.kind, this.model.classes);
  }

  /** Return the form that teaches the current sample under a name. */
  namingForm() {
    const input = make("input", {
      required: true, maxLength: 200, autocomplete: "off", placeholder: "Name it", id: "name-it",
    });
    input.setAttribute("list", "known-classes");
    return make("form.naming", {
      hidden: true,
      on: {
        submit: (event) => {
          event.preventDefault();
          void attempt(this.problems, async () => {
            const typed = input.value.trim();
            const label = typed && await meantName(this.model.classes, typed);
            const isImage = this.shown?.blob; // the same image may have been taught before
            if (!label || isImage && !(await settleCopies(this.model, [{ image: this.image, label }]))?.length) return;
            const contents = await this.seen();
            input.value = "";
            input.blur();
            const { samples } = await this.model.add(contents.map((content) => ({ label, content })));
            raiseRefused(this.model.kind, samples);
            if (!this.model.stalled) confirmDone(`Learned: ${label}.`);
          });
        },
      },
    }, make("label", { htmlFor: "name-it" }, ""),
    make("div.row", {}, input, make("button.primary", { type: "submit" }, "Teach")),
    make("datalist", { id: "known-classes" }));
  }

  /** Return the samples to teach: the image or text, or a few frames of the camera. */
  async seen() {
    if (this.shown) return [{ ...this.shown }];
    const frames = [];
    while (frames.length < NAMED_FRAMES && camera.hasFrame()) {
      frames.push(await fromVideo(camera.video));
      await new Promise((resolve) => setTimeout(resolve, 120));
    }
    if (!frames.length) throw new Error("The camera shows nothing yet.");
    return frames;
  }
}

/** Return the answer in a few words. It names one class only if this class is clearly ahead. */
function headline(answer, measure) {
  if (isUnknown(answer)) return "Unknown";
  const rival = rivalOf(answer, measure);
  if (rival) return `${answer.label} or ${rival}?`;
  return answer.unsure ? `Perhaps ${answer.label}` : answer.label;
}

/** Return why an answer is unsure; "" if it is not. */
function whyUnsure(answer, measure) {
  if (!answer.unsure || rivalOf(answer, measure)) return "";
  return isUnfamiliar({ familiarity: answer.familiarity ?? null }, STEPS.some)
    ? "Unsure: it is less familiar than most of what was taught." : "Unsure: no class is likely enough.";
}

/** Return what the percentage of a model of one class means; "" for other models. */
const aboutOneClass = (measure) => (measure === "familiarity"
  ? "With one class there is nothing to compare with: the percentage says how familiar this looks." : "");

/** Return the two most likely classes in words. */
const likeliest = (top) => top.slice(0, 2).map((one) => one.class).join(", then ");

/** Return a class with a bar for its probability or familiarity, or else for its rank. */
function bar(one, rank, measure) {
  const share = measure === "score" ? 1 / (rank + 1) : one.value;
  const words = measure === "score" ? one.value.toFixed(2) : `${Math.round(100 * one.value)} %`;
  const fillBar = make("span.fill");
  fillBar.style.width = `${Math.max(0.5, 100 * share)}%`;
  return make(rank === 0 ? "li.best" : "li", {}, make("span.name", { title: one.class }, one.class),
    make("span.track", { aria: { hidden: true } }, fillBar), make("span.value", {}, words));
}

/** Return a scale with the novelty of a sample and the threshold above which it is unknown. */
function novelty(value, threshold) {
  if (value === null || threshold === null) {
    return make("p.hint", {}, "It detects unknown things once you teach a class two examples at a time.");
  }
  const percentOf = (v) => Math.max(0, Math.min(100, 100 * ((v - threshold) / 9 + 2 / 3)));
  const mark = make("span.mark");
  mark.style.left = `${percentOf(value)}%`;
  const limit = make("span.limit");
  limit.style.left = `${percentOf(threshold)}%`;
  const label = value > threshold ? "Too different from what was taught" : "Like what was taught";
  return make("div.novelty", { data: { above: value > threshold } }, make("span", {}, "Familiar"),
    make("span.scale", { role: "img", aria: { label } }, limit, mark),
    make("span", {}, "Unknown"));
}
