// What the badges of heads say.

/** By the names that the manifest has. @type {Record<string, {does: string, means: string}>} */
export const BADGES = {
  "previous word": { does: "looks mostly at the previous word", means: "half of its weight or more goes to the piece before" },
  "next word": { does: "looks mostly at the next word", means: "half of its weight or more goes to the piece after" },
  itself: { does: "looks mostly at the word itself", means: "half of its weight or more stays where it is" },
  "end sink": { does: "looks mostly at </s>, the end", means: "it rests on the end, </s>, where there is nothing to say" },
  "start sink": { does: "looks mostly at <s>, the start", means: "it rests on the start, <s>, where there is nothing to say" },
  aligner: { does: "aligns: each word looks at one word of the source", means: "each word looks at one word of the source, and most words of the source are looked at: an alignment" },
  broad: { does: "looks broadly, at many words at once", means: "its weight is spread almost evenly" },
  taught: { does: "was taught where to look", means: "training showed this head what “it” refers to" },
  off: { does: "is switched off", means: "an experiment has switched it off: nobody hears it" },
};
