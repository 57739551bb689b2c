// The page: draws each state that the server pushes. All texts of others go through textContent.

import { drawChart, element, sparkline } from "./chart.js";

const SECONDS = 300;
const $ = (id) => document.getElementById(id);
let history = [];
let feeds = "";
let shown = new Map();

const scaled = (number) => {
  for (const [unit, size] of [[" G", 1e9], [" M", 1e6], [" k", 1e3]]) {
    if (Math.abs(number) >= size) return digits(number / size) + unit;
  }
  return digits(number);
};
const digits = (number) => {
  const size = Math.abs(number);
  return size >= 100 || Number.isInteger(number) ? Math.round(number).toLocaleString("en") : number.toFixed(size < 10 ? 2 : 1);
};
const rate = (value) => (value === null ? "-" : `${scaled(value)}/s`);
const bytes = (value) => {
  if (value === null) return "-";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  return `${Math.round(value)} B`;
};
const duration = (ns) => {
  if (ns === null) return "-";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (Math.abs(ns) >= size) return `${digits(ns / size)} ${unit}`;
  return `${Math.round(ns)} ns`;
};
const count = (value) => (value === null ? "-" : value.toLocaleString("en"));
const clock = (ns) => new Date(ns / 1e6).toISOString().slice(11, 19);
const ago = (seconds) => {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

// columns: [title, text of a row, classes: fixed, or of a row; then those of the title are "left" if `isLeft`]
function fill(id, rows, columns) {
  $(`${id}-card`).classList.toggle("hidden", rows.length === 0);
  const head = element("tr");
  for (const [title, , classes, isLeft] of columns) head.append(element("th", typeof classes === "string" ? classes : isLeft ? "left" : "", title));
  const lines = rows.map((row) => {
    const line = element("tr");
    for (const [, text, classes] of columns) line.append(element("td", typeof classes === "function" ? classes(row) : classes || "", text(row)));
    return line;
  });
  $(id).replaceChildren(head, ...lines);
}

const MARKS = { alive: "●", closed: "○", silent: "✕", "not heard": "?" };
const linesOf = (row) => Object.entries(row.lines).map(([name, state]) => `${name} ${MARKS[state] || ""} ${state}`).join("  ");
const isBad = (row) => Object.values(row.lines).some((state) => state === "silent" || state === "not heard");

function showConditions(view) {
  const found = view.conditions;
  $("trouble").className = `card ${found.length ? "wrong" : "good"}`;
  $("verdict").textContent = found.length ? `${found.length} ${found.length === 1 ? "condition" : "conditions"}` : "Nothing is wrong";
  $("verdict-note").textContent = found.length ? "" : "no rule has found anything";
  $("conditions").replaceChildren(...found.slice(0, 50).map((each) => {
    const item = element("li", each.severity);
    item.append(element("b", "", each.kind.replaceAll("_", " ")), `${each.who}: ${each.why}`);
    const since = `since ${clock(each.since_ns)} UTC, ${ago((view.now_ns - each.since_ns) / 1e9)}`;
    item.append(element("span", "where", `${each.where}; ${since}`));
    return item;
  }));
}

function showTiles(view) {
  const ok = view.processes.filter((each) => each.state === "ok").length;
  const lines = view.slices.flatMap((row) => Object.values(row.lines));
  const alive = lines.filter((state) => state === "alive").length;
  const tiles = [
    [rate(view.messages_per_second), "messages", ""],
    [view.bytes_per_second === null ? "-" : `${bytes(view.bytes_per_second)}/s`, "bodies", ""],
    [duration(view.lag_p99_ns), "lag p99, worst", ""],
    [count(view.lost), "messages lost", view.lost ? "bad" : "good"],
    [`${alive} of ${lines.length}`, "lines alive", lines.length && alive < lines.length ? "bad" : "good"],
    [`${ok} of ${view.processes.length}`, "processes ok", ok < view.processes.length ? "bad" : "good"],
  ];
  $("tiles").replaceChildren(...tiles.map(([value, name, classes]) => {
    const tile = element("div", `tile ${classes}`);
    tile.append(element("b", "", value), element("span", "", name));
    return tile;
  }));
}

function showTables(view) {
  fill("slices", view.slices, [
    ["feed", (row) => `${row.feed} ${row.slice_id}`],
    ["lines", linesOf, (row) => (isBad(row) ? "left bad" : "left"), true],
    ["rate", (row) => rate(row.messages_per_second)],
    ["bytes/s", (row) => bytes(row.bytes_per_second)],
    ["messages", (row) => count(row.messages)],
    ["lag p50", (row) => duration(row.lag_p50_ns)],
    ["lag p99", (row) => duration(row.lag_p99_ns)],
    ["age p99", (row) => duration(row.age_p99_ns)],
    ["lost", (row) => count(row.lost), (row) => (row.lost ? "bad" : "")],
    ["repaired", (row) => count(row.repaired)],
  ]);
  fill("processes", view.processes, [
    ["process", (row) => "    ".repeat(row.depth) + row.label, "left tree"],
    ["feed", (row) => row.feed, "left"],
    ["state", (row) => row.state, (row) => (row.state === "ok" ? "left up" : "left bad"), true],
    ["rate", (row) => rate(row.messages_per_second)],
    ["lag", (row) => duration(row.lag_ns)],
    ["lost", (row) => count(row.lost), (row) => (row.lost ? "bad" : "")],
    ["repaired", (row) => count(row.repaired)],
    ["dropped", (row) => count(row.dropped), (row) => (row.dropped ? "bad" : "")],
    ["peers", (row) => count(row.peers)],
    ["up", (row) => ago(row.uptime_s)],
  ]);
  fill("peers", view.peers.slice(0, 20), [
    ["of", (row) => row.process],
    ["line", (row) => `${row.slice_id} ${row.line}`, "left"],
    ["address", (row) => row.address || "-", "left"],
    ["process", (row) => row.name || "-", "left"],
    ["key", (row) => row.key || "-", "left"],
    ["subscriptions", (row) => count(row.subscriptions)],
    ["behind", (row) => `${row.behind_s.toFixed(1)} s`, (row) => (row.behind_s >= 1 ? "bad" : "")],
    ["unsent", (row) => bytes(row.unsent_bytes)],
  ]);
  fill("consumers", view.consumers, [
    ["consumer", (row) => row.name],
    ["feed", (row) => row.feed, "left"],
    ["behind", (row) => count(row.behind_messages)],
    ["in time", (row) => (row.behind_s === null ? "-" : ago(row.behind_s))],
    ["stored", (row) => `${ago((view.now_ns - row.kept_ns) / 1e9)} ago`],
  ]);
}

function showFeeds(view) {
  const names = [...new Set(view.slices.map((row) => row.feed))];
  if (names.join() === feeds) return;
  feeds = names.join();
  $("feeds").textContent = names.join(", ");
  $("choose-feed").replaceChildren(...names.map((name) => element("option", "", name)));
}

const levels = (side, name, most) => {
  const place = element("div", name);
  for (const [price, size] of side) {
    const level = element("div", "level"), bar = element("i");
    bar.style.setProperty("--part", `${(100 * size) / most}%`);
    level.append(bar, element("span", name === "bids" ? "up" : "down", digits2(price)), element("span", "dim", scaled(size)));
    place.append(level);
  }
  return place;
};
const digits2 = (price) => price.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 });

function showInstruments(found, socket) {
  const present = new Map();
  $("instruments").replaceChildren(...found.map((each) => {
    const key = `${each.feed}/${each.symbol}`, card = element("div", "instrument"), head = element("div", "head");
    const name = element("h3", "", each.symbol), remove = element("button", "remove", "×");
    remove.title = "Remove";
    remove.addEventListener("click", () => socket.send(JSON.stringify({ do: "remove", feed: each.feed, symbol: each.symbol })));
    const tags = element("div", "tags");
    tags.append(element("span", "tag", each.feed));
    if (each.in_sync !== null) tags.append(element("span", `tag ${each.in_sync ? "good" : "bad"}`, each.in_sync ? "book complete" : "book may lack orders"));
    head.append(name, remove);
    const before = shown.get(key), moved = before === undefined || each.price === before ? "" : each.price > before ? "up" : "down";
    present.set(key, each.price);
    card.append(head, tags, element("div", `price ${moved}`, each.price === null ? "-" : digits2(each.price)));
    card.append(element("div", "dim", each.state === "live" ? `${count(each.messages)} messages` : each.state));
    if (each.prices.length > 1) card.append(sparkline(each.prices));
    const most = Math.max(1, ...each.bids.map((level) => level[1]), ...each.asks.map((level) => level[1]));
    const book = element("div", "book");
    book.append(levels(each.bids, "bids", most), levels(each.asks, "asks", most));
    card.append(book);
    return card;
  }));
  shown = present;  // a removed symbol is not asked for again after a lost connection
}

function show(state, socket) {
  const view = state.view, now = view.now_ns / 1e6;
  if (state.history) history = state.history;
  const lags = view.processes.map((row) => row.lag_ns).filter((lag) => lag !== null);
  history.push([now, view.messages_per_second, lags.length ? Math.max(...lags) : null]);
  while (history.length && history[0][0] < now - 1000 * SECONDS) history.shift();
  $("clock").textContent = `${clock(view.now_ns)} UTC`;
  document.title = view.conditions.length ? `(${view.conditions.length}) blackbox` : "blackbox";
  showFeeds(view);
  showConditions(view);
  showTiles(view);
  showTables(view);
  const age = (now - history[0][0]) / 1000, span = [30, 60, 120].find((each) => age <= each) ?? SECONDS;
  drawChart($("rate-chart"), history.map((point) => [point[0], point[1]]), span, (value) => scaled(value));
  drawChart($("lag-chart"), history.map((point) => [point[0], point[2]]), span, duration);
  showInstruments(state.instruments, socket);
  $("choose-error").textContent = state.error;
  $("foot").textContent = `${state.browsers} ${state.browsers === 1 ? "browser" : "browsers"}` +
    (state.passed_over ? `; this one is slow and was spared ${count(state.passed_over)} states` : "");
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/state`);
  const say = (text, classes) => { $("state").textContent = text; $("dot").className = `dot ${classes}`; };
  socket.onopen = () => {
    say("live", "live");
    for (const key of shown.keys()) {
      const [feed, ...symbol] = key.split("/");
      socket.send(JSON.stringify({ do: "show", feed, symbol: symbol.join("/") }));
    }
  };
  socket.onmessage = (event) => show(JSON.parse(event.data), socket);
  socket.onclose = () => { say("connection lost, trying again", "lost"); setTimeout(connect, 1000); };
  $("choose").onsubmit = (event) => {
    event.preventDefault();
    if (socket.readyState !== WebSocket.OPEN) return;
    socket.send(JSON.stringify({ do: "show", feed: $("choose-feed").value, symbol: $("choose-symbol").value.trim() }));
    $("choose-symbol").value = "";
  };
}

connect();
