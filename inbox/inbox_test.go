package inbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]inbox.Config{
		`new inbox: field Stale "drop" is not valid: use skip, error or quarantine`: {Group: group, Stale: "drop"},
		`new inbox: field ReplayWindow -1s is negative`:                             {Group: group, ReplayWindow: -time.Second},
		`new inbox: field Retention -1ns is negative`:                               {Group: group, Retention: -1},
		`new inbox: field QuarantineRetention -1h0m0s is negative`:                  {Group: group, QuarantineRetention: -time.Hour},
		`new inbox: field Retention 24h0m0s is shorter than ReplayWindow 168h0m0s: an event replayed after its record was pruned would be handled again`: {
			Group: group, Retention: 24 * time.Hour,
		},
		`new inbox: field Retention 59m59s is shorter than ReplayWindow 1h0m0s: an event replayed after its record was pruned would be handled again`: {
			Group: group, Retention: time.Hour - time.Second, ReplayWindow: time.Hour,
		},
		`new inbox: field Retention 8760h0m0s is shorter than ReplayWindow forever: an event replayed after its record was pruned would be handled again`: {
			Group: group, Retention: 8760 * time.Hour, ReplayWindow: inbox.Forever,
		},
		`new inbox: schema name "Outbox" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`: {Group: group, Schema: "Outbox"},
		`new inbox: schema name "select" is a reserved word of SQL: choose another`:                             {Group: group, Schema: "select"},
	} {
		_, err := inbox.New(cfg)
		require.EqualError(t, err, want)
	}
}

func TestNewAccepts(t *testing.T) {
	t.Parallel()
	for _, cfg := range []inbox.Config{
		{Group: group},
		{Group: group, Schema: "app", Stale: inbox.Skip},
		{Group: group, Stale: inbox.Error, Retention: time.Hour, ReplayWindow: time.Hour},
		{Group: group, Stale: inbox.Quarantine, ReplayWindow: 9000 * time.Hour},
		{Group: group, ReplayWindow: inbox.Forever},
		{Group: group, ReplayWindow: inbox.Forever - 1},
		{Group: group, Retention: inbox.Forever},
	} {
		_, err := inbox.New(cfg)
		require.NoError(t, err)
	}
}

func TestGroupNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	longest := "g" + strings.Repeat("x", 100)
	for _, name := range []string{"a", "user-cards", "billing.v2", "a_1", "a-", "z.", "az", longest} {
		_, err := inbox.New(inbox.Config{Group: name})
		require.NoError(t, err)
		tx := begin(t, pool, "")
		handled, err := inbox.Once(t.Context(), tx, name, uuid.New(), nothing)
		require.NoError(t, err)
		require.True(t, handled)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	for _, name := range []string{
		"", "A", "aB", "1a", "-a", "_a", ".a", "a b", "a/b", "ä", "a\x00", "a\n", "\n", "{a", "a{", longest + "x", strings.Repeat("x", 5000),
	} {
		_, err := inbox.New(inbox.Config{Group: name})
		require.ErrorContains(t, err, "new inbox: consumer group ", name)
		require.ErrorContains(t, err, ": must match ^[a-z][a-z0-9_.-]{0,100}$", name)
		require.Less(t, len(err.Error()), 400)
		tx := begin(t, pool, "")
		handled, err := inbox.Once(t.Context(), tx, name, uuid.New(), never(t))
		require.ErrorContains(t, err, "record event: consumer group ", name)
		require.False(t, handled)
		usable(t, tx)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.Zero(t, recorded(t, pool))
	for length, cut := range map[int]bool{120: false, 121: true} {
		_, err := inbox.New(inbox.Config{Group: strings.Repeat("x", length)})
		require.Equal(t, cut, strings.Contains(err.Error(), "..."), "a long name is cut")
	}
}
