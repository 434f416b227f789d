// Bundles the extension into dist/extension.js, and writes the licences of what it was bundled from.
import {build} from "esbuild";
import {readFile, readdir, rm, writeFile} from "node:fs/promises";

await rm("dist", {recursive: true, force: true});
const {metafile} = await build({
  entryPoints: ["src/extension.ts"], outfile: "dist/extension.js", bundle: true, minify: true, metafile: true,
  platform: "node", target: "node20", format: "cjs", external: ["vscode"],
});
const folders = new Set(Object.keys(metafile.inputs).map((path) => path.match(/.*node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]).filter(Boolean));
let text = "";
for (const folder of [...folders].sort()) {
  const file = (await readdir(folder)).find((name) => /^licen[cs]e/i.test(name));
  if (!file) throw new Error(`${folder} has no licence`);
  text += `== ${folder.replace(/.*node_modules\//, "")}\n\n${(await readFile(`${folder}/${file}`, "utf8")).trim()}\n\n`;
}
await writeFile("dist/licences.txt", text);
