// Requests to the gateway that has served this page, and the key that they carry.

const base = new URL("../api/v1/", document.baseURI);
const slot = "taskgate.key";

// setKey keeps a key until the tab is closed; without one the browser forgets all.
export function setKey(key) {
  if (key) return sessionStorage.setItem(slot, key);
  sessionStorage.removeItem(slot);
  localStorage.removeItem(slot);
}

// getKey is the key that is kept; null for none.
const getKey = () => sessionStorage.getItem(slot) ?? localStorage.getItem(slot);

// hasKey reports whether a key is kept.
export const hasKey = () => getKey() !== null;

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
  const key = getKey();
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

// rerun runs the call of a task again, and returns the new task.
export const rerun = async (id) => (await ask("POST", `tasks/${encodeURIComponent(id)}/rerun`)).json();

// pause pauses the calls of an upstream, or of a tool of it, and resume has them go on.
export const pause = (upstream, tool) => ask("POST", `upstreams/${encodeURIComponent(upstream)}/pause`, { query: { tool } });
export const resume = (upstream, tool) => ask("POST", `upstreams/${encodeURIComponent(upstream)}/resume`, { query: { tool } });

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

// decoded is a part of the address without its escapes; as it is, where those are broken.
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// openLink takes the key out of the address bar. The log of a gateway without admin_auth has a link to this page
// that ends with #token=…, and opens it once: the browser's history keeps the link. The page gets another key for
// it, which this browser keeps as long as that is good. A key that is no link's is kept for this tab.
export async function openLink() {
  const given = /^#token=([^&]+)/.exec(location.hash);
  if (!given) return;
  history.replaceState(null, "", location.pathname + "#/");
  const before = localStorage.getItem(slot);
  setKey(decoded(given[1]));
  try {
    const { key } = await (await ask("POST", "open")).json();
    if (!key) return;
    setKey("");
    localStorage.setItem(slot, key);
  } catch (e) {
    if (e.status !== 401 || before === null) return;
    setKey("");
    localStorage.setItem(slot, before);
  }
}
