// What the extension decides without VS Code.
import {spawn} from "node:child_process";

// isOutbox says whether a file is for outboxgen, as the server does: by its name, or because it names the schema.
export function isOutbox(path: string, text: string): boolean {
  const name = path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
  if (name.endsWith(".lock.yaml")) return false;
  return /outbox.*\.ya?ml$/i.test(name) || text.includes("outbox.schema.json");
}

// trouble says why a program cannot be the server, "" if it can. It runs the program with the arguments, but with help
// in place of a session.
export function trouble(program: string, args: string[], cwd: string | undefined): Promise<string> {
  return new Promise((done) => {
    const child = spawn(program, [...args, "--help"], {cwd, stdio: ["ignore", "ignore", "pipe"]});
    let said = "";
    child.stderr.on("data", (text) => { said = (said + text).slice(0, 500); });
    child.on("error", (error: NodeJS.ErrnoException) => {
      const missing = error.code === "ENOENT";
      done(missing ? `outboxgen was not found: there is no program "${program}".` : `outboxgen cannot be run: ${error.message}.`);
    });
    child.on("close", (code) => {
      const why = said.trim() || `it ended with ${code}`;
      done(code === 0 ? "" : `"${[program, ...args].join(" ")}" is not a language server of outboxgen: ${why}`);
    });
  });
}
