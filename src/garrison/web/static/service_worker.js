// Service worker: shows the messages that are pushed to this device, and opens their targets. It stores nothing and
// answers no request, so the page always comes from the server.

const worker = /** @type {any} */ (self);

worker.addEventListener("push", event => {
  const { title, body, tag, path } = read(event.data);
  event.waitUntil(
    worker.registration.showNotification(title, {
      body,
      tag,
      data: { path },
      icon: "/static/icon.svg",
      badge: "/static/icon.svg",
    }),
  );
});

worker.addEventListener("notificationclick", event => {
  event.notification.close();
  event.waitUntil(open(event.notification.data.path));
});

/** The content of a push; an unreadable one is shown all the same, as browsers demand. */
function read(data) {
  const text = value => (typeof value === "string" ? value : "");
  let found = {};
  try {
    found = data?.json() ?? {};
  } catch {
    // shown with the default text
  }
  const path = text(found.path);
  return {
    title: text(found.title) || "garrison",
    body: text(found.body) || "Something waits for you",
    tag: text(found.tag),
    path: path.startsWith("/?") ? path : "/",
  };
}

/** Show a path of the page: in a window that is open, else in a new one. */
async function open(path) {
  const windows = await worker.clients.matchAll({ type: "window" });
  for (const one of windows) {
    try {
      await one.navigate(path);
      return one.focus();
    } catch {
      // a window that this worker does not control (yet)
    }
  }
  return worker.clients.openWindow(path);
}
