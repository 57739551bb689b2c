// A line chart as SVG that stretches to any width, with HTML labels next to it.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== "") made.textContent = text;
  return made;
}

export function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function ceiling(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((each) => each >= value);
}

function pathOf(points, start, span, low, range, width, height) {
  let text = "", before = null;
  for (const [time, value] of points) {
    if (value === null) { before = null; continue; }
    const x = (width * (time - start)) / span, y = height - (height * (value - low)) / range;
    text += `${before === null || time - before > 5000 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    before = time;
  }
  return text;
}

// points: [time in ms, value or null]; seconds: width of the chart; show: a value as text.
export function drawChart(place, points, seconds, show) {
  const width = 600, height = 130, end = points.length ? points[points.length - 1][0] : Date.now();
  const start = end - 1000 * seconds, seen = points.filter((point) => point[0] >= start);
  const top = ceiling(Math.max(0, ...seen.map((point) => point[1] ?? 0)));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", height });
  const labels = element("div", "y");
  for (const part of [0, 0.5, 1]) {
    const y = height * (1 - part);
    picture.append(svg("line", { class: "grid", x1: 0, x2: width, y1: y, y2: y }));
    const label = element("span", "", show(top * part));
    label.style.bottom = `${100 * part}%`;
    labels.append(label);
  }
  picture.append(svg("path", { class: "line", d: pathOf(seen, start, 1000 * seconds, 0, top, width, height) }));
  const times = element("div", "x");
  for (const back of [seconds, seconds / 2, 0]) {
    const label = element("span", "", back ? (back < 120 ? `-${back} s` : `-${back / 60} min`) : "now");
    label.style.setProperty("--at", `${100 * (1 - back / seconds)}%`);
    times.append(label);
  }
  const chart = element("div", "chart live");
  chart.append(labels, picture, times);
  place.replaceChildren(chart);
}

export function sparkline(points) {
  const width = 240, height = 46, picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
  if (points.length > 1) {
    const values = points.map((point) => point[1]), low = Math.min(...values), high = Math.max(...values);
    const first = points[0][0], span = Math.max(1, points[points.length - 1][0] - first);
    const range = high > low ? high - low : 1, base = high > low ? low : low - 0.5;
    picture.append(svg("path", { class: "line", d: pathOf(points, first, span, base, range, width, height) }));
  }
  return picture;
}
