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
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/compose"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestComposeAgreesWithGeneratedCode passes payloads of every topic of every golden case to the generated code and to what the
// command enqueue makes of the YAML: both have the same tenant, keys and entity, and what one refuses the other does, too.
func TestComposeAgreesWithGeneratedCode(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	d := &shapes{Rand: rand.New(rand.NewPCG(20261128, 1))}
	type request struct {
		Topic   int
		Payload json.RawMessage
	}
	var imports, vars strings.Builder
	var topics []*model.Topic
	var requests []request
	for i, name := range goldenCases(t) {
		source, err := os.ReadFile(filepath.Join("testdata", name, "outbox.yaml"))
		require.NoError(t, err)
		lock, err := os.ReadFile(filepath.Join("testdata", name, "outbox.lock.yaml"))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		m, findings := generator.Load(source, generator.Options{Lock: lock})
		require.NotNil(t, m, "%s", findings)
		used := false
		for _, ns := range m.Namespaces {
			for _, topic := range ns.Topics {
				if topic.Sealed || model.HasSealed(topic.Fields) {
					_, faults := compose.Of(topic, d.payloads(topic.Fields)[0])
					require.Equal(t, "the value is for a topic with sealed fields: enqueue its events in a program that has the keys", compose.Text(faults))
					continue
				}
				used = true
				fmt.Fprintf(&vars, "\tg%d.%sTopic.Untyped(),\n", i, topic.GoName)
				for range 5 {
					for _, payload := range d.payloads(topic.Fields) {
						requests = append(requests, request{len(topics), payload})
					}
				}
				topics = append(topics, topic)
			}
		}
		if used {
			fmt.Fprintf(&imports, "\tg%d \"github.com/outboxgen/outboxgen/generator/testdata/%s/want\"\n", i, name)
		}
	}
	program := newOverlaid(t)
	main, err := os.ReadFile("testdata/compose/main.go.txt")
	require.NoError(t, err)
	program.add("main.go", main)
	program.add("topics.go", fmt.Appendf(nil, "package main\n\nimport (\n\t\"github.com/outboxgen/outboxgen/outbox\"\n\n%s)\n\nvar topics = []*outbox.UntypedTopic{\n%s}\n", &imports, &vars))
	var stdin bytes.Buffer
	require.NoError(t, json.NewEncoder(&stdin).Encode(requests))
	var got []struct {
		Error   string
		Message outbox.Message
	}
	require.NoError(t, json.Unmarshal([]byte(program.run(&stdin)), &got))
	keys, refused := 0, 0
	for i, r := range requests {
		topic, m := topics[r.Topic], got[i].Message
		e, faults := compose.Of(topic, r.Payload)
		require.Equal(t, got[i].Error == "", len(faults) == 0, "%s %s: %s; %v", topic.FullName(), r.Payload, got[i].Error, faults)
		if got[i].Error != "" {
			refused++
			continue
		}
		require.Equal(t, compose.Event{
			TenantID: m.TenantID, DedupeKey: m.DedupeKey, PartitionKey: m.PartitionKey, EntityType: m.Entity.Type, EntityID: m.Entity.ID,
			EntityVersion: m.Entity.Version, LimitKeys: m.LimitKeys, Payload: e.Payload,
		}, e, "%s %s", topic.FullName(), r.Payload)
		if e.DedupeKey+e.PartitionKey+e.EntityID != "" || len(e.LimitKeys) > 0 {
			keys++
		}
	}
	require.Greater(t, keys, 100)
	t.Logf("%d payloads of %d topics, %d with keys, %d refused", len(requests), len(topics), keys, refused)
}
