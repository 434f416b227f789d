import assert from "node:assert/strict";
import test from "node:test";
import { checkSite } from "../lib/check.js";
import { folderOf } from "./folder.js";

const good = { "index.html": '<a href="a/b.html#x">b</a><img src="p.png">', "a/b.html": '<h2 id="x">X</h2><a href="../index.html">home</a><a href="#x">x</a><a href="https://example.com">e</a>', "p.png": "" };

test("a site without mistakes", (t) => assert.deepEqual(checkSite(folderOf(t, good)), []));

for (const [what, files, want] of [
  ["a link to no file", { "index.html": '<a href="c.html">see</a>' }, 'index.html: "see" c.html leads to no file of the site'],
  ["a link to a folder", { "index.html": '<a href="a/">see</a>' }, 'index.html: "see" a/ leads to no file of the site'],
  ["a link to no heading", { "index.html": '<a href="a/b.html#y">see</a>' }, 'index.html: "see" a/b.html#y leads to no heading of a/b.html'],
  ["a link to no heading of the same page", { "index.html": '<a href="#y">see</a>' }, 'index.html: "see" #y leads to no heading of index.html'],
  ["a link from the root", { "index.html": '<a href="/a/b.html">see</a>' }, 'index.html: "see" /a/b.html does not work below another path'],
  ["a script from elsewhere", { "index.html": '<script src="https://example.com/x.js"></script>' }, "index.html: <script> loads https://example.com/x.js from elsewhere"],
  ["a picture from elsewhere", { "index.html": '<source srcset="p.png 1x, //example.com/p.png 2x">' }, "index.html: <source> loads //example.com/p.png from elsewhere"],
  ["a font from elsewhere", { "s.css": "@font-face { src: url('https://example.com/f.woff2') }" }, "s.css: loads https://example.com/f.woff2 from elsewhere"],
  ["a picture that is missing", { "index.html": '<img src="q.png">' }, "index.html: <img> q.png leads to no file of the site"],
  ["an id that is there twice", { "index.html": '<p id="i"></p><p id="i"></p>' }, "index.html: the id i is there twice"],
  ["a link of llms.txt", { "llms.txt": "- [a](a/c.html): a" }, "llms.txt: the link a/c.html leads to no file of the site"],
]) {
  test(`the check finds ${what}`, (t) => assert.deepEqual(checkSite(folderOf(t, { ...good, ...files })), [want]));
}
