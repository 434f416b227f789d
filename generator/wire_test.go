package generator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/evolve"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/sample"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
)

// TestWireClass proves the wire class. It draws thousands of pairs of an old and a new payload, generates the code of both
// and compiles it into one program. The tool must call a pair compatible exactly when random payloads of the old shape
// decode in the new code, are valid there and mean the same, and payloads of the new shape decode in the old code without
// values that nobody sent. (Both builds run side by side in a deployment.)
func TestWireClass(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	const shapesPerPackage, changesPerShape = 100, 5
	packages := campaign.Of(1, 4)
	seed := uint64(20260102)
	if text := os.Getenv("WIRE_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	d := &shapes{Rand: rand.New(rand.NewPCG(seed, 1))}

	program := newOverlaid(t)
	var table strings.Builder
	var stdin bytes.Buffer
	var verdicts []bool
	var described []string
	for p := range packages {
		source := newTypes()
		var changes []pairOf
		for range shapesPerPackage {
			old := d.structure(0)
			oldName := fmt.Sprintf("o%d", len(changes))
			source.declare(oldName, old)
			for range changesPerShape {
				now := clone(old)
				change := d.change(now)
				name := fmt.Sprintf("n%d", len(changes))
				source.declare(name, now)
				changes = append(changes, pairOf{oldName, name, change})
				fmt.Fprintf(&table, "\t\t{of(reflect.TypeFor[p%d.%s]()), of(reflect.TypeFor[p%d.%s]())},\n", p, strings.ToUpper(oldName), p, strings.ToUpper(name))
			}
		}
		text := source.yaml(fmt.Sprintf("p%d", p))
		m, findings := model.Load([]byte(text), "outbox.yaml")
		require.NotNil(t, m, "%s", findings)
		files, err := generator.Generate([]byte(text), generator.Options{Stubs: generator.StubsNone})
		require.NoError(t, err)
		for _, f := range files {
			program.add(fmt.Sprintf("p%d/%s", p, f.Name), f.Content)
		}
		types := make(map[string]*model.Type)
		for _, of := range m.Types {
			types[of.Name] = of
		}
		encoder := json.NewEncoder(&stdin)
		for _, c := range changes {
			old, now := types[c.old].Fields, types[c.now].Fields
			findings := evolve.Payloads(old, now)
			verdicts = append(verdicts, !findings.HasErrors())
			described = append(described, fmt.Sprintf("%s; found: %s\n%s%s", c.change, findings, source.text[c.old], source.text[c.now]))
			require.NoError(t, encoder.Encode(map[string]any{"Old": d.payloads(old), "New": d.payloads(now)}))
		}
	}
	main, err := os.ReadFile("testdata/wire/main.go.txt")
	require.NoError(t, err)
	program.add("main.go", main)
	var imports strings.Builder
	for p := range packages {
		fmt.Fprintf(&imports, "\t%q\n", program.path(fmt.Sprintf("p%d", p)))
	}
	program.add("pairs.go", fmt.Appendf(nil, "package main\n\nimport (\n\t\"reflect\"\n\n%s)\n\nfunc pairs() []pair {\n\treturn []pair{\n%s\t}\n}\n", imports.String(), table.String()))
	out := program.run(&stdin)

	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	require.Len(t, lines, len(verdicts))
	compatible := 0
	var wrong []string
	for i, line := range lines {
		_, loss, _ := strings.Cut(line, " ")
		if verdicts[i] != (loss == "") {
			wrong = append(wrong, fmt.Sprintf("pair %d: the tool says %t, the program %q; change: %s", i, verdicts[i], loss, described[i]))
		}
		if verdicts[i] {
			compatible++
		}
	}
	require.Empty(t, wrong, "%d of %d verdicts with WIRE_SEED=%d:\n%s", len(wrong), len(verdicts), seed, strings.Join(wrong[:min(len(wrong), 8)], "\n"))
	require.Greater(t, compatible, len(verdicts)/4, "both verdicts are tested")
	require.Less(t, compatible, len(verdicts)*3/4, "both verdicts are tested")
	t.Logf("%d pairs, %d of them compatible", len(verdicts), compatible)
}

// pairOf names the types of a pair, and says what was changed.
type pairOf struct{ old, now, change string }

// overlaid is a Go program of files that are not in the module's folder.
type overlaid struct {
	t      *testing.T
	dir    string // where the files are
	module string // where the go command sees them
	files  map[string]string
}

func newOverlaid(t *testing.T) *overlaid {
	module, err := filepath.Abs("wireprogram")
	require.NoError(t, err)
	return &overlaid{t: t, dir: t.TempDir(), module: module, files: make(map[string]string)}
}

func (p *overlaid) path(sub string) string {
	return "github.com/outboxgen/outboxgen/generator/wireprogram/" + sub
}

func (p *overlaid) add(name string, content []byte) {
	file := filepath.Join(p.dir, strings.ReplaceAll(name, "/", "-"))
	require.NoError(p.t, os.WriteFile(file, content, 0o644))
	p.files[filepath.Join(p.module, filepath.FromSlash(name))] = file
}

// run builds the program and returns what it prints.
func (p *overlaid) run(stdin *bytes.Buffer) string {
	overlay, err := json.Marshal(map[string]any{"Replace": p.files})
	require.NoError(p.t, err)
	file := filepath.Join(p.dir, "overlay.json")
	require.NoError(p.t, os.WriteFile(file, overlay, 0o644))
	binary := filepath.Join(p.dir, "program")
	out, err := exec.CommandContext(p.t.Context(), "go", "build", "-gcflags=-N -l", "-overlay", file, "-o", binary, p.path("")[:len(p.path(""))-1]).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	c := exec.CommandContext(p.t.Context(), binary)
	var stderr bytes.Buffer
	c.Stdin, c.Stderr = stdin, &stderr
	printed, err := c.Output()
	require.NoError(p.t, err, stderr.String())
	return string(printed)
}

// kind is a type of a random payload.
type kind struct {
	name   string // built-in, or list, map, struct, enum, scalar
	elem   *kind
	fields []*member
	values []string
	base   string // of a scalar
	rules  rules  // of a scalar
}

type member struct {
	name     string
	optional bool
	of       *kind
	rules    rules
}

// rules are bounds, "" for none.
type rules struct{ min, max, minLen, maxLen, pattern string }

func clone(k *kind) *kind {
	c := *k
	if k.elem != nil {
		c.elem = clone(k.elem)
	}
	c.values = slices.Clone(k.values)
	c.fields = nil
	for _, f := range k.fields {
		copied := *f
		copied.of = clone(f.of)
		c.fields = append(c.fields, &copied)
	}
	return &c
}

// shapes draws payloads and changes.
type shapes struct {
	*rand.Rand
	names int
}

func (d *shapes) name() string {
	d.names++
	return fmt.Sprintf("f%d", d.names)
}

func (d *shapes) one(of ...string) string { return of[d.IntN(len(of))] }

func (d *shapes) structure(depth int) *kind {
	k := &kind{name: "struct"}
	for range 1 + d.IntN(3) {
		k.fields = append(k.fields, d.member(depth))
	}
	return k
}

func (d *shapes) member(depth int) *member {
	f := &member{name: d.name(), optional: d.IntN(3) == 0, of: d.kind(depth)}
	f.rules = d.rules(f.of.name)
	return f
}

var builtIn = []string{"string", "bool", "int32", "int64", "float64", "uuid", "timestamp", "date", "duration", "bytes", "json"}

func (d *shapes) kind(depth int) *kind {
	switch n := d.IntN(20); {
	case n < 2 && depth < 2:
		return d.structure(depth + 1)
	case n < 4 && depth < 2:
		return &kind{name: d.one("list", "map"), elem: d.kind(depth + 1)}
	case n < 6:
		values := []string{"a", "b", "c", "d", "e"}
		return &kind{name: "enum", values: values[:2+d.IntN(4)]}
	case n < 8:
		base := d.one("uuid", "string", "int32", "int64")
		return &kind{name: "scalar", base: base, rules: d.rules(base)}
	}
	return &kind{name: d.one(builtIn...)}
}

// rules draws bounds for a type. They leave room, so that a changed bound matters.
func (d *shapes) rules(of string) (r rules) {
	some := func(texts ...string) string {
		if d.IntN(2) == 0 {
			return ""
		}
		return d.one(texts...)
	}
	switch of {
	case "int32", "int64":
		r.min, r.max = some("-7", "0", "5"), some("100", "1000")
	case "duration":
		r.min, r.max = some("0s", "5ms"), some("1h", "2h")
	case "float64":
		r.min, r.max = some("-0.5", "0", "0.25"), some("10", "1e6")
	case "string", "bytes", "list", "map":
		r.minLen, r.maxLen = some("0", "1", "2"), some("4", "5", "6")
		if of == "string" && d.IntN(4) == 0 {
			r.pattern = d.one("^a*$", "^b*$", "^c*$")
		}
	}
	return r
}

// change changes one or two things of k, or nothing, and says what.
func (d *shapes) change(k *kind) string {
	var done []string
	for range d.IntN(3) {
		structs := structsIn(k)
		s := structs[d.IntN(len(structs))]
		at := d.IntN(len(s.fields))
		f := s.fields[at]
		switch d.IntN(12) {
		case 0:
			added := d.member(1)
			added.optional = true
			s.fields = slices.Insert(s.fields, at, added)
			done = append(done, "add optional "+added.name)
		case 1:
			added := d.member(1)
			added.optional = false
			s.fields = append(s.fields, added)
			done = append(done, "add required "+added.name)
		case 2:
			if len(s.fields) > 1 {
				s.fields = slices.Delete(s.fields, at, at+1)
				done = append(done, "remove "+f.name)
			}
		case 3:
			done = append(done, "rename "+f.name)
			f.name = d.name()
		case 4:
			f.optional = !f.optional
			done = append(done, "toggle "+f.name)
		case 5:
			f.of = d.kind(1)
			f.rules = d.rules(f.of.name)
			done = append(done, "retype "+f.name)
		case 6:
			d.Shuffle(len(s.fields), func(i, j int) { s.fields[i], s.fields[j] = s.fields[j], s.fields[i] })
			done = append(done, "shuffle")
		case 7:
			of := f.of
			for of.elem != nil {
				of = of.elem
			}
			if of.name == "enum" && d.IntN(2) == 0 && len(of.values) > 1 {
				of.values = slices.Delete(of.values, 0, 1)
				done = append(done, "remove a value in "+f.name)
			} else if of.name == "enum" {
				of.values = append(of.values, "new")
				done = append(done, "add a value in "+f.name)
			}
		case 8:
			if f.of.name == "struct" || f.of.elem != nil {
				f.of = &kind{name: d.one("list", "map"), elem: f.of}
				f.rules = rules{}
				done = append(done, "wrap "+f.name)
			}
		default:
			of, r := f.of.name, &f.rules
			if of == "scalar" {
				of, r = f.of.base, &f.of.rules
			}
			*r = d.rules(of)
			done = append(done, "bounds of "+f.name)
		}
	}
	return strings.Join(done, ", ")
}

// structsIn returns the structs of k, itself first.
func structsIn(k *kind) []*kind {
	var all []*kind
	if k.name == "struct" {
		all = append(all, k)
	}
	if k.elem != nil {
		all = append(all, structsIn(k.elem)...)
	}
	for _, f := range k.fields {
		all = append(all, structsIn(f.of)...)
	}
	return all
}

// payloads returns payloads with the extremes of each field, and random ones.
func (d *shapes) payloads(fields []*model.Field) []json.RawMessage {
	all := sample.Payloads(fields)
	for i := range 3 {
		all = append(all, sample.Payload(fields, extreme(i)))
	}
	for range campaign.Of(8, 40) {
		all = append(all, sample.Payload(fields, chance{d.Rand}))
	}
	return all
}

// extreme takes the same value everywhere.
type extreme int

func (e extreme) Present() bool   { return true }
func (e extreme) Value(n int) int { return min(int(e), n-1) }
func (e extreme) Enum(n int) int  { return int(e) % n }

type chance struct{ *rand.Rand }

func (c chance) Present() bool   { return c.IntN(4) > 0 }
func (c chance) Value(n int) int { return c.IntN(n) }
func (c chance) Enum(n int) int  { return c.IntN(n) }

// typesWriter writes the types of an outbox.yaml.
type typesWriter struct {
	text  map[string]string // by name, for messages
	known map[string]string // names by text: types that are the same are declared once
	lines strings.Builder
}

func newTypes() *typesWriter {
	return &typesWriter{text: make(map[string]string), known: make(map[string]string)}
}

func (w *typesWriter) yaml(pkg string) string {
	return fmt.Sprintf("version: \"1\"\npackage: %s\ntypes:\n%snamespaces: {z: {topics: {z: {payload: {id: uuid}}}}}\n", pkg, w.lines.String())
}

func (w *typesWriter) declare(name string, k *kind) {
	inner := ""
	body := w.body(k, &inner)
	w.text[name] = inner + w.line(name, body)
}

func (w *typesWriter) line(name, body string) string {
	line := fmt.Sprintf("  %s: {%s}\n", name, body)
	w.lines.WriteString(line)
	return line
}

// body returns a shared type without its name, and adds the declarations that it uses to inner.
func (w *typesWriter) body(k *kind, inner *string) string {
	switch k.name {
	case "enum":
		return "enum: [" + strings.Join(k.values, ", ") + "]"
	case "scalar":
		return "scalar: " + k.base + k.rules.keys()
	}
	var fields []string
	for _, f := range k.fields {
		mark := ""
		if f.optional {
			mark = "?"
		}
		fields = append(fields, fmt.Sprintf("%s: {type: %q%s}", f.name, w.reference(f.of, inner)+mark, f.rules.keys()))
	}
	return "fields: {" + strings.Join(fields, ", ") + "}"
}

// reference returns the type of a field, and declares it if it is a shared one.
func (w *typesWriter) reference(k *kind, inner *string) string {
	switch k.name {
	case "list":
		return "[]" + w.reference(k.elem, inner)
	case "map":
		return "map[string]" + w.reference(k.elem, inner)
	case "struct", "enum", "scalar":
		body := w.body(k, inner)
		name := w.known[body]
		if name == "" {
			name = fmt.Sprintf("t%d", len(w.known)+1)
			w.known[body] = name
			w.text[name] = w.line(name, body)
		}
		*inner += w.text[name]
		return name
	}
	return k.name
}

func (r rules) keys() string {
	keys := ""
	for _, key := range []struct{ name, value string }{{"min", r.min}, {"max", r.max}, {"min_len", r.minLen}, {"max_len", r.maxLen}} {
		if key.value != "" {
			keys += fmt.Sprintf(", %s: %s", key.name, key.value)
		}
	}
	if r.pattern != "" {
		keys += fmt.Sprintf(", pattern: %q", r.pattern)
	}
	return keys
}
