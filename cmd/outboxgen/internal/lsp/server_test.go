package lsp_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sourcegraph/jsonrpc2"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

const shop = `version: "1"
package: events
types:
  channel: {enum: [web, phone]}
namespaces:
  shop:
    topics:
      placed:
        doc: is emitted once per order.
        tenant: shop_id
        dedupe_key: "{shop_id}/{order_id}"
        payload: {shop_id: uuid, order_id: uuid, channel: channel}
`

// validate returns what outboxgen validate finds in a file, as the JSON printer writes it.
func validate(t *testing.T, path string) string {
	t.Helper()
	var out bytes.Buffer
	cli.Run(context.Background(), cli.Env{Stdout: &out, Stderr: io.Discard, Getenv: func(string) string { return "" }},
		[]string{"validate", "--config", path, "--format", "json"})
	return out.String()
}

// printed returns diagnostics as the JSON printer writes findings. Columns count code points there.
func printed(t *testing.T, path, text string, list []diagnosticOf) string {
	t.Helper()
	var findings diag.List
	lines := strings.Split(text, "\n")
	for _, d := range list {
		column, units := 1, 0
		if d.Range.Start.Line < len(lines) {
			for _, r := range lines[d.Range.Start.Line] {
				if units >= d.Range.Start.Character {
					break
				}
				column++
				if units++; r > 0xFFFF {
					units++
				}
			}
		}
		severity := map[int]diag.Severity{1: diag.Error, 2: diag.Warning}[d.Severity]
		require.Equal(t, "outboxgen", d.Source)
		require.Equal(t, "https://outboxgen.github.io/outboxgen/reference/rules.html#"+d.Code, d.CodeDescription.Href)
		findings = append(findings, diag.Diagnostic{
			Pos: diag.Pos{File: path, Line: d.Range.Start.Line + 1, Column: column}, Rule: diag.Rule(d.Code), Message: d.Message,
			Severity: severity,
		})
	}
	var out bytes.Buffer
	require.NoError(t, diag.Print(&out, diag.JSON, findings))
	return out.String()
}

// For every golden with findings, the diagnostics are those of validate: places, words, ids, severities. Some have a
// lock, and every other one has CRLF.
func TestDiagnosticsAreThoseOfValidate(t *testing.T) {
	t.Parallel()
	c := start(t)
	sources, err := filepath.Glob("../../../../generator/testdata/*/want/stderr.txt")
	require.NoError(t, err)
	require.Greater(t, len(sources), 100)
	dir := t.TempDir()
	for i, source := range sources {
		golden := filepath.Dir(filepath.Dir(source))
		name := filepath.Base(golden)
		if strings.HasPrefix(name, "lock-") && name != "lock-gap" {
			continue // about the lock: TestLock
		}
		text, err := os.ReadFile(filepath.Join(golden, "outbox.yaml"))
		require.NoError(t, err)
		if i%2 == 0 {
			text = bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
		}
		path := filepath.Join(dir, "with space é", name, "outbox.yaml")
		write(t, path, string(text))
		if lock, err := os.ReadFile(filepath.Join(golden, "outbox.lock.yaml")); err == nil {
			write(t, filepath.Join(filepath.Dir(path), "outbox.lock.yaml"), string(lock))
		}
		if name == "yaml-encoding" { // JSON cannot have such bytes
			continue
		}
		require.Equal(t, validate(t, path), printed(t, path, string(text), c.open(uriOf(path), string(text))), name)
	}
}

func TestUTF16(t *testing.T) {
	t.Parallel()
	c := start(t)
	path := filepath.Join(t.TempDir(), "outbox.yaml")
	text := strings.Replace(shop, "payload: {", `payload: {"😀é": {type: string, doc: 😀, mx: 1}, `, 1)
	write(t, path, text)
	list := c.open(uriOf(path), text)
	require.Equal(t, validate(t, path), printed(t, path, text, list))
	require.Len(t, list, 2)
	require.Equal(t, rangeOf{position{11, 18}, position{11, 23}}, list[0].Range)
	require.Equal(t, rangeOf{position{11, 49}, position{11, 51}}, list[1].Range)

	// A change behind these characters, and one between the halves of one.
	list = c.change(uriOf(path), &rangeOf{position{11, 49}, position{11, 51}}, "max_len")
	require.Len(t, list, 1)
	list = c.change(uriOf(path), &rangeOf{position{11, 18}, position{11, 23}}, "face")
	require.Empty(t, list)
}

// Changes come one after the other, and in parts. The text is that of the editor all the time.
func TestChanges(t *testing.T) {
	t.Parallel()
	c := start(t)
	uri := uriOf(filepath.Join(t.TempDir(), "outbox.yaml"))
	require.Empty(t, c.open(uri, shop))
	list := c.change(uri, &rangeOf{position{9, 16}, position{9, 23}}, "shop")
	require.Len(t, list, 1)
	require.Equal(t, "tenant-unknown-field", list[0].Code)
	list = c.change(uri, &rangeOf{position{9, 0}, position{10, 0}}, "")
	require.Empty(t, list)
	require.Len(t, c.change(uri, nil, "version: \"1\"\n"), 2)
	require.Empty(t, c.change(uri, nil, strings.ReplaceAll(shop, "\n", "\r\n")))
	require.Len(t, c.change(uri, &rangeOf{position{11, 8}, position{11, 15}}, "payload_"), 1)

	// Many changes at once: the last diagnostics are those of the last text.
	for i := range 50 {
		c.notify("textDocument/didChange", object{
			"textDocument": object{"uri": uri, "version": 1000 + i},
			"contentChanges": []object{
				{"text": shop}, {"range": rangeOf{position{9, 16}, position{9, 23}}, "text": "x" + strconv.Itoa(i)},
			},
		})
	}
	list = c.diagnostics(uri, 1049)
	require.Contains(t, list[0].Message, `"x49"`)
}

// The lock is next to the file. It may change on the disk, or in the editor, and has diagnostics of its own.
func TestLock(t *testing.T) {
	t.Parallel()
	c := start(t)
	golden := "../../../../generator/testdata/change-field-added/"
	text, err := os.ReadFile(golden + "outbox.yaml")
	require.NoError(t, err)
	lock, err := os.ReadFile(golden + "outbox.lock.yaml")
	require.NoError(t, err)
	dir := t.TempDir()
	path, lockPath := filepath.Join(dir, "outbox.yaml"), filepath.Join(dir, "outbox.lock.yaml")
	uri, lockURI := uriOf(path), uriOf(lockPath)
	require.Empty(t, c.open(uri, string(text)), "there is no lock")

	write(t, lockPath, string(lock))
	c.notify("workspace/didChangeWatchedFiles", object{"changes": []object{{"uri": lockURI, "type": 1}}})
	list := c.diagnostics(uri, c.version)
	require.Len(t, list, 1)
	require.Equal(t, "change-field-added", list[0].Code)

	// In the editor, without saving it.
	version := c.version
	edited := strings.Replace(string(lock), "note: string?", "note: string", 1)
	c.notify("textDocument/didOpen", object{
		"textDocument": object{"uri": lockURI, "languageId": "yaml", "version": 900, "text": edited},
	})
	require.Empty(t, c.diagnostics(uri, version), "it is not compared with a lock that is wrong")
	list = c.diagnostics(lockURI, 0)
	require.Len(t, list, 1)
	require.Equal(t, "lock-edited", list[0].Code)
	require.Equal(t, position{4, 4}, list[0].Range.Start)

	// Closed without saving: that of the disk counts again.
	c.notify("textDocument/didClose", object{"textDocument": object{"uri": lockURI}})
	require.Len(t, c.diagnostics(uri, version), 1)
	require.Empty(t, c.diagnostics(lockURI, 0))
	require.NoError(t, os.Remove(lockPath))
	c.notify("textDocument/didSave", object{"textDocument": object{"uri": uri}})
	require.Empty(t, c.diagnostics(uri, version))
}

// Several files are open, also some that are no outbox.yaml. One is renamed, one closed.
func TestSeveralFiles(t *testing.T) {
	t.Parallel()
	c := start(t)
	dir := t.TempDir()
	one, two := uriOf(filepath.Join(dir, "one", "outbox.yaml")), uriOf(filepath.Join(dir, "two", "orders.outbox.yml"))
	named, other := uriOf(filepath.Join(dir, "events.yaml")), uriOf(filepath.Join(dir, "deployment.yaml"))
	broken := strings.Replace(shop, "tenant: shop_id", "tenant: shop", 1)
	require.Empty(t, c.open(one, shop))
	require.Len(t, c.open(two, broken), 1)
	require.Len(t, c.open(named, "# yaml-language-server: $schema=./outbox.schema.json\n"+broken), 1)
	c.notify("textDocument/didOpen", object{
		"textDocument": object{"uri": other, "languageId": "yaml", "version": 1, "text": "kind: Deployment\n"},
	})
	var result any
	c.call("textDocument/hover", at(other, "kind: Deployment\n", "ki|nd"), &result)
	require.Nil(t, result, "not a file of ours")
	require.Len(t, c.change(one, nil, broken), 1)

	// With the request of protocol 3.16, and then as older editors do.
	renamed := uriOf(filepath.Join(dir, "one", "events.outbox.yaml"))
	c.notify("workspace/didRenameFiles", object{"files": []object{{"oldUri": one, "newUri": renamed}}})
	require.Empty(t, c.diagnostics(one, 0))
	require.Len(t, c.diagnostics(renamed, c.version), 1)
	c.notify("textDocument/didClose", object{"textDocument": object{"uri": one}})
	c.notify("textDocument/didClose", object{"textDocument": object{"uri": renamed}})
	require.Empty(t, c.diagnostics(renamed, 0))
	require.Len(t, c.open(one, broken), 1)
	c.call("textDocument/hover", at(two, broken, "ten|ant"), &result)
	require.NotNil(t, result, "the others are still open")
	c.call("textDocument/hover", at(renamed, broken, "ten|ant"), &result)
	require.Nil(t, result, "it is closed")
}

// A request that is cancelled while others are worked on is answered with the error that the protocol has for it.
func TestCancelledRequests(t *testing.T) {
	t.Parallel()
	c := start(t)
	uri := uriOf(filepath.Join(t.TempDir(), "outbox.yaml"))
	large := shop + strings.Repeat("# a comment\n", 10_000)
	c.open(uri, large)
	const n = 200
	cancelled, id := 0, uint64(5000)
	for end := time.Now().Add(pgtest.Patience); cancelled == 0 && time.Now().Before(end); { // until one is cancelled in time
		var waiters []jsonrpc2.Waiter
		first := id
		for range n {
			w, err := c.conn.DispatchCall(context.Background(), "textDocument/foldingRange", object{"textDocument": object{"uri": uri}},
				jsonrpc2.PickID(jsonrpc2.ID{Num: id}))
			require.NoError(t, err)
			waiters = append(waiters, w)
			id++
		}
		for i := id; i > first; i-- {
			c.notify("$/cancelRequest", object{"id": i - 1})
		}
		c.notify("$/cancelRequest", object{"id": "unknown"})
		for _, w := range waiters {
			var result []any
			ctx, stop := context.WithTimeout(context.Background(), pgtest.Patience)
			err := w.Wait(ctx, &result)
			stop()
			if err == nil {
				require.Len(t, result, 6)
				continue
			}
			var protocol *jsonrpc2.Error
			require.ErrorAs(t, err, &protocol)
			require.Equal(t, int64(-32800), protocol.Code)
			cancelled++
		}
	}
	require.NotZero(t, cancelled)
	c.call("textDocument/foldingRange", object{"textDocument": object{"uri": uri}}, nil)
}

func code(t *testing.T, err error) int64 {
	t.Helper()
	var protocol *jsonrpc2.Error
	require.ErrorAs(t, err, &protocol)
	return protocol.Code
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	c := startRaw(t)
	require.Equal(t, int64(-32002), code(t, c.try("textDocument/hover", object{}, nil)), "before initialize")
	c.call("initialize", object{"capabilities": object{}}, nil)
	require.Equal(t, int64(-32600), code(t, c.try("initialize", object{"capabilities": object{}}, nil)), "twice")
	require.Equal(t, int64(-32601), code(t, c.try("textDocument/moniker", object{}, nil)))
	require.Equal(t, int64(-32602), code(t, c.try("textDocument/hover", object{"position": "there"}, nil)))
	require.NoError(t, c.try("textDocument/hover", object{"textDocument": object{"uri": "file:///not/open.yaml"}}, nil))
	c.notify("$/unknown", object{})
	c.notify("textDocument/didChange", object{"textDocument": "wrong"})
	c.notify("textDocument/didChange", object{"textDocument": object{"uri": "file:///not/open.yaml"}})
	c.call("shutdown", nil, nil)
	require.Equal(t, int64(-32600), code(t, c.try("textDocument/hover", object{}, nil)), "after shutdown")
	c.notify("exit", nil)
	require.Zero(t, pgtest.Receive(t, c.ended, "the end of the server"))
}

// An editor that dies closes the pipes. The server ends, with the code of the protocol.
func TestEditorDies(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.open(uriOf(filepath.Join(t.TempDir(), "outbox.yaml")), shop)
	c.hangUp()
	require.Equal(t, 1, pgtest.Receive(t, c.ended, "the end of the server"))

	c = start(t)
	c.notify("exit", nil)
	require.Equal(t, 1, pgtest.Receive(t, c.ended, "the end of the server"), "without shutdown")

	// What is not the protocol ends it, too.
	var out bytes.Buffer
	require.Equal(t, 1, cli.Run(context.Background(), cli.Env{Stdin: strings.NewReader("GET / HTTP/1.1\r\n\r\n"), Stdout: &out, Stderr: io.Discard, Getenv: os.Getenv}, []string{"lsp"}))
	require.Empty(t, out.String())
}
