package web_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/hub"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/examples/threads/web"
	"github.com/outboxgen/outboxgen/outbox"
)

// requireWatchers waits until the thread has n streams.
func (f *fixture) requireWatchers(n int) {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) { require.Equal(c, n, f.hub.Watchers(f.id)) }, patience, time.Millisecond)
}

// TestStreamEndToEnd sends messages from one client through PostgreSQL and the listener to two others.
func TestStreamEndToEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broadcast(f.hub)
	early := f.follow(0)
	one, two := f.post("ada", "one"), f.post("ada", "two\nlines & \"quotes\"")
	f.requireNext(early, one, two)
	late := f.follow(0)
	f.requireNext(late, one, two) // from the table
	three := f.post("bob", "three")
	for _, feed := range []*web.Feed{early, late} {
		f.requireNext(feed, three)
		require.EqualValues(t, 3, feed.Last())
	}
}

// TestStreamResumes reconnects a client that has missed more messages than one page of the table.
func TestStreamResumes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broadcast(f.hub)
	feed := f.follow(0)
	f.requireNext(feed, f.post("ada", "seen"))
	require.NoError(t, feed.Close())
	f.requireWatchers(0)

	missed := make([]thread.Message, 120)
	for i := range missed {
		missed[i] = f.post("ada", fmt.Sprint("missed ", i))
	}
	feed = f.follow(feed.Last())
	f.requireNext(feed, missed...)
	f.requireNext(feed, f.post("ada", "live"))
}

// TestStreamGetsEachMessageOnce pushes messages again, as an at-least-once listener may, and leaves one out, as if its push
// had become a dead letter.
func TestStreamGetsEachMessageOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	feed := f.follow(0)
	f.requireWatchers(1)
	one := f.post("ada", "one")
	push := func(m thread.Message) {
		require.NoError(t, f.hub.Push(t.Context(), events.MessageCreated{
			TenantID: f.tenant, ThreadID: f.id, MessageID: m.ID, Number: m.Number, Role: m.Role, Author: m.Author, Text: m.Text, PostedAt: m.PostedAt,
		}))
	}
	push(one)
	f.requireNext(feed, one)
	push(one)
	two, three := f.post("ada", "two"), f.post("ada", "three")
	push(three)
	f.requireNext(feed, two, three)
	push(two)
	four := f.post("ada", "four")
	push(four)
	f.requireNext(feed, four)
}

// TestDeadLetterLeavesNoGap makes the listener give up on one message. The stream gets it from the table, with the next one.
func TestDeadLetterLeavesNoGap(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.broadcast(clientsFunc(func(ctx context.Context, m events.MessageCreated) error {
		if m.Number == 2 {
			return outbox.Permanent(errors.New("not to be broadcast"))
		}
		return f.hub.Push(ctx, m)
	}))
	feed := f.follow(0)
	f.requireNext(feed, f.post("ada", "one"))
	two, three := f.post("ada", "two"), f.post("ada", "three")
	f.requireNext(feed, two, three)
}

type clientsFunc func(context.Context, events.MessageCreated) error

func (c clientsFunc) Push(ctx context.Context, m events.MessageCreated) error { return c(ctx, m) }

// TestSlowClientIsDroppedAndComesBack pushes faster than a stream can take.
func TestSlowClientIsDroppedAndComesBack(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, hub.New(1))
	one := f.post("ada", "one")
	feed := f.follow(0)
	f.requireNext(feed, one)
	two := f.post("ada", "two")
	for f.hub.Watchers(f.id) > 0 { // the stream ignores these, but must check each of them
		require.NoError(t, f.hub.Push(t.Context(), events.MessageCreated{ThreadID: f.id, Number: 1}))
	}
	_, err := feed.Next()
	require.ErrorIs(t, err, io.EOF)

	feed = f.follow(feed.Last())
	f.requireNext(feed, two)
}

// TestStreamsEndWithTheServer closes the hub, as the server does when it stops.
func TestStreamsEndWithTheServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one := f.post("ada", "one")
	feed := f.follow(0)
	f.requireNext(feed, one)
	f.hub.Close()
	_, err := feed.Next()
	require.ErrorIs(t, err, io.EOF)
	f.requireNext(f.follow(0), one) // messages in the table can still be read
}
