// State diagrams as pictures. Documents have them in the words of Mermaid, which the repository's pages draw too; Graphviz
// draws them here when the site is built.
import { instance } from "@viz-js/viz";

const viz = await instance();
const transition = /^(\S+) --> (\S+?)(?:: (.+))?$/;

// Letters are drawn smaller than the room that Graphviz leaves for them, because fonts differ in their width.
const attributes = `
  graph [bgcolor=transparent, nodesep=0.35, ranksep=0.4, fontname="Helvetica"]
  node [shape=box, style=rounded, fontname="Helvetica", fontsize=15.5, height=0.4, margin="0.15,0.05"]
  edge [fontname="Helvetica", fontsize=13.5, arrowsize=0.7]
  begin [shape=circle, label="", width=0.17, height=0.17, style=filled, class=dot]
  end [shape=doublecircle, label="", width=0.12, height=0.12, style=filled, class=dot]
`;

/** Draws a stateDiagram-v2 of transitions, and throws if there is anything else in it. */
export function drawDiagram(text) {
  const [first, ...lines] = text.trim().split("\n").map((line) => line.trim());
  if (first !== "stateDiagram-v2") throw new Error(`only state diagrams can be drawn, not ${first}`);
  const edges = lines.map((line) => {
    const [, from, to, label] = transition.exec(line) ?? [];
    if (!from) throw new Error(`the line ${JSON.stringify(line)} of a diagram is not a transition`);
    return `${quoted(from === "[*]" ? "begin" : from)} -> ${quoted(to === "[*]" ? "end" : to)} [label=${quoted(wrap(label ?? ""))}]`;
  });
  const svg = viz.renderString(`digraph {${attributes}${edges.join("\n")}}`, { format: "svg" });
  return svg
    .slice(svg.indexOf("<svg"))
    .replace(/<!--[\s\S]*?-->/g, "")
    .replace(/<title>[\s\S]*?<\/title>/g, "")
    .replace(/(width|height)="([\d.]+)pt"/g, '$1="$2"')
    .replace(/ (?:id|font-family|font-size|xlink:href|xmlns:xlink)="[^"]*"/g, "")
    .replace(/ (fill|stroke)="(?!none|transparent)[^"]*"/g, "")
    .replace("<svg", `<svg role="img" aria-label="${describe(lines)}"`);
}

function describe(lines) {
  return `State diagram. ${lines.map((line) => line.replace(" --> ", " to ").replaceAll("[*]", "nothing")).join("; ")}.`
    .replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
}

const quoted = (text) => JSON.stringify(text).replaceAll("\\\\n", "\\n");

/** Breaks a label into lines of about twenty letters. */
function wrap(label) {
  const lines = [""];
  for (const word of label.split(" ")) {
    if (lines.at(-1).length + word.length > 20) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.join("\\n");
}
