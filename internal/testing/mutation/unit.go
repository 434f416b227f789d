package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/schema"
)

// unit is what mutants are made of: a query, an object of the schema, or a function of Go.
type unit struct {
	name string // for example EventClaim, or table events
	text string
	file string // of the schema: the migration
	at   int    // of the schema: where text stands in the file
}

// mutant is one change.
type mutant struct {
	id   string
	unit string
	// text is the whole text of the query, or of the migration, with the change; of Go it is empty.
	text      string
	file      string // of the schema: the name of the migration
	object    string // of the schema: the text of the object, with the change
	goPackage string // of Go: the folder
}

// queryUnits reads the texts that sqlc has compiled, which are those that the runtime asks for.
func queryUnits(dir string) ([]unit, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.sql.go"))
	if err != nil {
		return nil, err
	}
	var units []unit
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(literal.Value); err == nil && strings.HasPrefix(text, "-- name: ") {
				units = append(units, unit{name: strings.Fields(text)[2], text: text})
			}
			return true
		})
	}
	return units, nil
}

var created = regexp.MustCompile(
	`(?m)^CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|FUNCTION|INDEX|SEQUENCE) (?:outbox_schema\.)?(\w+)`)

// schemaUnits splits the migrations into the objects that they create.
func schemaUnits() ([]unit, error) {
	names, err := fs.Glob(schema.Files, "*.up.sql")
	if err != nil {
		return nil, err
	}
	var units []unit
	for _, name := range names {
		text, err := fs.ReadFile(schema.Files, name)
		if err != nil {
			return nil, err
		}
		for _, match := range created.FindAllSubmatchIndex(text, -1) {
			u := unit{file: name, at: match[0]}
			u.name = strings.ToLower(string(text[match[2]:match[3]])) + " " + string(text[match[4]:match[5]])
			u.text = string(text[match[0] : match[0]+length(string(text[match[0]:]))])
			units = append(units, u)
		}
	}
	return units, nil
}

// length is where the first statement of sql ends.
func length(sql string) int {
	inBody := false
	for _, t := range tokens(sql) {
		if t.is("$$") {
			inBody = !inBody
		}
		if t.is(";") && !inBody {
			return t.end
		}
	}
	return len(sql)
}

// sqlMutants makes the mutants of queries and schema, each text once.
func sqlMutants(units []unit) ([]mutant, error) {
	var all []mutant
	ids := map[string]int{}
	for _, u := range units {
		seen := map[string]bool{words(u.text): true}
		for _, e := range sqlEdits(u.text) {
			changed := e.apply(u.text)
			if key := words(changed); seen[key] {
				continue
			} else {
				seen[key] = true
			}
			m := mutant{unit: u.name, text: changed, file: u.file, id: identify(u.name, u.text, e)}
			if ids[m.id]++; ids[m.id] > 1 {
				m.id += fmt.Sprintf(" #%d", ids[m.id])
			}
			if u.file != "" {
				whole, err := fs.ReadFile(schema.Files, u.file)
				if err != nil {
					return nil, err
				}
				m.text, m.object = string(whole[:u.at])+changed+string(whole[u.at+len(u.text):]), changed
			}
			all = append(all, m)
		}
	}
	return all, nil
}

// words is sql without comments and with single spaces.
func words(sql string) string {
	var parts []string
	for _, t := range tokens(sql) {
		parts = append(parts, t.text)
	}
	return strings.Join(parts, " ")
}

// identify names a change by what stands around it, so that the name stays when other lines change.
func identify(unit, text string, e edit) string {
	var before, old, after []string
	for _, t := range tokens(text) {
		switch {
		case t.end <= e.start:
			before = append(before, t.text)
		case t.start >= e.end:
			after = append(after, t.text)
		default:
			old = append(old, t.text)
		}
	}
	const around = 4
	before, after = before[max(0, len(before)-around):], after[:min(around, len(after))]
	return strings.TrimSpace(fmt.Sprintf("%s: %s [%s -> %s] %s", unit, strings.Join(before, " "),
		short(strings.Join(old, " ")), short(e.says), strings.Join(after, " ")))
}

func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	const most = 60
	if len(text) > most {
		return text[:most/2] + " ... " + text[len(text)-most/2:]
	}
	return text
}
