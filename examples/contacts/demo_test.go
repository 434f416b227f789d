package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/database"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestDemoMayBeRepeated(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	for range 2 {
		var out strings.Builder
		require.NoError(t, newDemo(pool, &out).run(t.Context(), 20))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Equal(t, "6 tenants: 120 identities linked", lines[0])
		require.Equal(t, "36 refused, such as", lines[1])
		require.Regexp(t, `^  link identity: (external_id|email|phone) is linked to contact \S{36} already$`, lines[2])
		for i, shard := range lines[3:6] {
			require.Equal(t, fmt.Sprintf("shard %d (2 tenants): 40 events delivered", i+1), shard)
		}
		require.Equal(t, "identities 120, events delivered 120, directory entries 120", lines[len(lines)-1])
	}
}
