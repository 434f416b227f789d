package sample_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/sample"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
)

type chance struct{ *rand.Rand }

func (c chance) Present() bool   { return c.IntN(2) == 0 }
func (c chance) Value(n int) int { return c.IntN(n) }
func (c chance) Enum(n int) int  { return c.IntN(n) }

// TestPayloadsFit: examples and random payloads of every golden topic follow its rules, as the check of the command line
// sees them.
func TestPayloadsFit(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../testdata/*/outbox.yaml")
	require.NoError(t, err)
	topics := 0
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		m, _ := model.Load(text, source)
		if m == nil {
			continue
		}
		for _, ns := range m.Namespaces {
			for _, topic := range ns.Topics {
				topics++
				payloads := sample.Payloads(topic.Fields)
				require.Equal(t, payloads, sample.Payloads(topic.Fields), "the same each time")
				random := chance{rand.New(rand.NewPCG(1, 2))}
				for range 10 {
					payloads = append(payloads, sample.Payload(topic.Fields, random))
				}
				for _, payload := range payloads {
					stored := sample.Stored(topic.Fields, topic.Sealed, payload)
					require.Empty(t, payloadcheck.Check(topic, stored), "%s: %s: %s", source, topic.FullName(), stored)
					if topic.Sealed || model.HasSealed(topic.Fields) {
						require.NotEmpty(t, payloadcheck.Check(topic, payload), "an open value in place of a sealed one")
					}
				}
			}
		}
	}
	require.Greater(t, topics, 20)
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"^a+$", "^[A-Z]{3}-[0-9]{2,4}$", "x", "^(yes|no)$", `^\d{1,3}(\.\d{1,3}){3}$`, "^$|^b+$", ".*z$", "(?i)^abc$", `^[^@ ]+@[^@ ]+$`, "^.{2}$",
	} {
		f := &model.Field{Name: "f", Type: model.TypeRef{Kind: model.String}, Pattern: pattern}
		topic := &model.Topic{Fields: []*model.Field{f}}
		for i := range 3 {
			payload := sample.Payload(topic.Fields, always(i))
			require.Empty(t, payloadcheck.Check(topic, payload), "%s: %s", pattern, payload)
		}
	}
}

type always int

func (a always) Present() bool   { return true }
func (a always) Value(n int) int { return min(int(a), n-1) }
func (a always) Enum(n int) int  { return int(a) % n }
