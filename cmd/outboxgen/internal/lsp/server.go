// Package lsp is the language server of outboxgen: the Language Server Protocol around the package editor. It reads files
// that the editor has not opened: locks, and generated Go code. It writes nothing.
package lsp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"

	"github.com/sourcegraph/jsonrpc2"

	"github.com/outboxgen/outboxgen/generator/editor"
)

// Config is what the server needs of its program.
type Config struct {
	Version string
	// Folder returns a folder as a slash path from the root of its module, "." if it is not in one.
	Folder func(dir string) string
	// Module returns the root of the module of a folder, "" if it is not in one.
	Module func(dir string) string
}

// ErrNoShutdown says that the editor ended the connection and had not asked the server to shut down.
var ErrNoShutdown = errors.New("the editor ended without a shutdown request")

// Serve speaks with an editor until the connection ends, the editor asks to exit, or ctx ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer, cfg Config) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{
		Config: cfg, files: make(map[string]*file), cancels: make(map[string]context.CancelFunc),
		turn: make(chan struct{}, 1), changed: make(chan struct{}, 1), stale: make(map[string]bool),
	}
	quiet := jsonrpc2.SetLogger(log.New(io.Discard, "", 0))
	stream := jsonrpc2.NewBufferedStream(pipe{in, out}, jsonrpc2.VSCodeObjectCodec{})
	s.ready.Lock()
	s.conn = jsonrpc2.NewConn(ctx, stream, s, quiet)
	s.ready.Unlock()
	s.running.Go(func() { s.publish(ctx) })
	<-s.conn.DisconnectNotify()
	cancel()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.down {
		return ErrNoShutdown
	}
	return nil
}

// pipe is stdin and stdout. Close does nothing: a read of stdin cannot be interrupted, and the program ends anyway.
type pipe struct {
	io.Reader
	io.Writer
}

func (pipe) Close() error { return nil }

type server struct {
	Config
	conn    *jsonrpc2.Conn
	ready   sync.Mutex // until conn is set
	running sync.WaitGroup
	turn    chan struct{} // full while a request is worked on: there is one at a time
	changed chan struct{} // full while stale has files

	mu       sync.Mutex
	files    map[string]*file // by URI
	stale    map[string]bool  // files whose diagnostics are not those of their document
	outgoing []publishDiagnosticsParams
	cancels  map[string]context.CancelFunc
	started  bool // initialize was answered
	watch    bool // the client can watch files
	down     bool // shutdown was answered
}

// Handle takes a message. Notifications take effect in their order; a request is answered about the documents as they
// are when it comes.
func (s *server) Handle(ctx context.Context, _ *jsonrpc2.Conn, req *jsonrpc2.Request) {
	s.ready.Lock()
	defer s.ready.Unlock()
	if req.Notif {
		s.notified(ctx, req)
		return
	}
	answer, err := s.accept(req)
	if err != nil || answer == nil {
		s.reply(ctx, req.ID, nil, err)
		return
	}
	id := req.ID.String()
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancels[id] = cancel
	s.mu.Unlock()
	s.running.Go(func() {
		defer cancel()
		result, err := s.inTurn(ctx, answer)
		s.mu.Lock()
		delete(s.cancels, id)
		s.mu.Unlock()
		s.reply(context.WithoutCancel(ctx), req.ID, result, err)
	})
}

// inTurn calls answer when no other request is worked on. A request that is cancelled before is not answered.
func (s *server) inTurn(ctx context.Context, answer func() (any, error)) (result any, err error) {
	cancelled := &jsonrpc2.Error{Code: codeCancelled, Message: "cancelled"}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, cancelled
	}
	if ctx.Err() != nil {
		return nil, cancelled
	}
	return safely(answer)
}

// safely turns a panic into an error, so that one request cannot end the server.
func safely(answer func() (any, error)) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &jsonrpc2.Error{Code: jsonrpc2.CodeInternalError, Message: fmt.Sprintf("panic: %v", p)}
		}
	}()
	return answer()
}

func (s *server) reply(ctx context.Context, id jsonrpc2.ID, result any, err error) {
	if err == nil {
		_ = s.conn.Reply(ctx, id, result) // the connection may have ended
		return
	}
	var protocol *jsonrpc2.Error
	if !errors.As(err, &protocol) {
		protocol = &jsonrpc2.Error{Code: codeFailed, Message: err.Error()}
	}
	_ = s.conn.ReplyWithError(ctx, id, protocol)
}

// accept returns how to answer a request, nil for an answer of null.
func (s *server) accept(req *jsonrpc2.Request) (func() (any, error), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case req.Method == "initialize" && !s.started:
		var p initializeParams
		if err := decode(req, &p); err != nil {
			return nil, err
		}
		s.started = true
		s.watch = p.Capabilities.Workspace.DidChangeWatchedFiles.DynamicRegistration
		return func() (any, error) { return initializeResult(s.Version), nil }, nil
	case !s.started:
		return nil, &jsonrpc2.Error{Code: codeNotInitialized, Message: "initialize comes first"}
	case s.down || req.Method == "initialize":
		return nil, &jsonrpc2.Error{Code: jsonrpc2.CodeInvalidRequest, Message: "unexpected " + req.Method}
	case req.Method == "shutdown":
		s.down = true
		return nil, nil
	}
	answer, ok := answers[req.Method]
	if !ok {
		return nil, &jsonrpc2.Error{Code: jsonrpc2.CodeMethodNotFound, Message: "unknown method " + req.Method}
	}
	var p params
	if err := decode(req, &p); err != nil {
		return nil, err
	}
	f := s.files[p.TextDocument.URI]
	if f == nil || f.doc == nil {
		return nil, nil
	}
	at := request{params: p, Document: f.doc, path: f.path, server: s}
	return func() (any, error) { return answer(at) }, nil
}

// decode reads the parameters of a message.
func decode(req *jsonrpc2.Request, into any) error {
	if req.Params == nil {
		return nil
	}
	if err := json.Unmarshal(*req.Params, into); err != nil {
		return &jsonrpc2.Error{Code: jsonrpc2.CodeInvalidParams, Message: err.Error()}
	}
	return nil
}

// notified takes a notification. One that is unknown or wrong has no effect.
func (s *server) notified(ctx context.Context, req *jsonrpc2.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p params
	if strings.HasPrefix(req.Method, "textDocument/") && decode(req, &p) != nil {
		return
	}
	f := s.files[p.TextDocument.URI]
	switch req.Method {
	case "exit":
		go func() { _ = s.conn.Close() }() // Close waits for nobody
	case "$/cancelRequest":
		var c cancelParams
		if decode(req, &c) == nil {
			if cancel := s.cancels[string(c.ID)]; cancel != nil {
				cancel()
			}
		}
	case "initialized":
		if s.watch {
			s.running.Go(func() { _ = s.conn.Call(ctx, "client/registerCapability", watchLocks, nil) })
		}
	case "textDocument/didOpen":
		f = &file{uri: p.TextDocument.URI, path: pathOf(p.TextDocument.URI)}
		s.files[f.uri] = f
		s.setText(f, p.TextDocument.Version, p.TextDocument.Text)
	case "textDocument/didChange":
		if f == nil {
			return
		}
		text := f.text
		for _, c := range p.ContentChanges {
			if c.Range == nil {
				text = c.Text
			} else {
				text = editor.Apply(text, *c.Range, c.Text)
			}
		}
		s.setText(f, p.TextDocument.Version, text)
	case "textDocument/didClose":
		if f != nil {
			delete(s.files, f.uri)
			s.forget(f)
		}
	case "textDocument/didSave", "workspace/didChangeWatchedFiles":
		s.reopen("")
	case "workspace/didRenameFiles":
		s.rename(req)
	}
}

// setText gives a file another text. If it is a lock, the YAML next to it is checked again.
func (s *server) setText(f *file, version int, text string) {
	f.text, f.version = text, version
	s.open(f)
	if isLock(f.path) {
		s.reopen(f.path)
	}
}

// rename gives files that are open their new names. Most editors close and open them as well.
func (s *server) rename(req *jsonrpc2.Request) {
	var p renameFilesParams
	if decode(req, &p) != nil {
		return
	}
	for _, r := range p.Files {
		if f := s.files[r.OldURI]; f != nil && s.files[r.NewURI] == nil {
			delete(s.files, r.OldURI)
			s.forget(f)
			renamed := &file{uri: r.NewURI, path: pathOf(r.NewURI)}
			s.files[r.NewURI] = renamed
			s.setText(renamed, f.version, f.text)
		}
	}
	s.reopen("")
}
