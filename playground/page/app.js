// The page of the playground.
import {edit, editor, offsetOf, setText, underline} from "./code.js";
import {Engine, Newest, compile} from "./engine.js";
import {findingsIn} from "./findings.js";
import {outputIn, showChanges, tabs} from "./output.js";
import {pack, unpack} from "./share.js";
import {element} from "./markdown.js";

const $ = (selector) => document.querySelector(selector);
const nonce = NONCE; // the build sets it
const examples = JSON.parse($("#examples-data").textContent);
const pause = 150; // ms without a key until the output is made again

let editing, making; // engines: one answers what the editor asks, one makes the output, which takes longer
const status = (text) => { $("#status").textContent = text; };

// Questions that come before the generator is there wait for it.
let loaded;
const loading = new Promise((done) => { loaded = done; });
const ask = async (question) => {
  await loading;
  return editing.ask(question);
};
const textOf = (view) => view.state.doc.toString();

const yaml = editor($("#editor"), {
  nonce, label: "outbox.yaml", changed, ask,
  keys: [{key: "Shift-Alt-f", run: () => { format(); return true; }}],
});
const older = editor($("#older"), {nonce, label: "The older outbox.yaml", changed: outdated});
const output = outputIn(nonce);

const showFindings = findingsIn($("#findings"), {
  visit: (f) => visit(f.range.start),
  fix,
  explain: (rule) => ask({ask: "explain", rule}),
});

function visit(position) {
  if (getComputedStyle($("#yaml")).display === "none") choose("yaml");
  yaml.dispatch({selection: {anchor: offsetOf(yaml.state.doc, position)}, scrollIntoView: true});
  yaml.focus();
}

function fix(x) {
  edit(yaml, x.edits);
  yaml.focus();
}

const findings = new Newest(async () => {
  const doc = yaml.state.doc;
  const answer = await ask({ask: "findings", text: doc.toString()});
  if (yaml.state.doc !== doc) return; // it has changed, and this runs again
  if (answer.error) return status(answer.error);
  underline(yaml, answer.findings, fix);
  showFindings(answer.findings);
});

const made = new Newest(async () => {
  await loading;
  const view = document.body.dataset.view, text = textOf(yaml);
  if (view === "yaml") return;
  const answer = await making.ask({ask: view, text, older: view === "breaking" ? textOf(older) : ""});
  if (view !== document.body.dataset.view) return; // another tab was chosen, and this runs again
  if (view === "breaking") showChanges(answer, visit);
  else output.show(view, answer);
});

let timer;
function outdated() {
  clearTimeout(timer);
  timer = setTimeout(() => made.changed(), pause);
}

function changed() {
  findings.changed();
  outdated();
}

const choose = tabs(() => made.changed());

async function format() {
  const doc = yaml.state.doc;
  const edits = await ask({ask: "format", text: doc.toString()});
  if (yaml.state.doc !== doc || edits.error) return;
  if (edits.length > 0) edit(yaml, edits);
  status(edits.length > 0 ? "Formatted" : "Nothing to format");
}

async function share() {
  const fragment = await pack({yaml: textOf(yaml), older: textOf(older)});
  history.replaceState(null, "", fragment);
  try {
    await navigator.clipboard.writeText(location.href);
    status("The address of this page has the text now, and is in the clipboard.");
  } catch {
    status("The address of this page has the text now.");
  }
}

function load(texts) {
  setText(yaml, texts.yaml);
  setText(older, texts.older || texts.yaml);
}

// Loads the text of the address, if it has one.
async function arrive() {
  try {
    const texts = await unpack(location.hash);
    if (texts) load(texts);
    return Boolean(texts);
  } catch (error) {
    status(error.message);
    return false;
  }
}

$("#examples").append(element("option", "Choose …", {value: ""}));
$("#examples").append(...examples.map((e, i) => element("option", e.title, {value: i})));
$("#examples").onchange = ({target}) => {
  const example = examples[target.value];
  if (example) load({yaml: example.yaml});
  target.value = "";
};
$("#format").onclick = format;
$("#share").onclick = share;
$("#keep").onclick = () => setText(older, textOf(yaml));
$("#copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText(output.content());
    status("Copied");
  } catch {
    status("This browser does not let the page copy.");
  }
};
addEventListener("hashchange", arrive);

async function begin() {
  if (!(await arrive())) load({yaml: examples[0].yaml});
  try {
    const module = await compile($("#generator-data").textContent);
    const source = $("#worker-source").textContent;
    editing = new Engine(module, source);
    making = new Engine(module, source);
    await editing.ready;
    loaded();
    if ($("#status").textContent.startsWith("Loading")) status("");
  } catch (error) {
    status(`The generator cannot run in this browser: ${error.message}`);
  }
}
begin();
