// Charts on canvas: 200 stacked areas a second are cheap there. Each canvas carries its summary as a label, and
// answers to the pointer and to the arrow keys with a tooltip.

import { el } from "./format.js";
import { KEPT_S } from "./model.js";

const TEN = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"];
const PAD = { left: 44, right: 8, top: 8, bottom: 20 };
/** Widths of the time axis, by the age of the history. */
const SPANS_S = [60, 120, KEPT_S];
/** Rows of a tooltip at most. */
const TIP_ROWS = 10;

/** Colours by place in the fleet: ten that are told apart easily, or else a walk around the hues. */
export function colours(names) {
  const many = names.length > TEN.length;
  const of = (i) => (many ? `hsl(${(i * 360) / names.length} ${i % 2 ? 62 : 48}% ${i % 2 ? 62 : 50}%)` : TEN[i]);
  return new Map(names.map((name, i) => [name, of(i)]));
}

/** Value of a custom property as a colour that canvas understands. */
function css(name) {
  const probe = css.probe ?? (css.probe = document.body.appendChild(el("i", { hidden: true })));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** A chart with a time axis over the kept history. */
class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
    this.cursor = null;
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.pointAt((event.clientX - box.left - PAD.left) / (box.width - PAD.left - PAD.right));
    });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** From and to, in seconds: a young history fills the chart as well. */
  get span() {
    const last = this.points.at(-1)?.t ?? 0;
    const age = last - (this.points[0]?.t ?? last);
    return [last - (SPANS_S.find((span) => span >= age) ?? KEPT_S), last];
  }

  pointAt(share) {
    if (!this.points.length) return;
    const [from, to] = this.span;
    const t = from + share * (to - from);
    let best = 0;
    this.points.forEach((p, i) => { if (Math.abs(p.t - t) < Math.abs(this.points[best].t - t)) best = i; });
    this.cursor = this.points[best].t;
    this.draw();
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -15, PageDown: 15 }[event.key];
    if (event.key === "Escape") this.leave();
    if (!by || !this.points.length) return;
    event.preventDefault();
    const at = this.cursor == null ? this.points.length - 1 : this.points.findIndex((p) => p.t === this.cursor) + by;
    this.cursor = this.points[Math.min(Math.max(at, 0), this.points.length - 1)].t;
    this.draw();
  }

  leave() {
    this.cursor = null;
    document.getElementById("tip").hidden = true;
    this.draw();
  }

  /** Clears, sizes to the screen's pixels, draws axes. */
  begin(top, format) {
    const { canvas } = this;
    const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const [from, to] = this.span;
    const x = (t) => PAD.left + ((t - from) / (to - from || 1)) * (width - PAD.left - PAD.right);
    const y = (v) => height - PAD.bottom - (v / (top || 1)) * (height - PAD.bottom - PAD.top);
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      pen.strokeStyle = css("--grid");
      pen.beginPath();
      pen.moveTo(PAD.left, Math.round(y(top * share)) + 0.5);
      pen.lineTo(width - PAD.right, Math.round(y(top * share)) + 0.5);
      pen.stroke();
      pen.fillStyle = css("--dim");
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(format(top * share), PAD.left - 6, y(top * share));
    }
    pen.textBaseline = "alphabetic";
    const step = to - from <= 120 ? 30 : width < 480 ? 120 : 60;
    for (let ago = 0; ago <= to - from; ago += step) {
      pen.textAlign = ago === 0 ? "right" : ago === to - from ? "left" : "center";
      pen.fillText(ago === 0 ? "now" : step < 60 ? `−${ago} s` : `−${ago / 60} min`, x(to - ago), height - 5);
    }
    if (!this.points.length) {
      pen.textAlign = "center";
      pen.fillText("waiting for traffic", width / 2, height / 2);
    }
    return { pen, x, y, width, height };
  }

  /** Draws the line at the cursor and shows `rows` as [colour, label, text]. */
  finish({ pen, x, height }, rowsAt) {
    const point = this.cursor == null ? null : this.points.find((p) => p.t === this.cursor);
    if (!point) return;
    pen.strokeStyle = css("--text");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x(point.t)) + 0.5, PAD.top);
    pen.lineTo(Math.round(x(point.t)) + 0.5, height - PAD.bottom);
    pen.stroke();
    const tip = document.getElementById("tip");
    const ago = Math.round(this.span[1] - point.t);
    const rows = rowsAt(point).map(([colour, label, text]) =>
      el("div", {}, el("span", { class: "swatch", style: { background: colour } }), label, el("b", {}, text)));
    tip.replaceChildren(el("div", { class: "dim" }, ago ? `${ago} s ago` : "now"), ...rows);
    tip.hidden = false;
    const box = this.canvas.getBoundingClientRect();
    const left = box.left + x(point.t) + 14;
    tip.style.left = `${left + tip.offsetWidth > innerWidth ? left - tip.offsetWidth - 28 : left}px`;
    tip.style.top = `${Math.min(box.top + 8, innerHeight - tip.offsetHeight - 8)}px`;
  }
}

/** Values of all endpoints on top of each other, as a share of the whole or per second. */
export class Stacked extends Chart {
  constructor(canvas, key, format) {
    super(canvas);
    Object.assign(this, { key, format, asShare: true, colours: new Map() });
  }

  update(points, colourOf, asShare) {
    Object.assign(this, { points, colours: colourOf, asShare });
    this.draw();
  }

  total(point) {
    return point[this.key];
  }

  draw() {
    const { points, key, asShare } = this;
    const top = asShare ? 1 : nice(Math.max(...points.map((p) => this.total(p)), 0));
    const label = asShare ? (v) => `${Math.round(v * 100)} %` : this.format;
    const frame = this.begin(top, label);
    const { pen, x, y } = frame;
    const base = new Float64Array(points.length);
    const scale = points.map((p) => (asShare ? 1 / (this.total(p) || Infinity) : 1));
    const lookup = points.map((p) => new Map(p.names.map((name, i) => [name, p.endpoints[i][key]])));
    for (const [name, colour] of this.colours) {
      pen.beginPath();
      points.forEach((p, i) => pen[i ? "lineTo" : "moveTo"](x(p.t), y(base[i])));
      for (let i = points.length - 1; i >= 0; i--) {
        base[i] += (lookup[i].get(name) ?? 0) * scale[i];
        pen.lineTo(x(points[i].t), y(base[i]));
      }
      pen.fillStyle = colour;
      pen.fill();
      // A hairline in the card's colour sets neighbours apart.
      pen.strokeStyle = css("--card");
      pen.lineWidth = this.colours.size > 24 ? 0.5 : 1;
      pen.beginPath();
      points.forEach((p, i) => pen[i ? "lineTo" : "moveTo"](x(p.t), y(base[i])));
      pen.stroke();
    }
    this.finish(frame, (point) => this.rows(point));
  }

  rows(point) {
    const rows = point.endpoints.map((e) => [this.colours.get(e.name), e.name, e[this.key]]);
    rows.sort((a, b) => b[2] - a[2]);
    const more = rows.length - TIP_ROWS;
    const text = (value) => (this.asShare ? `${((100 * value) / (this.total(point) || 1)).toFixed(1)} %` : `${this.format(value)}/s`);
    const shown = rows.slice(0, TIP_ROWS).map(([colour, name, value]) => [colour, name, text(value)]);
    return more > 0 ? [...shown, ["transparent", `and ${more} more`, ""]] : shown;
  }
}

/** A few lines over time. `series`: [{ key, colour (custom property), label }]. */
export class Lines extends Chart {
  constructor(canvas, series, format, fixedTop) {
    super(canvas);
    Object.assign(this, { series, format, fixedTop });
  }

  update(points) {
    this.points = points;
    this.draw();
  }

  draw() {
    const values = this.points.flatMap((p) => this.series.map((s) => p[s.key] ?? 0));
    const frame = this.begin(this.fixedTop ?? nice(Math.max(...values, 0)), this.format);
    const { pen, x, y } = frame;
    pen.lineJoin = "round";
    for (const { key, colour, dash } of this.series) {
      pen.strokeStyle = css(colour);
      pen.lineWidth = 1.8;
      pen.setLineDash(dash ?? []);
      pen.beginPath();
      let drawing = false;
      for (const p of this.points) {
        // A gap where nothing was measured, rather than a line through it.
        if (p[key] != null) pen[drawing ? "lineTo" : "moveTo"](x(p.t), y(p[key]));
        drawing = p[key] != null;
      }
      pen.stroke();
    }
    pen.setLineDash([]);
    this.finish(frame, (p) => this.series.map((s) => [css(s.colour), s.label, this.format(p[s.key])]));
  }
}

/** The next of 1, 2, 5 x 10^n at or above `value`. */
export function nice(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 4, 5, 10].find((step) => step * ten >= value * 1.0001) ?? 10) * ten;
}
