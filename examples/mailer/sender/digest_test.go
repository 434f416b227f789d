package sender_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/mailer/events"
	"github.com/outboxgen/outboxgen/examples/mailer/provider"
	"github.com/outboxgen/outboxgen/examples/mailer/sender"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

func addresses(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("reader.%d@example.com", i))
	}
	return list
}

const digestsSentSQL = "SELECT count(*) FROM mailer.digests WHERE sent_at IS NOT NULL"

// TestDigestsComeInBatches: two dispatchers send 250 digests in a few calls, of at most 100 digests each.
func TestDigestsComeInBatches(t *testing.T) {
	t.Parallel()
	pool := mailerDatabase(t)
	p := provider.New(10, time.Minute, 0)
	writeDigest(t, pool, "What is new", addresses(250)...)
	stop := runTwo(t, pool, p)
	require.Eventually(t, func() bool { return count(t, pool, digestsSentSQL) == 250 }, time.Minute, 10*time.Millisecond)
	stop()
	books := p.Books()
	require.Len(t, books.Sent, 250)
	require.Less(t, len(books.Batches), 10, "%v", books.Batches)
	require.LessOrEqual(t, slices.Max(books.Batches), 100)
}

// TestPoisonDigest: the provider refuses a whole call for one digest and does not say which. The dispatcher finds it, and all
// others are sent, each once.
func TestPoisonDigest(t *testing.T) {
	t.Parallel()
	pool := mailerDatabase(t)
	p := provider.New(10, time.Minute, 0)
	writeDigest(t, pool, "What is new", addresses(30)...)
	writeDigest(t, pool, provider.Unreadable, "poison@example.com")
	writeDigest(t, pool, "What is new", addresses(30)...)
	require.Equal(t, queue.Report{Delivered: 60, Dead: 1}, outboxtest.Drain(t, dispatcher(t, pool, p)))
	books := p.Books()
	require.Less(t, len(books.Batches), 20, "%v", books.Batches)
	require.Len(t, books.Sent, 60)
	for key, n := range books.Sent {
		require.Equal(t, 1, n, key)
	}
	require.Equal(t, 60, count(t, pool, digestsSentSQL))
	require.Equal(t, 1, count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

// TestUnknownReader: the provider says which digest it did not send, and only that one fails.
func TestUnknownReader(t *testing.T) {
	t.Parallel()
	pool := mailerDatabase(t)
	p := provider.New(10, time.Minute, 0)
	writeDigest(t, pool, "What is new", append(addresses(30), "nobody@example.com")...)
	require.Equal(t, queue.Report{Delivered: 30, Dead: 1}, outboxtest.Drain(t, dispatcher(t, pool, p)))
	require.Less(t, len(p.Books().Batches), 5, "nobody looks for the one that failed")
	require.Equal(t, 30, count(t, pool, digestsSentSQL))
}

// TestDeliveredTwiceIsSentOnce: the provider gets the same key again, and the time in the table stays.
func TestDeliveredTwiceIsSentOnce(t *testing.T) {
	t.Parallel()
	pool := mailerDatabase(t)
	p := provider.New(10, time.Minute, 0)
	writeMails(t, pool, uuid.New(), uuid.New(), 1)
	writeDigest(t, pool, "What is new", "ada@example.com")
	mail := outboxtest.RequireEnqueued(t, pool, events.MailDueTopic, nil)
	digest := outbox.Delivery[events.DigestDue]{Payload: outboxtest.RequireEnqueued(t, pool, events.DigestDueTopic, nil)}
	s := sender.New(pool, p)
	const timesSQL = "SELECT (extract(epoch FROM m.sent_at + (d.sent_at - 'epoch')) * 1e6)::bigint FROM mailer.mails AS m, mailer.digests AS d"
	var times []int
	for range 2 {
		require.NoError(t, s.Send(t.Context(), mail))
		require.NoError(t, s.SendDigests(t.Context(), []outbox.Delivery[events.DigestDue]{digest}))
		times = append(times, count(t, pool, timesSQL))
	}
	require.Equal(t, times[0], times[1])
	require.Len(t, p.Books().Sent, 2)
}
