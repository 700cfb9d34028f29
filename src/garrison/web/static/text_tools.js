// Copy text, download a file. Pages are requested one after another, so that the server
// sends no more at once than to the page.

import { toast } from "./notice.js";

const MOST = 256 * 1024 * 1024; // characters of a downloaded file

/** Copy a text, and confirm it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("This browser does not let the page copy; select the text and copy it yourself.", true);
  }
}

/** Download the texts of `pieces` (an async iterable) as the file `name`. */
export async function download(name, pieces) {
  const parts = [];
  let size = 0;
  try {
    for await (const text of pieces) {
      parts.push(text);
      size += text.length;
      if (size < MOST) continue;
      toast(`${name} is cut after ${MOST >> 20} million characters; the home has all of it.`, true);
      break;
    }
  } catch (problem) {
    toast(problem.message, true);
    return;
  }
  const address = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}
