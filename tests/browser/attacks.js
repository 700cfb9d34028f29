// What a page of another port tries on the page's server `target`; how each try ends.
async target => {
  const tries = {},
    late = new Promise(resolve => setTimeout(resolve, 1500, "nothing"));
  const tried = async (name, doing) => {
    tries[name] = String(await doing().catch(problem => `refused ${problem.name}`));
  };
  const loaded = (tag, address) => () =>
    new Promise(resolve => {
      const element = document.createElement(tag);
      element.onload = () => resolve("loaded");
      element.onerror = () => resolve("refused");
      element.src = address;
      document.body.append(element);
    });
  const json = { "Content-Type": "application/json", "X-Garrison": "1" };
  const path = `${target}/api/runs/r1/actions`,
    body = '{"action": "stop"}';
  await tried("read", async () => (await fetch(`${target}/api/runs`, { credentials: "include" })).text());
  await tried(
    "opaque",
    async () => (await (await fetch(`${target}/api/runs`, { mode: "no-cors", credentials: "include" })).text()).length,
  );
  await tried("act", async () =>
    (await fetch(path, { method: "POST", credentials: "include", headers: json, body })).text(),
  );
  await tried(
    "simple",
    async () =>
      (await (await fetch(path, { method: "POST", mode: "no-cors", credentials: "include", body })).text()).length,
  );
  await tried("session", async () =>
    (await fetch(`${target}/api/session`, { method: "POST", headers: json, body: "{}" })).text(),
  );
  await tried("script", loaded("script", `${target}/static/session.js`));
  await tried("image", loaded("img", `${target}/api/runs`));
  await tried(
    "events",
    () =>
      new Promise(resolve => {
        const source = new EventSource(`${target}/api/events?runs=1`, { withCredentials: true });
        source.onopen = () => resolve("open");
        source.onerror = () => {
          source.close();
          resolve("refused");
        };
      }),
  );
  await tried(
    "socket",
    () =>
      new Promise(resolve => {
        const socket = new WebSocket(`${target.replace("http", "ws")}/api/events`);
        socket.onopen = () => resolve("open");
        socket.onerror = () => resolve("refused");
      }),
  );
  await tried("worker", async () => {
    new SharedWorker(`${target}/static/stream_worker.js`, { type: "module" });
    return "open";
  });
  await tried("channel", () => {
    const channel = new BroadcastChannel("garrison-session");
    const heard = new Promise(resolve => {
      channel.onmessage = event => resolve(JSON.stringify(event.data));
    });
    channel.postMessage(["ask"]);
    return Promise.race([heard, late]);
  });
  await tried("form", () => {
    const frame = Object.assign(document.createElement("iframe"), { name: "shown" });
    const form = Object.assign(document.createElement("form"), {
      action: path,
      method: "post",
      target: "shown",
      enctype: "text/plain",
    });
    form.append(Object.assign(document.createElement("input"), { name: '{"action": "stop", "x": "', value: '"}' }));
    document.body.append(frame, form);
    form.submit();
    return new Promise(resolve => {
      frame.onload = () => resolve(frame.contentDocument?.body.textContent ?? "refused");
    });
  });
  return { ...tries, stored: JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie]) };
};
