// Screen of a terminal: xterm.js, which is loaded when the first terminal opens. Its input was drawn by tmux; even
// so, only drawing is allowed: no title, link, clipboard or color of the page, and no replies.
//
// xterm.js puts its styles into <style> elements and style attributes, both of which the content security policy forbids.
// It is given a document whose style elements fill a constructed style sheet, and whose style attributes are set one
// property at a time; the policy allows both, since no markup can do them.

const FOLDER = "./vendor/xterm-6.0.0";
const FONT = { family: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", smallest: 12, usual: 13 };
const IGNORED = {
  osc: [0, 1, 2, 4, 8, 10, 11, 12, 52, 104, 110, 111, 112],
  csi: [
    { final: "c" },
    { prefix: ">", final: "c" },
    { prefix: "=", final: "c" },
    { final: "n" },
    { prefix: "?", final: "n" },
    { prefix: ">", final: "q" },
    { final: "t" },
    { intermediates: "$", final: "p" },
    { prefix: "?", intermediates: "$", final: "p" },
  ],
  dcs: [
    { intermediates: "$", final: "q" },
    { intermediates: "+", final: "q" },
  ],
};

const make = document.createElement.bind(document);

/** A document for xterm.js, and the function that takes its style sheets from the page again. */
function strictDocument() {
  const sheets = new Set();
  function style() {
    const made = make("span"),
      sheet = new CSSStyleSheet();
    made.hidden = true;
    sheets.add(sheet);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    Object.defineProperty(made, "textContent", {
      set(text) {
        sheet.replaceSync(text);
      },
      get: () => "",
    });
    return made;
  }
  function createElement(name) {
    if (name === "style") return style();
    const made = make(name),
      setAttribute = made.setAttribute.bind(made);
    made.setAttribute = (attribute, value) => {
      if (attribute === "style") made.style.cssText = value;
      else setAttribute(attribute, value);
    };
    return made;
  }
  const strict = new Proxy(document, {
    get(of, name) {
      if (name === "createElement") return createElement;
      const value = Reflect.get(of, name, of);
      return typeof value === "function" ? value.bind(of) : value;
    },
  });
  /** Open a terminal: while it opens, xterm.js asks the page's own document for one of its style elements. */
  function opened(terminal, place) {
    document.createElement = createElement;
    try {
      terminal.open(place);
    } finally {
      delete document.createElement;
    }
  }
  return {
    strict,
    opened,
    release() {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter(one => !sheets.has(one));
    },
  };
}

let stylesheet = null;

function loadStyle() {
  stylesheet ??= new Promise(resolve => {
    const link = document.createElement("link");
    Object.assign(link, {
      rel: "stylesheet",
      href: new URL(`${FOLDER}/xterm.css`, import.meta.url).href,
      onload: resolve,
      onerror: resolve,
    });
    document.head.append(link);
  });
  return stylesheet;
}

/**
 * A screen in `place`, a scrolled element.
 * @param {Element} place
 * @param {{columns: number, rows: number}} size
 * @param {(a: string) => void} typed gets what the user types while the screen has the keyboard
 * @param {() => void} leave called when the user leaves the screen by keyboard
 */
export async function openScreen(place, size, typed, leave) {
  const [{ Terminal }, { FitAddon }] = await Promise.all([
    import(`${FOLDER}/xterm.mjs`),
    import(`${FOLDER}/addon-fit.mjs`),
    loadStyle(),
  ]);
  const { strict, opened, release } = strictDocument();
  const terminal = new Terminal({
    cols: size.columns,
    rows: size.rows,
    scrollback: 0,
    disableStdin: true,
    documentOverride: strict,
    logLevel: "off",
    fontFamily: FONT.family,
    fontSize: FONT.usual,
    cursorBlink: false,
    cursorInactiveStyle: "none",
    macOptionIsMeta: true,
    theme: { background: "#14171c", foreground: "#e6e8eb", cursor: "#e6e8eb", selectionBackground: "#3c5a86" },
  });
  const fit = new FitAddon();
  let held = false;
  terminal.loadAddon(fit);
  for (const id of IGNORED.osc) terminal.parser.registerOscHandler(id, () => true);
  for (const id of IGNORED.csi) terminal.parser.registerCsiHandler(id, () => true);
  for (const id of IGNORED.dcs) terminal.parser.registerDcsHandler(id, () => true);
  terminal.onData(text => {
    if (held) typed(text);
  });
  terminal.attachCustomKeyEventHandler(event => {
    if (!held) return false; // the page's own keys, and Tab, work as everywhere
    if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "l") {
      event.preventDefault();
      if (event.type === "keydown") leave();
      return false;
    }
    event.stopPropagation();
    return true;
  });
  opened(terminal, place);
  terminal.textarea.tabIndex = -1;
  terminal.textarea.setAttribute("aria-label", "Keys for the agent");

  /** Make letters as large as the place allows; where they would be too small, the place is scrolled. */
  function scale() {
    if (held) return;
    const width = terminal.element.querySelector(".xterm-screen").offsetWidth;
    if (!width || !place.clientWidth) return;
    const wanted = Math.floor((10 * terminal.options.fontSize * (place.clientWidth - 8)) / width) / 10;
    terminal.options.fontSize = Math.min(FONT.usual, Math.max(FONT.smallest, wanted));
  }

  scale();
  return {
    /** Draw; resolved when it is drawn, so that no more is taken than the tab can draw. */
    draw: text =>
      new Promise(resolve => {
        terminal.write(text, resolve);
      }),
    resize({ columns, rows }) {
      terminal.resize(columns, rows);
      scale();
    },
    /** Give the keyboard to the screen, or take it away. */
    hold(on) {
      held = on;
      terminal.options.disableStdin = !on;
      terminal.options.fontSize = FONT.usual;
      terminal.textarea.tabIndex = on ? 0 : -1;
      if (on) terminal.focus();
      else scale();
    },
    /** The size that would fill the place. */
    room() {
      const found = fit.proposeDimensions();
      return { columns: found?.cols ?? size.columns, rows: found?.rows ?? size.rows };
    },
    scale,
    close() {
      terminal.dispose();
      release();
    },
  };
}
