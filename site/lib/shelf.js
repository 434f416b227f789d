// The shelf: which pages the site has, and in which order. docs/README.md is the only list of them.
import fs from "node:fs";
import path from "node:path";

/** The address under which sources and other files of the repository can be read. */
export const repository = "https://github.com/outboxgen/outboxgen";

const heading = /^## (.+)$/;
const item = /^- \[([^\]]+)\]\(([^)#\s]+)\)(.*)$/;

/**
 * Reads the shelf of the repository at root.
 *
 * sections has a list of pages for each heading of docs/README.md. pages has all pages of the site by their file: those
 * of the list, the home page README.md and the list itself. A page has
 *
 *   source   its file in the repository, docs/start/tutorial.md
 *   output   its file in the site, start/tutorial.html
 *   name     what the table of contents calls it
 *   about    one sentence about it, in Markdown
 *   title    its first heading
 *   markdown its text
 */
export function readShelf(root) {
  const list = "docs/README.md";
  const pages = new Map();
  const add = (source, name, about) => {
    if (pages.has(source)) throw new Error(`${list} lists ${source} twice`);
    const file = path.join(root, source);
    if (!fs.existsSync(file)) throw new Error(`${list} lists ${source}, which is not there`);
    const markdown = fs.readFileSync(file, "utf8");
    const title = /^# (.+)$/m.exec(markdown)?.[1];
    if (!title) throw new Error(`${source} has no heading of the first level`);
    const page = { source, output: outputOf(source), name, about, title, markdown };
    pages.set(source, page);
    return page;
  };
  add("README.md", "Overview", "One YAML file becomes a type-safe transactional outbox for Go and PostgreSQL.");
  add(list, "All documents", "All pages, in the order in which you will need them.");

  const sections = [];
  // The lines that continue an item are a part of it.
  const lines = pages.get(list).markdown.replace(/\n {2}(?=\S)/g, " ").split("\n");
  for (const line of lines) {
    const section = heading.exec(line)?.[1];
    if (section) sections.push({ name: section, pages: [] });
    const [, name, target, rest] = item.exec(line) ?? [];
    if (!name || !target.endsWith(".md")) continue;
    if (!sections.length) throw new Error(`${list} lists ${target} before the first heading`);
    const about = rest.replace(/^[:\s]+/, "");
    sections.at(-1).pages.push(add(path.posix.join("docs", target), name, about));
  }
  demandAll(root, pages, list);
  linkNeighbours(sections);
  return { sections, pages };
}

/** The file of the site that a Markdown file becomes. */
export function outputOf(source) {
  if (source === "README.md") return "index.html";
  if (source === "docs/README.md") return "documents.html";
  return source
    .replace(/^docs\//, "")
    .replace(/^[A-Z]+(?=\.md$)/, (name) => name.toLowerCase())
    .replace(/\.md$/, ".html");
}

/** The files of a folder that are Markdown. */
function markdownIn(root, folder) {
  return fs
    .readdirSync(path.join(root, folder))
    .filter((name) => name.endsWith(".md"))
    .map((name) => path.posix.join(folder, name));
}

function demandAll(root, pages, list) {
  const folders = fs.readdirSync(path.join(root, "docs"), { withFileTypes: true }).filter((entry) => entry.isDirectory());
  for (const source of ["", ...folders.map((folder) => `docs/${folder.name}`)].flatMap((folder) => markdownIn(root, folder))) {
    if (!pages.has(source)) throw new Error(`${list} does not list ${source}`);
  }
}

/** Each page knows the one before it and the one after it. */
function linkNeighbours(sections) {
  const all = sections.flatMap((section) => section.pages);
  all.forEach((page, i) => {
    page.previous = all[i - 1];
    page.next = all[i + 1];
  });
}

/** A relative address from one file of the site to another. */
export function relative(from, to) {
  return path.posix.relative(path.posix.dirname(from), to) || path.posix.basename(to);
}
