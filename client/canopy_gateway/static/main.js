// The page: what a message sets off, and the keys.

import { Messages } from "./messages.js";
import { RoundsPanel } from "./rounds.js";
import { modelName, streamChat } from "./stream.js";

const EXAMPLES = [
  "Count from one to thirty in words.",
  "List the days of the week, then list them backwards.",
  "Write a Python function that reverses a list.",
];

const part = (id) => document.getElementById(id);
const prompt = part("prompt");

let history = []; // what the model is told: {role, content}
let open = null; // the answer whose rounds are shown
let abort = null; // of the answer that streams

const messages = new Messages(show);
const panel = new RoundsPanel((round, isNewest) => {
  const piece = open?.mark(round);
  if (piece && !isNewest) messages.reveal(piece);
});

function show(answer) {
  if (open) open.isOpen = false;
  open = answer;
  answer.isOpen = true;
  panel.open(answer.rounds);
}

async function send(text) {
  if (abort || !text.trim()) return;
  hideBanner();
  const turns = history; // a new chat may begin before this answer has ended
  turns.push({ role: "user", content: text });
  messages.addUser(text);
  const answer = messages.addAnswer();
  show(answer);
  abort = new AbortController();
  setBusy(true);
  const note = await receive(answer, turns);
  answer.end(note);
  if (answer.text) turns.push({ role: "assistant", content: answer.text });
  else giveBack(turns.pop().content); // a turn without an answer is no turn
  abort = null;
  setBusy(false);
  part("status").textContent = note ? `Answer ${note}` : "Answer complete";
}

/** Read one answer; returns what is to be said about its end. */
async function receive(answer, turns) {
  try {
    const key = part("api-key").value;
    const body = { model: await model(key), messages: turns, ...options() };
    let note = "";
    for await (const event of streamChat(body, key, abort.signal)) {
      answer.append(event);
      if (answer === open) panel.grown(event.rounds.length);
      if (event.finishReason === "length") note = "cut at max tokens";
    }
    return note;
  } catch (error) {
    if (error.name === "AbortError") return "stopped";
    showBanner(error.message);
    return "failed";
  }
}

/** The served model's name, asked for until it is known. */
async function model(key) {
  const name = part("model");
  name.textContent ||= await modelName(key);
  return name.textContent;
}

/** The options that were filled in, by the names of the request. */
function options() {
  const given = {};
  for (const id of ["temperature", "max-tokens", "node-budget", "seed"]) {
    const value = part(id).value;
    if (value !== "") given[id.replace("-", "_")] = Number(value);
  }
  const policy = part("speculation").value;
  return policy ? { ...given, speculation: policy } : given;
}

function setBusy(isBusy) {
  part("send").hidden = isBusy;
  part("stop").hidden = !isBusy;
}

function showBanner(text) {
  part("banner-text").textContent = text;
  part("banner").hidden = false;
}

function hideBanner() {
  part("banner").hidden = true;
}

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

/** A message that got no answer can be sent again as it was. */
function giveBack(text) {
  if (prompt.value) return;
  prompt.value = text;
  fitPrompt();
}

function submit() {
  if (abort) return;
  const text = prompt.value;
  prompt.value = "";
  fitPrompt();
  send(text);
}

function startAnew() {
  abort?.abort();
  history = [];
  open = null;
  messages.clear();
  panel.open([]);
  hideBanner();
  prompt.focus();
}

/** Keys that work wherever no text is being written. */
function onKey(event) {
  if (event.key === "Escape" && abort) return abort.abort();
  if (event.target.closest("input, textarea, select, button, summary") || event.ctrlKey || event.metaKey) return;
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.key in steps) panel.step(steps[event.key]);
  else if (event.key === " ") panel.togglePlay();
  else return;
  event.preventDefault();
}

part("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
prompt.addEventListener("input", fitPrompt);
part("stop").addEventListener("click", () => abort?.abort());
part("new-chat").addEventListener("click", startAnew);
part("banner-close").addEventListener("click", hideBanner);
document.addEventListener("keydown", onKey);
part("examples").append(
  ...EXAMPLES.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => send(text));
    return button;
  }),
);
model("").catch(() => {}); // without its key or its server the page is there all the same
