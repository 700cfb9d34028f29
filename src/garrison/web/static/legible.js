// Make text of agents legible. Pure. Words stay; terminal escape sequences are removed; characters that hide, reorder or
// pile up are written out, so that no two different texts look the same.

/* eslint no-control-regex: "off", no-misleading-character-class: "off" -- these characters are the subject */

const PLAIN = /^[\n\t\x20-\x7e]*$/;
// Escape sequences: colours and cursor; strings such as titles, links and the clipboard; the rest.
const SEQUENCES =
  /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]/g;
const UNFINISHED = /(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]{0,2000}\x1b?)?|\r)$/;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
// Changes of writing direction, and characters without width; a joiner within an emoji or a script that needs it stays.
const HIDDEN = new RegExp(
  "[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\u00ad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b" +
    "\\u2060-\\u2065\\u206a-\\u206f\\u3164\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]" +
    "|(?<![\\p{M}\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\ufe0f]|(?!\\p{Script=Latin})\\p{L})[\\u200c\\u200d]",
  "gu",
);
const LINES = /\r\n|[\r\x0b\x0c\x85\u2028\u2029]/g;
const PILES = /(\p{M}{4})\p{M}+/gu; // marks that would cover the lines above and below
const HALVES = /\p{Surrogate}/gu;

const code = character => `‹U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;

/** A text as the user should see it. */
export function legible(text) {
  if (PLAIN.test(text)) return text;
  return text
    .replace(SEQUENCES, "")
    .replace(LINES, "\n")
    .replace(CONTROLS, code)
    .replace(HIDDEN, code)
    .replace(PILES, "$1")
    .replace(HALVES, "\ufffd");
}

/** The incomplete end of a piece of text: an escape sequence that has not ended. */
export const unfinished = piece => UNFINISHED.exec(piece)?.[0] ?? "";

/** A graph in the DOT language with legible texts: it is laid out as it will be read. */
export const legibleGraph = dot =>
  PLAIN.test(dot)
    ? dot
    : dot.replace(/"(?:[^"\\]|\\.)*"/gs, text =>
        text
          .split(/(\\.)/s)
          .map((part, at) => (at % 2 ? part : legible(part)))
          .join(""),
      );

const LETTERS = "аеорсухѕіјһԁԛԝӏвкмнтАВЕЗКМНОРСТУХЅІЈԚԜӀΑΒΕΖΗΙΚΜΝΟΡΤΥΧοανιρυκ";
const LIKE_LATIN = new Set(LETTERS);
const LATIN = /\p{Script=Latin}/u;
const FOREIGN = /(?!\p{Script=Latin})\p{L}/gu;

/** A name such as a branch's: letters of other scripts that look like Latin ones are written out. */
export function legibleName(name) {
  return legible(name).replace(/[^/\-_.\s‹›]+/g, part => {
    const foreign = part.match(FOREIGN) ?? [];
    const passes = foreign.length && (LATIN.test(part) || foreign.every(letter => LIKE_LATIN.has(letter)));
    return passes ? part.replace(FOREIGN, code) : part;
  });
}
