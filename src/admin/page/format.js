// Numbers as people read them.

const THIN = "\u2009";
export const NONE = "–";

/** 1234567 -> "1.23 M", three significant digits. */
export function count(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1000) return Number.isInteger(value) ? String(value) : trim(value, size < 10 ? 2 : size < 100 ? 1 : 0);
  for (const [unit, of] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= of) {
      const scaled = value / of;
      return trim(scaled, Math.abs(scaled) < 10 ? 2 : Math.abs(scaled) < 100 ? 1 : 0) + THIN + unit;
    }
  }
}

/** 0.0123 -> "12.3 ms". */
export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const [scale, unit] = value >= 1 || value === 0 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const scaled = value * scale;
  return trim(scaled, scaled < 10 ? 2 : scaled < 100 ? 1 : 0) + THIN + unit;
}

/** 0.423 -> "42 %". */
export function percent(share) {
  if (share == null || !Number.isFinite(share)) return NONE;
  const value = share * 100;
  return (value > 0 && value < 1 ? value.toFixed(1) : Math.round(value)) + THIN + "%";
}

export function bytes(value) {
  if (value == null) return NONE;
  for (const [unit, of] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= of) return (value / of).toFixed(value / of < 10 ? 1 : 0) + THIN + unit;
  }
  return value + THIN + "B";
}

export function duration(milliseconds) {
  const s = Math.floor(milliseconds / 1000);
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}

export function clock(unixMilliseconds) {
  return new Date(unixMilliseconds).toLocaleTimeString("en-GB");
}

function trim(value, digits) {
  return value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

/** Makes an element: `el("td", { class: "left" }, "text", child)`. Text is always text, never markup. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Sets text only where it changed: an untouched node costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
