// Markdown as the pages of the repository show it: the same anchors, tables and pictures.
import MarkdownIt from "markdown-it";
import GithubSlugger from "github-slugger";
import { drawDiagram } from "./diagram.js";
import { highlight } from "./highlight.js";

const comments = /<!--[\s\S]*?-->\n?/g;

/**
 * Returns a renderer of documents. Its env is the data of a page, with source, the file that is rendered; the renderer
 * writes env.headings, a list of {level, id, text}.
 */
export function documentMarkdown(links) {
  const md = new MarkdownIt({ html: true, linkify: false });
  md.core.ruler.push("anchors", addAnchors);
  md.core.ruler.push("links", (state) => {
    for (const block of state.tokens) {
      const line = (block.map?.[0] ?? 0) + 1;
      const children = block.children ?? [];
      children.forEach((token, i) => {
        if (token.type === "link_open") nameOfPage(token, children[i + 1], links, state.env.source);
        rewriteToken(token, links, state.env.source, line);
      });
      if (block.type === "html_block") rewriteToken(block, links, state.env.source, line);
    }
  });

  md.renderer.rules.fence = (tokens, i, _options, env) => {
    const { content, info, map } = tokens[i];
    const language = info.trim().split(/\s+/)[0] ?? "";
    try {
      if (language === "mermaid") {
        return `<div class="diagram" tabindex="0" role="group" aria-label="State diagram">${drawDiagram(content)}</div>\n`;
      }
      return `${highlight(content, language)}\n`;
    } catch (err) {
      throw new Error(`${env.source}:${map[0] + 1}: ${err.message}`);
    }
  };
  md.renderer.rules.table_open = () => `<div class="table" tabindex="0" role="group" aria-label="Table"><table>\n`;
  md.renderer.rules.table_close = () => "</table></div>\n";
  return md;
}

/** A link that says the name of a file says the name of its page here. */
function nameOfPage(link, text, links, source) {
  const page = links.pageOf(link.attrGet("href"), source);
  if (page && text.type === "text" && /^[\w/.-]+\.md$/.test(text.content)) text.content = page.name;
}

function rewriteToken(token, links, source, line) {
  if (token.type === "link_open") token.attrSet("href", links.rewrite(token.attrGet("href"), source, line));
  if (token.type === "image") {
    token.attrSet("src", links.rewrite(token.attrGet("src"), source, line));
    token.attrSet("loading", "lazy");
  }
  if (token.type === "html_block" || token.type === "html_inline") {
    token.content = links.rewriteHTML(token.content.replace(comments, ""), source, line);
  }
}

/** Gives each heading the id that GitHub gives it, and a link to itself. */
function addAnchors(state) {
  const slugger = new GithubSlugger();
  state.env.headings = [];
  state.tokens.forEach((token, i) => {
    if (token.type !== "heading_open") return;
    const text = plainText(state.tokens[i + 1]);
    const id = slugger.slug(text);
    const level = Number(token.tag.slice(1));
    token.attrSet("id", id);
    state.env.headings.push({ level, id, text });
    if (level === 1) return;
    const link = new state.Token("html_inline", "", 0);
    link.content = ` <a class="anchor" href="#${id}" aria-label="Link to this section">#</a>`;
    state.tokens[i + 1].children.push(link);
  });
}

/** The text of an inline token without its marks. */
export function plainText(token) {
  return (token.children ?? [])
    .map((child) => (child.type === "text" || child.type === "code_inline" ? child.content : child.type === "softbreak" ? " " : ""))
    .join("");
}
