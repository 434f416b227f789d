package consumetest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
)

// step is the payload: the n-th event of a key.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var stepTaken = consume.NewTopic[step](consume.TopicSpec{Namespace: "consumetest", Name: "step_taken"})

// effects is a consumer that inserts a row per event, and then does what its test wants.
type effects struct {
	mu    sync.Mutex
	then  func(ctx context.Context, tx pgx.Tx, s step, call int) error // nil succeeds
	calls map[step]int
	total int
}

// count is how often the method was called.
func (e *effects) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.total
}

func (e *effects) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	_, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N)
	if err != nil {
		return err
	}
	e.mu.Lock()
	if e.calls == nil {
		e.calls = make(map[step]int)
	}
	e.calls[d.Payload]++
	e.total++
	then, call := e.then, e.calls[d.Payload]
	e.mu.Unlock()
	if then == nil {
		return nil
	}
	return then(ctx, tx, d.Payload, call)
}

// row is something that a method can do for a message.
type row struct {
	name string
	do   func(ctx context.Context, tx pgx.Tx, pool *pgxpool.Pool) error
	// dead is a part of the error of the dead letter that the message becomes if the method always does that. "" means that
	// the message is applied.
	dead string
	// passes: it must not be done for ever, because no attempt is counted.
	passes bool
	// permanent: it is not tried again.
	permanent bool
	// hangs: it needs a short EffectTimeout.
	hangs bool
	// disconnects: it looks like a database that is away, so that it is tried again and again before an attempt is counted.
	disconnects bool
}

var errRefused = errors.New("refused by the method of the suite")

// rows are what a method can do.
var rows = []row{
	{name: "succeeds", do: func(context.Context, pgx.Tx, *pgxpool.Pool) error { return nil }},
	{name: "fails", dead: errRefused.Error(), do: func(context.Context, pgx.Tx, *pgxpool.Pool) error { return errRefused }},
	{name: "fails permanently", dead: errRefused.Error(), permanent: true,
		do: func(context.Context, pgx.Tx, *pgxpool.Pool) error { return consume.Permanent(errRefused) }},
	{name: "says unavailable", passes: true,
		do: func(context.Context, pgx.Tx, *pgxpool.Pool) error { return consume.Unavailable(errRefused) }},
	{name: "panics", dead: "panicked", do: func(context.Context, pgx.Tx, *pgxpool.Pool) error { panic("a secret") }},
	{name: "ends its goroutine", dead: "runtime.Goexit", do: func(context.Context, pgx.Tx, *pgxpool.Pool) error {
		runtime.Goexit()
		return nil
	}},
	{name: "hangs", dead: " within ", hangs: true, do: func(ctx context.Context, _ pgx.Tx, _ *pgxpool.Pool) error {
		<-ctx.Done()
		return ctx.Err()
	}},
	{name: "hangs in SQL", dead: " within ", hangs: true, do: func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(600)")
		return err
	}},
	{name: "calls Commit", do: func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
		_ = tx.Commit(ctx)
		return nil
	}},
	{name: "calls Rollback", do: func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
		_ = tx.Rollback(ctx)
		return nil
	}},
	{name: "returns the error of Commit", dead: "the consumer owns the transaction",
		do: func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
			return owned(tx.Commit(ctx))
		}},
	{name: "returns the error of Rollback", dead: "the consumer owns the transaction",
		do: func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
			return owned(tx.Rollback(ctx))
		}},
	{name: "sends COMMIT", dead: "transaction", do: sends("COMMIT")},
	{name: "sends ROLLBACK", dead: "transaction", do: sends("ROLLBACK")},
	{name: "sends COMMIT and BEGIN", dead: "transaction", do: sends("COMMIT", "BEGIN")},
	{name: "sends ROLLBACK and BEGIN", dead: "transaction", do: sends("ROLLBACK", "BEGIN")},
	{name: "swallows an SQL error", dead: "division by zero", do: sends("SELECT 1/0")},
	{name: "breaks a deferred constraint", dead: "deferred_owner", do: sends("INSERT INTO deferred VALUES (1)")},
	{name: "closes its connection", dead: "conn", disconnects: true,
		do: func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
			return tx.Conn().Close(ctx)
		}},
	{name: "kills its session", dead: "conn", disconnects: true, do: sends("SELECT pg_terminate_backend(pg_backend_pid())")},
	{name: "takes all connections", do: takeAll},
	{name: "takes all connections and fails", dead: errRefused.Error(),
		do: func(ctx context.Context, tx pgx.Tx, pool *pgxpool.Pool) error {
			return errors.Join(takeAll(ctx, tx, pool), errRefused)
		}},
}

// sends sends statements and ignores their errors.
func sends(statements ...string) func(context.Context, pgx.Tx, *pgxpool.Pool) error {
	return func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
		for _, statement := range statements {
			_, _ = tx.Exec(ctx, statement)
		}
		return nil
	}
}

// owned returns the error of a refused Commit or Rollback, which must be consume.ErrTxOwned.
func owned(err error) error {
	if !errors.Is(err, consume.ErrTxOwned) {
		return errors.New("the transaction's Commit and Rollback do not answer with consume.ErrTxOwned")
	}
	return err
}

// takeAll takes what the pool has left, and gives it back a moment later.
func takeAll(ctx context.Context, _ pgx.Tx, pool *pgxpool.Pool) error {
	const enough = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 4*enough)
	defer cancel()
	for {
		waited, over := context.WithTimeout(ctx, enough)
		conn, err := pool.Acquire(waited)
		over()
		if err != nil {
			return nil // nothing was left for that long
		}
		defer conn.Release()
	}
}
