// What a model is for, in the words of the page: it translates, goes on with a text, or fills in its blanks.

/**
 * @typedef {object} Task
 * @property {string} view  the first view
 * @property {string} field  what is typed
 * @property {string} result  what comes of it, as a name ...
 * @property {string} written  ... and within a sentence
 * @property {string} next  what a step is about
 * @property {string} invitation  while there is nothing to answer
 * @property {string} none  if there is no answer
 * @property {string} plainly  a way on when special settings do not work
 * @property {string} saved  of a file with one text in it
 * @property {string} kind  before the facts about the model
 * @property {(text: string) => boolean} ready  whether a text can be answered
 */

/** By the names that the manifest has. @type {Record<"translate" | "language" | "mask", Task>} */
export const TASKS = {
  translate: {
    view: "Translate",
    field: "Text to translate",
    result: "Translation",
    written: "translation",
    next: "The next word",
    invitation: "Write or paste a text, and its translation appears here as you type.",
    none: "No translation: the message above says why.",
    plainly: "Translate without special settings",
    saved: "This file holds one sentence as it was translated once. To translate others: heedful serve MODEL.",
    kind: "",
    ready: (text) => text.trim() !== "",
  },
  language: {
    view: "Write",
    field: "Beginning of a text",
    result: "Text",
    written: "text",
    next: "The next word",
    invitation: "Write the beginning of a text, and the model goes on with it here.",
    none: "Nothing is written: the message above says why.",
    plainly: "Write without special settings",
    saved: "This file holds one text as it was written once. To write others: heedful serve MODEL.",
    kind: "Language model, ",
    ready: (text) => text.trim() !== "",
  },
  mask: {
    view: "Fill in",
    field: "Text with blanks, written __",
    result: "Filled text",
    written: "text",
    next: "What stands in the blank",
    invitation: "Write a text, and __ where a word is missing, such as: The __ was tired. The model guesses it here.",
    none: "Nothing is filled in: the message above says why.",
    plainly: "Fill in without special settings",
    saved: "This file holds one text as it was filled in once. To fill in others: heedful serve MODEL.",
    kind: "Masked language model, ",
    ready: (text) => text.includes("__"),
  },
};

/** The words for a model, as the server describes it. @param {any} model @returns {Task} */
export function taskOf(model) {
  return TASKS[/** @type {keyof typeof TASKS} */ (model.task)];
}
