package playground

import (
	"errors"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/evolve"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/migrate"
)

// output is what a command of outboxgen would write.
type output struct {
	Files []file `json:"files"`
	Note  string `json:"note"` // what the reader should know about the files, or why there are none
}

type file struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

// hasErrors is the note of an output that does not exist because of findings.
const hasErrors = "This needs a YAML without errors. The findings say what is wrong."

func none(note string) output { return output{Files: []file{}, Note: note} }

func failed(err error) output {
	var found diag.List
	if errors.As(err, &found) {
		return none(hasErrors)
	}
	return none(err.Error())
}

// goCode returns what outboxgen generate writes into an empty folder.
func goCode(text string) any {
	made, err := generator.Generate([]byte(text), generator.Options{Source: source})
	if err != nil {
		return failed(err)
	}
	out := none("")
	stubs := 0
	for _, f := range made {
		if f.Stub != nil {
			stubs++
		}
		out.Files = append(out.Files, file{f.Name, string(f.Content)})
	}
	if stubs > 0 {
		out.Note = "Files that do not end with .outbox.go are written once and then yours."
	}
	return out
}

func load(text string) (*model.Model, error) {
	m, found := generator.Load([]byte(text), generator.Options{Source: source})
	return m, found.Err()
}

// tables returns what outboxgen migrate get writes. Of the YAML only the name of the schema matters.
func tables(text string) any {
	m, err := load(text)
	if err != nil {
		return failed(err)
	}
	made, err := migrate.Export(m.Schema, migrate.Plain, 0)
	if err != nil {
		return failed(err)
	}
	out := none("The tables are the same for every YAML, in its schema. outboxgen migrate up applies them.")
	for _, f := range made {
		out.Files = append(out.Files, file{f.Name, string(f.Content)})
	}
	return out
}

// schemas returns the JSON Schema of each payload.
func schemas(text string) any {
	m, err := load(text)
	if err != nil {
		return failed(err)
	}
	out := none("outboxgen export jsonschema writes those of topics with publish.")
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			k := describe.KindOf(t)
			content, err := describe.JSONSchema(k, "")
			if err != nil {
				return failed(err)
			}
			out.Files = append(out.Files, file{describe.SchemaName(k), string(content)})
		}
	}
	return out
}

// asyncAPI returns what outboxgen export asyncapi prints.
func asyncAPI(text string) any {
	m, err := load(text)
	if err != nil {
		return failed(err)
	}
	if len(describe.Kinds(m)) == 0 {
		return none("No topic has publish, so there are no messages to describe.")
	}
	content, err := describe.AsyncAPI(m, describe.AsyncAPIConfig{Encoding: describe.Binary, Version: "1.0.0"})
	if err != nil {
		return failed(err)
	}
	return output{Files: []file{{"asyncapi.json", string(content)}}}
}

// change is a change that events, consumers or code would not survive.
type change struct {
	Line     int           `json:"line"`
	Column   int           `json:"column"`
	Severity diag.Severity `json:"severity"`
	Rule     diag.Rule     `json:"rule"`
	Class    evolve.Class  `json:"class"`
	Message  string        `json:"message"`
}

type changes struct {
	Changes []change `json:"changes"`
	Note    string   `json:"note"` // why there are none
}

// breaking returns what outboxgen breaking prints about a YAML and an older one.
func breaking(older, text string) any {
	result := changes{Changes: []change{}}
	found, err := generator.Breaking([]byte(older), []byte(text), "older.yaml", generator.Options{Source: source})
	var ofOlder diag.List
	switch {
	case errors.As(err, &ofOlder):
		result.Note = "The older YAML has findings: " + ofOlder[0].String()
		return result
	case err != nil:
		result.Note = err.Error()
		return result
	}
	for _, f := range found {
		if class := evolve.ClassOf(f.Rule); class != "" {
			result.Changes = append(result.Changes, change{f.Pos.Line, f.Pos.Column, f.Severity, f.Rule, class, f.Message})
		}
	}
	switch {
	case len(result.Changes) > 0:
	case found.HasErrors():
		result.Note = hasErrors
	default:
		result.Note = "No breaking change."
	}
	return result
}
