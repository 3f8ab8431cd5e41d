// Downloads: numbers as CSV, figures as SVG and PNG, and the page as a single file.

import { renderMatrixSvg } from "heedful/export/matrix_svg.js";
import { renderElements } from "heedful/export/page_svg.js";
import { createImageButtons, renderPng, saveFile, serializeSvg } from "heedful/export/svg.js";
import { h } from "heedful/parts/dom.js";
import { formatUrl } from "heedful/state/selection.js";

/** @typedef {import("heedful/parts/heatmap.js").MatrixFigure} MatrixFigure */
/** @typedef {import("heedful/main.js").Page} Page */

/** Limits for the part of a file name that comes from the sentence. */
const MAX_WORDS = 4;
const MAX_CHARACTERS = 40;

/** Download buttons of one matrix. @param {MatrixFigure} figure @param {string} name */
export function createMatrixDownloads(figure, name) {
  return h("div", { class: "toolbar", role: "group", "aria-label": "Download this matrix" },
    h("span", { class: "toolbar-label" }, "Download"),
    h("button", { type: "button", "aria-label": "Download CSV", onclick: () => saveFile(`${name}.csv`, "text/csv", formatCsv(figure)) }, "CSV"),
    createImageButtons(() => renderMatrixSvg(figure), name, "matrix"));
}

/** @param {MatrixFigure} figure */
export function formatCsv({ rows, columns, values, isMasked }) {
  const formatRow = (/** @type {string} */ name, /** @type {number} */ i) =>
    [quoteField(name), ...columns.map((_, j) => (isMasked?.(i, j) ? "" : String(values[i * columns.length + j])))].join(",");
  return [["", ...columns.map(quoteField)].join(","), ...rows.map(formatRow)].join("\r\n") + "\r\n";
}

/** A CSV field; text that a spreadsheet would read as a formula is escaped. @param {string} text */
function quoteField(text) {
  const escaped = /^[=+\-@\t\r]/.test(text) && text.length > 1 ? `'${text}` : text;
  return `"${escaped.replaceAll('"', '""')}"`;
}

/** Download buttons of the page. @param {Page} page */
export function createPageDownloads(page) {
  const createButton = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => Promise<void>} */ download) => {
    const button = h("button", { type: "button", "aria-label": label, title: label, onclick: async () => {
      button.disabled = true;
      try {
        await download();
      } catch (error) {
        page.showError(error, () => button.click());
      } finally {
        button.disabled = false;
      }
    } }, text);
    return button;
  };
  return h("div", { class: "page-downloads toolbar", role: "group", "aria-label": "Downloads" },
    page.source.live && createButton("Save this page", "Save this page as a single file that works without a server", () => savePage(page)),
    createButton("View as SVG", "View as SVG: a vector image of this view", async () => saveFile(`${getViewFileName(page)}.svg`, "image/svg+xml", serializeSvg(renderView(page)))),
    createButton("View as PNG", "View as PNG: an image of this view", async () => saveFile(`${getViewFileName(page)}.png`, "image/png", await renderPng(renderView(page)))));
}

/** A file name that starts like the sentence, in characters that every system accepts. @param {Page} page */
function getFileName({ trace }) {
  const words = trace?.manifest.request.source.normalize("NFC").toLowerCase().replace(/['’]/g, "").match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];
  return ["heedful", ...Array.from(words.slice(0, MAX_WORDS).join("-")).slice(0, MAX_CHARACTERS).join("").split("-")].filter(Boolean).join("-");
}

/** @param {Page} page */
function getViewFileName(page) {
  return [getFileName(page), page.store.selection.view].join("-");
}

/** @param {Page} page */
function renderView(page) {
  const host = /** @type {HTMLElement} */ (page.viewHosts?.get(page.store.selection.view));
  const { trace } = page;
  const lines = trace ? [trace.manifest.request.source, `→ ${trace.manifest.translation.text}`] : [];
  return renderElements(trace ? [page.workbench.ribbon.host, host] : [host], `${host.getAttribute("aria-label")} · Heedful`, lines);
}

/** @param {Page} page */
async function savePage(page) {
  if (!page.trace) return;
  const url = formatUrl({ ...page.store.selection, text: "" }); // the server knows the sentence
  const file = await page.source.fetchPage(page.trace.id, url);
  saveFile(`${getFileName(page)}.html`, "text/html", file);
}
