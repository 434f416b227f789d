import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import test from "node:test";
import vm from "node:vm";
import MiniSearch from "minisearch";
import { sectionsOf } from "../lib/search-index.js";
import { repositoryOf } from "./folder.js";

/** Builds the site of a small repository. */
function build(t, files) {
  const root = repositoryOf(t, { "docs/reference/rules.md": "# Rules\n", "docs/start/tutorial.md": "# Tutorial\n", "docs/start/why.md": "# Why\n", ...files });
  fs.appendFileSync(path.join(root, "docs/README.md"), "- [Rules](reference/rules.md)\n- [Tutorial](start/tutorial.md)\n- [Why](start/why.md)\n");
  const run = spawnSync("npm", ["run", "--silent", "build"], { cwd: path.resolve(import.meta.dirname, ".."), encoding: "utf8", env: { ...process.env, OUTBOXGEN_SITE_ROOT: root } });
  const read = (name) => fs.readFileSync(path.join(root, "dist/site", name), "utf8");
  return { status: run.status, output: run.stdout + run.stderr, read };
}

test("a site has its pages, its index and llms.txt", (t) => {
  const { status, output, read } = build(t, { "dist/playground/index.html": "play" });
  assert.equal(status, 0, output);
  assert.match(read("start/second.html"), /<a href="first.html#a-part-of-it">back<\/a>/);
  assert.match(read("start/second.html"), /<a href="first.html">First<\/a>/);
  assert.match(read("start/second.html"), /href="..\/playground\/index.html"/);
  assert.equal(read("playground/index.html"), "play");
  assert.match(read("llms.txt"), /\n## Start\n\n- \[First\]\(start\/first.html\): the first of all.\n/);
  let found;
  vm.runInNewContext(read("assets/search-index.js"), { window: { outboxgenSearch: (json, options) => (found = MiniSearch.loadJSON(json, options).search("part")) } });
  assert.equal(found[0].id, "start/first.html#a-part-of-it");
});

test("a wrong anchor fails the build and says where it is", (t) => {
  const { status, output } = build(t, { "docs/start/second.md": "# The second\n\n[back](first.md#another-part)\n" });
  assert.notEqual(status, 0);
  assert.match(output, /start\/second.html: "back" first.html#another-part leads to no heading of start\/first.html/);
});

test("a wrong link fails the build and says where it is", (t) => {
  const { status, output } = build(t, { "docs/start/second.md": "# The second\n\n[back](zeroth.md)\n" });
  assert.notEqual(status, 0);
  assert.match(output, /docs\/start\/second.md:3: the link to zeroth.md leads to no file/);
});

test("without a playground nothing links to it", (t) => {
  const { status, output, read } = build(t, {});
  assert.equal(status, 0, output);
  assert.doesNotMatch(read("index.html"), /playground/i);
});

test("a page is searched by its sections, without what is not text", () => {
  const html = '<nav>Menu</nav><article><h1 id="t">T <a class="anchor">#</a></h1><p>One <code>v</code>.</p><p data-unsearched>No</p><h2 id="u">U</h2><table><tr><td>a</td><td>b</td></tr></table><svg>x</svg></article>';
  assert.deepEqual(sectionsOf(html, "p.html"), [
    { id: "p.html", title: "T", heading: "", text: "One v." },
    { id: "p.html#u", title: "T", heading: "U", text: "a b" },
  ]);
});
