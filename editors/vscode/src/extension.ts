// The extension starts outboxgen lsp when the first file for it is opened. All that editors know of outbox.yaml is in the
// server.
import * as vscode from "vscode";
import {LanguageClient} from "vscode-languageclient/node";
import {isOutbox, trouble} from "./program";

const install = "https://github.com/outboxgen/outboxgen/blob/main/docs/model/editors.md#vs-code";

let client: LanguageClient | undefined;
let starting: Promise<void> | undefined;

export function activate(context: vscode.ExtensionContext): void {
  const opened = (document: vscode.TextDocument) => {
    if (document.languageId === "yaml" && isOutbox(document.fileName, document.getText())) void start();
  };
  context.subscriptions.push(
    vscode.workspace.onDidOpenTextDocument(opened),
    vscode.workspace.onDidSaveTextDocument(opened), // one that names the schema since then
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("outboxgen.path") || change.affectsConfiguration("outboxgen.arguments")) void restart();
    }),
    vscode.commands.registerCommand("outboxgen.restart", restart),
  );
  vscode.workspace.textDocuments.forEach(opened);
}

export async function deactivate(): Promise<void> {
  const running = client;
  client = undefined;
  await running?.stop();
}

async function restart(): Promise<void> {
  await starting;
  await deactivate();
  starting = undefined;
  await start();
}

// start starts the server, once. After a failure it is tried again when the settings change, or by the command.
function start(): Promise<void> {
  starting ??= launch();
  return starting;
}

async function launch(): Promise<void> {
  const settings = vscode.workspace.getConfiguration("outboxgen");
  const command = settings.get<string>("path") || "outboxgen";
  const args = settings.get<string[]>("arguments") ?? ["lsp"];
  const cwd = vscode.workspace.workspaceFolders?.find((f) => f.uri.scheme === "file")?.uri.fsPath;
  const why = await trouble(command, args, cwd);
  if (why) {
    void tell(why);
    return;
  }
  client = new LanguageClient("outboxgen", "outboxgen", {command, args, options: {cwd}}, {
    documentSelector: [{scheme: "file", language: "yaml"}, {scheme: "untitled", language: "yaml"}],
  });
  await client.start();
}

async function tell(why: string): Promise<void> {
  const choice = await vscode.window.showErrorMessage(why, "How to install", "Settings");
  if (choice === "How to install") await vscode.env.openExternal(vscode.Uri.parse(install));
  if (choice === "Settings") await vscode.commands.executeCommand("workbench.action.openSettings", "outboxgen");
}
