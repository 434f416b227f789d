import assert from "node:assert/strict";
import path from "node:path";
import test from "node:test";
import { readShelf } from "../lib/shelf.js";
import { repositoryOf } from "./folder.js";

test("the shelf of this repository has the order in which a user needs it", () => {
  const { sections, pages } = readShelf(path.resolve(import.meta.dirname, "../.."));
  assert.deepEqual(sections.map((section) => section.name), ["Start", "Model", "Run", "Operate", "Change", "Reference", "Inside"]);
  assert.equal(sections[0].pages[0].output, "start/tutorial.html");
  assert.equal(pages.get("docs/reference/rules.md").output, "reference/rules.html");
});

test("a page has its place, its text and its neighbours", (t) => {
  const { sections, pages } = readShelf(repositoryOf(t));
  const [first, second] = sections[0].pages;
  assert.equal(first.about, "the `first` of all.");
  assert.equal(first.title, "The first");
  assert.equal(first.previous, undefined);
  assert.equal(first.next, second);
  assert.equal(second.next.output, "changelog.html");
  assert.equal(pages.get("README.md").output, "index.html");
});

test("a document that the list does not have is an error, and one that is not there", (t) => {
  assert.throws(() => readShelf(repositoryOf(t, { "docs/start/third.md": "# Third\n" })), /docs\/README.md does not list docs\/start\/third.md/);
  assert.throws(() => readShelf(repositoryOf(t, { "SECURITY.md": "# Security\n" })), /does not list SECURITY.md/);
  assert.throws(() => readShelf(repositoryOf(t, { "docs/start/second.md": null })), /lists docs\/start\/second.md, which is not there/);
});
