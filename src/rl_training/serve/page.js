"use strict";
const MOST_FIELDS = 64;
const at = (id) => document.getElementById(id);
let contract = null, observation = null, token = "", session = null;

const headers = () => token ? { Authorization: `Bearer ${token}` } : {};
const numbers = () => observation.shape.slice(1).reduce((a, b) => a * b, 1);
const bound = (name, i) => {
  const given = observation[name];
  return Array.isArray(given) ? given[i] : given ?? null;
};

function row(port) {
  const bounds = port.low == null && port.high == null ? "" : `${short(port.low)} to ${short(port.high)}`;
  const line = document.createElement("tr");
  for (const text of [port.name, `${port.dtype} [${port.shape.join(", ")}]`, bounds, port.meaning ?? ""]) {
    line.append(Object.assign(document.createElement("td"), { textContent: text }));
  }
  return line;
}

function short(value) {
  const text = JSON.stringify(value ?? "unbounded");
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

function shape(values, sizes) {
  if (sizes.length < 2) return values;
  const step = values.length / sizes[0];
  return Array.from({ length: sizes[0] }, (_, i) => shape(values.slice(i * step, (i + 1) * step), sizes.slice(1)));
}

function showFields() {
  const fields = at("fields");
  fields.replaceChildren();
  if (numbers() > MOST_FIELDS) {
    const area = Object.assign(document.createElement("textarea"), { id: "observation" });
    const label = document.createElement("label");
    label.append(`Observation as JSON, [${observation.shape.slice(1).join(", ")}]`, area);
    fields.append(label);
    area.value = JSON.stringify(shape(Array(numbers()).fill(0), observation.shape.slice(1)));
    return;
  }
  for (let i = 0; i < numbers(); i += 1) {
    const label = document.createElement("label");
    const low = bound("low", i), high = bound("high", i);
    const known = low != null && high != null;
    const start = known ? Math.min(Math.max(0, low), high) : 0;
    const input = Object.assign(document.createElement("input"), { type: "text", inputMode: "decimal", id: `x${i}`, value: start });
    label.append(known ? `component ${i} (${low} to ${high})` : `component ${i}`, input);
    fields.append(label);
  }
}

function randomize() {
  const draw = (i) => {
    const low = bound("low", i) ?? -1, high = bound("high", i) ?? 1;
    return observation.dtype === "uint8" ? Math.floor(Math.random() * 256) : low + Math.random() * (high - low);
  };
  const values = Array.from({ length: numbers() }, (_, i) => draw(i));
  if (numbers() > MOST_FIELDS) at("observation").value = JSON.stringify(shape(values, observation.shape.slice(1)));
  else values.forEach((value, i) => { at(`x${i}`).value = Number(value.toPrecision(6)); });
}

function given() {
  if (numbers() > MOST_FIELDS) return JSON.parse(at("observation").value);
  return shape(Array.from({ length: numbers() }, (_, i) => {
    const text = at(`x${i}`).value.trim();
    if (text === "" || Number.isNaN(Number(text))) throw new Error(`component ${i} is no number`);
    return Number(text);
  }), observation.shape.slice(1));
}

async function act(event) {
  event.preventDefault();
  at("error").textContent = "";
  try {
    const asked = { observation: given() };
    if (session) asked.session = session;
    const reply = await fetch("/act", {
      method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(asked),
    });
    const said = await reply.json();
    if (!reply.ok) throw new Error(said.error);
    if (said.session) session = said.session;
    const rest = said.outputs ? `, ${JSON.stringify(said.outputs)}` : "";
    const step = said.step ? ` at step ${said.step}` : "";
    at("action").textContent = `${JSON.stringify(said.action)}${rest}${step}`;
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
  observation = contract.inputs.find((port) => port.role === "observation");
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
