package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/orders/database"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestBacklogWaitsForTheDispatcher(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	var out strings.Builder
	d := demo{pool: pool, shop: uuid.New(), out: &out}

	created, repeated, err := d.takeOrders(t.Context(), 100)
	require.NoError(t, err)
	require.EqualValues(t, 100, created)
	require.EqualValues(t, 20, repeated)
	left, err := d.backlog(t.Context())
	require.NoError(t, err)
	require.Equal(t, 100, left)
	require.ErrorContains(t, d.account(t.Context()), "differ", "nothing is shipped yet")

	require.NoError(t, d.drainBacklog(t.Context()))
	left, err = d.backlog(t.Context())
	require.NoError(t, err)
	require.Zero(t, left)
	require.NoError(t, d.account(t.Context()))

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, "orders 100, events delivered 0, shipments 0", lines[0])
	require.Equal(t, "backlog   100   the dispatcher starts", lines[1])
	require.Contains(t, lines, "backlog     0")
	require.Equal(t, "orders 100, events delivered 100, shipments 100", lines[len(lines)-1])
}

func TestDemoMayBeRepeated(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	for range 2 {
		var out strings.Builder
		require.NoError(t, demo{pool: pool, shop: uuid.New(), out: &out}.run(t.Context(), 20))
		require.Contains(t, out.String(), "24 requests: 20 orders created, 4 were repeats\n")
	}
}
