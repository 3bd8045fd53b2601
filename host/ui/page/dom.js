// Elements. All text goes through text nodes, so nothing from a run is ever markup.

/**
 * Makes an element. Properties that begin with "on" are listeners, `class` is its class, `data` its data attributes,
 * `vars` its CSS variables; true and false set and leave out an attribute. Children are elements, texts, or lists of them.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "vars") for (const [own, v] of Object.entries(value)) element.style.setProperty(own, v);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = true;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return add(element, children);
}

/** Appends children; null and false are left out. */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replaces what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

/** Makes an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

/** Text from a run, in a direction of its own. */
export const outside = (text, kind = "") => h("span", { class: `outside ${kind}`.trim() }, text);

/** Shows a message for some seconds; an error until it is closed. */
export function toast(text, kind = "info") {
  const place = document.getElementById("toasts");
  // What is still shown need not be said twice.
  const same = [...place.children].find((own) => own.className === `toast ${kind}` && own.firstChild.textContent === text);
  same?.remove();
  const close = h("button", { class: "plain", "aria-label": "Close", onclick: () => shown.remove() }, "\u00d7");
  const shown = h("div", { class: `toast ${kind}` }, h("span", {}, text), close);
  place.append(shown);
  while (place.childElementCount > 4) place.firstChild.remove();
  if (kind !== "error") setTimeout(() => shown.remove(), 8000);
  return shown;
}

/** Calls a function once after a pause in its calls. */
export function later(work, pause = 200) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), pause);
  };
}

/** A line through values, without axes. */
export function sparkline(values, { width = 96, height = 24, label = "" } = {}) {
  const points = values.map((value, i) => [i, value]).filter(([, value]) => value !== null && value !== undefined);
  const image = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  if (points.length < 2) return image;
  const all = points.map(([, value]) => value);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (i) => 1 + (i / (values.length - 1)) * (width - 5);
  const y = (value) => (high === low ? height / 2 : height - 3 - ((value - low) / (high - low)) * (height - 6));
  const path = points.map(([i, value], n) => `${n === 0 ? "M" : "L"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const [last, value] = points.at(-1);
  image.append(svg("path", { d: path }), svg("circle", { cx: x(last).toFixed(1), cy: y(value).toFixed(1), r: 2 }));
  return image;
}
