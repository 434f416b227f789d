package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"hash/fnv"
	"slices"
	"strings"
)

// weaver inserts the switches of mutants into a file.
type weaver struct {
	set     *token.FileSet
	info    *types.Info // nil if the types are not known
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

// function makes the mutants of a function: a condition of a branch or loop that says the contrary, an operand of && or ||
// that is not there, and a bound that is one further.
//
// It leaves no statements out: the tests that kill these mutants notice seven of eight statements that are left out, and
// many of the others only save work or memory, which no promise is about.
func (w *weaver) function(f *ast.FuncDecl) {
	w.fn = f.Name.Name
	if f.Recv != nil && len(f.Recv.List) == 1 {
		w.fn = strings.TrimPrefix(w.text(f.Recv.List[0].Type), "*") + "." + w.fn
	}
	operands, clamps := map[ast.Expr]bool{}, map[ast.Expr]bool{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.CONST
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
			clamps[n.Cond] = w.isClamp(n)
		case *ast.ForStmt:
			w.loop(n.Cond)
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				operands[bare(n.X)], operands[bare(n.Y)] = true, true
			}
			w.binary(n, operands[n], clamps[n])
		}
		return true
	})
}

// bare returns e without parentheses.
func bare(e ast.Expr) ast.Expr {
	for {
		p, ok := e.(*ast.ParenExpr)
		if !ok {
			return e
		}
		e = p.X
	}
}

// condition turns a condition that is neither a comparison nor made of parts, which have mutants of their own.
func (w *weaver) condition(e ast.Expr) {
	if _, ok := bare(e).(*ast.BinaryExpr); !ok {
		w.around(e, "((", ") != "+w.add(e, "turned")+")")
	}
}

// loop makes a loop that is not entered. One that is turned would not end.
func (w *weaver) loop(e ast.Expr) {
	if e == nil {
		return
	}
	if b, ok := bare(e).(*ast.BinaryExpr); ok && (b.Op == token.LAND || b.Op == token.LOR) {
		return // its operands are removed
	}
	w.around(e, "((", ") && !"+w.add(e, "never")+")")
}

var goNeighbours = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

// binary makes the mutants of a logical expression and of a comparison. A comparison that is an operand is not turned,
// because it is removed.
func (w *weaver) binary(b *ast.BinaryExpr, operand, clamp bool) {
	switch b.Op {
	case token.LAND, token.LOR:
		for _, e := range []ast.Expr{b.X, b.Y} {
			if inner, ok := bare(e).(*ast.BinaryExpr); ok && inner.Op == b.Op {
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
		if !operand {
			w.around(b, "((", ") != "+w.add(b, "turned")+")")
		}
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		if hasFunction(b) {
			return
		}
		if !operand {
			w.around(b, "((", ") != "+w.add(b, "turned")+")")
		}
		if clamp || w.isMoment(b) || w.isCapacity(b) {
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

// isClamp reports whether s only moves a value to the bound that it is compared with: at the bound it changes nothing.
func (w *weaver) isClamp(s *ast.IfStmt) bool {
	b, ok := bare(s.Cond).(*ast.BinaryExpr)
	if !ok || s.Else != nil || len(s.Body.List) != 1 {
		return false
	}
	a, ok := s.Body.List[0].(*ast.AssignStmt)
	if !ok || a.Tok != token.ASSIGN || len(a.Lhs) != 1 {
		return false
	}
	x, y, to, from := w.text(b.X), w.text(b.Y), w.text(a.Lhs[0]), w.text(a.Rhs[0])
	if call, ok := b.X.(*ast.CallExpr); ok && len(call.Args) == 1 && y == "0" { // x.Compare(y) > 0
		if of, ok := call.Fun.(*ast.SelectorExpr); ok && of.Sel.Name == "Compare" {
			x, y = w.text(of.X), w.text(call.Args[0])
		}
	}
	return to == x && from == y || to == y && from == x
}

// isMoment reports whether b compares two durations: no promise is about the nanosecond at which they are equal. Zero is
// not meant, because it may have a meaning of its own.
func (w *weaver) isMoment(b *ast.BinaryExpr) bool {
	if w.info == nil {
		return false
	}
	x, y := w.info.Types[b.X], w.info.Types[b.Y]
	return x.Type != nil && x.Type.String() == "time.Duration" && !isZero(x) && !isZero(y)
}

func isZero(v types.TypeAndValue) bool { return v.Value != nil && constant.Sign(v.Value) == 0 }

// isCapacity reports whether b asks for the capacity of a slice, which only says what is allocated.
func (w *weaver) isCapacity(b *ast.BinaryExpr) bool {
	return strings.HasPrefix(w.text(b.X), "cap(") || strings.HasPrefix(w.text(b.Y), "cap(")
}
