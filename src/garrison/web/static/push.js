// Messages to this paired device by Web Push: only its user turns them on, and off at any time.

import { act, get } from "./api.js";

const WORKER = "/service_worker.js";

/**
 * State of messages to this device.
 * @returns {Promise<{name: string, may?: string, pushes?: boolean, key?: string}>}
 */
export const readDevice = () => get("device");

/** Whether this browser can get messages while the page is closed. */
export const canPush = () => window.isSecureContext && "serviceWorker" in navigator && "PushManager" in window;

/** Turn messages on; an error says in one line what is missing. */
export async function turnOn(key) {
  if (!key) throw new Error("The server cannot send pushes: install garrison[notify] there.");
  if (!canPush())
    throw new Error(
      "This browser cannot get messages for this page; on an iPhone, add the page to the home screen first.",
    );
  if ((await Notification.requestPermission()) !== "granted")
    throw new Error("Notifications are blocked for this page; allow them in the browser's settings for this site.");
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
