import assert from "node:assert/strict";
import test from "node:test";
import { drawDiagram } from "../lib/diagram.js";
import { Links } from "../lib/links.js";
import { documentMarkdown } from "../lib/markdown.js";
import { readShelf } from "../lib/shelf.js";
import { repositoryOf } from "./folder.js";

/** Renders a text as docs/start/second.md. */
function render(t, text, files = {}) {
  const root = repositoryOf(t, { "docs/images/a.png": "", "docs/images/b.png": "", "queue/queue.go": "", ...files });
  const links = new Links(root, readShelf(root).pages);
  return { html: documentMarkdown(links).render(text, { source: "docs/start/second.md" }), links };
}

test("links lead to pages of the site, or to the repository", (t) => {
  const { html } = render(t, "[a](first.md#a-part-of-it) [b](../../README.md) [c](../../queue/queue.go) [d](../../queue) [e](https://example.com) [f](#here)");
  for (const address of [
    "first.html#a-part-of-it", "../index.html", "https://github.com/outboxgen/outboxgen/blob/main/queue/queue.go",
    "https://github.com/outboxgen/outboxgen/tree/main/queue", "https://example.com", "#here",
  ]) assert.ok(html.includes(`href="${address}"`), `${address} in ${html}`);
});

test("a link that says the name of a file says that of its page", (t) => {
  const { html } = render(t, "[first.md](first.md#a-part-of-it) [the first.md](first.md) [queue.md](https://example.com/queue.md)");
  assert.match(html, />First<\/a> <a href="first.html">the first.md<\/a> <a [^>]+>queue.md</);
});

test("pictures come into the site, also those of HTML", (t) => {
  const { html, links } = render(t, '![a](../images/a.png)\n\n<picture>\n<source srcset="../images/b.png">\n</picture>\n');
  assert.match(html, /src="..\/images\/a.png"/);
  assert.deepEqual([...links.files.keys()].sort(), ["images/a.png", "images/b.png"]);
});

test("a link to nothing is an error with its place", (t) => {
  assert.throws(() => render(t, "# Title\n\n- a\n- [b](nothing.md)\n"), /docs\/start\/second.md:4: the link to nothing.md leads to no file/);
  assert.throws(() => render(t, "a\n\n[b](../../..)\n"), /second.md:3: the link to ..\/..\/.. leads to no file/, "what is outside the repository");
});

test("headings have the anchors of GitHub, and comments are left out", (t) => {
  const { html } = render(t, "# T\n\n<!-- go: hidden -->\n\n## A part: of `it`\n\n## A part: of it\n");
  assert.match(html, /<h2 id="a-part-of-it">/);
  assert.match(html, /<h2 id="a-part-of-it-1">/);
  assert.ok(!html.includes("hidden"));
});

test("code has colors, and a language that nobody knows is an error", (t) => {
  assert.match(render(t, "```go\nfunc main() {}\n```\n").html, /<span class="c-[^"]+">func<\/span>/);
  assert.throws(() => render(t, "a\n\n```klingon\nQapla'\n```\n"), /second.md:3: a block has the unknown language klingon/);
});

test("a diagram of states is a picture with its transitions, and another diagram is an error", () => {
  const svg = drawDiagram('stateDiagram-v2\n    [*] --> a: begins "now"\n    a --> [*]\n');
  assert.match(svg, /^<svg role="img" aria-label="State diagram. nothing to a: begins &quot;now&quot;; a to nothing."/);
  assert.match(svg, />begins &quot;now&quot;</);
  assert.throws(() => drawDiagram("stateDiagram-v2\n state a {\n"), /"state a {" of a diagram is not a transition/);
  assert.throws(() => drawDiagram("flowchart TD\n a --> b\n"), /only state diagrams can be drawn, not flowchart TD/);
});
