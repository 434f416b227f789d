package lsp_test

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// full has a use of everything that can be named.
const full = `version: "1"
package: events
types:
  channel: {enum: [web, phone], doc: says where it came from.}
namespaces:
  shop:
    topics:
      placed:
        doc: is emitted once per order.
        delivery: log
        tenant: shop_id
        dedupe_key: "{shop_id}/{order_id}"
        payload: {shop_id: uuid, order_id: uuid, channel: channel}
      paid:
        retry: {max_attempts: 20}
        dedupe_key: "{order_id}"
        payload: {order_id: uuid}
listeners:
  ears: {topics: [shop/placed]}
operations:
  buy: {outcomes: {done: [shop/placed, shop/paid]}}
`

// What is offered while each kind of thing is typed. The | is the cursor.
func TestCompletionOfEachKind(t *testing.T) {
	t.Parallel()
	c := start(t)
	uri := uriOf(filepath.Join(t.TempDir(), "outbox.yaml"))
	c.open(uri, full)
	for name, k := range map[string]struct {
		old, typed string // what is typed in place of old
		want, none []string
	}{
		"keys":                   {"        tenant: shop_id\n", "        t|\n", []string{"tenant", "version", "publish"}, []string{"doc", "delivery"}},
		"values of an enum":      {"delivery: log", "delivery: |", []string{"queue", "log"}, []string{"placed"}},
		"types":                  {"channel: channel}", "channel: c|}", []string{"channel", "uuid", "timestamp"}, []string{"placed"}},
		"fields in a template":   {"{shop_id}/{order_id}", "{shop_id}/{|", []string{"shop_id", "order_id"}, []string{"uuid"}},
		"fields of a key":        {"tenant: shop_id", "tenant: |", []string{"shop_id", "order_id"}, []string{"channel"}},
		"topics of a listener":   {"{topics: [shop/placed]}", "{topics: [|]}", []string{"shop/placed"}, []string{"shop/paid"}},
		"topics of an operation": {"[shop/placed, shop/paid]", "[shop/placed, |]", []string{"shop/paid"}, []string{"shop/placed"}},
		"in what cannot be parsed": {
			"\"{shop_id}/{order_id}\"\n        payload: {shop_id: uuid, order_id: uuid, channel: channel}", "\"{shop_id}/{|\n        payload: {",
			[]string{"shop_id", "order_id"}, []string{"uuid"},
		},
	} {
		require.Contains(t, full, k.old, name)
		before, after, _ := strings.Cut(k.typed, "|")
		text := strings.Replace(full, k.old, before+after, 1)
		c.change(uri, nil, full) // the last text that was right
		c.change(uri, nil, text)
		var items []struct{ Label string }
		c.call("textDocument/completion", at(uri, text, k.typed), &items)
		var labels []string
		for _, item := range items {
			labels = append(labels, item.Label)
		}
		require.Subset(t, labels, k.want, name)
		for _, none := range k.none {
			require.NotContains(t, labels, none, name)
		}
	}
}

// What is told of each kind of thing under the mouse, also while the text cannot be parsed.
func TestHoverOfEachKind(t *testing.T) {
	t.Parallel()
	c := start(t)
	uri := uriOf(filepath.Join(t.TempDir(), "outbox.yaml"))
	c.open(uri, full)
	broken := full + "  lost: [\n"
	for _, text := range []string{full, broken} {
		c.change(uri, nil, text)
		for mark, want := range map[string]string{
			"deli|very: log":         "queue (default)",
			"pl|aced:":               "is emitted once per order.",
			"[shop/pl|aced]":         "Dedupe key",
			"channel: cha|nnel}":     "says where it came from.",
			"shop_id: uu|id":         "A UUID",
			"dedupe|_key: \"{shop_":  "Rendered: `",
			"re|try: {max_attempts:": "tried 20 times",
		} {
			var h struct{ Contents struct{ Value string } }
			c.call("textDocument/hover", at(uri, text, mark), &h)
			require.Contains(t, h.Contents.Value, want, mark)
		}
	}
}

// freeze runs outboxgen freeze, and returns the lock.
func freeze(t *testing.T, path string) string {
	t.Helper()
	require.Zero(t, cli.Run(context.Background(), cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }},
		[]string{"freeze", "--config", path}))
	lock, err := os.ReadFile(strings.TrimSuffix(path, ".yaml") + ".lock.yaml")
	require.NoError(t, err)
	return string(lock)
}

// A new name reaches each use. A topic that the lock knows keeps its old name in renamed_from.
func TestRenameOfEachKind(t *testing.T) {
	t.Parallel()
	c := start(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "outbox.yaml")
	write(t, path, full)
	frozen := freeze(t, path)
	uri := uriOf(path)
	require.Empty(t, c.open(uri, full))
	for mark, k := range map[string]struct {
		name string
		want *strings.Replacer
	}{
		"types:\n  cha|nnel": {
			"medium", strings.NewReplacer("  channel: {enum", "  medium: {enum", "channel: channel}", "channel: medium}"),
		},
		"{shop_id: uuid, ord|er_id: uuid, channel": {
			"ref", strings.NewReplacer("{shop_id}/{order_id}", "{shop_id}/{ref}",
				"{shop_id: uuid, order_id: uuid", "{shop_id: uuid, ref: uuid"),
		},
		"[shop/placed, shop/pa|id]": {
			"settled", strings.NewReplacer("      paid:\n", "      settled:\n        renamed_from: [paid]\n",
				"shop/paid", "shop/settled"),
		},
	} {
		params := at(uri, full, mark)
		params["newName"] = k.name
		var change struct{ Changes map[string][]edit }
		c.call("textDocument/rename", params, &change)
		require.Equal(t, k.want.Replace(full), edited(full, change.Changes[uri]), mark)
	}
	require.Contains(t, frozen, "shop/paid")
}

// typed are pieces that somebody may type.
var typed = []string{
	"\n", "  ", ": ", "{", "}", "[", "]", `"`, "'", "#", "- ", ",", "/", "|", ">", "&a", "*a", "\t", "\r\n", "x", "1", "\U0001F600",
	"version", "payload:", "dedupe_key: \"{shop_id}\"", "uuid", "topics:\n", "types:\n  x: {enum: [a, b]}\n", "?", "<<: ", "---\n",
}

// Somebody types at random, and asks. Every request is answered, nothing panics, and what was typed is forgotten.
func TestRandomTyping(t *testing.T) { // measures
	c := start(t)
	uri := uriOf(filepath.Join(t.TempDir(), "outbox.yaml"))
	c.open(uri, full)
	random := rand.New(rand.NewPCG(1, 2))
	methods := []string{
		"completion", "hover", "definition", "references", "prepareRename", "rename", "documentSymbol", "foldingRange", "formatting",
		"codeAction", "semanticTokens/full",
	}
	edits := campaign.Of(3_000, 1_000_000)
	var early uint64
	for i := range edits {
		change := object{"text": full}
		if i%200 > 0 {
			from := position{random.IntN(30), random.IntN(40)}
			to := from
			if random.IntN(3) == 0 {
				to.Character += random.IntN(20)
			}
			change = object{"range": rangeOf{from, to}, "text": typed[random.IntN(len(typed))]}
		}
		c.version++
		c.notify("textDocument/didChange", object{
			"textDocument": object{"uri": uri, "version": c.version}, "contentChanges": []object{change},
		})
		method := methods[random.IntN(len(methods))]
		err := c.try("textDocument/"+method, object{
			"textDocument": object{"uri": uri}, "position": position{random.IntN(30), random.IntN(40)}, "newName": "other",
			"range":   rangeOf{position{0, 0}, position{random.IntN(30), 0}},
			"context": object{"includeDeclaration": true, "diagnostics": []object{}},
		}, nil)
		if err != nil {
			require.Equal(t, "rename", method, err)
			require.Equal(t, int64(-32803), code(t, err), err)
		}
		for len(c.published) > 0 {
			<-c.published
		}
		if i == edits/10 {
			early = heap()
		}
	}
	late := heap()
	t.Logf("%d edits: %d KiB in use after a tenth of them, %d KiB at the end", edits, early>>10, late>>10)
	require.Less(t, late, early+8<<20, "memory grows")
	c.version++
	c.notify("textDocument/didChange", object{
		"textDocument": object{"uri": uri, "version": c.version}, "contentChanges": []object{{"text": full}},
	})
	require.Empty(t, c.diagnostics(uri, c.version), "the server still knows the text")
	c.call("shutdown", nil, nil)
	c.notify("exit", nil)
	require.Zero(t, pgtest.Receive(t, c.ended, "the end of the server"))
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// All that the server can is in its answer to initialize, and what it does not say it cannot.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	c := startRaw(t)
	var result struct{ Capabilities map[string]any }
	c.call("initialize", object{"capabilities": object{}}, &result)
	var providers []string
	for name := range result.Capabilities {
		if strings.HasSuffix(name, "Provider") {
			providers = append(providers, name)
		}
	}
	slices.Sort(providers)
	require.Equal(t, []string{
		"codeActionProvider", "completionProvider", "definitionProvider", "documentFormattingProvider", "documentSymbolProvider",
		"foldingRangeProvider", "hoverProvider", "referencesProvider", "renameProvider", "semanticTokensProvider",
	}, providers)
}
