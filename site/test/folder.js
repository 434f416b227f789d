import fs from "node:fs";
import os from "node:os";
import path from "node:path";

/** Writes files into a new folder, which is removed after the test, and returns its name. */
export function folderOf(t, files) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "outboxgen-site-"));
  t.after(() => fs.rmSync(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) {
    fs.mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
    fs.writeFileSync(path.join(folder, name), text);
  }
  return folder;
}

/** A repository with two documents; what is given replaces a file, and null leaves it out. */
export function repositoryOf(t, files = {}) {
  const all = {
    "README.md": "# outboxgen\n\n[first](docs/start/first.md)\n\n```sh\nmake\n```\n",
    "docs/README.md": "# Documents\n\n## Start\n\n- [First](start/first.md): the `first`\n  of all.\n- [Second](start/second.md): another.\n\n## Inside\n\n- [Changes](../CHANGELOG.md)\n",
    "docs/start/first.md": "# The first\n\n## A part: of `it`\n\nText.\n",
    "docs/start/second.md": "# The second\n\n[back](first.md#a-part-of-it)\n",
    "CHANGELOG.md": "# Changelog\n",
    ...files,
  };
  return folderOf(t, Object.fromEntries(Object.entries(all).filter(([, text]) => text !== null)));
}
