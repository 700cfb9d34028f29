// Messages to this paired device by Web Push: asked for by its user alone, taken back at any time.

import { act, get } from "./api.js";

const WORKER = "/service_worker.js";

/**
 * What is known of messages to this device.
 * @returns {Promise<{name: string, may?: string, pushes?: boolean, key?: string}>}
 */
export const readDevice = () => get("device");

/** Whether this browser can get messages while the page is closed. */
export const canPush = () => window.isSecureContext && "serviceWorker" in navigator && "PushManager" in window;

/** Turn messages on; an error says in one line what is missing. */
export async function turnOn(key) {
  if (!key) throw new Error("The server lacks what pushes: install garrison with its extra, garrison[notify].");
  if (!canPush())
    throw new Error(
      "This browser gets no messages for this page; on an iPhone, add the page to the home screen first.",
    );
  if ((await Notification.requestPermission()) !== "granted")
    throw new Error("This browser allows no notifications of this page; its settings of the site change that.");
  const registration = await navigator.serviceWorker.register(WORKER);
  await navigator.serviceWorker.ready;
  const before = await registration.pushManager.getSubscription();
  if (before) await before.unsubscribe(); // it may belong to another key
  const made = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = made.toJSON();
  try {
    return await act("device/push", { subscription: { endpoint, p256dh: keys.p256dh, auth: keys.auth } });
  } catch (problem) {
    await made.unsubscribe();
    throw problem;
  }
}

/** Turn messages off. */
export async function turnOff() {
  const registration = await navigator.serviceWorker?.getRegistration(WORKER);
  await (await registration?.pushManager.getSubscription())?.unsubscribe();
  return act("device/push", { subscription: null });
}
