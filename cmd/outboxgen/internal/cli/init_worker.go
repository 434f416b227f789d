package cli

import (
	"bufio"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/templates"
)

// workerFile is the program that init --worker writes, relative to the root of the module.
const workerFile = "cmd/worker/main.go"

// workerHome is where the worker of the package in a folder belongs.
type workerHome struct {
	root   string // of the module, as messages show it
	folder string // of the package, relative to root, with slashes
	module string // path of the module
}

// findHome finds the module of dir, which need not exist yet. It returns an error if there is a worker already.
func findHome(dir string) (workerHome, error) {
	var p workerHome
	root, err := moduleRoot(dir)
	if err != nil {
		return p, usage(errors.New("--worker: no go.mod found: run go mod init <module> first, because the worker imports " +
			"the package by the path of its module"))
	}
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return p, usage(fmt.Errorf("--worker: %w", err))
	}
	if p.module = modulePath(string(text)); p.module == "" {
		return p, usage(fmt.Errorf("--worker: %s names no module", filepath.Join(root, "go.mod")))
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		return p, err
	}
	folder, err := filepath.Rel(root, full)
	if err != nil {
		return p, err
	}
	p.root, p.folder = root, filepath.ToSlash(folder)
	if here, err := filepath.Abs("."); err == nil {
		if short, err := filepath.Rel(here, root); err == nil {
			p.root = short
		}
	}
	target := filepath.Join(p.root, filepath.FromSlash(workerFile))
	if _, err := os.Lstat(target); err == nil {
		return p, usage(fmt.Errorf("write %s: file exists, and init never overwrites a file", target))
	}
	found, err := look(filepath.Dir(target))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return p, err
	case found.code:
		return p, usage(fmt.Errorf("write %s: the folder already contains package %s", target, found.name))
	}
	return p, nil
}

// report adds the worker, which publishes to brokers, to the report of the other files.
func (p workerHome) report(dir string, brokers []string, r initReport) initReport {
	file := filepath.ToSlash(filepath.Join(p.root, filepath.FromSlash(workerFile)))
	r.Files = append(r.Files, file)
	if len(brokers) > 0 {
		r.Next = append(r.Next, "write newPublishers in "+file)
	}
	r.Next = append(r.Next, "go tool outboxgen migrate up --config "+filepath.ToSlash(filepath.Join(dir, defaultConfig)),
		"go run "+packageArgument(filepath.Dir(filepath.FromSlash(file)))+" run")
	return r
}

// modulePath returns the path of the module that a go.mod declares, "" if it declares none.
func modulePath(text string) string {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "//")
		words := strings.Fields(line)
		if len(words) != 2 || words[0] != "module" {
			continue
		}
		if path, err := strconv.Unquote(words[1]); err == nil {
			return path
		}
		return words[1]
	}
	return ""
}

// workerImports are the names that the program imports itself.
var workerImports = []string{
	"context", "errors", "flag", "fmt", "io", "json", "listener", "os", "outbox", "pgxpool", "publish", "queue", "signal",
	"syscall", "time", "worker",
}

// workerProgram renders the worker for m, whose code is in the folder of p. It publishes to brokers.
func workerProgram(p workerHome, m *model.Model) (program generator.File, brokers []string, err error) {
	if m.Package == "main" {
		return program, nil, usage(errors.New(
			"--worker: no program can import package main: put the YAML into a folder with another package"))
	}
	data := templates.Worker{
		Source: path.Join(p.folder, m.Source), Import: path.Join(p.module, p.folder), Package: m.Package,
	}
	local := m.Package
	if slices.Contains(workerImports, local) {
		local = "topics"
	}
	if local != path.Base(data.Import) {
		data.Alias = local
	}
	for _, n := range m.Namespaces {
		topics, handled := n.QueueTopics(), len(n.Handled()) > 0
		if len(topics) == 0 {
			continue
		}
		part := newWorkerPart(local, n.GoName, "Dispatcher", handled, n.Stubs)
		part.Name, part.Publishes = n.Name, len(n.Handled()) < len(topics)
		data.Parts, data.Dispatchers = append(data.Parts, part), true
		data.Conns += 4
		if handled {
			data.Conns += 10
		}
		addBrokers(&data, topics)
	}
	for _, l := range m.Listeners {
		part := newWorkerPart(local, l.GoName, "Listener", !l.Publish, l.Stubs)
		part.Name, part.Publishes = l.Name, l.Publish
		if slices.ContainsFunc(data.Parts, func(o templates.WorkerPart) bool { return o.Name == l.Name }) {
			part.Name = "listener " + l.Name
		}
		data.Parts, data.Listeners = append(data.Parts, part), true
		data.Conns += 2*l.Shards + 1
		if l.Publish {
			addBrokers(&data, l.Topics)
		} else {
			data.Conns += l.Concurrency * l.Shards
		}
	}
	if len(data.Parts) == 0 {
		return program, nil, usage(fmt.Errorf(
			"--worker: %s declares no queue topic and no listener: there is nothing that a worker could run", data.Source))
	}
	code, err := templates.WorkerMain(data)
	if err != nil {
		return program, nil, err
	}
	code, err = format.Source(code)
	return generator.File{Name: workerFile, Content: code}, data.Brokers, err
}

// newWorkerPart returns the part for a generated constructor. Without handlers everything is published; without stubs
// the user has a type whose name is not known here.
func newWorkerPart(local, goName, kind string, handled, stubs bool) templates.WorkerPart {
	letters := []rune(goName)
	letters[0] = unicode.ToLower(letters[0])
	part := templates.WorkerPart{
		Var: string(letters) + kind, Constructor: local + ".New" + goName + kind, Config: strings.ToLower(kind) + ".Config",
	}
	if kind == "Dispatcher" {
		part.Config = "queue.Config"
	}
	switch {
	case handled && stubs:
		part.Handlers = "&" + local + "." + goName + "Handler{}"
	case handled:
		part.Handlers = local + ".Unimplemented" + goName + "Handlers{}"
	}
	return part
}

// addBrokers adds those that topics are published to.
func addBrokers(data *templates.Worker, topics []*model.Topic) {
	for _, t := range topics {
		if t.Publish != nil && !slices.Contains(data.Brokers, string(t.Publish.Broker)) {
			data.Brokers = append(data.Brokers, string(t.Publish.Broker))
		}
	}
}
