package target

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

type answers []error

func (a answers) Publish(context.Context, []publish.Outgoing) []error { return a }

// TestBehindNeedsAFailure: an event that a publisher calls behind a failed one, and that is not, has failed itself. It would be
// tried again without a pause otherwise.
func TestBehindNeedsAFailure(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	for name, c := range map[string]struct {
		keys []string
		errs answers
		want []errclass.Class
	}{
		"behind a failed one":          {[]string{"a", "b", "a"}, answers{no, nil, outbox.ErrBehind}, []errclass.Class{errclass.ClassFailed, errclass.ClassDone, errclass.ClassNotSent}},
		"behind one that was not sent": {[]string{"a", "a", "a"}, answers{no, outbox.ErrBehind, outbox.ErrBehind}, []errclass.Class{errclass.ClassFailed, errclass.ClassNotSent, errclass.ClassNotSent}},
		"behind nothing":               {[]string{"a", "a"}, answers{outbox.ErrBehind, outbox.ErrBehind}, []errclass.Class{errclass.ClassFailed, errclass.ClassNotSent}},
		"behind another key":           {[]string{"a", "b"}, answers{no, outbox.ErrBehind}, []errclass.Class{errclass.ClassFailed, errclass.ClassFailed}},
		"without a key":                {[]string{"", ""}, answers{no, outbox.ErrBehind}, []errclass.Class{errclass.ClassFailed, errclass.ClassFailed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{}), map[string]publish.Publisher{"kafka": c.errs}, slog.New(slog.DiscardHandler))
			require.NoError(t, s.Add("test/said", &Route{broker: "kafka", destination: "orders"}))
			events := make([]publish.Outgoing, len(c.keys))
			for i, key := range c.keys {
				events[i].ID, events[i].Key = newIDs(1)[0], key
			}
			var classes []errclass.Class
			for _, r := range s.All[0].Send(t.Context(), events) {
				classes = append(classes, r.Class)
			}
			require.Equal(t, c.want, classes)
		})
	}
}
