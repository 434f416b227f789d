package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// goPackages are the folders of the packages that decide. Their tests are those of the folder and of those below.
var goPackages = []string{
	"queue/internal/core", "listener/internal/core", "inbox", "payload", "eventkey", "internal/payloads/masking",
	"internal/payloads/upcast", "internal/payloads/decode", "internal/tool/yamlmask", "internal/call/errclass",
	"internal/machine/rest",
}

// switchFile is added to each package that decides. A test binary contains all mutants of Go, and an environment variable
// switches one of them on.
const switchFile = `package %s

import (
	"fmt"
	"os"
	"sync"
)

var (
	mutantName  = os.Getenv("OUTBOXGEN_MUTANT")
	mutantTrace = os.Getenv("OUTBOXGEN_MUTATION_TRACE")
	mutantSeen  sync.Map
	mutantIs    = func() (n uint32) { _, _ = fmt.Sscanf(mutantName, "go-%%x", &n); return n }()
)

func mutantOn(n uint32) bool {
	if mutantTrace != "" {
		if _, seen := mutantSeen.LoadOrStore(n, true); !seen {
			if file, err := os.OpenFile(mutantTrace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				fmt.Fprintf(file, "go-%%08x\n", n)
				file.Close()
			}
		}
	}
	return n == mutantIs
}
`

// goMutants writes the packages that decide with all their mutants into out, and returns the mutants and the overlay for
// the go command.
func goMutants(out string) ([]mutant, string, error) {
	var all []mutant
	replaced := map[string]string{}
	for _, dir := range goPackages {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return nil, "", err
		}
		var pkg string
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			src, err := os.ReadFile(name)
			if err != nil {
				return nil, "", err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, "", err
			}
			pkg = file.Name.Name
			w := &weaver{set: set, src: src, dir: dir, ids: map[string]int{}}
			w.file(file)
			all = append(all, w.mutants...)
			if err := write(out, name, w.woven(), replaced); err != nil {
				return nil, "", err
			}
		}
		if err := write(out, filepath.Join(dir, "mutant_switch.go"), fmt.Appendf(nil, switchFile, pkg), replaced); err != nil {
			return nil, "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return nil, "", err
	}
	path := filepath.Join(out, "overlay.json")
	return all, path, os.WriteFile(path, overlay, 0o600)
}

// write puts a file into out if it is not there already, and notes what it replaces. Its name does not end in .go, so
// that out is no package of the module.
func write(out, name string, content []byte, replaced map[string]string) error {
	path := filepath.Join(out, strings.ReplaceAll(filepath.ToSlash(name), "/", "_")+".txt")
	from, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	if replaced[from], err = filepath.Abs(path); err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return os.WriteFile(path, content, 0o600)
}

// weaver inserts the switches of mutants into a file.
type weaver struct {
	set     *token.FileSet
	src     []byte
	dir     string
	fn      string
	mutants []mutant
	ids     map[string]int
	inserts []insert
}

// insert is text at an offset. An opening text of an outer expression stands before that of an inner one, and a closing
// text behind.
type insert struct {
	at, order int
	text      string
}

func (w *weaver) woven() []byte {
	slices.SortStableFunc(w.inserts, func(a, b insert) int { return cmp.Or(a.at-b.at, a.order-b.order) })
	var out bytes.Buffer
	last := 0
	for _, in := range w.inserts {
		out.Write(w.src[last:in.at])
		out.WriteString(in.text)
		last = in.at
	}
	out.Write(w.src[last:])
	return out.Bytes()
}

func (w *weaver) offset(p token.Pos) int { return w.set.Position(p).Offset }

func (w *weaver) text(n ast.Node) string { return string(w.src[w.offset(n.Pos()):w.offset(n.End())]) }

// around puts n between two texts.
func (w *weaver) around(n ast.Node, before, after string) {
	order := len(w.inserts) + 1
	w.inserts = append(w.inserts, insert{w.offset(n.Pos()), order, before}, insert{w.offset(n.End()), -order, after})
}

// add makes a mutant, and returns the call that says whether it is on.
func (w *weaver) add(n ast.Node, what string) string {
	id := fmt.Sprintf("%s %s: %s [%s]", w.dir, w.fn, short(w.text(n)), what)
	if w.ids[id]++; w.ids[id] > 1 {
		id += fmt.Sprintf(" #%d", w.ids[id])
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // a hash never fails
	w.mutants = append(w.mutants, mutant{id: id, unit: fmt.Sprintf("go-%08x", h.Sum32()), goPackage: w.dir})
	return fmt.Sprintf("mutantOn(0x%08x)", h.Sum32())
}

func (w *weaver) file(file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			w.function(f)
		}
	}
}

func (w *weaver) function(f *ast.FuncDecl) {
	w.fn = f.Name.Name
	if f.Recv != nil && len(f.Recv.List) == 1 {
		w.fn = strings.TrimPrefix(w.text(f.Recv.List[0].Type), "*") + "." + w.fn
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.CONST
		case *ast.BlockStmt:
			w.statements(n.List)
		case *ast.CommClause:
			w.statements(n.Body)
		case *ast.CaseClause:
			w.statements(n.Body)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						w.condition(e)
					}
				}
			}
		case *ast.IfStmt:
			w.condition(n.Cond)
		case *ast.BinaryExpr:
			w.binary(n)
		}
		return true
	})
}

// condition turns a condition, unless a mutant of its parts does.
func (w *weaver) condition(e ast.Expr) {
	if b, ok := e.(*ast.BinaryExpr); ok {
		switch b.Op {
		case token.LAND, token.LOR, token.EQL, token.NEQ:
			return
		}
	}
	w.around(e, "(("+"", ") != "+w.add(e, "turned")+")")
}

var goNeighbours = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

func (w *weaver) binary(b *ast.BinaryExpr) {
	switch b.Op {
	case token.LAND, token.LOR:
		for _, e := range []ast.Expr{b.X, b.Y} {
			if inner, ok := e.(*ast.BinaryExpr); ok && inner.Op == b.Op {
				continue // its operands are removed
			}
			on := w.add(e, "removed")
			if b.Op == token.LAND {
				w.around(e, "((", ") || "+on+")")
			} else {
				w.around(e, "((", ") && !"+on+")")
			}
		}
	case token.EQL, token.NEQ:
		w.around(b, "((", ") != "+w.add(b, "turned")+")")
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		if hasFunction(b) {
			return
		}
		on := w.add(b, b.Op.String()+" -> "+goNeighbours[b.Op].String())
		other := w.text(b.X) + " " + goNeighbours[b.Op].String() + " " + w.text(b.Y)
		w.around(b, "("+on+" && ("+other+") || !"+on+" && (", "))")
	}
}

func hasFunction(n ast.Node) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		_, is := n.(*ast.FuncLit)
		found = found || is
		return !found
	})
	return found
}

// statements removes the statements of a block that only have an effect.
func (w *weaver) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); !ok || w.text(call.Fun) == "panic" {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || strings.HasPrefix(w.text(s), "_ ") {
				continue
			}
		case *ast.IncDecStmt, *ast.BranchStmt, *ast.SendStmt:
			if b, ok := s.(*ast.BranchStmt); ok && b.Tok != token.CONTINUE && b.Tok != token.BREAK {
				continue
			}
		default:
			continue
		}
		w.around(s, "if !"+w.add(s, "left out")+" { ", " }")
	}
}
