// The views, in the order of the lecture.

import { cellView } from "heedful/views/cell.js";
import { decodeView } from "heedful/views/decode.js";
import { experimentsView } from "heedful/views/experiments.js";
import { headView } from "heedful/views/head.js";
import { lessonView } from "heedful/views/lesson.js";
import { mapView } from "heedful/views/map.js";
import { pathView } from "heedful/views/path.js";
import { positionsView } from "heedful/views/positions.js";
import { trainingView } from "heedful/views/training.js";
import { translateView } from "heedful/views/translate.js";

/** @type {import("heedful/main.js").View[]} */
export const VIEWS = [
  translateView, mapView, headView, cellView, pathView, decodeView, positionsView, experimentsView, trainingView, lessonView,
];
