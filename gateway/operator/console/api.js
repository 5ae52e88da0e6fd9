// Requests to the gateway that has served this page, and the key that they carry.

const base = new URL("../api/v1/", document.baseURI);
const slot = "taskgate.key";

// The log of a gateway without admin_auth has a link to this page that ends with #token=…: the
// fragment is part of no request, and leaves the address bar here.
const given = /^#token=([^&]+)/.exec(location.hash);
if (given) {
  sessionStorage.setItem(slot, decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname + "#/");
}

// setKey keeps a key until the tab is closed; without one the browser forgets it.
export const setKey = (key) => (key ? sessionStorage.setItem(slot, key) : sessionStorage.removeItem(slot));

// hasKey reports whether a key is kept.
export const hasKey = () => sessionStorage.getItem(slot) !== null;

// Refused is an answer of the gateway that is no success.
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// ask sends one request and returns the response.
async function ask(method, path, { query = {}, signal, accept = "application/json" } = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) if (one !== undefined && one !== "") url.searchParams.append(name, one);
  }
  const headers = { Accept: accept };
  const key = sessionStorage.getItem(slot);
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(url, { method, headers, signal, cache: "no-store", redirect: "error" });
  if (response.ok) return response;
  const text = await response.text();
  let message = text.trim() || response.statusText;
  try {
    message = JSON.parse(text).error ?? message;
  } catch { /* the text is the message */ }
  throw new Refused(response.status, message);
}

// get reads a JSON document.
export async function get(path, query, signal) {
  const response = await ask("GET", path, { query, signal });
  return { ...(await response.json()), date: response.headers.get("Date") };
}

// cancel cancels a task.
export const cancel = (id) => ask("POST", `tasks/${encodeURIComponent(id)}/cancel`);

// follow calls changed for each message of the stream of changes, and returns when it ends.
export async function follow(changed, signal) {
  const response = await ask("GET", "changes", { signal, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    if (events.some((event) => /^data:/m.test(event))) changed();
  }
}
