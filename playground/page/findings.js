// The list of findings under the YAML.
import {element, markdown} from "./markdown.js";

// Returns a function that shows findings in a section. Visit is called with a finding whose place the reader wants to
// see, fix with a fix, and explain returns the explanation of a rule.
export function findingsIn(section, {visit, fix, explain}) {
  const count = section.querySelector("#count"), list = section.querySelector("ul");
  let before = "";
  return (findings) => {
    const now = JSON.stringify(findings);
    if (now === before) return;
    before = now;
    const open = new Set([...list.querySelectorAll("details[open]")].map((d) => d.dataset.rule));
    const focused = list.contains(document.activeElement);
    list.replaceChildren(...findings.map((f) => item(f, open.has(f.rule))));
    count.textContent = counted(findings);
    if (focused) (list.querySelector("button") ?? section.closest("main").querySelector(".cm-content")).focus();
  };

  function item(f, open) {
    const place = `${f.range.start.line + 1}:${f.range.start.character + 1}`;
    const go = element("button", place, {type: "button", class: "place", "aria-label": `Go to ${place}`});
    go.onclick = () => visit(f);
    const made = element("li", "", {class: f.severity});
    made.append(go, element("span", f.severity, {class: "severity"}), element("span", f.message, {class: "message"}));
    for (const x of f.fixes) {
      const button = element("button", x.title, {type: "button", class: "fix"});
      button.onclick = () => fix(x);
      made.append(button);
    }
    const details = element("details", "", {"data-rule": f.rule});
    details.append(element("summary", f.rule));
    details.ontoggle = async () => {
      if (details.open && details.children.length === 1) details.append(explanation(await explain(f.rule)));
    };
    details.open = open;
    made.append(details);
    return made;
  }
}

function counted(findings) {
  if (findings.length === 0) return "No findings";
  return findings.length === 1 ? "1 finding" : `${findings.length} findings`;
}

function explanation(e) {
  const made = document.createDocumentFragment();
  if (!e || e.error) return made;
  made.append(markdown(e.text));
  for (const [title, text] of [["When this is frozen:", e.frozen], ["With the finding:", e.bad], ["Without it:", e.good]]) {
    if (text) made.append(element("p", title), element("pre", text, {tabindex: "0"}));
  }
  return made;
}
