// The page's wording for each task: translation, language modeling, masked language modeling.

/**
 * @typedef {object} Task
 * @property {string} viewTitle  title of the first view
 * @property {string} inputLabel  label of the text field
 * @property {string} resultLabel  label of the output ...
 * @property {string} resultNoun  ... and its name within a sentence
 * @property {string} nextHeading  heading of the next-word panel
 * @property {string} emptyHint  shown while there is no input
 * @property {string} failureHint  shown after an error
 * @property {string} resetLabel  button that resets special settings
 * @property {string} savedHint  shown in a saved page
 * @property {string} modelPrefix  before the model's facts
 * @property {(text: string) => boolean} canSubmit  whether a text can be submitted
 */

/** Keys are the task names of the manifest. @type {Record<"translate" | "generate" | "fill", Task>} */
export const TASKS = {
  translate: {
    viewTitle: "Translate",
    inputLabel: "Text to translate",
    resultLabel: "Translation",
    resultNoun: "translation",
    nextHeading: "Next word",
    emptyHint: "Type or paste text; the translation appears here as you type.",
    failureHint: "No translation: see the message above.",
    resetLabel: "Translate with default settings",
    savedHint: "This file contains one sentence and its translation. To translate others: heedful serve MODEL.",
    modelPrefix: "",
    canSubmit: (text) => text.trim() !== "",
  },
  generate: {
    viewTitle: "Generate",
    inputLabel: "Prompt",
    resultLabel: "Text",
    resultNoun: "text",
    nextHeading: "Next word",
    emptyHint: "Type a prompt; the model continues it here.",
    failureHint: "Nothing generated: see the message above.",
    resetLabel: "Generate with default settings",
    savedHint: "This file contains one generated text. To generate others: heedful serve MODEL.",
    modelPrefix: "Language model, ",
    canSubmit: (text) => text.trim() !== "",
  },
  fill: {
    viewTitle: "Fill in",
    inputLabel: "Text with blanks, written __",
    resultLabel: "Filled text",
    resultNoun: "text",
    nextHeading: "Prediction for the blank",
    emptyHint: "Type a text with __ where a word is missing, for example: The __ was tired. The model fills it in here.",
    failureHint: "Nothing filled in: see the message above.",
    resetLabel: "Fill in with default settings",
    savedHint: "This file contains one filled text. To fill in others: heedful serve MODEL.",
    modelPrefix: "Masked language model, ",
    canSubmit: (text) => text.includes("__"),
  },
};

/** The wording for a model's task. @param {any} model @returns {Task} */
export function getTask(model) {
  return TASKS[/** @type {keyof typeof TASKS} */ (model.task)];
}
