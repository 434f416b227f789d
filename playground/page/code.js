// The text editors of the page.
import {autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, startCompletion} from "@codemirror/autocomplete";
import {defaultKeymap, history, historyKeymap} from "@codemirror/commands";
import {json} from "@codemirror/lang-json";
import {yaml} from "@codemirror/lang-yaml";
import {StreamLanguage, bracketMatching, foldGutter, foldKeymap, indentOnInput, syntaxHighlighting} from "@codemirror/language";
import {go} from "@codemirror/legacy-modes/mode/go";
import {pgSQL} from "@codemirror/legacy-modes/mode/sql";
import {lintKeymap, setDiagnostics} from "@codemirror/lint";
import {Compartment, EditorState} from "@codemirror/state";
import {EditorView, drawSelection, highlightActiveLine, hoverTooltip, keymap, lineNumbers} from "@codemirror/view";
import {classHighlighter} from "@lezer/highlight";
import {element, markdown} from "./markdown.js";

const isDark = matchMedia("(prefers-color-scheme: dark)");
const look = new Compartment();
const language = new Compartment();
const languages = {go: StreamLanguage.define(go), sql: StreamLanguage.define(pgSQL), json: json(), yaml: yaml()};

function base(nonce, label) {
  return [
    EditorView.cspNonce.of(nonce), look.of(EditorView.darkTheme.of(isDark.matches)), lineNumbers(), foldGutter(), drawSelection(),
    syntaxHighlighting(classHighlighter), EditorView.contentAttributes.of({"aria-label": label, tabindex: "0"}),
    EditorState.tabSize.of(4),
  ];
}

function shown(parent, extensions) {
  const view = new EditorView({parent, extensions});
  isDark.addEventListener("change", () => view.dispatch({effects: look.reconfigure(EditorView.darkTheme.of(isDark.matches))}));
  return view;
}

// Returns an editor for YAML. Changed is called after each change of its text; ask answers a question about a text.
export function editor(parent, {nonce, label, changed, ask, keys = []}) {
  const extensions = [
    ...base(nonce, label), yaml(), history(), indentOnInput(), bracketMatching(), closeBrackets(), highlightActiveLine(),
    keymap.of([
      ...keys, ...closeBracketsKeymap, ...completionKeymap, ...lintKeymap, ...foldKeymap, ...historyKeymap, ...defaultKeymap,
    ]),
    EditorView.updateListener.of((u) => { if (u.docChanged) changed(); }),
  ];
  if (ask) extensions.push(autocompletion({override: [completer(ask)]}), hoverTooltip(hoverer(ask)));
  return shown(parent, extensions);
}

// Returns a view of a text that cannot be changed.
export function viewer(parent, {nonce, label}) {
  return shown(parent, [
    ...base(nonce, label), language.of([]), EditorState.readOnly.of(true), EditorView.editable.of(false),
    keymap.of([...foldKeymap, ...defaultKeymap]),
  ]);
}

// Shows a text in a viewer, with the colours of the ending of its name. The place stays if the text is that of the same
// name.
export function show(view, name, text, same) {
  const kind = languages[name.slice(name.lastIndexOf(".") + 1)] ?? [];
  if (view.state.doc.toString() === text && same) return;
  const top = view.scrollDOM.scrollTop;
  view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: text}, effects: language.reconfigure(kind)});
  view.scrollDOM.scrollTop = same ? top : 0;
}

// Replaces the text of an editor, so that it can be undone.
export function setText(view, text) {
  view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: text}, selection: {anchor: 0}, scrollIntoView: true});
}

// The generator counts lines and characters from 0, as an editor does by the language server protocol.
export function offsetOf(doc, {line, character}) {
  if (line >= doc.lines) return doc.length;
  const at = doc.line(line + 1);
  return Math.min(at.from + character, at.to);
}

function positionOf(doc, offset) {
  const line = doc.lineAt(offset);
  return {line: line.number - 1, character: offset - line.from};
}

// Makes the edits of a fix or of the formatter.
export function edit(view, edits) {
  const doc = view.state.doc;
  view.dispatch({
    changes: edits.map((e) => ({from: offsetOf(doc, e.range.start), to: offsetOf(doc, e.range.end), insert: e.newText})),
    userEvent: "input",
  });
}

// Draws a wavy line under each finding. Fix is called with the view and the fix that the reader chooses.
export function underline(view, findings, fix) {
  const doc = view.state.doc;
  view.dispatch(setDiagnostics(view.state, findings.map((f) => ({
    from: offsetOf(doc, f.range.start), to: offsetOf(doc, f.range.end), severity: f.severity,
    message: `${f.message} [${f.rule}]`,
    actions: f.fixes.map((x) => ({name: x.title, apply: () => fix(x)})),
  }))));
}

const kinds = {key: "property", value: "enum", type: "type", field: "variable", topic: "class"};

function completer(ask) {
  return async ({state, pos}) => {
    const found = await ask({ask: "complete", text: state.doc.toString(), at: positionOf(state.doc, pos)});
    if (!Array.isArray(found) || found.length === 0) return null;
    const options = found.map((c, i) => {
      const behind = offsetOf(state.doc, c.edit.range.end) - pos; // the edit replaces this much behind the cursor
      return {
        label: c.label, detail: c.detail, type: kinds[c.kind], boost: -i / found.length,
        info: () => c.doc ? filled(element("div"), markdown(c.doc)) : null,
        apply(view, _, from, to) {
          view.dispatch({
            changes: {from, to: Math.min(to + Math.max(behind, 0), view.state.doc.length), insert: c.edit.newText},
            selection: {anchor: from + c.edit.newText.length}, userEvent: "input.complete",
          });
          if (c.edit.newText.endsWith(": ")) startCompletion(view);
        },
      };
    });
    return {from: offsetOf(state.doc, found[0].edit.range.start), options, validFor: /^[\w/{}"]*$/};
  };
}

function hoverer(ask) {
  return async (view, pos) => {
    const doc = view.state.doc;
    const found = await ask({ask: "hover", text: doc.toString(), at: positionOf(doc, pos)});
    if (!found || found.error || view.state.doc !== doc) return null;
    return {
      pos: offsetOf(doc, found.range.start), end: offsetOf(doc, found.range.end), above: true,
      create: () => ({dom: filled(element("div", "", {class: "hover"}), markdown(found.text))}),
    };
  };
}

function filled(node, content) {
  node.append(content);
  return node;
}
