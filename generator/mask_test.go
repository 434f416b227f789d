package generator_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
)

// TestMaskPayloadAgreesWithTheYAML passes payloads of every topic of every golden case, and broken ones, to the generated
// MaskPayload and to the masker that the commands make from the YAML: both show the same.
func TestMaskPayloadAgreesWithTheYAML(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	d := &shapes{Rand: rand.New(rand.NewPCG(20260103, 1))}
	type request struct {
		Package int
		Topic   string
		Payload json.RawMessage
	}
	type answer struct {
		Shown json.RawMessage
		OK    bool
	}
	var imports, funcs strings.Builder
	var requests []request
	var want []answer
	packages := 0
	for _, name := range goldenCases(t) {
		source, err := os.ReadFile(filepath.Join("testdata", name, "outbox.yaml"))
		require.NoError(t, err)
		lock, err := os.ReadFile(filepath.Join("testdata", name, "outbox.lock.yaml"))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		m, findings := generator.Load(source, generator.Options{Lock: lock})
		require.NotNil(t, m, "%s", findings)
		masker := yamlmask.New(m)
		ask := func(topic string, payload json.RawMessage) {
			shown, ok := masker.Payload(topic, payload)
			requests, want = append(requests, request{packages, topic, payload}), append(want, answer{shown, ok})
		}
		topics := 0
		for _, ns := range m.Namespaces {
			for _, topic := range ns.Topics {
				topics++
				payloads := d.payloads(topic.Fields)
				for _, p := range topic.History {
					payloads = append(payloads, d.payloads(p.Fields)...)
				}
				for _, payload := range payloads {
					for _, called := range append([]string{topic.Name}, topic.Renamed...) {
						ask(ns.Name+"/"+called, payload)
						ask(ns.Name+"/"+called, d.broken(payload))
					}
				}
				ask(ns.Name+"/"+topic.Name+"x", payloads[0])
			}
		}
		if topics == 0 {
			continue
		}
		fmt.Fprintf(&imports, "\tg%d \"github.com/outboxgen/outboxgen/generator/testdata/%s/want\"\n", packages, name)
		fmt.Fprintf(&funcs, "\tg%d.MaskPayload,\n", packages)
		packages++
	}
	program := newOverlaid(t)
	main, err := os.ReadFile("testdata/mask/main.go.txt")
	require.NoError(t, err)
	program.add("main.go", main)
	program.add("masks.go", fmt.Appendf(nil, "package main\n\nimport (\n\t\"encoding/json\"\n\n%s)\n\nvar masks = []func(string, int, json.RawMessage) (json.RawMessage, bool){\n%s}\n", &imports, &funcs))
	var stdin bytes.Buffer
	require.NoError(t, json.NewEncoder(&stdin).Encode(requests))
	var got []answer
	require.NoError(t, json.Unmarshal([]byte(program.run(&stdin)), &got))
	require.Len(t, got, len(want))
	hidden := 0
	for i, r := range requests {
		require.Equal(t, want[i].OK, got[i].OK, "%s %s", r.Topic, r.Payload)
		if want[i].OK {
			require.JSONEq(t, string(want[i].Shown), string(got[i].Shown), "%s %s", r.Topic, r.Payload)
		}
		if strings.Contains(string(got[i].Shown), "[masked]") {
			hidden++
		}
	}
	require.Greater(t, hidden, len(want)/10)
	t.Logf("%d payloads, %d of them with a masked value", len(want), hidden)
}

// broken returns payload with something replaced that the topic does not describe.
func (d *shapes) broken(payload json.RawMessage) json.RawMessage {
	var value any
	if err := json.Unmarshal(payload, &value); err != nil {
		panic(err)
	}
	broken, err := json.Marshal(d.replaced(value))
	if err != nil {
		panic(err)
	}
	return broken
}

func (d *shapes) replaced(value any) any {
	if d.IntN(6) == 0 {
		return []any{nil, "x", 1.5, []any{"x", map[string]any{"x": "y"}}, map[string]any{"x": "y", "y": []any{1.5}}}[d.IntN(5)]
	}
	switch of := value.(type) {
	case map[string]any:
		names := make([]string, 0, len(of))
		for name := range of {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			of[name] = d.replaced(of[name])
		}
		of["unknown"] = "x"
	case []any:
		for i := range of {
			of[i] = d.replaced(of[i])
		}
	}
	return value
}
