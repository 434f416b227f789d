package thread_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestPostWritesMessageAndEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i, text := range []string{"one", "two"} {
		m, created, err := f.post(f.draft(text))
		require.NoError(t, err)
		require.True(t, created)
		require.EqualValues(t, i+1, m.Number)
		p := outboxtest.RequireEnqueued(t, f.pool, events.MessageCreatedTopic, func(p events.MessageCreated) bool { return p.MessageID == m.ID })
		p.PostedAt = p.PostedAt.In(m.PostedAt.Location())
		require.Equal(t, m, thread.Of(p))
		require.Equal(t, f.tenant, p.TenantID)
		require.Equal(t, f.id, p.ThreadID)
	}
	require.Equal(t, 2, f.count("SELECT entity_version FROM outbox.log WHERE entity_type = 'thread' ORDER BY seq DESC LIMIT 1"),
		"the version of the entity is the number of the message")
	f.requireCounts(2)
}

func TestPostTwiceIsOneMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := f.draft("one")
	first, created, err := f.post(d)
	require.NoError(t, err)
	require.True(t, created)
	_, _, err = f.post(f.draft("two"))
	require.NoError(t, err)

	second, created, err := f.post(d)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, first, second)

	d.Text = "something else"
	_, _, err = f.post(d)
	require.ErrorIs(t, err, thread.ErrIDTaken)
	f.requireCounts(2)
}

func TestPostInvalidLeavesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, _, err := f.post(f.draft(""))
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	require.ErrorContains(t, err, "text")
	unnamed := f.draft("one")
	unnamed.ID = uuid.Nil
	_, _, err = f.post(unnamed)
	require.ErrorIs(t, err, outbox.ErrEmptyKeyPart)
	f.requireCounts(0)
}

// TestPostRolledBackLeavesNothing lets the transaction fail after the message was posted in it. The next message gets its
// number.
func TestPostRolledBackLeavesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	lost, created, err := thread.Post(t.Context(), tx, f.draft("lost"))
	require.NoError(t, err)
	require.True(t, created)
	require.NoError(t, tx.Rollback(t.Context()))
	f.requireCounts(0)

	kept, _, err := f.post(f.draft("kept"))
	require.NoError(t, err)
	require.Equal(t, lost.Number, kept.Number)
	f.requireCounts(1)
}

// TestPostConcurrently posts many messages concurrently, some of them twice. Their numbers have no gap, and the log has
// them in the order of their numbers.
func TestPostConcurrently(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const posters, each = 6, 10
	same := f.draft("same")
	var busy sync.WaitGroup
	errs := make([]error, posters)
	for i := range posters {
		busy.Go(func() {
			for n := range each {
				d := f.draft("mine")
				if n == each/2 {
					d = same
				}
				if _, _, errs[i] = f.post(d); errs[i] != nil {
					return
				}
			}
		})
	}
	busy.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	f.requireCounts(posters*(each-1) + 1)
	require.Zero(t, f.count(`
		SELECT count(*)
		FROM (SELECT entity_version, row_number() OVER (ORDER BY seq) AS place FROM outbox.log) AS l
		WHERE entity_version <> place`))
}
