// The index of the search. It is a script and not data that is fetched, because a page that is opened as a file can
// fetch nothing.
import MiniSearch from "minisearch";
import { DomUtils, parseDocument } from "htmlparser2";

const options = { fields: ["title", "heading", "text"], storeFields: ["title", "heading", "text"] };
const headings = new Set(["h1", "h2", "h3", "h4"]);
const inline = new Set(["a", "code", "em", "span", "strong"]);
const leftOut = new Set(["svg", "script", "style"]);

/** Splits the article of a page at its headings: [{id, title, heading, text}], where id is the address. */
export function sectionsOf(html, output) {
  const article = DomUtils.findOne((node) => node.name === "article", parseDocument(html).children, true);
  if (!article) return [];
  const sections = [];
  const visit = (node) => {
    if (node.type === "text") {
      if (sections.length) sections.at(-1).text += node.data;
      return;
    }
    if (leftOut.has(node.name) || node.attribs?.class === "anchor" || "data-unsearched" in (node.attribs ?? {})) return;
    if (headings.has(node.name)) {
      const heading = textOf(node);
      const first = sections.length === 0;
      sections.push({
        id: first ? output : `${output}#${node.attribs.id}`, title: first ? heading : sections[0].title, heading: first ? "" : heading, text: "",
      });
      return;
    }
    node.children?.forEach(visit);
    if (sections.length && !inline.has(node.name)) sections.at(-1).text += " "; // the words of two cells are two
  };
  article.children.forEach(visit);
  for (const section of sections) section.text = section.text.replace(/\s+/g, " ").trim();
  return sections;
}

function textOf(node) {
  if (node.attribs?.class === "anchor") return "";
  return node.type === "text" ? node.data : (node.children ?? []).map(textOf).join("").trim();
}

/** The script that gives the index of these sections to assets/search.js. */
export function searchScript(sections) {
  const index = new MiniSearch(options);
  index.addAll(sections);
  return `window.outboxgenSearch(${JSON.stringify(JSON.stringify(index))}, ${JSON.stringify(options)});\n`;
}
