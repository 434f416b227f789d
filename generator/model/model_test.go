package model_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// head starts a file; topic adds one with the given payload and keys.
const head = "version: \"1\"\npackage: events\n"

func topic(payload string, keys ...string) string {
	out := "namespaces:\n  mini_chat:\n    topics:\n      turn_finalized:\n        payload: {" + payload + "}\n"
	for _, key := range keys {
		out += "        " + key + "\n"
	}
	return out
}

func load(t *testing.T, source string) *model.Model {
	t.Helper()
	m, findings := model.Load([]byte(source), "dir/outbox.yaml")
	require.Empty(t, findings)
	return m
}

func loadFile(t *testing.T, name string) *model.Model {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return load(t, string(source))
}

func TestBuildTheSampleOfTheDesign(t *testing.T) {
	t.Parallel()
	m := loadFile(t, "sample.yaml")
	require.Equal(t, "outbox.yaml", m.Source)
	require.Equal(t, "events", m.Package)
	require.Equal(t, "outbox", m.Schema)

	usage, outcome := m.Types[0], m.Types[1]
	require.Equal(t, "Usage", usage.GoName)
	require.Equal(t, int64(0), usage.Fields[0].Min)
	require.Nil(t, usage.Fields[0].Max)
	require.True(t, outcome.IsEnum())
	require.Equal(t, model.EnumValue{Value: "completed", GoName: "OutcomeCompleted"}, outcome.Values[0])

	require.Equal(t, "MiniChat", m.Namespaces[0].GoName)
	turn := m.Namespaces[0].Topics[0]
	require.Equal(t, "mini_chat/turn_finalized", turn.FullName())
	require.Equal(t, "TurnFinalized", turn.GoName)
	require.Equal(t, "is emitted once per chat turn, when it reaches a terminal state.", turn.Doc)
	require.Equal(t, 1, turn.Version)
	require.Equal(t, model.Queue, turn.Delivery)
	require.True(t, turn.Wake)
	require.Equal(t, model.Retry{MaxAttempts: 25, BaseDelay: time.Second, MaxDelay: 30 * time.Minute}, turn.Retry)
	require.Equal(t, 30*time.Second, turn.Lease)
	require.Equal(t, model.Retention{Delivered: 168 * time.Hour, Dead: 720 * time.Hour}, turn.Retention)

	field := make(map[string]*model.Field)
	for _, f := range turn.Fields {
		field[f.Name] = f
	}
	require.Same(t, field["tenant_id"], turn.Tenant)
	require.Equal(t, "TenantID", turn.Tenant.GoName)
	require.Equal(t, &model.Template{
		Text: "{tenant_id}/{turn_id}/{request_id}",
		Segments: []model.Segment{
			{Field: field["tenant_id"]}, {Field: field["turn_id"]}, {Field: field["request_id"]},
		},
	}, turn.DedupeKey)
	require.Equal(t, []model.Segment{{Field: field["chat_id"]}}, turn.PartitionKey.Segments)
	require.Equal(t, model.FairnessTenant, turn.Fairness)
	require.Equal(t, "turn", turn.Entity.Type)
	require.Same(t, field["turn_version"], turn.Entity.Version)
	require.Same(t, outcome, field["outcome"].Type.Type)
	require.Equal(t, 128, *field["model"].MaxLen)
	require.True(t, field["note"].Optional)
	require.Equal(t, model.String, field["note"].Type.Kind)
	require.Equal(t, model.TypeRef{Kind: model.List, Elem: &model.TypeRef{Kind: model.String}}, field["tags"].Type)
}

func TestBuildFillsInWhatTheFileLeavesOut(t *testing.T) {
	t.Parallel()
	turn := load(t, head+topic("id: uuid")).Namespaces[0].Topics[0]
	require.Equal(t, &model.Topic{
		Namespace: turn.Namespace, Name: "turn_finalized", GoName: "TurnFinalized", Version: 1, Delivery: model.Queue, Wake: true,
		Retry:     model.Retry{MaxAttempts: 25, BaseDelay: time.Second, MaxDelay: 30 * time.Minute},
		Lease:     30 * time.Second,
		Retention: model.Retention{Delivered: 168 * time.Hour, Dead: 720 * time.Hour},
		Fields:    []*model.Field{{Name: "id", GoName: "ID", Type: model.TypeRef{Kind: model.UUID}}},
	}, turn)
}

func TestTopicOverridesDefaultsKeyByKey(t *testing.T) {
	t.Parallel()
	m := load(t, head+"schema: other\ndefaults: {lease: 1m, wake: none, retry: {max_attempts: 13}, retention: {dead: 900h}}\n"+
		topic("id: uuid", "retry: {base_delay: 2s}", "retention: {delivered: 0s}", "wake: doorbell"))
	turn := m.Namespaces[0].Topics[0]
	require.Equal(t, "other", m.Schema)
	require.Equal(t, model.Retry{MaxAttempts: 13, BaseDelay: 2 * time.Second, MaxDelay: 30 * time.Minute}, turn.Retry)
	require.Equal(t, model.Retention{Delivered: 0, Dead: 900 * time.Hour}, turn.Retention)
	require.Equal(t, time.Minute, turn.Lease)
	require.True(t, turn.Wake)
}

func TestTypesAndBounds(t *testing.T) {
	t.Parallel()
	m := load(t, head+"types:\n  later: {fields: {inner: used}}\n  used: {fields: {n: int32}}\n"+topic(strings.Join([]string{
		`a: "map[string][]later?"`, `b: {type: float64, min: -1, max: 1.5}`, `c: {type: duration, min: -1s, max: 1h}`,
		`d: {type: int32, min: -2147483648}`, `e: {type: "[]uuid", min_len: 1}`, `f: {type: string, optional: true, pattern: "^a+$"}`,
	}, ", ")))
	fields := m.Namespaces[0].Topics[0].Fields
	require.Equal(t, "map[string][]later", fields[0].Type.String())
	require.True(t, fields[0].Optional)
	require.Same(t, m.Types[0], fields[0].Type.Elem.Elem.Type)
	require.Same(t, m.Types[1], m.Types[0].Fields[0].Type.Type)
	require.Equal(t, []any{-1.0, 1.5}, []any{fields[1].Min, fields[1].Max})
	require.Equal(t, []any{int64(-time.Second), int64(time.Hour)}, []any{fields[2].Min, fields[2].Max})
	require.Equal(t, int64(-2147483648), fields[3].Min)
	require.Equal(t, 1, *fields[4].MinLen)
	require.Equal(t, "^a+$", fields[5].Pattern)
}

// Fields may have names that are words of Go or SQL, and several structs may have fields of the same name.
func TestAwkwardFieldNamesAreFine(t *testing.T) {
	t.Parallel()
	m := load(t, head+topic("type: string, id: uuid, url: string, from: string, func: string, select: string, range: int32, string: string, error: string, len: int32"))
	var names []string
	for _, f := range m.Namespaces[0].Topics[0].Fields {
		names = append(names, f.GoName)
	}
	require.Equal(t, "Type ID URL From Func Select Range String Error Len", strings.Join(names, " "))
}

func TestDocsBecomeOneCleanLine(t *testing.T) {
	t.Parallel()
	turn := load(t, head+topic("id: {type: uuid, doc: \"//go:generate rm\\u202e x\"}", `doc: "is\n//go:embed x\r\n\e[31m  done\u2028here\u00a0\x01."`)).Namespaces[0].Topics[0]
	require.Equal(t, "is //go:embed x [31m done here .", turn.Doc)
	require.Equal(t, "//go:generate rm x", turn.Fields[0].Doc)
}

// A file that could not be read is not reported twice.
func TestBuildWithoutSpec(t *testing.T) {
	t.Parallel()
	m, findings := model.Build(nil)
	require.Nil(t, m)
	require.Empty(t, findings)
	m, findings = model.Build(&spec.Spec{})
	require.NotNil(t, m)
	require.Empty(t, findings)
}

func TestHorizon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		retry model.Retry
		want  time.Duration
	}{
		{model.Retry{MaxAttempts: 1, BaseDelay: time.Second, MaxDelay: time.Minute}, 0},
		{model.Retry{MaxAttempts: 25, BaseDelay: time.Second, MaxDelay: 30 * time.Minute}, 7*time.Hour + 4*time.Minute + 7*time.Second},
		{model.Retry{MaxAttempts: 5, BaseDelay: time.Second, MaxDelay: 3 * time.Second}, 9 * time.Second},
		{model.Retry{MaxAttempts: 1000, BaseDelay: time.Millisecond, MaxDelay: 720 * time.Hour}, 0},
	} {
		if c.want == 0 && c.retry.MaxAttempts > 1 {
			require.Positive(t, c.retry.Horizon(), "no overflow")
			require.Less(t, c.retry.Horizon(), 1000*c.retry.MaxDelay)
			continue
		}
		require.Equal(t, c.want, c.retry.Horizon())
	}
}

// TestHorizonIsThatOfTheBackoff: no delay of the runtime is longer than what the horizon counts for its attempt, and the longest
// come near it. So the rules about retention and lease hold for the formula that is used.
func TestHorizonIsThatOfTheBackoff(t *testing.T) {
	t.Parallel()
	retry := model.Retry{BaseDelay: time.Second, MaxDelay: 90 * time.Second}
	for attempt := 1; attempt < 12; attempt++ {
		before, after := retry, retry
		before.MaxAttempts, after.MaxAttempts = attempt, attempt+1
		counted := after.Horizon() - before.Horizon()
		longest := time.Duration(0)
		for range 300 {
			longest = max(longest, backoff.Delay(retry.BaseDelay, retry.MaxDelay, attempt))
		}
		require.LessOrEqual(t, longest, counted, "attempt %d", attempt)
		require.Greater(t, longest, counted*9/10, "attempt %d", attempt)
	}
}

// bigFile has n topics of ten fields.
func bigFile(n int) []byte {
	var out strings.Builder
	out.WriteString(head + "namespaces:\n  big:\n    topics:\n")
	for i := range n {
		fmt.Fprintf(&out, "      topic_%d:\n        doc: is number %d.\n        tenant: tenant_id\n        dedupe_key: \"{tenant_id}/{field_1}\"\n        payload:\n          tenant_id: uuid\n", i, i)
		for j := 1; j < 10; j++ {
			fmt.Fprintf(&out, "          field_%d: {type: string, max_len: %d}\n", j, j)
		}
	}
	return []byte(out.String())
}

func TestThousandTopicsLoadQuickly(t *testing.T) {
	t.Parallel()
	source := bigFile(1000)
	start := time.Now()
	m, findings := model.Load(source, "outbox.yaml")
	took := time.Since(start)
	require.Empty(t, findings)
	require.Len(t, m.Namespaces[0].Topics, 1000)
	require.Less(t, took, time.Minute, "half a second is usual, also with -race")
}

// A file that is built to be slow is still checked quickly: suggestions, circles and collisions are bounded.
func TestLoadIsBoundedOnHostileFiles(t *testing.T) {
	t.Parallel()
	many := func(before string, format func(i int) string) string {
		out := strings.Builder{}
		out.WriteString(head + before)
		for i := 0; out.Len() < 1<<18; i++ {
			out.WriteString(format(i))
		}
		return out.String()
	}
	for name, source := range map[string]string{
		"unknown types": many("types:\n", func(i int) string { return fmt.Sprintf("  n%06d: {fields: {a: x%06d}}\n", i, i) }),
		"circles":       many("types:\n", func(i int) string { return fmt.Sprintf("  n%d: {fields: {a: n%d, b: n0}}\n", i, i+1) }),
		"unknown fields": many("namespaces:\n  a:\n    topics:\n", func(i int) string {
			return fmt.Sprintf("      n%06d: {dedupe_key: \"%s{x}\", payload: {y: uuid}}\n", i, strings.Repeat("{x}/", 120))
		}),
		"same Go names": many("namespaces:\n  a:\n    topics:\n", func(i int) string { return fmt.Sprintf("      n%06d: {go: Same, payload: {}}\n", i) }),
		"patterns": many("types:\n  a:\n    fields:\n", func(i int) string {
			return fmt.Sprintf("      n%06d: {type: string, pattern: \"((\\\\pL{30}){30})?\"}\n", i)
		}),
	} {
		start := time.Now()
		_, findings := model.Load([]byte(source), "outbox.yaml")
		require.NotEmpty(t, findings, name)
		require.Less(t, time.Since(start), time.Minute, name)
	}
}

func BenchmarkLoad(b *testing.B) {
	source := bigFile(1000)
	b.ReportAllocs()
	for b.Loop() {
		model.Load(source, "outbox.yaml")
	}
}
