package check

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages are the imports that a fragment gets for the names that it uses, besides the generated packages of its page.
var packages = names(`
	bytes context encoding/json errors fmt io log log/slog maps net/http os os/signal slices strings sync syscall testing time
	github.com/google/uuid
	github.com/jackc/pgx/v5/pgxpool
	github.com/outboxgen/outboxgen/admin
	github.com/outboxgen/outboxgen/consume
	github.com/outboxgen/outboxgen/dashboard
	github.com/outboxgen/outboxgen/eventkey
	github.com/outboxgen/outboxgen/inbox
	github.com/outboxgen/outboxgen/listener
	github.com/outboxgen/outboxgen/migrate
	github.com/outboxgen/outboxgen/operation
	github.com/outboxgen/outboxgen/outbox
	github.com/outboxgen/outboxgen/outboxfake
	github.com/outboxgen/outboxgen/outboxtest
	github.com/outboxgen/outboxgen/payload
	github.com/outboxgen/outboxgen/publish
	github.com/outboxgen/outboxgen/publish/amqp
	github.com/outboxgen/outboxgen/publish/kafka
	github.com/outboxgen/outboxgen/publish/nats
	github.com/outboxgen/outboxgen/publish/publishtest
	github.com/outboxgen/outboxgen/publish/redis
	github.com/outboxgen/outboxgen/publish/webhook
	github.com/outboxgen/outboxgen/queue
	github.com/outboxgen/outboxgen/seal
	github.com/outboxgen/outboxgen/worker
	github.com/outboxgen/outboxgen/worker/signals
	github.com/prometheus/client_golang/prometheus
	github.com/stretchr/testify/require
	github.com/twmb/franz-go/pkg/kgo
	go.opentelemetry.io/otel/propagation
	golang.org/x/sync/errgroup
	pgx=github.com/jackc/pgx/v5
`)

// variables are declared for a fragment that uses them without declaring them.
var variables = map[string]string{
	"ctx":  "context.Context",
	"pool": "*pgxpool.Pool",
	"tx":   "pgx.Tx",
	"mux":  "*http.ServeMux",
	"w":    "*worker.Worker",
}

func names(list string) map[string]string {
	found := make(map[string]string)
	for _, path := range strings.Fields(list) {
		name, rest, given := strings.Cut(path, "=")
		if !given {
			name, rest = path[strings.LastIndex(path, "/")+1:], path
		}
		found[name] = rest
	}
	return found
}

// TestGoBlocks compiles the Go of all pages, in a module that uses this checkout. A block is a whole file, declarations
// or statements. It gets the imports that it needs, and the declarations in the go comment in front of it. With the
// comment "in: events" it is part of that generated package, and replaces the stub of the methods that it declares. With
// "from:" it is an excerpt of a file, which another test compiles. A line "..." leaves something out.
func TestGoBlocks(t *testing.T) {
	t.Parallel()
	m := newModule(t)
	readme := ""
	for _, b := range read(t, "README.md") {
		if b.language == "yaml" {
			readme = b.text
		}
	}
	m.generate("events", readme, "README.md")
	where := make(map[string]block) // by folder
	for _, page := range pages(t) {
		s := scope{m, map[string]string{"events": "example.com/app/events"}}
		for _, b := range read(t, page) {
			s.follow(b)
			_, skipped := b.comments["not run"]
			_, file := b.comments["file"]
			from, excerpt := b.comments["from"]
			switch {
			case b.language != "go" || skipped || file:
			case excerpt:
				requireExcerpt(t, s, b, from)
			default:
				folder := fmt.Sprintf("blocks/b%d", len(where))
				where[folder] = b
				s.place(b, folder)
			}
		}
	}
	require.Greater(t, len(where), 20)
	out, err := m.run("go", "vet", "-unreachable=false", "-unusedresult=false", "-copylocks=false", "./...")
	out = regexp.MustCompile(`blocks/b\d+`).ReplaceAllStringFunc(out, func(folder string) string {
		return where[folder].String() + " (" + folder + ")"
	})
	require.NoError(t, err, out)
}

// place writes a block as a package of the module.
func (s scope) place(b block, folder string) {
	t := s.m.t
	t.Helper()
	text := regexp.MustCompile(`(?m)^([ \t]*)\.\.\.([ \t].*)?$`).ReplaceAllString(b.text, "$1// ...")
	inside, within := b.comments["in"], false
	pkg := "block"
	if inside != "" {
		path, ok := s.paths[inside]
		require.True(t, ok, "%s: the page has no package %s", b, inside)
		s.copyPackage(strings.TrimPrefix(path, "example.com/app/"), folder, text+b.comments["go"])
		pkg, within = inside, true
	}
	if m := regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(text); m != nil {
		// A whole file imports its package events as a user does.
		text = strings.ReplaceAll(text, `"example.com/app/events"`, fmt.Sprintf("events %q", s.paths["events"]))
		s.m.write(folder+"/block.go", s.complete(b, text, within))
		return
	}
	code := "package " + pkg + "\n"
	imports := regexp.MustCompile(`(?m)^import (\(\n[^)]*\)|.*)\n`)
	for _, line := range imports.FindAllString(text, -1) {
		code += line
	}
	text = imports.ReplaceAllString(text, "")
	preamble := b.comments["go"]
	if i := imports.FindAllString(preamble+"\n", -1); i != nil {
		code += strings.Join(i, "")
		preamble = imports.ReplaceAllString(preamble+"\n", "")
	}
	code += preamble + "\n"
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, 0); err == nil {
		code += text
	} else {
		code += "func _() error {\n" + text + used(t, b, text) + "return nil\n}\n"
	}
	s.m.write(folder+"/block.go", s.complete(b, code, within))
	if strings.Contains(code, "testing.T") {
		require.NoError(t, os.Rename(filepath.Join(s.m.dir, folder, "block.go"), filepath.Join(s.m.dir, folder, "block_test.go")))
	}
}

// used returns statements that use the variables that the statements of a block declare for the reader.
func used(t testing.TB, b block, text string) (uses string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() error {\n"+text+"\nreturn nil\n}\n", 0)
	require.NoError(t, err, "%s is neither declarations nor statements", b)
	for _, stmt := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if assign, ok := stmt.(*ast.AssignStmt); ok && assign.Tok == token.DEFINE {
			for _, left := range assign.Lhs {
				if id := left.(*ast.Ident).Name; id != "_" {
					uses += "_ = " + id + "\n"
				}
			}
		}
	}
	return uses
}

// complete adds the imports and the variables that code uses without declaring them.
func (s scope) complete(b block, code string, within bool) string {
	t := s.m.t
	t.Helper()
	for range 2 { // the types of variables need imports too
		file, err := parser.ParseFile(token.NewFileSet(), "", code, parser.ParseComments)
		require.NoError(t, err, "%s", b)
		imported := make(map[string]bool)
		for _, i := range file.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			name := path[strings.LastIndex(path, "/")+1:]
			if i.Name != nil {
				name = i.Name.Name
			}
			imported[name] = true
			if name == "v5" {
				imported["pgx"] = true
			}
		}
		var imports, declared []string
		for _, id := range file.Unresolved { //nolint:staticcheck // what it misses is an error of the compiler
			path, ok := s.paths[id.Name]
			if !ok || within {
				path, ok = packages[id.Name], packages[id.Name] != ""
			}
			switch typ := variables[id.Name]; {
			case imported[id.Name]:
			case ok:
				imports = append(imports, fmt.Sprintf("import %s %q\n", id.Name, path))
			case typ != "":
				declared = append(declared, fmt.Sprintf("\nvar %s %s\n", id.Name, typ))
			}
		}
		slices.Sort(imports)
		slices.Sort(declared)
		head, rest, _ := strings.Cut(code[file.Name.Pos()-1:], "\n")
		code = code[:file.Name.Pos()-1] + head + "\n" + strings.Join(slices.Compact(imports), "") + rest + strings.Join(slices.Compact(declared), "")
	}
	return code
}

// copyPackage copies a generated package, without the stubs that have a function of text.
func (s scope) copyPackage(from, to, text string) {
	t := s.m.t
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.m.dir, from, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, from)
	function := regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type )\w+`)
	own := function.FindAllString(text, -1)
	for _, file := range files {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		replaced := !strings.Contains(string(code), "DO NOT EDIT") &&
			slices.ContainsFunc(function.FindAllString(string(code), -1), func(f string) bool { return slices.Contains(own, f) })
		if !replaced {
			s.m.write(to+"/"+filepath.Base(file), string(code))
		}
	}
}

// requireExcerpt requires that the lines of a block stand in a file, in this order and next to each other, except where
// a line "..." leaves something out. The file "generated" is any generated file of the page, whose functions are shown
// without their bodies.
func requireExcerpt(t testing.TB, s scope, b block, from string) {
	t.Helper()
	var text []byte
	if from == "generated" {
		for _, path := range s.paths {
			files, err := filepath.Glob(filepath.Join(s.m.dir, strings.TrimPrefix(path, "example.com/app/"), "*.go"))
			require.NoError(t, err)
			for _, file := range files {
				code, err := os.ReadFile(file)
				require.NoError(t, err)
				text = append(text, code...)
			}
		}
		for line := range strings.Lines(b.text) {
			if line = strings.TrimSpace(line); line != "" {
				require.Contains(t, string(text), line, "%s is not generated", b)
			}
		}
		return
	}
	text, err := os.ReadFile(filepath.Join(root, from))
	require.NoError(t, err, b)
	have, at := unindented(string(text)), 0
	for i, part := range regexp.MustCompile(`(?m)^\s*(?:\.\.\.|// \.\.\.).*\n`).Split(b.text, -1) {
		want := unindented(part)
		if want == "" {
			continue
		}
		n := strings.Index(have[at:], want)
		require.GreaterOrEqual(t, n, 0, "%s: part %d is not in %s:\n%s", b, i, from, part)
		at += n + len(want)
	}
}

// unindented returns text without indentation and blank lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
