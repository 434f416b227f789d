package check

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestVetWithTheLibrariesOfUsers: outboxgen vet works in a module whose requirements are newer than those that outboxgen
// itself is tested with. The facts that golang.org/x/tools exchanges through files have another form there.
func TestVetWithTheLibrariesOfUsers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	m := newModule(t)
	for _, b := range read(t, "README.md") {
		if b.language == "yaml" {
			m.generate("events", b.text, b.String())
		}
	}
	m.write("app.go", `package app

import (
	"context"

	"example.com/app/events"
	"github.com/jackc/pgx/v5"
)

func finalize(ctx context.Context, tx pgx.Tx, turn events.TurnFinalized) {
	events.EnqueueTurnFinalized(ctx, tx, turn)
}
`)
	out, err := m.run("go", "tool", "outboxgen", "vet", "./...")
	require.Error(t, err)
	require.Contains(t, out, "app.go:11", out)
	require.NotContains(t, out, "vetx")
}
