package generator

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/emit"
)

// withoutWrittenStubs drops the stubs that are not needed: their file exists, or another file of the folder declares
// their type or method.
func withoutWrittenStubs(dir string, root *output, entries []fs.DirEntry, files []File) ([]File, error) {
	written, err := readDeclarations(dir, root, entries)
	if err != nil {
		return nil, err
	}
	exists := make(map[string]bool, len(entries))
	for _, entry := range entries {
		exists[entry.Name()] = true
	}
	available := make(map[string]bool) // handler types that are declared, or will be
	for _, f := range files {
		if f.Stub == nil || f.Stub.Method != "" {
			continue
		}
		available[f.Stub.Receiver] = written.types[f.Stub.Receiver] || !exists[f.Name]
	}
	for _, f := range files {
		// Another hand-written type handles the topics, and the compiler says what it lacks. The types of other
		// stubs do not count, because two listeners of a topic have methods with the same name.
		own := func(receiver string) bool { _, ours := available[receiver]; return !ours }
		if f.Stub != nil && !written.types[f.Stub.Receiver] && slices.ContainsFunc(written.methods[f.Stub.Method], own) {
			available[f.Stub.Receiver] = false
		}
	}
	var kept []File
	for _, f := range files {
		if f.Stub == nil || available[f.Stub.Receiver] && !exists[f.Name] && !written.has(f.Stub) {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

// declarations are the types and methods in the hand-written Go files of a folder.
type declarations struct {
	types     map[string]bool
	methods   map[string][]string // the receivers of "HandleTurnFinalized"
	qualified map[string]bool     // "MiniChatHandler.HandleTurnFinalized"
	embeds    map[string]bool     // "MiniChatHandler.UnimplementedMiniChatHandlers"
}

// has reports whether s is already declared, or its type opts out of methods.
func (d *declarations) has(s *emit.Stub) bool {
	if s.Method == "" {
		return d.types[s.Receiver]
	}
	return d.qualified[s.Receiver+"."+s.Method] || d.embeds[s.Receiver+"."+s.OptOut]
}

// readDeclarations parses the Go files without our header, except tests. It uses the readable part of a file that does
// not parse.
func readDeclarations(dir string, root *output, entries []fs.DirEntry) (*declarations, error) {
	d := &declarations{
		types: make(map[string]bool), methods: make(map[string][]string),
		qualified: make(map[string]bool), embeds: make(map[string]bool),
	}
	for _, entry := range entries {
		name := entry.Name()
		regular := entry.Type().IsRegular()
		if !regular && entry.Type() != fs.ModeSymlink || !strings.HasSuffix(name, ".go") ||
			strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := root.ReadFile(name)
		if err != nil && regular {
			return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, name), cause(err))
		}
		if err != nil || emit.IsGenerated(src) {
			continue
		}
		file, _ := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if file == nil {
			continue
		}
		for _, decl := range file.Decls {
			d.add(decl)
		}
	}
	return d, nil
}

func (d *declarations) add(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil || len(decl.Recv.List) != 1 {
			return
		}
		method, receiver := decl.Name.Name, typeName(decl.Recv.List[0].Type)
		d.methods[method] = append(d.methods[method], receiver)
		d.qualified[receiver+"."+method] = true
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			if spec, ok := spec.(*ast.TypeSpec); ok {
				d.addType(spec)
			}
		}
	}
}

func (d *declarations) addType(spec *ast.TypeSpec) {
	d.types[spec.Name.Name] = true
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range structure.Fields.List {
		if len(field.Names) == 0 {
			d.embeds[spec.Name.Name+"."+typeName(field.Type)] = true
		}
	}
}

// typeName returns the name of a type or of a pointer to it, without type arguments.
func typeName(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.StarExpr:
		return typeName(expr.X)
	case *ast.ParenExpr:
		return typeName(expr.X)
	case *ast.IndexExpr:
		return typeName(expr.X)
	case *ast.IndexListExpr:
		return typeName(expr.X)
	}
	return ""
}
