// Package templates holds the files that a person owns after they are written: handler stubs, and the files that
// `outboxgen init` starts a project with, among them the program of a worker. Templates render what they are given and
// make no decisions.
package templates

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"
)

//go:embed *.tmpl
var files embed.FS

var parsed = template.Must(template.New("").Option("missingkey=error").ParseFS(files, "*.tmpl"))

// Handlers is what the stub of a handler type needs.
type Handlers struct {
	Package   string
	Of        string // namespace mini_chat, or listener companion
	Interface string // MiniChatHandlers
	Type      string // MiniChatHandler
}

// HandlersStub renders the stub of a handler type.
func HandlersStub(data Handlers) ([]byte, error) { return render("handlers.go.tmpl", data) }

// Handle is what the stub of a handler method needs.
type Handle struct {
	Package string
	Topic   string // mini_chat/turn_finalized
	Payload string // TurnFinalized
	Type    string // MiniChatHandler
	Method  string // HandleTurnFinalized
}

// HandleStub renders the stub of a handler method.
func HandleStub(data Handle) ([]byte, error) { return render("handle.go.tmpl", data) }

// HandleTxStub renders the stub of a handler method that gets the transaction in which a cursor advances.
func HandleTxStub(data Handle) ([]byte, error) { return render("handle_tx.go.tmpl", data) }

// HandleBatchStub renders the stub of a handler method that gets batches.
func HandleBatchStub(data Handle) ([]byte, error) { return render("handle_batch.go.tmpl", data) }

// HandleTxBatchStub renders the stub of a handler method that gets batches, with the transaction in which a cursor
// advances.
func HandleTxBatchStub(data Handle) ([]byte, error) { return render("handle_tx_batch.go.tmpl", data) }

// Starter is what a first outbox.yaml and the Go file next to it need.
type Starter struct {
	Package string // Go package of the folder
	Source  string // name of the YAML, outbox.yaml
	Args    string // arguments of outboxgen generate, "" for none
}

// StarterYAML renders a first outbox.yaml: small and valid.
func StarterYAML(data Starter) ([]byte, error) { return render("outbox.yaml.tmpl", data) }

// StarterGo renders the Go file with the go:generate line.
func StarterGo(data Starter) ([]byte, error) { return render("generate.go.tmpl", data) }

// Worker is what the program needs that runs the dispatchers and listeners of an outbox.yaml.
type Worker struct {
	Source                 string // of the YAML, relative to the module
	Import, Alias, Package string // of the generated code; Alias is "" unless the import needs one
	Parts                  []WorkerPart
	Dispatchers, Listeners bool     // whether there are any
	Brokers                []string // that some part publishes to
	Conns                  int      // that all parts use
}

// WorkerPart is one dispatcher or listener.
type WorkerPart struct {
	Name        string // mini_chat
	Var         string // miniChatDispatcher
	Constructor string // events.NewMiniChatDispatcher
	Handlers    string // &events.MiniChatHandler{}, "" if everything is published
	Config      string // queue.Config
	Publishes   bool
}

// WorkerMain renders the main package of that program.
func WorkerMain(data Worker) ([]byte, error) { return render("worker.go.tmpl", data) }

func render(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	if err := parsed.ExecuteTemplate(&b, name, data); err != nil {
		return nil, fmt.Errorf("render template: %w", err)
	}
	return b.Bytes(), nil
}
