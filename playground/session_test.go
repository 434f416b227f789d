package playground

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/editor"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
)

const shop = `version: "1"
package: events
schema: shop_outbox
namespaces:
  shop:
    topics:
      order_placed:
        doc: is emitted once per order.
        tenant: shop_id
        dedupe_key: "{shop_id}/{order_id}"
        partition_key: "{order_id}"
        delivery: log
        listeners: none
        publish: {kafka: {topic: shop.orders}}
        payload: {shop_id: uuid, order_id: uuid}
`

// ask asks s and reads the answer.
func ask[T any](t testing.TB, s *Session, q question) T {
	t.Helper()
	text, err := json.Marshal(q)
	require.NoError(t, err)
	var answer T
	require.NoError(t, json.Unmarshal(s.Answer(text), &answer))
	return answer
}

type foundIn struct {
	Findings []finding
	Error    string
}

// Findings are those of validate, for each golden case, and their fixes those of the language server.
func TestFindings(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../generator/testdata/*/outbox.yaml")
	require.NoError(t, err)
	require.Greater(t, len(paths), 100)
	fixes := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if filepath.Base(filepath.Dir(path)) == "yaml-encoding" { // JSON cannot have such bytes
			continue
		}
		var s Session
		answer := ask[foundIn](t, &s, question{Ask: "findings", Text: string(text)})
		_, want := generator.Load(text, generator.Options{Source: source})
		require.Len(t, answer.Findings, len(want), path)
		for i, f := range answer.Findings {
			require.Equal(t, []any{want[i].Rule, want[i].Message, want[i].Severity}, []any{f.Rule, f.Message, f.Severity}, path)
			fixes += len(f.Fixes)
			require.NotEmpty(t, ask[struct{ Text, Good string }](t, &s, question{Ask: "explain", Rule: f.Rule}).Text)
		}
	}
	require.Greater(t, fixes, 50)
}

func TestCompleteHoverFormat(t *testing.T) {
	t.Parallel()
	var s Session
	at := editor.Position{Line: 9, Character: 23}
	list := ask[[]completion](t, &s, question{Ask: "complete", Text: shop, At: at})
	require.True(t, slices.ContainsFunc(list, func(c completion) bool { return c.Label == "order_id" && c.Detail == "uuid" }), list)
	h := ask[struct{ Text string }](t, &s, question{Ask: "hover", Text: shop, At: editor.Position{Line: 9, Character: 9}})
	require.Contains(t, h.Text, "Rendered")
	require.Equal(t, "null", string(s.Answer([]byte(`{"ask": "hover", "text": "# nothing"}`))))
	require.Len(t, ask[[]editor.Edit](t, &s, question{Ask: "format", Text: strings.Replace(shop, "package:", "package:   ", 1)}), 1)
	require.Equal(t, "[]", string(s.Answer([]byte(`{"ask": "format", "text": ""}`))))
}

// While the text cannot be read, completion knows the names of the last one that could.
func TestTheLastGoodText(t *testing.T) {
	t.Parallel()
	var s Session
	ask[foundIn](t, &s, question{Ask: "findings", Text: shop})
	broken := strings.Replace(shop, `dedupe_key: "{shop_id}/{order_id}"`, `dedupe_key: "{`, 1)
	broken = strings.Replace(broken, "payload: {shop_id: uuid, order_id: uuid}", "payload: {", 1)
	list := ask[[]completion](t, &s, question{Ask: "complete", Text: broken, At: editor.Position{Line: 9, Character: 22}})
	require.NotEmpty(t, list)
	require.Equal(t, "shop_id", list[0].Label)
}

// Each output is what the command of outboxgen writes.
func TestOutputs(t *testing.T) {
	t.Parallel()
	var s Session
	for what, want := range map[string]struct{ file, text string }{
		"go":       {"shop.order_placed.outbox.go", "func EnqueueOrderPlaced("},
		"sql":      {"0001_outbox_events.up.sql", `CREATE TABLE "shop_outbox".events`},
		"schema":   {"shop.order_placed.v1.schema.json", `"order_id"`},
		"asyncapi": {"asyncapi.json", `"asyncapi": "3.0.0"`},
	} {
		out := ask[output](t, &s, question{Ask: what, Text: shop})
		i := slices.IndexFunc(out.Files, func(f file) bool { return f.Name == want.file })
		require.GreaterOrEqual(t, i, 0, "%s: %v", what, out)
		require.Contains(t, out.Files[i].Content, want.text)
		out = ask[output](t, &s, question{Ask: what, Text: "x"})
		require.Equal(t, output{Files: []file{}, Note: hasErrors}, out)
	}
	files, err := generator.Generate([]byte(shop), generator.Options{Source: source})
	require.NoError(t, err)
	require.Len(t, ask[output](t, &s, question{Ask: "go", Text: shop}).Files, len(files))
	quiet := strings.Replace(shop, "        publish: {kafka: {topic: shop.orders}}\n", "", 1)
	require.Contains(t, ask[output](t, &s, question{Ask: "asyncapi", Text: quiet}).Note, "No topic has publish")
	require.Len(t, ask[output](t, &s, question{Ask: "schema", Text: quiet}).Files, 1)
}

func TestBreaking(t *testing.T) {
	t.Parallel()
	var s Session
	require.Equal(t, changes{Changes: []change{}, Note: "No breaking change."},
		ask[changes](t, &s, question{Ask: "breaking", Older: shop, Text: shop}))
	changed := strings.Replace(shop, "order_id: uuid}", "order_id: string}", 1)
	found := ask[changes](t, &s, question{Ask: "breaking", Older: shop, Text: changed})
	require.NotEmpty(t, found.Changes)
	require.Equal(t, diag.ChangeFieldType, found.Changes[0].Rule)
	require.Equal(t, 15, found.Changes[0].Line)
	require.Contains(t, ask[changes](t, &s, question{Ask: "breaking", Older: "x", Text: shop}).Note, "The older YAML has findings: older.yaml:1:1:")
	require.Equal(t, hasErrors, ask[changes](t, &s, question{Ask: "breaking", Older: shop, Text: "x"}).Note)
}

// A question that is wrong has an answer that says so.
func TestWrongQuestions(t *testing.T) {
	t.Parallel()
	var s Session
	for _, q := range []string{"", "{", "[]", `{"ask": "lunch"}`, `{"ask": "go", "text": "` + strings.Repeat("x", maxText+1) + `"}`} {
		var answer failure
		require.NoError(t, json.Unmarshal(s.Answer([]byte(q)), &answer))
		require.NotEmpty(t, answer.Error)
	}
}

// typist makes random edits, as somebody who types does: letters, pieces of YAML, deletions, and pieces that move.
type typist struct {
	*rand.Rand
	text string
}

var pieces = []string{
	"\n", "  ", ": ", "{", "}", "[", "]", `"`, "'", "#", "- ", ",", "/", "|", ">", "&a", "*a", "\t", "\r\n", "é", "😀", "\u2028",
	"version", "payload:", "dedupe_key: \"{shop_id}\"", "uuid", "topics:\n", "listeners:\n  ears: {topics: [shop/order_placed]}\n",
	"types:\n  x: {enum: [a, b]}\n", "?", "<<: ", "---\n", "retry: {max_attempts: 3}",
}

func (y *typist) edit() {
	at := y.IntN(len(y.text) + 1)
	switch y.IntN(6) {
	case 0:
		y.text = y.text[:at] + string(rune('a'+y.IntN(26))) + y.text[at:]
	case 1:
		y.text = y.text[:at] + y.text[min(len(y.text), at+1+y.IntN(4)):]
	case 2:
		y.text = y.text[:at] + y.text[min(len(y.text), at+y.IntN(60)):]
	case 3:
		from := y.IntN(len(y.text) + 1)
		y.text = y.text[:at] + y.text[from:min(len(y.text), from+y.IntN(40))] + y.text[at:]
	default:
		y.text = y.text[:at] + pieces[y.IntN(len(pieces))] + y.text[at:]
	}
	y.text = strings.ToValidUTF8(y.text, "")
}

var asked = []string{"findings", "complete", "hover", "format", "go", "schema", "asyncapi", "breaking"}

// Any text has answers, and none of them is a panic. What was typed is forgotten.
func TestRandomEdits(t *testing.T) { // measures
	var s Session
	edits := campaign.Of(10_000, 1_000_000)
	var early uint64
	y := &typist{Rand: rand.New(rand.NewPCG(1, 2))}
	for i := range edits {
		if i%200 == 0 || len(y.text) > 20_000 {
			y.text = shop
		}
		y.edit()
		q := question{
			Ask: asked[0], Text: y.text, Older: shop, At: editor.Position{Line: y.IntN(20), Character: y.IntN(60)},
		}
		if i%4 == 0 {
			q.Ask = asked[y.IntN(len(asked))]
		}
		text, err := json.Marshal(q)
		require.NoError(t, err)
		if answer := s.Answer(text); bytes.HasPrefix(answer, []byte(`{"error"`)) {
			require.FailNow(t, "an error", "%s\n%q", answer, q)
		}
		if i == edits/10 {
			early = heap()
		}
	}
	late := heap()
	t.Logf("%d edits: %d KiB in use after a tenth of them, %d KiB at the end", edits, early>>10, late>>10)
	require.Less(t, late, early+8<<20, "memory grows")
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func FuzzAnswer(f *testing.F) {
	for _, what := range append(asked, "explain") {
		q, err := json.Marshal(question{Ask: what, Text: shop, Older: shop, Rule: diag.ChangeFieldType, At: editor.Position{Line: 9, Character: 23}})
		require.NoError(f, err)
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q []byte) {
		var s Session
		answer := s.Answer(q)
		if !json.Valid(answer) || bytes.HasPrefix(answer, []byte(`{"error":"panic`)) {
			t.Fatalf("%q: %s", q, answer)
		}
	})
}
