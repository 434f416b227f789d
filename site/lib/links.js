// Links between documents become links between pages of the site. What they say about other files leads to the repository.
import fs from "node:fs";
import path from "node:path";
import { relative, repository } from "./shelf.js";

const external = /^[a-z][a-z0-9+.-]*:/i;

/** Rewrites the links of documents, and remembers which files they show, such as pictures. */
export class Links {
  /** The files that the site needs besides its pages: their places in the repository by those in the site. */
  files = new Map();

  constructor(root, pages) {
    this.root = root;
    this.pages = pages;
  }

  /** Returns the address of target for a document, or throws, with the place of the link, if there is no such file. */
  rewrite(target, source, line) {
    if (external.test(target) || target.startsWith("#")) return target;
    const [file, anchor] = target.split("#");
    const found = path.posix.normalize(path.posix.join(path.posix.dirname(source), decodeURI(file)));
    const hash = anchor === undefined ? "" : `#${anchor}`;
    const here = this.pages.get(source).output;
    const page = this.pages.get(found);
    if (page) return relative(here, page.output) + hash;
    const place = path.join(this.root, found);
    if (found.startsWith("..") || !fs.existsSync(place)) {
      throw new Error(`${source}:${line}: the link to ${target} leads to no file`);
    }
    if (fs.statSync(place).isDirectory()) return `${repository}/tree/main/${found}`;
    if (found.startsWith("docs/") && !/\.(go|mod|sum)$/.test(found)) {
      const output = found.slice("docs/".length);
      this.files.set(output, found);
      return relative(here, output);
    }
    return `${repository}/blob/main/${found}${hash}`;
  }

  /** Returns the page that target leads to from a document; undefined if it leads elsewhere. */
  pageOf(target, source) {
    if (external.test(target) || target.startsWith("#")) return undefined;
    return this.pages.get(path.posix.join(path.posix.dirname(source), target.split("#")[0]));
  }

  /** Rewrites the links of a piece of HTML in a document. */
  rewriteHTML(html, source, line) {
    return html.replace(/\b(src|srcset|href)="([^"]+)"/g, (_, name, target) => `${name}="${this.rewrite(target, source, line)}"`);
  }
}
