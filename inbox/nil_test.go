package inbox_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
)

// A nil argument is an error that says so, not a panic.
func TestNilArgumentsAreErrors(t *testing.T) {
	t.Parallel()
	in := newInbox(t, inbox.Config{})
	event := uuid.New()
	var tx *pgxpool.Tx
	for name, call := range map[string]func() error{
		"once":  func() error { _, err := in.Once(t.Context(), nil, event, never(t)); return err },
		"typed": func() error { _, err := in.Once(t.Context(), tx, event, never(t)); return err },
		"alone": func() error { _, err := inbox.Once(t.Context(), nil, group, event, never(t)); return err },
		"many": func() error {
			_, err := in.OnceMany(t.Context(), tx, []uuid.UUID{event}, func(context.Context, []int) error { return nil })
			return err
		},
		"apply": func() error {
			_, err := in.Apply(t.Context(), nil, inbox.Event{ID: event, EntityType: "a", EntityID: "b", Version: 1}, never(t))
			return err
		},
		"reset": func() error { return in.Reset(t.Context(), nil) },
		"last":  func() error { _, err := in.LastVersion(t.Context(), nil, inbox.Event{}); return err },
		"prune": func() error { _, err := in.Prune(t.Context(), nil); return err },
	} {
		var err error
		require.NotPanics(t, func() { err = call() }, name)
		require.ErrorContains(t, err, "given (nil)", name)
	}
}
