package lsp

import (
	"context"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/editor"
	"github.com/outboxgen/outboxgen/generator/explain"
)

// check asks for the diagnostics of a file. The caller holds mu.
func (s *server) check(f *file) {
	s.stale[f.uri] = true
	s.wake()
}

// wake wakes publish.
func (s *server) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// reopen reads the locks of files again: of those whose lock is at path, "" for all. The caller holds mu.
func (s *server) reopen(path string) {
	for _, f := range s.files {
		if f.doc != nil && (path == "" || generator.LockName(f.path) == path) {
			s.open(f)
		}
	}
}

// forget removes the diagnostics of a file that was closed. The caller holds mu.
func (s *server) forget(f *file) {
	delete(s.stale, f.uri)
	uris := []string{f.uri}
	if f.told != "" {
		uris = append(uris, f.told)
	}
	for _, uri := range uris {
		s.notify(publishDiagnosticsParams{URI: uri, Diagnostics: []diagnostic{}})
	}
	if isLock(f.path) {
		s.reopen(f.path)
	}
}

// notify tells the editor diagnostics, soon. The caller holds mu.
func (s *server) notify(p publishDiagnosticsParams) {
	s.outgoing = append(s.outgoing, p)
	s.wake()
}

// publish finds out the diagnostics of files that have changed, and sends them, until ctx ends. It is the only one that
// sends them, so they arrive in their order. It holds no lock while it sends, because the editor may be slow to read.
func (s *server) publish(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		for f, doc := s.nextStale(); doc != nil && ctx.Err() == nil; f, doc = s.nextStale() {
			if _, err := safely(func() (any, error) { return doc.Findings(), nil }); err == nil {
				s.tell(f, doc)
			}
			s.send(ctx)
		}
		s.send(ctx)
	}
}

// send sends what notify was given.
func (s *server) send(ctx context.Context) {
	s.mu.Lock()
	outgoing := s.outgoing
	s.outgoing = nil
	s.mu.Unlock()
	for _, p := range outgoing {
		_ = s.conn.Notify(ctx, "textDocument/publishDiagnostics", p) // the connection may have ended
	}
}

// nextStale returns a file that has changed, with its document; nil if there is none.
func (s *server) nextStale() (*file, *editor.Document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uri := range s.stale {
		delete(s.stale, uri)
		if f := s.files[uri]; f != nil && f.doc != nil {
			return f, f.doc
		}
	}
	return nil, nil
}

// tell publishes the findings of doc, unless the file has another one by now.
func (s *server) tell(f *file, doc *editor.Document) {
	findings := doc.Findings()
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.doc != doc || s.files[f.uri] != f {
		return
	}
	own, ofLock := []diagnostic{}, []diagnostic{}
	for _, d := range findings {
		if d.Pos.File == f.source() {
			own = append(own, diagnosticOf(d))
		} else {
			ofLock = append(ofLock, diagnosticOf(d))
		}
	}
	version := f.version
	s.notify(publishDiagnosticsParams{f.uri, &version, own})
	if len(ofLock) > 0 || f.told != "" {
		f.told = uriOf(generator.LockName(f.path))
		s.notify(publishDiagnosticsParams{URI: f.told, Diagnostics: ofLock})
	}
}

func diagnosticOf(f editor.Finding) diagnostic {
	d := diagnostic{
		Range: f.Range, Severity: severityError, Code: string(f.Rule), Source: "outboxgen", Message: f.Message,
		CodeDescription: &codeDescription{explain.URL(f.Rule)},
	}
	if f.Severity == diag.Warning {
		d.Severity = severityWarning
	}
	return d
}
