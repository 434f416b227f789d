package editor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"

	"github.com/outboxgen/outboxgen/generator/emit"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Go returns the names that the generated code has for what is declared at a position, the most telling one first: "T"
// for a declaration of the package, "T.F" for a field. It returns none for what has no code of its own, and if the file
// had errors ever since it was opened.
func (d *Document) Go(at Position) []string {
	x := d.check().index
	m, ok := x.at(d.offset(at))
	s := x.symbols[m.id]
	model := d.model()
	if !ok || s == nil || model == nil {
		return nil
	}
	switch s.thing {
	case spec.TopicThing:
		if t := d.topic(fullName(s.node, s.thing)); t != nil {
			return []string{t.GoName, t.GoName + "Topic", "Enqueue" + t.GoName}
		}
	case spec.TypeThing:
		for _, t := range model.Types {
			if t.Name == s.name {
				return []string{t.GoName}
			}
		}
	case spec.FieldThing:
		for _, t := range model.Types {
			for _, f := range t.Fields {
				if idOf(spec.TypeThing, "", t.Name) == s.owner && f.Name == s.name {
					return []string{t.GoName + "." + f.GoName}
				}
			}
		}
		if t := d.topic(strings.TrimPrefix(s.owner, "topic ")); t != nil {
			for _, f := range t.Fields {
				if f.Name == s.name {
					return []string{t.GoName + "." + f.GoName}
				}
			}
		}
	case spec.NamespaceThing:
		for _, ns := range model.Namespaces {
			if ns.Name == s.name {
				return []string{ns.GoName + "Handlers", ns.GoName + "Enqueuer"}
			}
		}
	case spec.ListenerThing:
		for _, l := range model.Listeners {
			if l.Name == s.name {
				return []string{l.GoName + "Handlers", "New" + l.GoName + "Listener"}
			}
		}
	case spec.OperationThing:
		for _, o := range model.Operations {
			if o.Name == s.name {
				return []string{o.GoName, o.GoName + "Tx"}
			}
		}
	}
	return nil
}

// GoSuffix ends the names of the files that FindGo may find something in.
const GoSuffix = emit.Suffix

// FindGo returns where a generated file declares a name that Go has returned. Source is the base name of the YAML: a file
// that is generated from another one declares nothing.
func FindGo(content []byte, source, name string) (r Range, ok bool) {
	first, field, _ := strings.Cut(name, ".")
	if !emit.IsGenerated(content) || emit.SourceOf(content) != source || emit.IsConsumer(content) ||
		!strings.Contains(string(content), first) {
		return Range{}, false
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", content, parser.SkipObjectResolution)
	if err != nil {
		return Range{}, false
	}
	id := declared(file, first, field)
	if id == nil {
		return Range{}, false
	}
	at := files.Position(id.Pos()).Offset
	return newText(string(content)).rangeOf(span{at, at + len(id.Name)}), true
}

// declared returns where a file declares a name of the package, or a field of a struct with that name.
func declared(file *ast.File, name, field string) *ast.Ident {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil && decl.Name.Name == name {
				return decl.Name
			}
		case *ast.GenDecl:
			for _, s := range decl.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					if s.Names[0].Name == name {
						return s.Names[0]
					}
				case *ast.TypeSpec:
					if s.Name.Name == name {
						return fieldOf(s, field)
					}
				}
			}
		}
	}
	return nil
}

// fieldOf returns the field of a struct type, and its name for "".
func fieldOf(s *ast.TypeSpec, field string) *ast.Ident {
	of, isStruct := s.Type.(*ast.StructType)
	if field == "" || !isStruct {
		return s.Name
	}
	for _, f := range of.Fields.List {
		for _, id := range f.Names {
			if id.Name == field {
				return id
			}
		}
	}
	return s.Name
}
