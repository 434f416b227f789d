package cards_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/users/cards"
)

func TestRebuild(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(30)
	f.publish(events...)
	p := f.project()
	f.exec("UPDATE cards.cards SET name = 'wrong' WHERE deleted_at IS NULL")
	require.NoError(t, p.Rebuild(t.Context()))
	f.requireCards()
	require.Zero(t, f.count("SELECT count(*) FROM cards_inbox.processed_events"))
	require.Zero(t, f.count("SELECT count(*) FROM cards_inbox.entity_versions"))
	p = f.project()
	require.Equal(t, cards.Counts{Applied: int64(len(events))}, p.Counts())
	f.requireCards(want...)
	f.requireEachOnce(len(events))
}

// TestRebuildWhileProjecting rebuilds while a projection is busy, and while it is idle.
func TestRebuildWhileProjecting(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(60)
	f.publish(events...)
	p, operator := f.projection(), f.projection()
	stop := f.start(p)
	for _, applied := range []int{20, 40} {
		require.Eventually(t, func() bool { return f.count("SELECT coalesce(sum(changes), 0) FROM cards.cards") >= applied }, patience, look)
		require.NoError(t, operator.Rebuild(t.Context()))
	}
	f.awaitEnd(p)
	f.requireCards(want...)
	f.requireEachOnce(len(events))

	require.NoError(t, operator.Rebuild(t.Context()))
	f.awaitEnd(p)
	require.NoError(t, stop())
	f.requireCards(want...)
	f.requireEachOnce(len(events))
}

// TestRebuildIsAllOrNothing: a rebuild that is canceled leaves the projection unchanged.
func TestRebuildIsAllOrNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(10)
	f.publish(events...)
	p := f.project()
	group, err := p.Group(t.Context())
	require.NoError(t, err)

	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM cards_inbox.entity_versions FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- p.Rebuild(ctx) }()
	f.awaitLock() // the cards are truncated, the inbox is not
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))

	f.requireCards(want...)
	f.requireEachOnce(len(events))
	again, err := p.Group(t.Context())
	require.NoError(t, err)
	require.Equal(t, group, again)
}

// awaitLock waits until a session waits for a lock in this database.
func (f *fixture) awaitLock() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		return f.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	}, patience, look)
}
