package lsp

import (
	"encoding/json"

	"github.com/outboxgen/outboxgen/generator/editor"
)

// The part of the Language Server Protocol 3.17 that the server speaks. Names are those of the specification:
// https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/

// Error codes of the protocol.
const (
	codeNotInitialized = -32002
	codeCancelled      = -32800
	codeFailed         = -32803 // RequestFailed: the request is right, and cannot be answered
)

type initializeParams struct {
	Capabilities struct {
		Workspace struct {
			DidChangeWatchedFiles struct {
				DynamicRegistration bool `json:"dynamicRegistration"`
			} `json:"didChangeWatchedFiles"`
		} `json:"workspace"`
	} `json:"capabilities"`
}

// params has what the requests about a document ask with.
type params struct {
	TextDocument struct {
		URI     string `json:"uri"`
		Version int    `json:"version"`
		Text    string `json:"text"`
	} `json:"textDocument"`
	ContentChanges []struct {
		Range *editor.Range `json:"range"`
		Text  string        `json:"text"`
	} `json:"contentChanges"`
	Position editor.Position `json:"position"`
	Range    editor.Range    `json:"range"`
	NewName  string          `json:"newName"`
	Context  struct {
		IncludeDeclaration bool     `json:"includeDeclaration"`
		Only               []string `json:"only"`
	} `json:"context"`
}

type renameFilesParams struct {
	Files []struct {
		OldURI string `json:"oldUri"`
		NewURI string `json:"newUri"`
	} `json:"files"`
}

type cancelParams struct {
	ID json.RawMessage `json:"id"`
}

type publishDiagnosticsParams struct {
	URI         string       `json:"uri"`
	Version     *int         `json:"version,omitempty"`
	Diagnostics []diagnostic `json:"diagnostics"`
}

type diagnostic struct {
	Range           editor.Range     `json:"range"`
	Severity        int              `json:"severity"`
	Code            string           `json:"code"`
	CodeDescription *codeDescription `json:"codeDescription,omitempty"`
	Source          string           `json:"source"`
	Message         string           `json:"message"`
}

type codeDescription struct {
	Href string `json:"href"`
}

// Severities of a diagnostic.
const (
	severityError   = 1
	severityWarning = 2
)

type completionItem struct {
	Label         string         `json:"label"`
	Kind          int            `json:"kind"`
	Detail        string         `json:"detail,omitempty"`
	Documentation *markupContent `json:"documentation,omitempty"`
	SortText      string         `json:"sortText"`
	FilterText    string         `json:"filterText"`
	TextEdit      editor.Edit    `json:"textEdit"`
}

// completionKinds are the kinds of completionItem: Field, Property, EnumMember, Struct and Event.
var completionKinds = map[editor.CompletionKind]int{
	editor.FieldCompletion: 5, editor.KeyCompletion: 10, editor.ValueCompletion: 20, editor.TypeCompletion: 22,
	editor.TopicCompletion: 23,
}

type markupContent struct {
	Kind  string `json:"kind"`
	Value string `json:"value"`
}

func markdown(text string) *markupContent {
	if text == "" {
		return nil
	}
	return &markupContent{"markdown", text}
}

type hover struct {
	Contents *markupContent `json:"contents"`
	Range    editor.Range   `json:"range"`
}

type location struct {
	URI   string       `json:"uri"`
	Range editor.Range `json:"range"`
}

type prepareRenameResult struct {
	Range       editor.Range `json:"range"`
	Placeholder string       `json:"placeholder"`
}

type workspaceEdit struct {
	Changes map[string][]editor.Edit `json:"changes"`
}

type documentSymbol struct {
	Name           string           `json:"name"`
	Detail         string           `json:"detail,omitempty"`
	Kind           int              `json:"kind"`
	Range          editor.Range     `json:"range"`
	SelectionRange editor.Range     `json:"selectionRange"`
	Children       []documentSymbol `json:"children,omitempty"`
}

type foldingRange struct {
	StartLine int    `json:"startLine"`
	EndLine   int    `json:"endLine"`
	Kind      string `json:"kind,omitempty"`
}

type codeAction struct {
	Title       string        `json:"title"`
	Kind        string        `json:"kind"`
	Diagnostics []diagnostic  `json:"diagnostics"`
	IsPreferred bool          `json:"isPreferred,omitempty"`
	Edit        workspaceEdit `json:"edit"`
}

type semanticTokens struct {
	Data []int `json:"data"`
}

const quickFix = "quickfix"

// completionTriggers are the characters behind which something can be completed.
var completionTriggers = []string{" ", ":", "-", "[", "]", "{", "/", `"`, ","}

// object is a JSON object.
type object = map[string]any

func initializeResult(version string) object {
	return object{
		"serverInfo": object{"name": "outboxgen", "version": version},
		"capabilities": object{
			"positionEncoding":           "utf-16",
			"textDocumentSync":           object{"openClose": true, "change": 2, "save": object{}},
			"completionProvider":         object{"triggerCharacters": completionTriggers},
			"hoverProvider":              true,
			"definitionProvider":         true,
			"referencesProvider":         true,
			"renameProvider":             object{"prepareProvider": true},
			"documentSymbolProvider":     true,
			"foldingRangeProvider":       true,
			"documentFormattingProvider": true,
			"codeActionProvider":         object{"codeActionKinds": []string{quickFix}},
			"semanticTokensProvider": object{
				"legend": object{"tokenTypes": editor.TokenKinds(), "tokenModifiers": []string{}}, "full": true,
			},
			"workspace": object{"fileOperations": object{"didRename": object{
				"filters": []object{{"scheme": "file", "pattern": object{"glob": "**/*.{yaml,yml}"}}},
			}}},
		},
	}
}

// watchLocks asks the client to tell of locks that change.
var watchLocks = object{"registrations": []object{{
	"id": "locks", "method": "workspace/didChangeWatchedFiles",
	"registerOptions": object{"watchers": []object{{"globPattern": "**/*.lock.yaml"}}},
}}}
