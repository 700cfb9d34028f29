// Colours for one line of source code. Pure. A line alone is read, so a comment or a string over several lines is
// coloured by its start; unrecognised text stays plain. Lines are short (the server cuts them), and every
// pattern reads each character once.

const C =
  "auto break case char class const continue default delete do double else enum extern false final finally " +
  "float for func function if import in int interface let long namespace new nil null package private " +
  "protected public return short signed sizeof static struct super switch this throw true try typedef union " +
  "unsigned using var virtual void volatile while async await export extends from implements of type yield " +
  "fn impl match mod mut pub ref self trait use where chan defer go map range select";
const PYTHON =
  "False None True and as assert async await break class continue def del elif else except finally for from " +
  "global if import in is lambda match nonlocal not or pass raise return try while with yield self";
const SHELL =
  "case do done elif else esac export fi for function if in local return set shift then trap unset until while echo exit test";
const RUBY =
  "begin class def do else elsif end ensure false for if in module nil not or require rescue return self " +
  "super then true unless until when while yield";
const SQL =
  "select from where insert into values update set delete create table index view join left right inner " +
  "outer on group by order limit as and or not null primary key references default union drop alter";

/** @type {Array<[Array<string>, string, string]>} */
const WORDS = [
  [["py", "pyi", "toml", "cfg", "ini", "yaml", "yml", "r", "mk", "cmake"], PYTHON, "#"],
  [["sh", "bash", "zsh", "dockerfile", "makefile"], SHELL, "#"],
  [["rb", "ex", "exs"], RUBY, "#"],
  [["sql"], SQL, "--"],
  [
    [
      "js",
      "mjs",
      "cjs",
      "ts",
      "tsx",
      "jsx",
      "c",
      "h",
      "cc",
      "cpp",
      "hpp",
      "java",
      "kt",
      "go",
      "rs",
      "swift",
      "cs",
      "php",
      "css",
      "scss",
      "dot",
      "json",
    ],
    C,
    "//",
  ],
];
const BY_NAME = new Map();
for (const [names, words, comment] of WORDS) {
  const language = { words: new Set(words.split(" ")), comment };
  for (const name of names) BY_NAME.set(name, language);
}
// comment to the end of the line | string | number | word; the first character decides which one is tried
const TOKENS =
  /(\/\/.*|\/\*.*?(?:\*\/|$)|#.*|--.*)|("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|`(?:[^`\\]|\\.)*`?)|(\b\d[\w.]*)|([A-Za-z_$][\w$]*)/g;

/** The language of a path, by its ending; null for one that is not known. */
export function languageOf(path) {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  return BY_NAME.get(name.slice(name.lastIndexOf(".") + 1)) ?? null;
}

/** A line's pieces: [kind, text], kind being "" or one of comment, string, number, word. */
export function pieces(text, language) {
  if (!language || !text) return [["", text]];
  const found = [];
  let plain = 0;
  const add = (kind, from, to) => {
    if (plain < from) found.push(["", text.slice(plain, from)]);
    found.push([kind, text.slice(from, to)]);
    plain = to;
  };
  TOKENS.lastIndex = 0;
  for (let match; (match = TOKENS.exec(text));) {
    const [whole, comment, string, number, word] = match;
    if (comment && !(comment.startsWith(language.comment) || (language.comment === "//" && comment.startsWith("/*")))) {
      TOKENS.lastIndex = match.index + 1; // an operator of this language
      continue;
    }
    const kind = comment ? "comment" : string ? "string" : number ? "number" : language.words.has(word) ? "word" : "";
    if (kind) add(kind, match.index, match.index + whole.length);
  }
  if (plain < text.length) found.push(["", text.slice(plain)]);
  return found;
}
