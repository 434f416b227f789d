package companion_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/companion"
	"github.com/outboxgen/outboxgen/examples/threads/database"
	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

// fixture is a database with a thread in which a user has asked a question.
type fixture struct {
	t        *testing.T
	pool     *pgxpool.Pool
	question thread.Draft
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: outboxtest.Postgres(t), question: thread.Draft{
		TenantID: uuid.New(), ThreadID: uuid.New(), ID: uuid.New(), Role: events.RoleUser, Author: "ada", Text: "Does the ferry run?",
	}}
	require.NoError(t, database.Migrate(t.Context(), f.pool))
	require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := thread.Create(t.Context(), tx, f.question.TenantID, f.question.ThreadID)
		return err
	}))
	require.NoError(t, f.post(f.question))
	return f
}

func (f *fixture) post(d thread.Draft) error {
	return pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		_, _, err := thread.Post(f.t.Context(), tx, d)
		return err
	})
}

func (f *fixture) request() events.ReplyRequested {
	return events.ReplyRequested{TenantID: f.question.TenantID, ThreadID: f.question.ThreadID, MessageID: f.question.ID}
}

// replies returns the texts of the messages after the question.
func (f *fixture) replies() []string {
	f.t.Helper()
	messages, err := thread.After(f.t.Context(), f.pool, f.question.TenantID, f.question.ThreadID, 1, 10)
	require.NoError(f.t, err)
	var texts []string
	for _, m := range messages {
		require.Equal(f.t, events.RoleCompanion, m.Role)
		require.Equal(f.t, companion.Name, m.Author)
		texts = append(texts, m.Text)
	}
	return texts
}

func (f *fixture) dispatcher(c *companion.Companion) *queue.Dispatcher {
	f.t.Helper()
	d, err := events.NewRepliesDispatcher(f.pool, &events.RepliesHandler{Companion: c}, queue.Config{})
	require.NoError(f.t, err)
	return d
}

// TestQuestionIsAnswered tests the whole way: the listener turns the question into a job, the dispatcher handles the job,
// and the listener ignores the reply.
func TestQuestionIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	listener, err := events.NewCompanionListener(f.pool, &events.CompanionHandler{}, listener.Config{})
	require.NoError(t, err)
	dispatcher := f.dispatcher(companion.New(f.pool, companion.Echo))
	for range 2 {
		outboxtest.Drain(t, listener)
		outboxtest.Drain(t, dispatcher)
	}
	require.Equal(t, []string{`You say: "Does the ferry run?"`}, f.replies())
	require.Zero(t, outboxtest.Drain(t, listener))
	require.Zero(t, outboxtest.Drain(t, dispatcher))
}

func TestJobDeliveredTwiceIsOneReply(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := 0
	c := companion.New(f.pool, func(context.Context, thread.Message) (string, error) {
		calls++
		return fmt.Sprintf("answer %d", calls), nil
	})
	job := uuid.New()
	for range 3 {
		require.NoError(t, c.Reply(t.Context(), job, f.request()))
	}
	require.Equal(t, []string{"answer 1"}, f.replies())
	require.Equal(t, 1, calls)
}

// TestAttemptsAtOnceAreOneReply lets the first attempt lose its lease while it writes the answer. The second attempt starts
// meanwhile and is faster.
func TestAttemptsAtOnceAreOneReply(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	job := uuid.New()
	fast := companion.New(f.pool, func(context.Context, thread.Message) (string, error) { return "fast", nil })
	slow := companion.New(f.pool, func(ctx context.Context, _ thread.Message) (string, error) {
		return "slow", fast.Reply(ctx, job, f.request())
	})
	require.NoError(t, slow.Reply(t.Context(), job, f.request()))
	require.Equal(t, []string{"fast"}, f.replies())
}

func TestFailedAnswerIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tries := 0
	d := f.dispatcher(companion.New(f.pool, func(context.Context, thread.Message) (string, error) {
		if tries++; tries == 1 {
			return "", outbox.RetryAfter(0, errors.New("no answer"))
		}
		return "It does.", nil
	}))
	require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := events.EnqueueReplyRequested(t.Context(), tx, f.request())
		return err
	}))
	require.Equal(t, queue.Report{Retried: 1, Delivered: 1}, outboxtest.Drain(t, d))
	require.Equal(t, []string{"It does."}, f.replies())
}

func TestQuestionThatIsGoneIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	gone := f.request()
	gone.MessageID = uuid.New()
	require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := events.EnqueueReplyRequested(t.Context(), tx, gone)
		return err
	}))
	require.Equal(t, queue.Report{Dead: 1}, outboxtest.Drain(t, f.dispatcher(companion.New(f.pool, companion.Echo))))
	require.Empty(t, f.replies())
}
