// The tabs, and what the generator makes of the YAML.
import {show, viewer} from "./code.js";
import {element} from "./markdown.js";

const $ = (selector) => document.querySelector(selector);
const wide = matchMedia("(min-width: 55rem)");

// Switches between the tabs, with the mouse and the keyboard. Chosen is called with the new view.
export function tabs(chosen) {
  const all = [...document.querySelectorAll("[role=tab]")];
  const visible = () => all.filter((t) => t.dataset.view !== "yaml" || !wide.matches);
  let last = "go";

  function choose(view) {
    document.body.dataset.view = view;
    if (view !== "yaml") last = view;
    for (const t of all) {
      t.setAttribute("aria-selected", String(t.dataset.view === view));
      t.tabIndex = t.dataset.view === view ? 0 : -1;
    }
    $("#breaking").hidden = last !== "breaking";
    $("#output").hidden = last === "breaking";
    if (view !== "yaml" && view !== "breaking") $("#output").setAttribute("aria-labelledby", `tab-${view}`);
    chosen(view);
  }
  for (const t of all) t.onclick = () => choose(t.dataset.view);
  $("#tabs").onkeydown = (event) => {
    const list = visible(), at = list.indexOf(document.activeElement);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: list.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = list[(to + list.length) % list.length];
    next.focus();
    choose(next.dataset.view);
  };
  wide.addEventListener("change", () => choose(wide.matches ? last : document.body.dataset.view));
  choose(wide.matches ? last : "yaml");
  return choose;
}

// Shows the files that the generator makes, for the view of each tab that has files.
export function outputIn(nonce) {
  const view = viewer($("#viewer"), {nonce, label: "What outboxgen makes of it"});
  const select = $("#file"), note = $("#note");
  const names = {}; // the file that was chosen in each tab
  let files = [], tab = "";
  const content = () => files.find((f) => f.name === select.value)?.content ?? "";
  const display = (same) => show(view, select.value, content(), same);
  select.onchange = () => {
    names[tab] = select.value;
    display(false);
  };
  return {
    content,
    show(of, output) {
      const before = `${tab} ${select.value}`;
      const missing = !output.files?.length;
      note.textContent = output.error ?? output.note ?? "";
      note.classList.toggle("bad", missing);
      $("#output").classList.toggle("stale", missing);
      if (missing && tab === of) return; // the last good output stays
      tab = of;
      files = output.files ?? [];
      select.replaceChildren(...files.map((f) => element("option", f.name)));
      select.disabled = missing;
      $("#copy").disabled = missing;
      if (!missing) select.value = (files.find((f) => f.name === names[tab]) ?? best(files)).name;
      display(`${tab} ${select.value}` === before);
    },
  };
}

// The file that says most: the code of a topic.
function best(files) {
  return files.find((f) => /\w\.\w+\.outbox\.go$/.test(f.name)) ?? files[0];
}

// Shows what would break.
export function showChanges(answer, visit) {
  const count = answer.changes?.length;
  $("#verdict").textContent = answer.error ?? (answer.note || (count === 1 ? "1 change" : `${count} changes`));
  $("#changes").replaceChildren(...(answer.changes ?? []).map((c) => {
    const li = element("li", "", {class: c.severity});
    const place = `${c.line}:${c.column}`;
    const go = element("button", place, {type: "button", class: "place", "aria-label": `Go to ${place}`});
    go.onclick = () => visit({line: c.line - 1, character: c.column - 1});
    li.append(
      go, element("span", c.severity, {class: "severity"}), element("span", c.message, {class: "message"}),
      element("code", c.rule),
    );
    return li;
  }));
}
