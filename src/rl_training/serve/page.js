"use strict";
const MOST_FIELDS = 64;
const at = (id) => document.getElementById(id);
let contract = null, parts = [], token = "", session = null;

const headers = () => token ? { Authorization: `Bearer ${token}` } : {};
const numbers = (part) => part.shape.slice(1).reduce((a, b) => a * b, 1);
const entry = (given, i) => Array.isArray(given) ? given[i] : given ?? null;
const element = (tag, values) => Object.assign(document.createElement(tag), values);
const text = (part) => numbers(part) > MOST_FIELDS;

function row(port) {
  const bounds = port.low == null && port.high == null ? "" : `${short(port.low)} to ${short(port.high)}`;
  const line = document.createElement("tr");
  for (const content of [port.name, `${port.dtype} [${port.shape.join(", ")}]`, bounds, port.meaning ?? ""]) {
    line.append(element("td", { textContent: content }));
  }
  return line;
}

function short(value) {
  const content = JSON.stringify(value ?? "unbounded");
  return content.length > 60 ? `${content.slice(0, 60)}…` : content;
}

function shape(values, sizes) {
  if (sizes.length === 0) return values[0];
  if (sizes.length === 1) return values;
  const step = values.length / sizes[0];
  return Array.from({ length: sizes[0] }, (_, i) => shape(values.slice(i * step, (i + 1) * step), sizes.slice(1)));
}

function field(part, p, i) {
  const id = parts.length > 1 ? `x${p}-${i}` : `x${i}`;
  if (part.role === "mask") return element("input", { type: "checkbox", id, checked: true });
  if (part.choices) {
    const list = element("select", { id });
    const first = entry(part.low, i);
    for (let k = 0; k < part.choices[i]; k += 1) {
      list.append(element("option", { value: part.categories ? part.categories[k] : first + k, textContent: part.categories ? part.categories[k] : first + k }));
    }
    return list;
  }
  const low = entry(part.low, i), high = entry(part.high, i);
  const start = low != null && high != null ? Math.min(Math.max(0, low), high) : 0;
  return element("input", { type: "text", inputMode: "decimal", id, value: start });
}

function called(part, i) {
  const name = part.path ? part.path.join(".") : part.role === "mask" ? "action" : "component";
  return part.path && numbers(part) === 1 ? name : `${name} ${i}`;
}

function labelled(part, i) {
  const low = entry(part.low, i), high = entry(part.high, i);
  return low != null && high != null && !part.categories ? `${called(part, i)} (${low} to ${high})` : called(part, i);
}

function showFields() {
  const fields = at("fields");
  fields.replaceChildren();
  parts.forEach((part, p) => {
    part.fields = [];
    if (text(part)) {
      const label = document.createElement("label");
      const area = element("textarea", { id: parts.length > 1 ? `x${p}` : "observation" });
      label.append(`${part.name} as JSON, [${part.shape.slice(1).join(", ")}]`, area);
      fields.append(label);
      area.value = JSON.stringify(shape(Array(numbers(part)).fill(0), part.shape.slice(1)));
      part.fields = [area];
      return;
    }
    const group = element("fieldset", {});
    group.append(element("legend", { textContent: part.role === "mask" ? "Allowed actions" : part.name }));
    for (let i = 0; i < numbers(part); i += 1) {
      const label = document.createElement("label");
      part.fields.push(field(part, p, i));
      label.append(labelled(part, i), part.fields[i]);
      group.append(label);
    }
    fields.append(group);
  });
}

function randomize() {
  for (const part of parts) {
    const draw = (i) => {
      const low = entry(part.low, i) ?? -1, high = entry(part.high, i) ?? 1;
      return part.dtype === "uint8" ? Math.floor(Math.random() * 256) : low + Math.random() * (high - low);
    };
    if (text(part)) {
      const values = Array.from({ length: numbers(part) }, (_, i) => draw(i));
      part.fields[0].value = JSON.stringify(shape(values, part.shape.slice(1)));
      continue;
    }
    part.fields.forEach((input, i) => {
      if (part.choices) input.selectedIndex = Math.floor(Math.random() * part.choices[i]);
      else if (part.role !== "mask") input.value = part.dtype === "uint8" ? draw(i) : Number(draw(i).toPrecision(6));
    });
  }
}

function value(part) {
  if (text(part)) return JSON.parse(part.fields[0].value);
  return shape(part.fields.map((input, i) => {
    if (part.role === "mask") return input.checked;
    if (part.categories) return input.value;
    const content = input.value.trim();
    if (content === "" || Number.isNaN(Number(content))) throw new Error(`${called(part, i)} is no number`);
    return Number(content);
  }), part.shape.slice(1));
}

function given() {
  const asked = {};
  for (const part of parts) {
    if (part.role === "mask") { asked.action_mask = value(part); continue; }
    // on the way to a part, names stand for objects and positions for lists
    let place = asked;
    ["observation", ...part.path ?? []].forEach((step, depth, steps) => {
      if (depth + 1 === steps.length) place[step] = value(part);
      else place = place[step] ??= Number.isInteger(steps[depth + 1]) ? [] : {};
    });
  }
  return asked;
}

async function act(event) {
  event.preventDefault();
  at("error").textContent = "";
  try {
    const asked = given();
    if (session) asked.session = session;
    const reply = await fetch("/act", {
      method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(asked),
    });
    const said = await reply.json();
    if (!reply.ok) throw new Error(said.error);
    if (said.session) session = said.session;
    const label = said.label == null ? "" : ` (${said.label})`;
    const rest = said.outputs ? `, ${JSON.stringify(said.outputs)}` : "";
    const step = said.step ? ` at step ${said.step}` : "";
    at("action").textContent = `${JSON.stringify(said.action)}${label}${rest}${step}`;
  } catch (error) {
    at("action").textContent = "none";
    at("error").textContent = error.message;
  }
}

async function load() {
  const reply = await fetch("/contract", { headers: headers() });
  if (reply.status === 401) {
    at("token-form").hidden = false;
    at("about").textContent = token ? "The token is wrong." : "This server needs its token.";
    return;
  }
  contract = await reply.json();
  parts = contract.inputs.filter((port) => port.role === "observation" || port.role === "mask");
  at("token-form").hidden = true;
  at("title").textContent = `${contract.algorithm.name} on ${contract.task.env_id ?? "its task"}`;
  at("about").textContent = `Acts by ${contract.acts}. ${contract.episode_start}`;
  at("inputs").replaceChildren(...contract.inputs.map(row));
  at("outputs").replaceChildren(...contract.outputs.map(row));
  at("json").textContent = JSON.stringify(contract, null, 1);
  at("restart").hidden = !contract.recurrent;
  showFields();
  at("try").hidden = at("contract").hidden = false;
}

at("form").addEventListener("submit", act);
at("sample").addEventListener("click", randomize);
at("restart").addEventListener("click", () => { session = null; at("action").textContent = "none yet"; });
at("token-form").addEventListener("submit", (event) => { event.preventDefault(); token = at("token").value; load(); });
load().catch((error) => { at("about").textContent = `The contract cannot be read: ${error.message}`; });
