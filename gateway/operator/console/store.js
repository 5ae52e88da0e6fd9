// The store: where tasks and sessions are kept.

import { h, count } from "./dom.js";
import { get } from "./api.js";
import { panel } from "./parts.js";

export const title = () => "Store";

export const load = ({ signal }) => get("store", {}, signal);

export function render(s) {
  const row = (name, value) => value !== undefined && value !== "" && [h("dt", null, name), h("dd", null, value)];
  return [
    h("div", { class: "head" }, h("h1", null, "Store"),
      h("span", { class: `status ${s.error ? "gone" : "alive"}` }, s.error ? "Not reachable" : "Reachable")),
    s.error && h("p", { class: "notice bad", role: "alert" }, h("b", null, "The store does not answer"), s.error),
    panel("Facts", {}, h("dl", { class: "facts" },
      row("Kind", s.kind),
      row("Address", s.address && h("span", { class: "mono" }, s.address)),
      row("Answers within", s.latency_ms !== undefined && `${s.latency_ms.toFixed(1)} ms`),
      row("Masters", s.masters > 1 ? String(s.masters) : ""),
      row("Memory", s.used_bytes && `${mebibytes(s.used_bytes)} MiB${s.max_bytes ? ` of ${mebibytes(s.max_bytes)} MiB` : ", without a limit"}`),
      row("Replicas connected", s.masters && String(s.replicas ?? 0)),
      row("Replicas that confirm a write", s.masters && String(s.wait_replicas ?? 0)),
      row("Folder", s.folder && h("span", { class: "mono" }, s.folder)),
      row("Size of the folder", s.folder && `${mebibytes(s.folder_bytes ?? 0)} MiB`))),
  ];
}

const mebibytes = (n) => count(Math.ceil(n / (1 << 20)));
