// One sentence at every checkpoint: a slider, the selected head, and the head at all checkpoints side by side.

import { getHeadName } from "heedful/data/heads.js";
import { Trace } from "heedful/data/trace.js";
import { readPalette } from "heedful/parts/colors.js";
import { createHeadControls } from "heedful/parts/controls.js";
import { formatNumber, h, isolateDirection, updateChildren } from "heedful/parts/dom.js";
import { hatchMasked, Heatmap } from "heedful/parts/heatmap.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** A checkpoint (null: the finished model), and its reading of the finished model's translation. @typedef {{update: number | null, trace: Trace}} Frame */

/** Milliseconds before a moved slider takes effect. */
const SLIDER_DELAY = 150;
/** Maximum number of frames; more checkpoints are sampled evenly. */
const MAX_FRAMES = 24;
/** Models up to this many parameters load all frames automatically. */
const AUTOLOAD_PARAMETERS = 5_000_000;
const FRAME_SIZE = 96;

export class CheckpointGallery {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    /** @type {number[]} */
    this.checkpoints = [];
    /** The loss after some updates, as text. @type {(update: number) => string} */
    this.describeLoss = () => "";
    /** @type {Frame[]} */
    this.frames = [];
    /** The request that the frames belong to. */
    this.subject = "";
    /** Whether loading of the frames was started. */
    this.started = false;
    /** @type {AbortController | null} */
    this.loadController = null;
    this.timer = 0;
    this.slider = h("input", { type: "range", min: 0, step: 1, oninput: () => this.#handleSlider() });
    this.checkpointLabel = h("output");
    this.translation = h("p", { class: "checkpoint-text", dir: "auto" });
    this.headControls = h("div", { class: "controls" });
    this.figure = h("div", { class: "figure" });
    this.strip = h("div", { class: "checkpoint-strip" });
    this.tools = h("div", { class: "controls" });
    this.body = h("div", null, h("label", { class: "slider" }, h("span", null, "Checkpoint"), this.slider, this.checkpointLabel), this.translation,
      h("h3", null, "Watch a head form"), this.headControls, this.tools, h("div", { class: "columns even" }, this.figure, this.strip));
    this.emptyMessage = h("p", { class: "intro no-export" });
    host.append(h("h3", null, "The same sentence during training"), this.emptyMessage, this.body);
    this.matrix = new Heatmap(this.figure);
  }

  /** @param {Selection} selection @param {Trace | null} trace @param {number[]} checkpoints @param {(update: number) => string} describeLoss */
  async show(selection, trace, checkpoints, describeLoss) {
    Object.assign(this, { checkpoints, describeLoss });
    this.body.hidden = !trace || !checkpoints.length;
    this.emptyMessage.textContent = !checkpoints.length ? "This model has no checkpoints. Train with --set training.snapshots=12 to keep some."
      : trace ? "Move the slider to use the weights of that checkpoint, here and in all other views." : "Enter a sentence above to see it at every checkpoint.";
    if (!trace || !checkpoints.length) return;
    this.#setSlider(selection.checkpoint);
    this.translation.textContent = trace.manifest.translation.text || "(no output yet)";
    const { kind, words } = selection;
    const [layer, head] = this.#clampHead(selection, trace);
    const weights = await trace.loadWeights(kind, layer, head, words);
    if (this.page.isStale(selection, trace)) return;
    this.#renderHeadControls(selection, trace);
    this.#renderMatrix(selection, trace, weights);
    await this.#renderGallery(selection);
  }

  hide() {
    this.loadController?.abort();
    clearTimeout(this.timer);
  }

  /** @param {Selection} selection @param {Trace} trace @returns {[number, number | null]} */
  #clampHead({ kind, layer, head }, trace) {
    return [Math.min(layer, trace.getLayerCount(kind) - 1), head === null ? null : Math.min(head, trace.heads - 1)];
  }

  /** Updates in order; null, the finished model, is last. @returns {(number | null)[]} */
  get stages() {
    return [...this.checkpoints, null];
  }

  /** @param {number | null} update */
  #setSlider(update) {
    const { stages } = this;
    const index = stages.indexOf(update);
    this.slider.max = stages.length - 1;
    this.slider.value = index < 0 ? stages.length - 1 : index;
    this.#updateLabel();
  }

  #handleSlider() {
    this.#updateLabel();
    clearTimeout(this.timer);
    const checkpoint = this.stages[Number(this.slider.value)];
    this.timer = setTimeout(() => this.page.store.set({ checkpoint }, { replace: true }), SLIDER_DELAY);
  }

  #updateLabel() {
    const update = this.stages[Number(this.slider.value)];
    this.checkpointLabel.textContent = [describeStage(update), update === null ? "" : this.describeLoss(update)].filter(Boolean).join(": ");
    this.slider.setAttribute("aria-valuetext", this.checkpointLabel.textContent);
  }

  /** @param {Selection} selection @param {Trace} trace */
  #renderHeadControls(selection, trace) {
    updateChildren(this.headControls, ...createHeadControls(this.page, selection, trace));
  }

  /** @param {Selection} selection @param {Trace} trace @param {import("heedful/data/trace.js").Weights} weights */
  #renderMatrix(selection, trace, weights) {
    const { kind } = selection;
    const [layer, head] = this.#clampHead(selection, trace);
    const isMasked = trace.getMask(kind, selection.words, layer);
    const stage = describeStage(selection.checkpoint).toLowerCase();
    this.matrix.draw({
      title: `${getHeadName(kind, layer, head)}, ${stage}`, ...weights, isMasked,
      describe: (row, column) => isMasked?.(row, column) ? `${isolateDirection(weights.rows[row])} may not attend to ${isolateDirection(weights.columns[column])}: masked`
        : `${isolateDirection(weights.rows[row])} attends to ${isolateDirection(weights.columns[column])}: ${formatNumber(weights.values[row * weights.columns.length + column])}, ${stage}`,
    });
  }

  /** @param {Selection} selection */
  async #renderGallery(selection) {
    const subject = JSON.stringify(this.page.buildRequest({ checkpoint: null }));
    if (subject !== this.subject) {
      this.loadController?.abort();
      Object.assign(this, { subject, frames: [], loadController: null, started: false });
      this.strip.replaceChildren();
    }
    this.#renderTools();
    await this.#renderStrip(selection);
    if (!this.started && this.page.model.parameters < AUTOLOAD_PARAMETERS) this.#loadFrames();
  }

  #renderTools() {
    const busy = this.loadController !== null;
    updateChildren(this.tools,
      busy ? h("button", { type: "button", data: { name: "film" }, onclick: () => this.loadController?.abort() }, "Stop")
        : h("button", { type: "button", class: "primary", data: { name: "film" }, onclick: () => this.#loadFrames() }, this.frames.length ? "Reload" : "Show this head at every checkpoint"),
      h("span", { class: "legend" }, "All checkpoints read the finished model's translation, so rows and columns stay the same. Stronger color means more weight; hatched means masked."));
  }

  /** Load one trace after another, until done or stopped. */
  async #loadFrames() {
    const controller = new AbortController();
    Object.assign(this, { loadController: controller, frames: [], started: true });
    this.#renderTools();
    try {
      const finished = await this.page.source.fetchTrace(this.page.buildRequest({ checkpoint: null }), controller.signal);
      for (const update of this.#selectStages()) {
        const request = this.page.buildRequest({ checkpoint: update, prefix: [] }, { target_ids: finished.translation.ids });
        const manifest = await this.page.source.fetchTrace(request, controller.signal);
        if (controller.signal.aborted) break;
        this.frames.push({ update, trace: new Trace(manifest, this.page.source) });
        await this.#renderStrip(this.page.store.selection);
      }
    } catch (error) {
      if (!controller.signal.aborted) this.page.showError(error, () => this.#loadFrames());
    }
    if (this.loadController !== controller) return;
    this.loadController = null;
    this.#renderTools();
  }

  /** An even sample of the stages that includes the last. */
  #selectStages() {
    const interval = Math.ceil(this.stages.length / MAX_FRAMES);
    return this.stages.filter((_, i) => (this.stages.length - 1 - i) % interval === 0);
  }

  /** @param {Selection} selection */
  async #renderStrip(selection) {
    const { frames } = this;
    const elements = await Promise.all(frames.map((frame) => this.#createFrame(frame, selection))).catch((error) => {
      if (error.status !== 404) throw error;
      if (frames === this.frames) Object.assign(this, { frames: [], started: this.loadController !== null }); // the server dropped some: load them again
      this.#renderTools();
      return [];
    });
    if (frames === this.frames && elements.length === frames.length) updateChildren(this.strip, ...elements);
  }

  /** @param {Frame} frame @param {Selection} selection */
  async #createFrame({ update, trace }, selection) {
    const [layer, head] = this.#clampHead(selection, trace);
    const { rows, columns, values } = await trace.loadWeights(selection.kind, layer, head, selection.words);
    const canvas = h("canvas", { "aria-hidden": "true" });
    paintWeights(canvas, values, rows.length, columns.length, trace.getMask(selection.kind, selection.words, layer));
    const logProbability = trace.manifest.translation.log_probability;
    return h("button", {
      type: "button", class: "checkpoint-frame", data: { name: String(update) }, "aria-pressed": String(update === selection.checkpoint),
      onclick: () => this.page.store.set({ checkpoint: update }),
    }, canvas, h("span", null, update === null ? "finished" : update.toLocaleString("en")), h("small", null, `log P ${formatNumber(logProbability, 2)}`));
  }
}

/** @param {number | null} update */
function describeStage(update) {
  if (update === null) return "Finished model";
  return update === 0 ? "Before the first update: random weights" : `After ${update.toLocaleString("en")} ${update === 1 ? "update" : "updates"}`;
}

/** @param {HTMLCanvasElement} canvas @param {Float32Array} values @param {number} rows @param {number} columns @param {((row: number, column: number) => boolean) | undefined} isMasked */
function paintWeights(canvas, values, rows, columns, isMasked) {
  const size = FRAME_SIZE / Math.max(rows, columns);
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(columns * size * ratio), height: Math.round(rows * size * ratio) });
  Object.assign(canvas.style, { width: `${columns * size}px`, height: `${rows * size}px` });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  const colors = readPalette();
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      if (isMasked?.(row, column)) continue;
      context.fillStyle = colors.unit(values[row * columns + column]);
      context.fillRect(column * size, row * size, size + 0.5, size + 0.5);
    }
  }
  if (isMasked) hatchMasked(context, rows, columns, size, isMasked, colors);
}
