// The last hour as pictures: one column for each minute. All charts point at the same minute.

import { h, clock, duration } from "./dom.js";

const width = 400, height = 128, left = 42, bottom = 18, top = 8;
const inner = { width: width - left - 4, height: height - top - bottom };

let pointed = null; // the minute that the pointer or the keyboard is at, as a time

// bars draws counts: the series of each minute stand on each other, and those that go down hang below the axis.
export function bars(chart) {
  const sums = (down) => chart.minutes.map((m) => chart.series.reduce((sum, s) => sum + (!s.down === !down ? s.value(m) : 0), 0));
  const most = nice(Math.max(...sums(false), ...sums(true), 1));
  const least = chart.series.some((s) => s.down) ? -most : 0;
  const y = (n) => top + inner.height * ((most - n) / (most - least));
  const marks = chart.minutes.map((m, i) => {
    let above = 0, below = 0;
    return chart.series.map((s) => {
      const n = s.value(m);
      if (!n) return null;
      const from = s.down ? below : above, to = from + (s.down ? -n : n);
      if (s.down) below = to;
      else above = to;
      const height = Math.max(1, Math.abs(y(to) - y(from)));
      return h("svg:rect", {
        class: s.class, x: x(chart, i) + 0.5, width: Math.max(1, step(chart) - 1),
        y: s.down ? y(from) : y(from) - height, height,
      });
    });
  });
  const ticks = least < 0 ? [least, 0, most] : [0, most / 2, most].filter(Number.isInteger);
  const grid = ticks.map((n) => ({ at: y(n), text: short(Math.abs(n)) }));
  return figure(chart, grid, marks, (m, s) => short(s.value(m)), (s) => short(total(chart, s)));
}

// lines draws durations in seconds on a logarithmic scale. A minute without a value interrupts a line.
export function lines(chart) {
  const values = chart.minutes.flatMap((m) => chart.series.map((s) => s.value(m))).filter((v) => v > 0);
  const ticks = [0.01, 0.1, 1, 10, 60, 600, 3600, 36000];
  const low = Math.max(0, ticks.findLastIndex((t) => t <= Math.min(...values, 1)));
  const high = Math.max(low + 1, ticks.findIndex((t) => t >= Math.max(...values, 1)));
  const from = Math.log(ticks[low]), to = Math.log(ticks[high] ?? ticks.at(-1));
  const y = (v) => top + inner.height * (1 - (Math.log(Math.max(v, ticks[low])) - from) / (to - from));
  const marks = chart.series.map((s) => {
    let path = "", open = false;
    const dots = [];
    chart.minutes.forEach((m, i) => {
      const v = s.value(m);
      if (!(v > 0)) {
        open = false;
        return;
      }
      const cx = x(chart, i) + step(chart) / 2;
      path += `${open ? "L" : "M"}${cx.toFixed(1)} ${y(v).toFixed(1)}`;
      open = true;
      dots.push(h("svg:circle", { class: s.class, cx, cy: y(v), r: 1.6 }));
    });
    return [path && h("svg:path", { class: `line ${s.class}`, d: path }), dots];
  });
  const grid = ticks.slice(low, high + 1).map((t) => ({ at: y(t), text: duration(t * 1000).replace(".0", "").replace(" 00s", "").replace(" 00m", "") }));
  const text = (v) => (v > 0 ? duration(v * 1000) : "–");
  return figure(chart, grid, marks, (m, s) => text(s.value(m)), (s) => text(s.whole));
}

// figure is the frame of a chart: its name, a legend with numbers, the grid, and the pointed minute.
function figure(chart, grid, marks, valueAt, valueOf) {
  const index = chart.minutes.findIndex((m) => m.at === pointed);
  const minute = chart.minutes[index];
  const when = minute ? clock(minute.at).slice(0, -3) : "last hour";
  const values = chart.series.map((s) => [s, minute ? valueAt(minute, s) : valueOf(s)]);
  const point = (i) => {
    const m = chart.minutes[Math.min(Math.max(i, 0), chart.minutes.length - 1)];
    pointed = m?.at ?? null;
    chart.redraw();
  };
  const picture = h("svg:svg", {
    viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "slider", "aria-label": `${chart.title}, by minute`,
    "aria-valuemin": 0, "aria-valuemax": chart.minutes.length - 1,
    "aria-valuenow": index < 0 ? chart.minutes.length - 1 : index,
    "aria-valuetext": `${when}: ${values.map(([s, v]) => `${s.name} ${v}`).join(", ")}`,
    onpointermove: (e) => {
      const box = e.currentTarget.getBoundingClientRect();
      point(Math.floor((((e.clientX - box.left) / box.width) * width - left) / step(chart)));
    },
    onpointerleave: () => { pointed = null; chart.redraw(); },
    onblur: () => { pointed = null; chart.redraw(); },
    onkeydown: (e) => {
      const last = chart.minutes.length - 1, from = index < 0 ? last : index;
      const to = { ArrowLeft: index < 0 ? last : from - 1, ArrowRight: from + 1, Home: 0, End: last }[e.key];
      if (to === undefined) return;
      e.preventDefault();
      point(to);
    },
  },
  grid.map((g) => [
    h("svg:line", { class: "grid", x1: left, x2: width - 4, y1: g.at, y2: g.at }),
    h("svg:text", { class: "tick", x: left - 6, y: g.at + 3.5, "text-anchor": "end" }, g.text),
  ]),
  minute && h("svg:rect", { class: "cursor", x: x(chart, index), width: step(chart), y: top, height: inner.height }),
  marks,
  [["start", 0, "60 min ago"], ["middle", 0.5, "30 min"], ["end", 1, "now"]].map(([anchor, part, text]) =>
    h("svg:text", { class: "tick", x: left + inner.width * part, y: height - 4, "text-anchor": anchor }, text)));
  return h("figure", { class: "chart" },
    h("figcaption", null,
      h("h3", null, chart.title),
      h("p", { class: "legend" },
        values.map(([s, v]) => h(s.href && !minute ? "a" : "span", { class: "key", href: minute ? false : s.href }, h("i", { class: `swatch ${s.class}` }), `${s.name} `, h("b", null, v))),
        h("span", { class: "when" }, when))),
    picture);
}

const step = (chart) => inner.width / chart.minutes.length;
const x = (chart, i) => left + i * step(chart);
const total = (chart, s) => chart.minutes.reduce((sum, m) => sum + s.value(m), 0);

// nice is the next round number: the upper end of a scale.
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 4, 6, 8, 10].map((f) => f * power).find((v) => v >= n);
}

// short writes a number in at most four characters.
function short(n) {
  if (n < 10000) return String(n);
  if (n < 1e6) return `${Math.round(n / 1000)}k`;
  return `${(n / 1e6).toFixed(1)}M`;
}

// quantile reads a quantile in seconds from a histogram: counts per bucket, and the upper bounds of
// all buckets but the last. Within a bucket the values count as evenly spread.
export function quantile(q, counts, bounds) {
  const all = counts.reduce((sum, n) => sum + n, 0);
  if (all === 0) return 0;
  let rank = q * all;
  for (let i = 0; i < counts.length; i++) {
    if (rank <= counts[i] && counts[i] > 0) {
      const from = i === 0 ? 0 : bounds[i - 1], to = bounds[i] ?? bounds.at(-1);
      return from + (to - from) * (rank / counts[i]);
    }
    rank -= counts[i];
  }
  return bounds.at(-1);
}
