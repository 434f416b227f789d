package lsp_test

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sourcegraph/jsonrpc2"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// client is an editor that speaks with outboxgen lsp through two pipes, as with a process.
type client struct {
	t         testing.TB
	conn      *jsonrpc2.Conn
	published chan published
	asked     chan string // methods of the requests of the server
	ended     chan int    // its exit code
	hangUp    func()      // as if the editor died
	version   int
}

type published struct {
	URI         string
	Version     *int
	Diagnostics []diagnosticOf
}

type diagnosticOf struct {
	Range           rangeOf
	Severity        int
	Code            string
	CodeDescription struct{ Href string }
	Source          string
	Message         string
}

type position struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

type rangeOf struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

type edit struct {
	Range   rangeOf
	NewText string
}

type pipes struct {
	io.Reader
	io.WriteCloser
}

type object = map[string]any

// start starts a server and initializes it.
func start(t testing.TB) *client {
	c := startRaw(t)
	var result struct {
		ServerInfo   struct{ Name string }
		Capabilities map[string]any
	}
	c.call("initialize", object{"processId": nil, "rootUri": nil, "capabilities": object{
		"workspace": object{"didChangeWatchedFiles": object{"dynamicRegistration": true}},
	}}, &result)
	require.Equal(t, "outboxgen", result.ServerInfo.Name)
	require.Equal(t, "utf-16", result.Capabilities["positionEncoding"])
	c.notify("initialized", object{})
	require.Equal(t, "client/registerCapability", pgtest.Receive(t, c.asked, "a request to watch locks"))
	return c
}

func startRaw(t testing.TB) *client {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	c := &client{
		t: t, published: make(chan published, 1000), asked: make(chan string, 100), ended: make(chan int, 1),
		hangUp: func() { _ = toServer.Close() },
	}
	go func() {
		c.ended <- cli.Run(context.Background(), cli.Env{Stdin: in, Stdout: out, Stderr: io.Discard, Getenv: os.Getenv}, []string{"lsp"})
		_ = out.Close()
		_ = in.Close()
	}()
	handler := jsonrpc2.HandlerWithError(func(_ context.Context, _ *jsonrpc2.Conn, req *jsonrpc2.Request) (any, error) {
		if !req.Notif {
			c.asked <- req.Method
			return nil, nil
		}
		var p published
		if req.Method != "textDocument/publishDiagnostics" {
			return nil, nil
		}
		if err := json.Unmarshal(*req.Params, &p); err != nil {
			return nil, err
		}
		c.published <- p
		return nil, nil
	})
	stream := jsonrpc2.NewBufferedStream(pipes{fromServer, toServer}, jsonrpc2.VSCodeObjectCodec{})
	c.conn = jsonrpc2.NewConn(context.Background(), stream, handler, jsonrpc2.SetLogger(log.New(io.Discard, "", 0)))
	t.Cleanup(func() { _ = c.conn.Close() })
	return c
}

func (c *client) call(method string, params, result any) {
	c.t.Helper()
	require.NoError(c.t, c.try(method, params, result), method)
}

func (c *client) try(method string, params, result any) error {
	ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
	defer cancel()
	return c.conn.Call(ctx, method, params, result)
}

func (c *client) notify(method string, params any) {
	c.t.Helper()
	require.NoError(c.t, c.conn.Notify(context.Background(), method, params))
}

// open opens a document and returns its diagnostics.
func (c *client) open(uri, text string) []diagnosticOf {
	c.t.Helper()
	c.version++
	c.notify("textDocument/didOpen", object{
		"textDocument": object{"uri": uri, "languageId": "yaml", "version": c.version, "text": text},
	})
	return c.diagnostics(uri, c.version)
}

// change replaces a part of a document, all of it for nil, and returns its diagnostics.
func (c *client) change(uri string, r *rangeOf, text string) []diagnosticOf {
	c.t.Helper()
	c.version++
	change := object{"text": text}
	if r != nil {
		change["range"] = r
	}
	c.notify("textDocument/didChange", object{
		"textDocument": object{"uri": uri, "version": c.version}, "contentChanges": []object{change},
	})
	return c.diagnostics(uri, c.version)
}

// diagnostics waits for the diagnostics of a version, and those without a version for 0.
func (c *client) diagnostics(uri string, version int) []diagnosticOf {
	c.t.Helper()
	for {
		p := pgtest.Receive(c.t, c.published, "diagnostics of "+uri)
		if p.URI == uri && (version == 0 && p.Version == nil || p.Version != nil && *p.Version == version) {
			return p.Diagnostics
		}
	}
}

// at returns the parameters of a request about a place: the first occurrence of mark in text, without its |.
func at(uri, text, mark string) object {
	before, after, _ := strings.Cut(mark, "|")
	start := strings.Index(text, before+after)
	if start < 0 {
		panic("no " + mark)
	}
	offset := start + len(before)
	line := strings.Count(text[:offset], "\n")
	column := 0
	for _, r := range text[strings.LastIndex(text[:offset], "\n")+1 : offset] {
		if column++; r > 0xFFFF {
			column++
		}
	}
	return object{"textDocument": object{"uri": uri}, "position": position{line, column}}
}

// uriOf returns the URI of a file, as editors write it.
func uriOf(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

func write(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
