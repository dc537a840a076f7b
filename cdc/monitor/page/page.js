"use strict";
// Every text comes in by textContent: what a server says is never taken for markup.
const EVERY_MS = 1000, POINTS = 300, WITHIN_MS = 8000;
const LEVEL = {ok: "ok", unknown: "warn", slow: "warn", rewound: "warn", stalled: "bad", stopped: "bad"};
const SHORT = new Intl.NumberFormat("en", {notation: "compact"});
const PLOTS = {
  connectors: [["lag_seconds", "Lag, seconds"], ["events_per_second", "Events a second"]],
  stores: [["freshness_seconds", "Freshness, seconds"], ["events_per_second", "Events a second"]],
  views: [["freshness_seconds", "Freshness, seconds"], ["rows", "Rows"]],
};
const cards = new Map();
let series = null, last = 0;

const byId = (id) => document.getElementById(id);
function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (className) node.className = className;
  return node;
}
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
function number(value, digits) {
  return value === null || value === undefined ? "not known" :
    value.toLocaleString("en", {maximumFractionDigits: digits === undefined ? 1 : digits});
}
function span(seconds) {
  if (seconds === null || seconds === undefined) return "not known";
  if (seconds < 120) return `${number(seconds)} s`;
  if (seconds < 7200) return `${number(seconds / 60)} min`;
  return `${number(seconds / 3600)} h`;
}
function megabytes(value) { return value === null || value === undefined ? "not known" : `${number(value / 1e6)} MB`; }
function instant(ms) { return new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC"; }

function copyButton(code, text) {
  const button = make("button", "Copy");
  const said = make("span");
  said.setAttribute("role", "status");
  button.type = "button";
  button.append(make("span", ` the command: ${text}`, "unseen"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      const chosen = window.getSelection();
      chosen.removeAllRanges();
      chosen.addRange(range);
      said.textContent = "Selected: copy it from here";
    }
    setTimeout(() => { said.textContent = ""; }, 5000);
  });
  return [button, said];
}

function renderProblems(list, problems) {
  const now = JSON.stringify(problems);
  if (list.dataset.shown === now) return; // what has the focus stays
  list.dataset.shown = now;
  list.replaceChildren(...problems.map((problem) => {
    const item = make("li", null, problem.level);
    item.append(make("span", `${problem.level === "bad" ? "Wrong" : "Note"}: ${problem.says}`));
    if (problem.hint) {
      const hint = make("div", null, "hint");
      const code = make("code", problem.hint);
      hint.append(code, ...copyButton(code, problem.hint));
      item.append(hint);
    }
    return item;
  }));
  list.hidden = problems.length === 0;
}

function renderFacts(list, facts) {
  const now = JSON.stringify(facts);
  if (list.dataset.shown === now) return;
  list.dataset.shown = now;
  list.replaceChildren(...facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
}

function plot(kind, name, holder) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, accent] = ["--soft", "--line", "--accent"].map((each) => style.getPropertyValue(each).trim());
  return PLOTS[kind].map(([key, title]) => {
    const box = make("div", null, "plot");
    const label = make("p", title);
    box.append(label);
    holder.append(box);
    const axis = {stroke: text, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}, font: "11px sans-serif"};
    const drawn = new uPlot({
      width: Math.max(180, box.clientWidth || 240), height: 120, legend: {show: false}, cursor: {show: false},
      scales: {y: {range: (_, low, high) => [Math.min(0, low === null ? 0 : low), Math.max(1, high === null ? 1 : high * 1.1)]}},
      series: [{}, {stroke: accent, width: 2, spanGaps: false}],
      axes: [axis, {...axis, size: 46, values: (_, ticks) => ticks.map((tick) => SHORT.format(tick))}],
    }, [[], []], box);
    drawn.root.setAttribute("aria-hidden", "true");
    const points = [[], []];
    const before = series && series[kind] && series[kind][name];
    if (before) { points[0] = before.at.slice(); points[1] = before[key].slice(); drawn.setData(points); }
    new ResizeObserver(() => drawn.setSize({width: Math.max(180, box.clientWidth), height: 120})).observe(box);
    return {key, label, title, drawn, points};
  });
}

function drawPoint(one, at, value) {
  if (one.points[0].length && at <= one.points[0][one.points[0].length - 1]) return;
  one.points[0].push(at);
  one.points[1].push(value === undefined ? null : value);
  if (one.points[0].length > POINTS * 2) one.points.forEach((each) => each.shift());
  one.drawn.setData(one.points);
  setText(one.label, `${one.title}: ${number(value)}`);
}

function commandButtons(name, answer) {
  const box = make("div", null, "buttons");
  for (const command of ["pause", "resume", "reload", "snapshot"]) {
    const button = make("button", command);
    button.type = "button";
    button.setAttribute("aria-label", `${command} ${name}`);
    button.addEventListener("click", async () => {
      if (command === "snapshot" && !window.confirm(`Read all tables of ${name} again?`)) return;
      const told = byId("answer");
      try {
        const done = await fetch("api/command", {
          method: "POST",
          headers: {"Content-Type": "application/json", "X-CDC-Token": byId("token").value},
          body: JSON.stringify({connector: name, command}),
        });
        const said = await done.json();
        setText(told, done.ok ? `${name} was asked to ${command}` : `${command} of ${name} is refused: ${said.error}`);
      } catch {
        setText(told, `${command} of ${name}: the monitor does not answer`);
      }
    });
    box.append(button);
  }
  return box;
}

function cardOf(kind, entry, commands) {
  const key = `${kind}/${entry.name}`;
  let card = cards.get(key);
  if (card) return card;
  const root = make("article", null, "card");
  const heading = make("h3", entry.name), badge = make("span", "", "badge"), file = make("span", entry.file || "", "file");
  const top = make("div", null, "top"), facts = make("dl"), problems = make("ul", null, "problems");
  const plots = make("div", null, "plots"), id = `card-${cards.size}`;
  heading.id = id;
  root.setAttribute("aria-labelledby", id);
  root.dataset.name = entry.name;
  top.append(heading, badge, file);
  root.append(top, problems, facts, plots);
  if (commands && kind === "connectors") root.append(commandButtons(entry.name));
  byId(kind).querySelector(".cards").append(root);
  card = {root, badge, facts, problems, drawn: plot(kind, entry.name, plots)};
  cards.set(key, card);
  return card;
}

function connectorFacts(entry) {
  const facts = [["Phase", entry.phase || "not known"], ["Lag", `${span(entry.lag_seconds)}, ${megabytes(entry.lag_bytes)} of log`]];
  facts.push(["Events", entry.events_per_second === null ? "being watched" : `${number(entry.events_per_second)} a second`]);
  facts.push(["Run by", entry.owner ? `${entry.owner.who}, since ${instant(entry.owner.since_ms)}` :
    entry.running ? "a process that the server does not name" : "nobody"]);
  if (entry.standby) facts.push(["Standing by", number(entry.standby, 0)]);
  if (entry.paused_at) facts.push(["Paused since", entry.paused_at]);
  if (entry.slot) {
    const kept = `keeps ${megabytes(entry.slot.retained_wal_bytes)} of log`;
    facts.push(["Slot", `${entry.slot.name}: ${entry.slot.wal_status}, ${entry.slot.active ? "active" : "inactive"}, ${kept}`]);
  }
  facts.push(["Log left", entry.log_left_seconds === null ? entry.log_left : `${span(entry.log_left_seconds)}: ${entry.log_left}`]);
  if (entry.committed_at) facts.push(["Committed", entry.committed_at]);
  for (const [table, of] of Object.entries(entry.snapshot || {})) {
    if (!of.done) facts.push(["Reading", `${table}: ${number(of.rows, 0)} rows${of.estimate ? ` of about ${number(of.estimate, 0)}` : ""}`]);
  }
  for (const [table, of] of Object.entries(entry.reading || {})) facts.push(["Reading again", `${table}: ${of.phase}, ${number(of.rows, 0)} rows`]);
  if (entry.last_error) facts.push(["Last error", `${instant(entry.last_error.at_ms)}: ${entry.last_error.message}`]);
  return facts;
}

function storeFacts(entry) {
  const facts = [["Freshness", span(entry.freshness_seconds)]];
  for (const copy of entry.copies || []) {
    facts.push([copy.store, `${span(copy.freshness_seconds)} behind, ${copy.tables} tables of ${copy.connector}` +
      `${copy.incomplete.length ? `, not complete: ${copy.incomplete.join(", ")}` : ""}, ${number(copy.quarantined, 0)} in quarantine`]);
    facts.push([`${copy.store}, verified`, copy.verified_at ? `${copy.verified_at}: ${number(copy.differing, 0)} rows differed` : "never"]);
  }
  return facts;
}

function viewFacts(entry) {
  const facts = [["Freshness", span(entry.freshness_seconds)], ["Engine", entry.engine || "not known"]];
  for (const of of entry.views || []) {
    facts.push([of.view, of.stopped ? `stopped: ${of.stopped}` : `${number(of.rows, 0)} rows, running`]);
  }
  return facts;
}

function renderCards(kind, entries, commands, factsOf) {
  for (const entry of entries) {
    const card = cardOf(kind, entry, commands);
    card.root.className = `card ${entry.level}`;
    card.root.dataset.state = entry.state || entry.level;
    card.badge.className = `badge ${entry.level}`;
    setText(card.badge, entry.state || entry.level);
    try {
      renderProblems(card.problems, entry.problems || []);
      renderFacts(card.facts, factsOf(entry));
      for (const one of card.drawn) drawPoint(one, last / 1000, entry[one.key]);
    } catch (error) { // one card never blanks the page
      setText(card.facts, `it cannot be shown: ${error.name}`);
    }
  }
  byId(kind).hidden = entries.length === 0;
}

function renderConsumers(connectors) {
  const body = byId("consumers-rows"), notes = byId("consumers-notes"), rows = [], said = [];
  for (const connector of connectors) {
    const of = connector.consumers || {groups: []};
    if (of.no_commits && of.groups.length) said.push(`${connector.name}: no status is known: ${of.no_commits}`);
    for (const group of of.groups) rows.push([group, connector.name]);
  }
  const now = JSON.stringify([rows, said]);
  if (body.dataset.shown !== now) {
    body.dataset.shown = now;
    body.replaceChildren(...rows.map(([group, name]) => {
      const row = make("tr");
      const head = make("th", group.group);
      head.scope = "row";
      row.append(head, make("td", name), make("td", group.members),
        make("td", `${group.exact ? "" : "≤"}${number(group.records, 0)}`, "number"),
        make("td", group.seconds === null ? "not known" : number(group.seconds), "number"),
        make("td", group.status, LEVEL[group.status] || "warn"));
      return row;
    }));
    notes.replaceChildren(...said.map((text) => make("li", text)));
    notes.hidden = said.length === 0;
  }
  byId("consumers").hidden = rows.length === 0;
}

function render(state) {
  last = state.at_ms;
  const all = [...state.connectors, ...state.stores, ...state.views];
  const bad = all.filter((each) => each.level === "bad").length + state.files.filter((of) => of.level === "bad").length;
  const warn = all.filter((each) => each.level === "warn").length;
  setText(byId("summary"), bad || warn ? `${bad} wrong, ${warn} to note, ${all.length} watched` : `all ${all.length} are well`);
  document.title = `${bad ? `(${bad}) ` : ""}cdc monitor`;
  setText(byId("version"), state.version);
  byId("commands").hidden = !state.commands;
  const files = byId("files-list");
  byId("files").hidden = state.files.length === 0;
  renderProblems(files, state.files.map((of) => ({level: of.level, says: of.message, hint: of.hint})));
  renderCards("connectors", state.connectors, state.commands, connectorFacts);
  renderCards("stores", state.stores, false, storeFacts);
  renderCards("views", state.views, false, viewFacts);
  renderConsumers(state.connectors);
}

async function poll() {
  const stale = byId("stale");
  try {
    const answer = await fetch("api/state", {signal: AbortSignal.timeout(WITHIN_MS)});
    const state = await answer.json();
    if (series === null) series = await (await fetch("api/series", {signal: AbortSignal.timeout(WITHIN_MS)})).json();
    render(state);
    stale.hidden = true;
  } catch {
    setText(stale, `The monitor does not answer: what is shown is of ${last ? instant(last) : "no time yet"}.`);
    stale.hidden = false;
  }
  setTimeout(poll, EVERY_MS);
}
poll();
