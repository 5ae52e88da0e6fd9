// Draws recordings of terminals as one SVG that plays by itself: a frame for each STEP
// seconds, SPEED times as fast as it was. A viewer that plays nothing shows the last frame.
import { readFileSync } from "node:fs";
import xterm from "@xterm/headless";

const panels = JSON.parse(readFileSync(process.env.PANELS));
const [rows, columns] = [Number(process.env.ROWS), Number(process.env.COLUMNS)];
const [step, speed, hold] = [2.5, 10, 5]; // hold: how long the last frame stays
const [cell, line, margin] = [8, 16, 12];
const caption = `Real runs, ${speed} times as fast; the language model follows a script. Made by “make recording”.`;

const escape = (s) => s.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
const hex = (n) => `#${n.toString(16).padStart(6, "0")}`;
const basic = ["#1e1e1e", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d4d4d4",
  "#7f848e", "#f47c85", "#a8d389", "#f5d08b", "#71bfff", "#d688ed", "#66c6d2", "#ffffff"];
const palette = (n) => {
  if (n < 16) return basic[n];
  if (n > 231) return hex((8 + (n - 232) * 10) * 0x10101);
  const part = (d) => [0, 95, 135, 175, 215, 255][Math.floor((n - 16) / d) % 6];
  return hex((part(36) << 16) + (part(6) << 8) + part(1));
};

// The rows that were ever drawn, each once.
const drawn = new Map();
function row(terminal, y) {
  const source = terminal.buffer.active.getLine(terminal.buffer.active.baseY + y);
  const runs = [];
  for (let x = 0; x < columns; x++) {
    const c = source?.getCell(x);
    if (!c || c.getWidth() === 0) continue;
    let fill = c.isFgDefault() ? basic[7] : c.isFgRGB() ? hex(c.getFgColor()) : palette(c.getFgColor());
    let back = c.isBgDefault() ? "" : c.isBgRGB() ? hex(c.getBgColor()) : palette(c.getBgColor());
    if (c.isInverse()) [fill, back] = [back || basic[0], fill];
    const style = `fill="${fill}"${c.isBold() ? ' font-weight="bold"' : ""}${c.isDim() ? ' opacity="0.6"' : ""}`;
    const last = runs.at(-1);
    const text = c.getChars() || " ";
    if (last && last.style === style && last.back === back) {
      last.text += text;
      last.width += c.getWidth();
    } else runs.push({ x, text, style, back, width: c.getWidth() });
  }
  const svg = runs
    .map(({ x, text, style, back, width }) => {
      const box = back && `<rect x="${x * cell}" y="-12" width="${width * cell}" height="${line}" fill="${back}"/>`;
      const blank = text.length - text.trimStart().length;
      const inner = text.trim();
      if (!inner) return box;
      return `${box}<text x="${(x + blank) * cell}" textLength="${(inner.length) * cell}" ${style}>${escape(inner)}</text>`;
    })
    .join("");
  if (!svg) return "";
  if (!drawn.has(svg)) drawn.set(svg, `r${drawn.size}`);
  return `<use href="#${drawn.get(svg)}" y="${y * line}"/>`;
}

const clock = (s) => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`;

// frames draws what a terminal showed every step seconds, from the call to the end of all.
async function frames(panel, length) {
  const terminal = new xterm.Terminal({ rows, cols: columns, allowProposedApi: true });
  const list = [];
  let next = 0;
  for (let at = 0; at <= length; at += step) {
    while (next < panel.Chunks.length && panel.Chunks[next].At <= panel.Begin + at) {
      const data = Buffer.from(panel.Chunks[next++].Data, "base64");
      await new Promise((resolve) => terminal.write(data, resolve));
    }
    const body = Array.from({ length: rows }, (_, y) => row(terminal, y)).join("");
    list.push(`<text x="${columns * cell}" y="-22" text-anchor="end" class="clock">${clock(at)}</text>${body}`);
  }
  return list;
}

const length = Math.ceil(Math.max(...panels.map((p) => p.End - p.Begin + 3)) / step) * step;
const drawnPanels = [];
for (const panel of panels) drawnPanels.push(await frames(panel, length));
const count = drawnPanels[0].length;
const cycle = (length / speed) + hold;
const each = step / speed;
const height = rows * line + 54;
const styles = [`.f{visibility:hidden;animation:f ${cycle}s step-end infinite}`,
  `@keyframes f{0%{visibility:visible}${((each / cycle) * 100).toFixed(3)}%,100%{visibility:hidden}}`,
  `.l{animation:l ${cycle}s step-end infinite}`,
  `@keyframes l{0%{visibility:visible}${(((cycle - each * (count - 1)) / cycle) * 100).toFixed(3)}%,100%{visibility:hidden}}`,
  "text{white-space:pre;font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}",
  ".title{font:bold 14px sans-serif;fill:#ffffff}.clock{font:bold 14px sans-serif;fill:#e5c07b}.caption{font:12px sans-serif;fill:#9da5b4}"];
const body = drawnPanels.map((list, i) => {
  const parts = list.map((svg, n) => {
    const last = n === count - 1;
    return `<g class="${last ? "l" : "f"}" style="animation-delay:${(n * each - cycle).toFixed(3)}s">${svg}</g>`;
  });
  return `<g transform="translate(${margin} ${i * height + 40})"><text x="0" y="-22" class="title">${escape(panels[i].Title)}</text>` +
    `<rect x="-6" y="-14" width="${columns * cell + 12}" height="${rows * line + 8}" rx="4" fill="#1e1e1e"/>${parts.join("")}</g>`;
});
const [w, h] = [columns * cell + 2 * margin, panels.length * height + 30];
process.stdout.write(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${w} ${h}" width="${w}" height="${h}">` +
  `<style>${styles.join("")}</style><defs>${[...drawn].map(([svg, id]) => `<g id="${id}">${svg}</g>`).join("")}</defs>` +
  `<rect width="100%" height="100%" fill="#282c34"/>${body.join("")}` +
  `<text x="${margin}" y="${h - 14}" class="caption">${caption}</text></svg>\n`);
