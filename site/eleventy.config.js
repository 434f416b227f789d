// How the documents become a web site. docs/inside/site.md explains it.
import fs from "node:fs";
import path from "node:path";
import { checkSite } from "./lib/check.js";
import { highlightCSS } from "./lib/highlight.js";
import { Links } from "./lib/links.js";
import { llmsText } from "./lib/llms.js";
import { documentMarkdown, plainText } from "./lib/markdown.js";
import { searchScript, sectionsOf } from "./lib/search-index.js";
import { readShelf, relative, repository } from "./lib/shelf.js";

// The tests build other repositories than this one.
const root = process.env.OUTBOXGEN_SITE_ROOT ?? path.resolve(import.meta.dirname, "..");
const out = path.join(root, "dist/site");

export default function configure(eleventy) {
  const shelf = readShelf(root);
  const links = new Links(root, shelf.pages);
  const markdown = documentMarkdown(links);
  const hasPlayground = fs.existsSync(path.join(root, "dist/playground/index.html"));
  fs.rmSync(out, { recursive: true, force: true });

  for (const page of shelf.pages.values()) {
    eleventy.addTemplate(page.source.replaceAll("/", "_"), page.markdown, {
      layout: "page.njk", permalink: page.output, title: page.title, source: page.source,
    });
  }
  eleventy.setLibrary("md", markdown);
  eleventy.addNunjucksGlobal("site", { shelf, repository, hasPlayground }); // data would be copied for each page
  eleventy.addFilter("shelved", (source) => shelf.pages.get(source));
  eleventy.addFilter("from", (to, page) => relative(page.output, to));
  eleventy.addFilter("plain", (text) => plainText(markdown.parseInline(text ?? "", { source: "docs/README.md" })[0]));
  eleventy.addFilter("headings", (content) => [...content.matchAll(/<h([23]) id="([^"]+)">([\s\S]*?)<\/h\1>/g)].map(([, level, id, inside]) => ({
    level, id, html: inside.replace(/ <a class="anchor"[\s\S]*?<\/a>/, "").replace(/<\/?a\b[^>]*>/g, ""),
  })));
  eleventy.addFilter("upTo", (content, mark) => content.slice(0, placeOf(mark, content)));
  eleventy.addFilter("startingAt", (content, mark) => content.slice(placeOf(mark, content)));
  eleventy.addPassthroughCopy({ assets: "assets" });
  eleventy.addPassthroughCopy({ "node_modules/minisearch/dist/umd/index.js": "assets/minisearch.js" });
  eleventy.addPassthroughCopy({ "node_modules/minisearch/LICENSE.txt": "assets/minisearch.LICENSE.txt" });

  eleventy.on("eleventy.after", ({ results }) => {
    const write = (name, text) => fs.writeFileSync(path.join(out, name), text);
    const sections = results.flatMap((page) => sectionsOf(page.content, path.relative(out, path.resolve(page.outputPath))));
    write("assets/search-index.js", searchScript(sections));
    write("assets/code.css", highlightCSS());
    write("llms.txt", llmsText(shelf, eleventy.getFilter("plain")));
    for (const [output, source] of links.files) {
      fs.mkdirSync(path.dirname(path.join(out, output)), { recursive: true });
      fs.copyFileSync(path.join(root, source), path.join(out, output));
    }
    if (hasPlayground) fs.cpSync(path.join(root, "dist/playground"), path.join(out, "playground"), { recursive: true });
    const wrong = checkSite(out);
    if (wrong.length) throw new Error(`the site has ${wrong.length} mistakes:\n${wrong.join("\n")}`);
  });

  return {
    // All pages are added above. A folder of pages must be named nevertheless; assets has no Markdown.
    dir: { input: "assets", includes: "../layouts", output: path.relative(import.meta.dirname, out) },
    templateFormats: ["md"],
    markdownTemplateEngine: false,
  };
}

function placeOf(mark, content) {
  const place = content.indexOf(mark);
  if (place < 0) throw new Error(`a page has no ${mark}, where the layout puts something`);
  return place;
}
