// This browser as a paired device: a key that cannot be exported, kept in IndexedDB, and its use: a
// session for the signature of a challenge. Pages of other origins have another database, and so no key.

const DATABASE = "garrison-device";
const STORE = "device";
const KEY = { name: "ECDSA", namedCurve: "P-256" };
const SIGNATURE = { name: "ECDSA", hash: "SHA-256" };
export const PAIR = "pair.";

/** Whether this page can make keys: with HTTPS, or on localhost. */
export const canPair = () => window.isSecureContext && "indexedDB" in window;

/**
 * The device that this browser is, or null.
 * @returns {Promise<{id: string, name: string, key: CryptoKey}|null>}
 */
export async function device() {
  if (!canPair()) return null;
  try {
    return (await stored("readonly", store => store.get(STORE))) ?? null;
  } catch {
    return null; // a browser that keeps nothing is not a device
  }
}

/** Forget the device: it was revoked. */
export const forget = () => stored("readwrite", store => store.delete(STORE)).catch(() => {});

/**
 * Make a key and register it with a code that `garrison serve --qr` has shown.
 * @param {string} code
 * @param {string} name
 * @param {"watch"|"decide"} may
 */
export async function pair(code, name, may) {
  const pair = await crypto.subtle.generateKey(KEY, false, ["sign", "verify"]);
  const point = await crypto.subtle.exportKey("raw", pair.publicKey);
  const made = await send("pair", { code, name, may, key: base64(point) });
  await stored("readwrite", store => store.put({ id: made.device, name: made.name, key: pair.privateKey }, STORE));
  navigator.storage?.persist?.().catch(() => {}); // otherwise a browser may delete data that was long unused
}

/**
 * Get a session as this device.
 * @returns {Promise<{session: string, seconds: number}|null>} null: it is not, or no longer, paired
 */
export async function logIn() {
  const own = await device();
  if (!own) return null;
  const { challenge } = await send("device/challenge", { device: own.id });
  const text = new TextEncoder().encode(`garrison device\n${location.origin}\n${challenge}`);
  const signature = base64(await crypto.subtle.sign(SIGNATURE, own.key, text));
  try {
    return await send("device/session", { device: own.id, challenge, signature });
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    await forget();
    return null;
  }
}

/** POST without a session: the body contains its own proof. */
async function send(path, body) {
  const response = await fetch(`/api/${path}`, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Garrison": "1" },
  });
  const found = await response.json().catch(() => ({}));
  if (!response.ok)
    throw Object.assign(new Error(found.message ?? "The server refused it."), { status: response.status });
  return found;
}

function base64(bytes) {
  const letters = btoa(String.fromCharCode(...new Uint8Array(bytes)));
  return letters.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Do one thing with the store; its result. */
function stored(mode, doing) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const database = opening.result;
      const transaction = database.transaction(STORE, mode);
      const asked = doing(transaction.objectStore(STORE));
      transaction.oncomplete = () => {
        database.close();
        resolve(asked.result);
      };
      transaction.onerror = transaction.onabort = () => {
        database.close();
        reject(transaction.error);
      };
    };
  });
}
