// The check of a built site: every address in it leads to a file of it, and to a place in that file. Nothing is loaded from
// elsewhere.
import fs from "node:fs";
import path from "node:path";
import { DomUtils, parseDocument } from "htmlparser2";

const external = /^[a-z][a-z0-9+.-]*:|^\/\//i;
const loaded = { img: ["src", "srcset"], source: ["src", "srcset"], script: ["src"], link: ["href"], iframe: ["src"], video: ["src", "poster"], use: ["href"], form: ["action"] };

/** Returns what is wrong in the site in a folder, a sentence each with its place. */
export function checkSite(folder) {
  const wrong = [];
  const anchors = new Map();
  const files = fs.readdirSync(folder, { recursive: true }).map((name) => name.split(path.sep).join("/"));
  // What else is put into the site has pages of its own making. It only has to be there.
  const ours = files.filter((name) => !name.startsWith("playground/"));
  const documents = new Map();
  for (const name of ours.filter((file) => file.endsWith(".html"))) {
    const elements = DomUtils.findAll(() => true, parseDocument(fs.readFileSync(path.join(folder, name), "utf8")).children);
    documents.set(name, elements);
    const ids = elements.map((element) => element.attribs.id).filter((id) => id !== undefined);
    anchors.set(name, new Set(ids));
    ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => wrong.push(`${name}: the id ${id} is there twice`));
  }

  const check = (name, what, address) => {
    const [file, anchor] = address.split("#");
    const target = file === "" ? name : path.posix.join(path.posix.dirname(name), decodeURI(file.split("?")[0]));
    if (file.startsWith("/")) wrong.push(`${name}: ${what} ${address} does not work below another path`);
    else if (!fs.existsSync(path.join(folder, target)) || fs.statSync(path.join(folder, target)).isDirectory()) {
      wrong.push(`${name}: ${what} ${address} leads to no file of the site`);
    } else if (anchor && anchors.has(target) && !anchors.get(target).has(decodeURIComponent(anchor))) {
      wrong.push(`${name}: ${what} ${address} leads to no heading of ${target}`);
    }
  };

  for (const [name, elements] of documents) {
    for (const element of elements) {
      const loads = loaded[element.name] ?? [];
      for (const attribute of loads) {
        const value = element.attribs[attribute];
        if (value === undefined || element.attribs.rel === "canonical") continue;
        for (const address of attribute === "srcset" ? value.split(",").map((part) => part.trim().split(/\s+/)[0]) : [value]) {
          if (external.test(address)) wrong.push(`${name}: <${element.name}> loads ${address} from elsewhere`);
          else check(name, `<${element.name}>`, address);
        }
      }
      const href = element.name === "a" ? element.attribs.href : undefined;
      if (href !== undefined && !external.test(href)) check(name, `"${DomUtils.textContent(element).trim()}"`, href);
    }
  }
  for (const name of ours.filter((file) => file.endsWith(".css"))) {
    for (const [, address] of fs.readFileSync(path.join(folder, name), "utf8").matchAll(/(?:url\(|@import )\s*["']?([^"')\s]+)/g)) {
      if (external.test(address) && !address.startsWith("data:")) wrong.push(`${name}: loads ${address} from elsewhere`);
      else if (!external.test(address)) check(name, "url()", address);
    }
  }
  if (ours.includes("llms.txt")) {
    for (const [, address] of fs.readFileSync(path.join(folder, "llms.txt"), "utf8").matchAll(/\]\(([^)]+)\)/g)) {
      if (!external.test(address)) check("llms.txt", "the link", address);
    }
  }
  return wrong;
}
