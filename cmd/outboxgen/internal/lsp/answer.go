package lsp

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/outboxgen/outboxgen/generator/editor"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// request is a request about a document, which is as it was when the request came.
type request struct {
	params
	*editor.Document
	path   string
	server *server
}

// answers are the requests about a document. A result of nil is null.
var answers = map[string]func(request) (any, error){
	"textDocument/completion":          completion,
	"textDocument/hover":               hovered,
	"textDocument/definition":          definition,
	"textDocument/references":          references,
	"textDocument/prepareRename":       prepareRename,
	"textDocument/rename":              rename,
	"textDocument/documentSymbol":      symbols,
	"textDocument/foldingRange":        folds,
	"textDocument/formatting":          format,
	"textDocument/codeAction":          codeActions,
	"textDocument/semanticTokens/full": tokens,
}

func completion(r request) (any, error) {
	items := []completionItem{}
	for i, c := range r.Complete(r.Position) {
		items = append(items, completionItem{
			Label: c.Label, Kind: completionKinds[c.Kind], Detail: c.Detail, Documentation: markdown(c.Doc),
			SortText: fmt.Sprintf("%04d", i), FilterText: c.Label, TextEdit: c.Edit,
		})
	}
	return items, nil
}

func hovered(r request) (any, error) {
	h := r.Hover(r.Position)
	if h == nil {
		return nil, nil
	}
	return hover{markdown(h.Text), h.Range}, nil
}

// inGo returns where the generated code declares what is declared at the position.
func (r request) inGo(first bool) []location {
	names := r.Go(r.Position)
	if first && len(names) > 1 {
		names = names[:1]
	}
	return goLocations(r.path, r.server.Module(filepath.Dir(r.path)), names)
}

// definition goes from a use to the declaration, and from the declaration to the generated code.
func definition(r request) (any, error) {
	at, declared, ok := r.Definition(r.Position)
	if !ok {
		return nil, nil
	}
	if declared {
		if found := r.inGo(true); len(found) > 0 {
			return found, nil
		}
	}
	return []location{{r.TextDocument.URI, at}}, nil
}

func references(r request) (any, error) {
	found := []location{}
	for _, at := range r.References(r.Position, r.Context.IncludeDeclaration) {
		found = append(found, location{r.TextDocument.URI, at})
	}
	return append(found, r.inGo(false)...), nil
}

func prepareRename(r request) (any, error) {
	at, name, ok := r.Renamable(r.Position)
	if !ok {
		return nil, nil
	}
	return prepareRenameResult{at, name}, nil
}

func rename(r request) (any, error) {
	edits, err := r.Rename(r.Position, r.NewName)
	if err != nil {
		return nil, err
	}
	return workspaceEdit{map[string][]editor.Edit{r.TextDocument.URI: edits}}, nil
}

// symbolKinds are the kinds of documentSymbol: Namespace, Field, Struct, Event, Function, Object, EnumMember, Property.
var symbolKinds = map[spec.Thing]int{
	spec.NamespaceThing: 3, spec.FieldThing: 8, spec.TypeThing: 23, spec.TopicThing: 24, spec.ListenerThing: 12,
	spec.OperationThing: 12, spec.OutcomeThing: 22, spec.HeaderThing: 7, "": 19,
}

func symbols(r request) (any, error) { return documentSymbols(r.Outline()), nil }

func documentSymbols(outline []editor.Symbol) []documentSymbol {
	list := []documentSymbol{}
	for _, s := range outline {
		list = append(list, documentSymbol{
			Name: s.Name, Detail: s.Detail, Kind: symbolKinds[s.Thing], Range: s.Range, SelectionRange: s.NameRange,
			Children: documentSymbols(s.Children),
		})
	}
	return list
}

func folds(r request) (any, error) {
	list := []foldingRange{}
	for _, f := range r.Folds() {
		kind := ""
		if f.Comment {
			kind = "comment"
		}
		list = append(list, foldingRange{f.Start, f.End, kind})
	}
	return list, nil
}

func format(r request) (any, error) {
	return append([]editor.Edit{}, r.Format()...), nil
}

// codeActions returns the fixes of the findings that touch the range.
func codeActions(r request) (any, error) {
	actions := []codeAction{}
	if len(r.Context.Only) > 0 && !slices.Contains(r.Context.Only, quickFix) {
		return actions, nil
	}
	for _, f := range r.Findings() {
		if before(f.Range.End, r.Range.Start) || before(r.Range.End, f.Range.Start) {
			continue
		}
		for i, fix := range r.Fixes(f) {
			actions = append(actions, codeAction{
				Title: fix.Title, Kind: quickFix, Diagnostics: []diagnostic{diagnosticOf(f)}, IsPreferred: i == 0,
				Edit: workspaceEdit{map[string][]editor.Edit{r.TextDocument.URI: fix.Edits}},
			})
		}
	}
	return actions, nil
}

func before(a, b editor.Position) bool {
	return a.Line < b.Line || a.Line == b.Line && a.Character < b.Character
}

// tokens encodes tokens as the protocol has them: five numbers each, the place relative to the one before.
func tokens(r request) (any, error) {
	data := []int{}
	var last editor.Position
	for _, t := range r.Tokens() {
		start := t.Range.Start
		line, character := start.Line-last.Line, start.Character
		if line == 0 {
			character -= last.Character
		}
		kind := slices.Index(editor.TokenKinds(), t.Kind)
		data = append(data, line, character, t.Range.End.Character-start.Character, kind, 0)
		last = start
	}
	return semanticTokens{data}, nil
}
