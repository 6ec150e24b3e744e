"use strict";
// The flame graph of a profile. Whatever a profile has in it is other people's text: it becomes text nodes only.
const $ = id => document.getElementById(id);
const ROW = 20, LEAST_PIXELS = 1.5, MOST_NODES = 20000;
const GROUPS = {process: l => l.pid && `${l.comm || "?"} (${l.pid})`, gpu: l => l.gpu_uuid,
  workload: l => l.workload, pod: l => l.pod, kind: l => l.kind, rank: l => l.rank};
const FILTERS = {pid: l => GROUPS.process(l), gpu_uuid: l => l.gpu_uuid, workload: l => l.workload,
  pod: l => l.pod};
const state = {now: null, base: null, root: null, focus: [], shown: null};

function amount(value, unit) {
  if (unit !== "bytes") return value.toLocaleString("en").replaceAll(",", "\u202f");
  let step = 0, left = Math.abs(value);
  while (left >= 1024 && step < 5) { left /= 1024; step += 1; }
  const digits = step && left < 100 ? 1 : 0;
  return `${value < 0 ? "−" : ""}${left.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][step]}`;
}

const percent = ratio => `${(100 * ratio).toFixed(ratio < 0.1 ? 2 : 1)} %`;
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const node = (name, kind, place) => ({name, kind, place, total: 0, base: 0, own: 0, children: new Map()});
const width = it => it.total + it.base;

function selected(labels) {
  return Object.keys(FILTERS).every(key => !$(key).value || $(key).value === labels[key]);
}

// Adds the samples of a profile to a tree, as its values or as those that they are compared with.
function grow(root, profile, value, by, side) {
  const index = profile.types.findIndex(type => type[0] === value);
  for (const [frames, at, values] of profile.samples) {
    const amount = values[index];
    if (!(amount > 0) || !selected(profile.labels[at])) continue;
    const path = frames.map(frame => profile.frames[frame]);
    if (by) path.unshift([GROUPS[by](profile.labels[at]) || `no ${by}`, "", 0, "group", ""]);
    let here = root;
    here[side] += amount;
    for (const [name, file, line, kind, module] of path) {
      const place = file ? `${file}${line ? `:${line}` : ""}` : module;
      const key = `${kind}\0${name}\0${place}`;
      let next = here.children.get(key);
      if (!next) here.children.set(key, next = node(name, kind, place));
      next[side] += amount;
      here = next;
    }
    if (side === "total") here.own += amount;
  }
}

function build() {
  const value = $("value").value, by = $("by").value;
  state.root = node("total", "group", "");
  if (state.now) grow(state.root, state.now, value, by, "total");
  if (comparing()) grow(state.root, state.base, value, by, "base");
  draw();
}

const comparing = () => Boolean($("compare").checked && state.base && state.now
  && state.base.types.some(type => type[0] === $("value").value));

function focused() {
  const path = [state.root];
  for (const key of state.focus) {
    const next = path.at(-1).children.get(key);
    if (!next) break;
    path.push(next);
  }
  state.focus.length = path.length - 1;
  return path;
}

function matched(words) {
  let sum = 0;
  const waiting = [state.root];
  while (waiting.length) {
    const it = waiting.pop();
    if (hit(it, words)) sum += width(it);
    else waiting.push(...it.children.values());
  }
  return sum;
}

const hit = (it, words) => `${it.name} ${it.place}`.toLowerCase().includes(words);

function draw() {
  const words = $("search").value.trim().toLowerCase(), unit = unitOf(), whole = $("graph").clientWidth;
  const path = focused(), diff = comparing(), parts = document.createDocumentFragment();
  let depth = 0, count = 0;
  const add = (it, left, part, level, keys, above) => {
    const box = document.createElement("div");
    box.tabIndex = 0;
    box.style.cssText = `left:${100 * left}%;width:${100 * part}%;top:${ROW * level}px`;
    box.classList.add(it.kind);
    if (level % 2) box.classList.add("odd");
    if (above) box.classList.add("above");
    if (diff) {
      const change = it.total - it.base;
      box.classList.add(change < 0 ? "less" : "more");
      box.style.setProperty("--d", Math.abs(change) / Math.max(it.total, it.base, 1));
    }
    if (words) box.classList.add(hit(it, words) ? "hit" : "miss");
    if (part * whole > 30) box.textContent = label(it);
    box.title = described(it, unit, diff);
    box.addEventListener("click", () => { state.focus = keys; draw(); });
    box.addEventListener("keydown", event => { if (event.key === "Enter") box.click(); });
    const detail = () => { $("detail").textContent = box.title; };
    box.addEventListener("mouseenter", detail);
    box.addEventListener("focus", detail);
    parts.append(box);
    depth = Math.max(depth, level + 1);
    count += 1;
  };
  path.slice(0, -1).forEach((it, level) => add(it, 0, 1, level, state.focus.slice(0, level), true));
  const waiting = width(path.at(-1)) ? [[path.at(-1), 0, 1, path.length - 1, [...state.focus]]] : [];
  while (waiting.length && count < MOST_NODES) {
    const [it, left, part, level, keys] = waiting.pop();
    add(it, left, part, level, keys, false);
    let from = left;
    for (const [key, child] of [...it.children].sort((a, b) => width(b[1]) - width(a[1]))) {
      const share = part * width(child) / width(it);
      if (share * whole >= LEAST_PIXELS) waiting.push([child, from, share, level + 1, [...keys, key]]);
      from += share;
    }
  }
  $("graph").style.height = `${ROW * depth}px`;
  $("graph").replaceChildren(parts);
  $("reset").disabled = !state.focus.length;
  report(words, unit, diff);
}

function label(it) {
  const place = it.kind === "python" && it.place ? ` ${it.place.slice(it.place.lastIndexOf("/") + 1)}` : "";
  return it.name + place;
}

function described(it, unit, diff) {
  const name = it.place ? `${it.name}\n${it.place}\n` : `${it.name}\n`;
  const all = state.root.total || 1;
  const own = it.own ? `, of it ${amount(it.own, unit)} here` : "";
  const now = `${amount(it.total, unit)} (${percent(it.total / all)})${own}`;
  return name + now + (diff ? `; before ${amount(it.base, unit)}: ${signed(it.total - it.base, unit)}` : "");
}

const signed = (change, unit) => (change > 0 ? "+" : "") + amount(change, unit);
const unitOf = () => (state.now?.types.find(type => type[0] === $("value").value) || ["", ""])[1];

function report(words, unit, diff) {
  if (!state.now) return;
  const root = state.root, facts = [`${amount(root.total, unit)} in ${state.now.samples.length} stacks at ${clock(state.shown)}`];
  if (diff) facts.push(`${signed(root.total - root.base, unit)} since ${clock(state.base.at)}`);
  if (words) facts.push(`${percent(matched(words) / (width(root) || 1))} match`);
  if (state.root.total === 0) facts.push("nothing to show");
  status(facts.concat(state.now.comments).join(" · "));
}

function status(text, bad = false) {
  $("status").textContent = text;
  $("status").className = bad ? "bad" : "dim";
}

function options(select, pairs, kept = select.value) {
  select.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
  select.value = pairs.some(pair => pair[0] === kept) ? kept : pairs[0]?.[0] ?? "";
}

function choices() {
  options($("value"), state.now.types.map(type => [type[0], type[0].replaceAll("_", " ")]), wanted.get("value") || $("value").value);
  wanted.delete("value");
  for (const [key, name] of Object.entries(FILTERS)) {
    const found = new Map(state.now.labels.filter(name).map(labels => [labels[key], name(labels)]));
    options($(key), [["", "all"], ...[...found].sort((a, b) => a[1] < b[1] ? -1 : 1)], wanted.get(key) || $(key).value);
    wanted.delete(key);
  }
}

function links() {
  const [name, n] = $("profile").value.split("?n=");
  const query = new URLSearchParams(n ? {n} : {});
  for (const key of Object.keys(FILTERS)) if ($(key).value) query.set(key, $(key).value);
  const hash = new URLSearchParams(query);
  hash.set("profile", name);
  for (const key of ["value", "by"]) if ($(key).value) hash.set(key, $(key).value);
  history.replaceState(null, "", `#${hash}`);
  for (const format of ["pprof", "collapsed", "speedscope"]) {
    const own = new URLSearchParams(query);
    own.set("format", format);
    if (format !== "pprof" && $("by").value) own.set("by", $("by").value);
    if (format === "collapsed") own.set("value", $("value").value);
    $(format).href = `debug/pprof/${name}?${own}`;
  }
}

async function fetched(url) {
  const answer = await fetch(url, {cache: "no-store"});
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 500));
  return answer.json();
}

async function load() {
  const [name, n] = $("profile").value.split("?n=");
  $("refresh").disabled = true;
  try {
    const query = new URLSearchParams({format: "json", ...(n && {n})});
    state.now = await fetched(`debug/pprof/${name}?${query}`);
    state.shown = state.now.at = n ? state.now.time : Date.now() / 1000;
    choices();
    links();
    build();
  } catch (error) {
    state.now = null;
    $("graph").replaceChildren();
    status(String(error.message), true);
  }
  $("remember").disabled = !state.now;
  $("refresh").disabled = false;
}

function cells(row, texts) {
  for (const [text, kind] of texts) {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (kind) cell.className = kind;
    row.append(cell);
  }
  return row;
}

async function growing() {
  const found = await fetched("api/growing-stacks");
  const rows = found.stacks.map(it => {
    const row = document.createElement("tr"), top = it.stack.find(frame => frame.kind === "python") || it.stack[0];
    const place = top ? `${top.function} ${top.file}${top.line ? `:${top.line}` : ""}` : "[unknown stack]";
    row.title = it.stack.map(frame => frame.function).join("\n");
    return cells(row, [[GROUPS.process(it.labels) || "–"], [it.labels.gpu_uuid || "–"], [place, "m"],
      [signed(it.now - it.before, "bytes"), "n"], [amount(it.now, "bytes"), "n"], [String(it.increases), "n"]]);
  });
  $("growing").replaceChildren(...rows);
  $("growing-table").hidden = !rows.length;
  const covered = Math.round(found.covered / 60), window = Math.round(found.window / 60);
  $("growing-note").textContent = found.problem || `${rows.length || "no"} stacks grew in ${covered} of ${window} min, `
    + `${found.profiles} profiles compared`;
}

async function failures() {
  const found = await fetched("api/failed-allocations");
  for (const it of found) {
    const who = GROUPS.process(it.labels) || it.labels.gpu_uuid || "";
    $("profile").add(new Option(`failed allocation ${it.n}: ${amount(it.size, "bytes")} ${clock(it.time)} ${who}`, `gpu_oom?n=${it.n}`));
  }
}

async function hangs() {
  const found = await fetched("api/hangs");
  for (const it of found) {
    const who = GROUPS.process(it.labels) || "";
    $("profile").add(new Option(`hang ${it.n}: ${it.call} ${clock(it.time)} ${who}`, `gpu_hang?n=${it.n}`));
  }
}

const wanted = new URLSearchParams(location.hash.slice(1));
for (const key of ["value", "by", ...Object.keys(FILTERS)]) $(key).addEventListener("change", () => { links(); build(); });
$("profile").addEventListener("change", () => { state.focus = []; load(); });
$("refresh").addEventListener("click", load);
$("search").addEventListener("input", draw);
$("compare").addEventListener("change", build);
$("reset").addEventListener("click", () => { state.focus = []; draw(); });
$("remember").addEventListener("click", () => {
  state.base = state.now;
  $("compare").disabled = false;
  $("compare-text").textContent = `compare with ${clock(state.base.at)}`;
});
addEventListener("resize", () => state.root && draw());
addEventListener("keydown", event => { if (event.key === "Escape" && state.root) { state.focus = []; draw(); } });
(async () => {
  $("by").value = wanted.get("by") || "";
  await failures().catch(error => status(error.message, true));
  await hangs().catch(error => status(error.message, true));
  const n = wanted.get("n"), chosen = (wanted.get("profile") || "gpu_inuse") + (n ? `?n=${n}` : "");
  if ([...$("profile").options].some(option => option.value === chosen)) $("profile").value = chosen;
  await load();
  await growing().catch(error => { $("growing-note").textContent = error.message; });
})();
