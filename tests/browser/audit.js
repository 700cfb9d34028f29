// What an accessibility checker would complain of: controls without a name, texts with too little contrast, ids twice.
// Answers with lines; none is good.
(() => {
  const found = [];
  const visible = one => one.checkVisibility({ visibilityProperty: true }) && one.getBoundingClientRect().width > 0;
  const isRead = one => visible(one) && !one.closest("title, option, noscript, .visually-hidden, :disabled");
  const nameOf = one =>
    one.getAttribute("aria-label") ||
    (one.getAttribute("aria-labelledby") ?? "")
      .split(" ")
      .map(id => document.getElementById(id)?.textContent ?? "")
      .join("") ||
    [...(one.labels ?? [])].map(label => label.textContent).join("") ||
    one.textContent.trim() ||
    one.title;
  for (const one of document.querySelectorAll(
    "a[href], button, input, select, textarea, [role=button], [role=tab], [role=tabpanel], section, aside, nav, dialog",
  )) {
    if (visible(one) && !nameOf(one)) found.push(`no name: ${one.outerHTML.slice(0, 120)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map(one => one.id);
  ids.filter((id, at) => ids.indexOf(id) !== at).forEach(id => found.push(`id twice: ${id}`));
  if (!document.documentElement.lang || !document.title) found.push("no language or no title");

  return [...found, ...paleTexts(isRead)];

  function paleTexts(isRead) {
    const found = [];
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = colour => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
    const light = colour =>
      colour
        .slice(0, 3)
        .map(one => one / 255)
        .map(one => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
        .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = one => {
      if (!one) return rgba(getComputedStyle(document.body).backgroundColor);
      const own = rgba(getComputedStyle(one).backgroundColor);
      return own[3] === 1 ? own : over(own, behind(one.parentElement));
    };
    const shapeBehind = text =>
      [...(text.closest(".node")?.children ?? [])].find(one => one.localName !== "text" && one.localName !== "title");
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const one = walker.currentNode.parentElement;
      if (!walker.currentNode.textContent.trim() || !isRead(one)) continue;
      const style = getComputedStyle(one),
        svg = one.namespaceURI.endsWith("svg");
      const shape = svg && !one.classList.contains("sign") ? shapeBehind(one) : null;
      const ground = shape ? rgba(getComputedStyle(shape).fill) : behind(svg ? one.closest("div") : one);
      const ink = over(rgba(svg ? style.fill : style.color), ground);
      const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
      const ratio = (high + 0.05) / (low + 0.05);
      const place = one.className?.baseVal ?? one.className;
      if (ratio < 4.5)
        found.push(`contrast ${ratio.toFixed(2)}: ${JSON.stringify(one.textContent.trim().slice(0, 40))} in ${place}`);
    }
    return found;
  }
})();
