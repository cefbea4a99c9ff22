// What figures were in the last minutes, kept in the browser, and drawn. What was not known is a gap, and never zero.

const KEPT = 90;
const WINDOW_S = 10;
const GAP_S = 15;
const LEAST_S = 60;
const WIDTH = 120;
const HEIGHT = 28;
const STORE = "tailrace-series";

let kept = new Map(); // name → [[seconds, number or null], …]

export function restore() {
  try {
    kept = new Map(JSON.parse(sessionStorage.getItem(STORE) ?? "[]"));
  } catch {
    kept = new Map();
  }
}

export function keep() {
  try {
    sessionStorage.setItem(STORE, JSON.stringify([...kept]));
  } catch {
    sessionStorage.removeItem(STORE); // too many to keep
  }
}

// Note what the elements in `root` say now, and draw.
export function draw(root) {
  const at = Number(document.getElementById("main").dataset.now);
  const noted = new Set();
  for (const each of root.querySelectorAll("[data-series], [data-rate]")) {
    const name = each.dataset.series ?? each.dataset.rate;
    if (!noted.has(name)) note(name, at, number(each.dataset.total ?? each.dataset.value));
    noted.add(name);
  }
  for (const each of root.querySelectorAll("[data-rate]")) showRate(each);
  for (const each of root.querySelectorAll("svg[data-series]")) showLine(each);
}

function note(name, at, value) {
  const points = kept.get(name) ?? [];
  if (points.length && points.at(-1)[0] >= at) return;
  points.push([at, value]);
  kept.set(name, points.slice(-KEPT));
}

function number(text) {
  return text === undefined || text === "" ? null : Number(text);
}

// Per second, over the last seconds up to the point; null where that is not known.
export function rateAt(points, index) {
  const [at, total] = points[index];
  if (total === null) return null;
  let first = index;
  while (first > 0) {
    const [before, value] = points[first - 1];
    if (value === null || value > points[first][1] || at - before > WINDOW_S || points[first][0] - before > GAP_S) break;
    first -= 1;
  }
  return first === index ? null : (total - points[first][1]) / (at - points[first][0]);
}

function showRate(element) {
  const points = kept.get(element.dataset.rate);
  const rate = rateAt(points, points.length - 1);
  if (rate === null) {
    element.textContent = "—";
    element.title = "not known yet";
  } else {
    element.textContent = `${readable(rate)}/s`;
    element.title = "changes per second, over the last ten seconds";
  }
}

export function readable(value) {
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

function showLine(svg) {
  const points = kept.get(svg.dataset.series);
  const isRate = svg.dataset.series.startsWith("rate:");
  const values = points.map(([at, value], index) => [at, isRate ? rateAt(points, index) : value]);
  svg.replaceChildren(...shapes(values));
}

function shapes(values) {
  const end = values.at(-1)[0];
  const top = Math.max(1, ...values.map(([, value]) => value ?? 0));
  const span = Math.max(LEAST_S, end - values[0][0]);
  const x = (at) => WIDTH - 3 - ((end - at) * (WIDTH - 6)) / span;
  const y = (value) => HEIGHT - 3 - (value / top) * (HEIGHT - 6);
  const drawn = runs(values).map((run) => {
    const line = run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`);
    return shape("polyline", { points: line.join(" ") });
  });
  const [at, last] = values.at(-1);
  if (last !== null) drawn.push(shape("line", { class: "last", x1: x(at), x2: x(at), y1: y(last), y2: y(last) }));
  return drawn;
}

// Points that follow each other, cut where something was not known.
function runs(values) {
  const found = [];
  let before = null;
  for (const [at, value] of values) {
    if (value === null) {
      before = null;
      continue;
    }
    if (before === null || at - before > GAP_S) found.push([]);
    found.at(-1).push([at, value]);
    before = at;
  }
  return found;
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
