package diag_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

func TestReporterSortsAndPlacesFindings(t *testing.T) {
	t.Parallel()
	r := diag.NewReporter("outbox.yaml")
	require.Nil(t, r.Findings())
	r.Errorf(r.Pos(3, 1), diag.UnknownKey, "later %q", "x")
	r.Errorf(r.Pos(0, 0), diag.MissingKey, "first")
	r.Errorf(diag.Pos{}, diag.MissingKey, "nowhere")
	require.EqualError(t, r.Findings(), `outbox.yaml:1:1: first [missing-key]
outbox.yaml:1:1: nowhere [missing-key]
outbox.yaml:3:1: later "x" [unknown-key]`)
}

func TestDidYouMean(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"turn", []string{"tenant_id", "turn_id"}, "turn_id"},
		{"turn_di", []string{"tenant_id", "turn_id"}, "turn_id"},
		{"paylod", []string{"partition_key", "payload"}, "payload"},
		{"message_created", []string{"threads/message_created"}, "threads/message_created"},
		{"attempts", []string{"max_attempts"}, "max_attempts"},
		{"usge", []string{"usage", "usages"}, "usage"},
		{"id", []string{"at", "no"}, ""},
		{"completely_other", []string{"turn_id", "tenant_id"}, ""},
		{"turn", []string{"turn_version", "turn_id"}, "turn_id"},
		{"turnId", []string{"turn_idx", "turn_id"}, "turn_id"},
		{"name", []string{"wake", "lease"}, ""},
		{"delay", []string{"base_delay", "max_delay"}, ""},
		{"mix_len", []string{"min_len", "max_len"}, ""},
		{"id", []string{"is", "it"}, ""},
		{"same", []string{"same"}, ""},
		{"", []string{"turn_id"}, ""},
		{"x", nil, ""},
	} {
		want := c.want
		if want != "" {
			want = fmt.Sprintf(" (did you mean %q?)", c.want)
		}
		require.Equal(t, want, diag.NewReporter("f").DidYouMean(c.name, c.candidates), "%q", c.name)
	}
}

// A file with many unknown names must not cost the product of their numbers.
func TestDidYouMeanIsBounded(t *testing.T) {
	t.Parallel()
	candidates := make([]string, 20_000)
	for i := range candidates {
		candidates[i] = fmt.Sprintf("a_candidate_that_is_long_enough_%06d", i)
	}
	r := diag.NewReporter("f")
	near := "a_candidate_that_is_long_enough_000000x"
	require.NotEmpty(t, r.DidYouMean(near, candidates))
	for i := range 20_000 {
		r.DidYouMean(fmt.Sprintf("a_candidate_that_is_long_enough_x%05d", i), candidates)
	}
	require.Empty(t, r.DidYouMean(near, candidates), "the budget is spent, so later findings have no suggestion")
}
