// Training: live curves, and the same sentence at every checkpoint, which shows how heads form.

import { CheckpointGallery } from "heedful/parts/checkpoint_gallery.js";
import { h } from "heedful/parts/dom.js";
import { createMetricsTable, findPoint, LineCharts } from "heedful/parts/line_charts.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** The server's report on a training run. @typedef {{metrics: any[], running: boolean, checkpoints: number[]}} TrainingStatus */

/** Milliseconds between two requests while training runs. */
const POLL_INTERVAL = 2000;

/** @type {import("heedful/main.js").View} */
export const trainingView = {
  id: "training",
  title: "Training",
  needsServer: true,
  mount: (host, page) => new TrainingView(host, page),
};

class TrainingView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.timer = 0;
    this.isVisible = false;
    /** @type {TrainingStatus} */
    this.training = { metrics: [], running: false, checkpoints: [] };
    this.model = "";
    /** Follow the end of the curves while training runs. */
    this.isFollowing = true;
    this.status = h("p", { class: "intro", role: "status" });
    this.updateSlider = h("input", { type: "range", min: 0, step: 1, oninput: () => this.#selectUpdate(Number(this.updateSlider.value)) });
    this.updateLabel = h("output");
    this.sliderLabel = h("label", { class: "slider no-export" }, h("span", null, "Show values at update"), this.updateSlider, this.updateLabel);
    this.figure = h("div");
    this.table = h("div");
    this.checkpointHost = h("div");
    host.append(this.status, this.sliderLabel, this.figure, this.table, this.checkpointHost);
    this.curves = new LineCharts(this.figure, (update) => this.#selectUpdate(update));
    this.checkpoints = new CheckpointGallery(this.checkpointHost, page);
    document.addEventListener("visibilitychange", () => this.#schedulePoll());
  }

  /** @param {Selection} selection @param {Trace | null} trace */
  async show(selection, trace) {
    this.isVisible = true;
    if (!this.page.source.live) {
      this.#showMessage("Training curves and checkpoints need a running server: heedful serve MODEL.");
      return;
    }
    if (this.model !== selection.model) {
      this.model = selection.model;
      await this.#loadTraining();
    }
    await this.checkpoints.show(selection, trace, this.training.checkpoints, (update) => describeLoss(this.training.metrics, update));
  }

  hide() {
    this.isVisible = false;
    clearTimeout(this.timer);
    this.model = ""; // load again when shown again
    this.checkpoints.hide();
  }

  /** Load the current metrics. */
  async #loadTraining() {
    const { model } = this;
    const training = await /** @type {any} */ (this.page.source).fetchTraining(model);
    if (model !== this.model) return;
    this.training = training;
    this.#draw();
    this.#schedulePoll();
  }

  /** Load again soon if training runs and the page is visible. */
  #schedulePoll() {
    clearTimeout(this.timer);
    if (!this.isVisible || !this.training.running || document.hidden) return;
    this.timer = setTimeout(() => this.#loadTraining().catch((error) => this.page.showError(error, () => this.#loadTraining())), POLL_INTERVAL);
  }

  /** @param {string} reason */
  #showMessage(reason) {
    this.status.textContent = reason;
    for (const part of [this.sliderLabel, this.figure, this.table, this.checkpointHost]) part.hidden = true;
  }

  #draw() {
    const { metrics, running, checkpoints } = this.training;
    for (const part of [this.sliderLabel, this.figure, this.table]) part.hidden = !metrics.length;
    if (!metrics.length) {
      this.status.textContent = "This model folder has no training metrics (training/metrics.jsonl).";
      return;
    }
    const last = metrics[metrics.length - 1];
    this.status.textContent = `${running ? "Training: " : "Trained: "}${last.update.toLocaleString("en")} updates, ${last.epoch?.toFixed(1)} epochs, ${formatDuration(last.seconds)}.`;
    this.updateSlider.max = last.update;
    const update = this.isFollowing ? last.update : Number(this.updateSlider.value);
    this.curves.draw(createCharts(metrics), last.update, checkpoints.filter((checkpoint) => checkpoint <= last.update), update);
    this.#selectUpdate(update);
    const open = this.table.querySelector("details")?.open;
    if (!open) this.table.replaceChildren(createMetricsTable(metrics)); // do not replace an open table
  }

  /** @param {number} update */
  #selectUpdate(update) {
    this.isFollowing = update === Number(this.updateSlider.max);
    this.updateSlider.value = String(update);
    this.updateLabel.textContent = update.toLocaleString("en");
    this.curves.moveCursor(update);
  }
}

/** @param {any[]} metrics @returns {import("heedful/parts/line_charts.js").Chart[]} */
function createCharts(metrics) {
  const createSeries = (/** @type {string} */ id, /** @type {string} */ name, /** @type {"first" | "second"} */ style) => ({
    name, style, points: /** @type {[number, number][]} */ (metrics.filter((row) => id in row).map((row) => [row.update, row[id]])) });
  const formatShort = (/** @type {number} */ value) => (value && value < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4))));
  return [
    { title: "Loss", unit: "(nats per token; lower is better)", series: [createSeries("loss", "training", "first"), createSeries("validation_loss", "validation", "second")], format: formatShort },
    { ...createQualityChart(metrics.reduce((merged, row) => ({ ...merged, ...row }), {}), createSeries), format: formatShort },
    { title: "Learning rate", unit: "(step size of the optimizer)", series: [createSeries("learning_rate", "learning rate", "first")], format: formatShort },
    { title: "Speed", unit: "(target tokens per second)", series: [createSeries("tokens_per_second", "tokens/s", "first")], format: (value) => Math.round(value).toLocaleString("en") },
  ];
}

/**
 * Quality on the validation set, by the metric of the task.
 * @param {Record<string, number>} metrics all available metrics @param {(id: string, name: string, style: "first" | "second") => import("heedful/parts/line_charts.js").Chart["series"][number]} createSeries
 */
function createQualityChart(metrics, createSeries) {
  if ("accuracy" in metrics) return { title: "Blank accuracy", unit: "(validation; percent)", series: [createSeries("accuracy", "accuracy", "first")] };
  if ("perplexity" in metrics && !("BLEU" in metrics)) return { title: "Perplexity", unit: "(validation; lower is better)", series: [createSeries("perplexity", "perplexity", "first")] };
  return { title: "Scores", unit: "(validation; 100 is a perfect match)", series: [createSeries("BLEU", "BLEU", "first"), createSeries("chrF", "chrF", "second")] };
}

/** The loss around an update, as text. @param {any[]} metrics @param {number} update */
function describeLoss(metrics, update) {
  const losses = metrics.filter((row) => "loss" in row);
  if (update === 0 || !losses.length) return "";
  const { loss } = losses.find((row) => row.update >= update) ?? losses[losses.length - 1];
  const validations = metrics.filter((row) => "validation_loss" in row && row.update <= update).map((row) => /** @type {[number, number]} */ ([row.update, row.validation_loss]));
  const validation = validations.length ? findPoint(validations, update) : null;
  return `training loss ${loss.toFixed(3)}${validation ? `, validation loss ${validation[1].toFixed(3)}` : ""}`;
}

/** @param {number} seconds */
function formatDuration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} seconds`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} ${minutes === 1 ? "minute" : "minutes"}` : `${(seconds / 3600).toFixed(1)} hours`;
}
