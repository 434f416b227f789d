// What can be tested without VS Code: the package, and what the extension decides.
import assert from "node:assert/strict";
import {execFileSync} from "node:child_process";
import {readFileSync} from "node:fs";
import {createRequire, Module} from "node:module";
import {tmpdir} from "node:os";
import {join} from "node:path";
import test from "node:test";
import {build} from "esbuild";
import yauzl from "yauzl";

const root = join(import.meta.dirname, "../../..");
const manifest = JSON.parse(readFileSync(join(import.meta.dirname, "../package.json"), "utf8"));

// The names of the files in the package.
function entries(path) {
  return new Promise((done, fail) => yauzl.open(path, {lazyEntries: true}, (error, zip) => {
    if (error) return fail(error);
    const names = [];
    zip.on("entry", (entry) => { names.push(entry.fileName); zip.readEntry(); });
    zip.on("end", () => done(names));
    zip.on("error", fail);
    zip.readEntry();
  }));
}

test("the package has what it must, and nothing else", async () => {
  const names = await entries(process.env.OUTBOXGEN_VSIX);
  assert.deepEqual(names.filter((n) => n.startsWith("extension/")).sort(), [
    "extension/LICENSE.txt", "extension/dist/extension.js", "extension/dist/licences.txt", "extension/package.json", "extension/readme.md",
  ]);
  assert.equal(readFileSync(join(import.meta.dirname, "../LICENSE"), "utf8"), readFileSync(join(root, "LICENSE"), "utf8"));
});

test("each setting and command of the code is in the manifest", () => {
  const code = readFileSync(join(import.meta.dirname, "../src/extension.ts"), "utf8");
  const settings = Object.keys(manifest.contributes.configuration.properties);
  for (const [, name] of code.matchAll(/settings\.get<[^>]+>\("([a-z]+)"\)/g)) assert.ok(settings.includes(`outboxgen.${name}`), name);
  assert.ok(code.includes(`"${manifest.contributes.commands[0].command}"`));
  assert.deepEqual(manifest.capabilities.untrustedWorkspaces.restrictedConfigurations, settings.filter((s) => !s.includes("trace")));
});

const made = await build({entryPoints: [join(import.meta.dirname, "../src/program.ts")], bundle: true, write: false, format: "esm", platform: "node"});
const {isOutbox, trouble} = await import(`data:text/javascript,${encodeURIComponent(made.outputFiles[0].text)}`);

test("files are told apart as the server does", () => {
  assert.ok(isOutbox("/a/outbox.yaml", ""));
  assert.ok(isOutbox("C:\\a\\orders.Outbox.yml", ""));
  assert.ok(isOutbox("/a/events.yaml", "# yaml-language-server: $schema=./outbox.schema.json\n"));
  assert.ok(!isOutbox("/outbox/deployment.yaml", "kind: Deployment"));
  assert.ok(!isOutbox("/a/outbox.lock.yaml", ""));
});

const program = join(tmpdir(), `outboxgen-vscode-test-${process.pid}`);

test("a program that is missing or another one is told", async (t) => {
  assert.match(await trouble("outboxgen-that-is-missing", ["lsp"]), /not found/);
  assert.match(await trouble(process.execPath, ["/missing.js"]), /not a language server/);
  t.after(() => execFileSync("rm", ["-f", program]));
  execFileSync("go", ["build", "-o", program, "./cmd/outboxgen"], {cwd: root, env: {...process.env, CGO_ENABLED: "0"}});
  assert.equal(await trouble(program, ["lsp"]), "");
});

// A VS Code in which every class and enum exists and does nothing, except for what is given.
function fake(given) {
  const types = readFileSync(join(import.meta.dirname, "../node_modules/@types/vscode/index.d.ts"), "utf8");
  const all = {};
  for (const [, kind, name] of types.matchAll(/^\texport (class|enum|namespace) (\w+)/gm)) all[name] = kind === "class" ? class {} : {};
  return {...all, ...given};
}

test("the bundle tells a reader of outbox.yaml that the program is missing", async () => {
  let tell;
  const told = new Promise((done) => { tell = done; });
  const on = () => ({dispose() {}});
  const vscode = fake({
    workspace: {
      textDocuments: [{languageId: "yaml", fileName: "/a/outbox.yaml", getText: () => ""}], workspaceFolders: undefined,
      onDidOpenTextDocument: on, onDidSaveTextDocument: on, onDidChangeConfiguration: on,
      getConfiguration: () => ({get: (name) => name === "path" ? "outboxgen-that-is-missing" : undefined}),
    },
    window: {showErrorMessage: (...all) => { tell(all); return Promise.resolve(undefined); }},
    commands: {registerCommand: on},
  });
  const load = Module._load;
  Module._load = (name, ...rest) => name === "vscode" ? vscode : load(name, ...rest);
  try {
    const extension = createRequire(import.meta.url)("../dist/extension.js");
    extension.activate({subscriptions: []});
    const [text, ...choices] = await told;
    assert.match(text, /outboxgen was not found/);
    assert.deepEqual(choices, ["How to install", "Settings"]);
    await extension.deactivate();
  } finally {
    Module._load = load;
  }
});
