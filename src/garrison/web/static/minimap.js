// Map of a drawing that is larger than its view: a small picture in the corner, with the visible part. For the mouse
// only; keys and screen readers have the table.

const SIZE = 150; // pixels of its longer side, and
const SHARE = 0.28; // of the view's width at most
const SMALLEST = 26;
const FEW = 25; // nodes up to which there is no map: it would cover some of them, and scrolling finds the others
const LEAST = 2; // pixels of a node
const QUIET = 200; // milliseconds between two pictures

/** The map, in `element` (a canvas, and a frame for the visible part), of the drawing in `place`, a scrolled element. */
export function miniMap(element, place) {
  const [canvas, frame] = element.children;
  let marks = [],
    drawn = null,
    found = null,
    due = 0,
    width = 0,
    height = 0;

  /** Show these nodes (each with its box and its state) of a drawing. */
  function put(nodes, drawing) {
    marks = nodes;
    drawn = drawing;
    if (!drawn) {
      element.hidden = true;
      return;
    }
    const by = Math.min(SIZE, place.clientWidth * SHARE) / Math.max(drawn.width, drawn.height);
    [width, height] = [Math.max(SMALLEST, drawn.width * by), Math.max(SMALLEST, drawn.height * by)];
    const sharp = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [width * sharp, height * sharp];
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
    moved();
    picture();
  }

  /** Draw it again soon; `names` were found by a search (null: no search). */
  function paint(names = found) {
    found = names;
    if (!due && drawn) due = setTimeout(picture, QUIET);
  }

  function picture() {
    due = 0;
    if (!drawn) return;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(element);
    const [top, left] = origin();
    const [x, y] = [canvas.width / drawn.width, canvas.height / drawn.height];
    const sharp = canvas.width / width;
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (const { name, box, state } of marks) {
      context.fillStyle = style.getPropertyValue(`--${state || "waiting"}`) || "#888";
      context.globalAlpha = found && !found.has(name) ? 0.2 : state === "waiting" ? 0.5 : 1;
      context.fillRect(
        (box.x - left) * x,
        (box.y - top) * y,
        Math.max(LEAST * sharp, box.width * x),
        Math.max(LEAST * sharp, box.height * y),
      );
    }
  }

  /** The y and x at which the drawing starts: Graphviz draws above zero. */
  function origin() {
    const [first] = marks;
    const group = first?.g.parentElement;
    const [, x = 0, y = 0] = /translate\(([-\d.]+)[ ,]+([-\d.]+)\)/.exec(group?.getAttribute("transform") ?? "") ?? [];
    return [-Number(y), -Number(x)];
  }

  /** Show which part is visible; nothing if all of it is. */
  function moved() {
    if (!drawn) return;
    const { scrollWidth, scrollHeight, clientWidth, clientHeight, scrollLeft, scrollTop } = place;
    element.hidden = marks.length <= FEW || (scrollWidth <= clientWidth + 1 && scrollHeight <= clientHeight + 1);
    Object.assign(frame.style, {
      translate: `${(width * scrollLeft) / scrollWidth}px ${(height * scrollTop) / scrollHeight}px`, // no layout is needed for it
      width: `${Math.max(4, Math.min(width, (width * clientWidth) / scrollWidth))}px`,
      height: `${Math.max(4, Math.min(height, (height * clientHeight) / scrollHeight))}px`,
    });
  }

  function go(event) {
    const box = element.getBoundingClientRect();
    place.scrollTo(
      ((event.clientX - box.left) / width) * place.scrollWidth - place.clientWidth / 2,
      ((event.clientY - box.top) / height) * place.scrollHeight - place.clientHeight / 2,
    );
  }

  element.addEventListener("pointerdown", event => {
    element.setPointerCapture(event.pointerId);
    go(event);
  });
  element.addEventListener("pointermove", event => event.buttons && go(event));
  place.addEventListener("scroll", moved, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint());
  return { put, paint, moved };
}
