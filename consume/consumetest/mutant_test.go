package consumetest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// The checks of the suite that mutants name more than once.
const (
	everything = "everything is applied once and in order"
	unsettled  = "what is not settled is not acknowledged"
	processes  = "several processes"
)

// patience is how long a check waits for what a mutant may never do.
const patience = 3 * time.Second

// mutants are transports with one fault each, and the check that must notice it.
var mutants = map[string]struct {
	noticed string
	transport
}{
	"acknowledges messages without an outcome": {
		unsettled, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			_, err := p.Receive(ctx, ms)
			ack(len(ms))
			return err
		}}},
	"acknowledges past a hole": {
		unsettled, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			outcomes, err := p.Receive(ctx, ms)
			last := 0
			for i, o := range outcomes {
				if o != "" {
					last = i + 1
				}
			}
			ack(last)
			return err
		}}},
	"acknowledges before the commit": {
		unsettled, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			ack(len(ms))
			_, err := p.Receive(ctx, ms)
			return err
		}}},
	"never acknowledges": {
		everything, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, _ func(int)) error {
			_, err := p.Receive(ctx, ms)
			return err
		}}},
	"ignores the error of Receive and continues behind it": {
		unsettled, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			_, _ = p.Receive(ctx, ms)
			ack(len(ms))
			return nil
		}}},
	"applies a batch in reverse": {
		everything, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			slices.Reverse(ms)
			return settle(ctx, p, ms, ack)
		}}},
	"forgets the key": {
		"a method fails, batches of 1",
		transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			for i := range ms {
				ms[i].Key = ""
			}
			return settle(ctx, p, ms, ack)
		}}},
	"gives messages of one key to concurrent calls": {
		everything, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			half := (len(ms) + 1) / 2
			second := make(chan error, 1)
			go func() {
				_, err := p.Receive(ctx, ms[half:])
				second <- err
			}()
			_, err := p.Receive(ctx, ms[:half])
			err = errors.Join(err, <-second)
			if err == nil {
				ack(len(ms))
			}
			return err
		}}},
	"loses the last message of a batch": {
		everything, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			if len(ms) < 2 {
				return settle(ctx, p, ms, ack)
			}
			return settle(ctx, p, ms[:len(ms)-1], func(n int) {
				if n == len(ms)-1 {
					n++
				}
				ack(n)
			})
		}}},
	"drops a message after a panic": {"a method panics, batches of 1", alone(func(_ *process, err error) bool { return true })},
	"applies twice without the inbox": {
		everything, transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			again := slices.Clone(ms)
			for i := range again {
				again[i].Attributes = maps.Clone(ms[i].Attributes)
				again[i].Attributes["id"] = uuid.Must(uuid.NewV7()).String()
				again[i].Place += " again"
			}
			_, _ = p.Receive(ctx, again)
			return settle(ctx, p, ms, ack)
		}}},
	"loses a slot when a message fails": {"a method ends its goroutine, batches of 1", transport{
		settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			slots, _ := p.state.LoadOrStore("slots", make(chan struct{}, 4))
			select {
			case slots.(chan struct{}) <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			before := p.failures.Load()
			err := settle(ctx, p, ms[:1], ack)
			if p.failures.Load() == before {
				<-slots.(chan struct{})
			}
			return err
		},
	}},
	"does not try parked messages again": {"a method fails, batches of 100", transport{blind: true}},
	"gives up at the first failure": {"a method swallows an SQL error, batches of 1",
		transport{change: func(cfg *receive.Config) { cfg.MaxAttempts = 1 }}},
	"gives up late": {"a method sends COMMIT, batches of 1",
		transport{change: func(cfg *receive.Config) { cfg.MaxAttempts = 1_000_000 }}},
	"has no EffectTimeout": {"a method hangs, batches of 1", transport{change: func(cfg *receive.Config) {
		cfg.EffectTimeout, cfg.ShutdownTimeout = time.Hour, time.Second
	}}},
	"returns the end of its context": {processes, transport{after: func(err error) error {
		if err == nil {
			return context.Canceled
		}
		return err
	}}},
	"keeps a connection": {everything, transport{before: func(p *process) {
		if conn, err := p.pool.Acquire(context.Background()); err == nil {
			time.AfterFunc(2*patience, conn.Release) // so that the test ends
		}
	}}},
	"ends when a connection is lost": {"a method kills its session, batches of 1", transport{change: func(cfg *receive.Config) {
		var lost atomic.Bool
		observer := *cfg.Observer
		waiting := observer.Waiting
		observer.Waiting = func(err error) {
			if waiting != nil {
				waiting(err)
			}
			lost.Store(true)
		}
		cfg.Observer = &observer
		cfg.Begin = func(context.Context, pgx.Tx) error {
			if lost.Load() {
				return receive.Stop(errors.New("the connection was lost"))
			}
			return nil
		}
	}}},
	"takes all of a shard that it loses for settled": {
		"a rebalance", transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
			again := 0
			err := settle(ctx, p, ms, func(n int) { again = n })
			if ctx.Err() != nil {
				again = len(ms)
			}
			ack(again)
			return err
		}}},
	"hides what its methods have failed with": {
		"a method breaks a deferred constraint, batches of 1", alone(func(p *process, _ error) bool {
			_, err := p.pool.Exec(context.Background(), `UPDATE outbox.inbox_messages SET error = 'it has failed'`)
			return err != nil
		})},
}

// alone settles one message at a time, and drops one that fails if drops says so.
func alone(drops func(p *process, err error) bool) transport {
	return transport{settle: func(ctx context.Context, p *process, ms []receive.Message, ack func(int)) error {
		before := p.failures.Load()
		outcomes, err := p.Receive(ctx, ms[:1])
		if err != nil {
			return err
		}
		if p.failures.Load() > before && drops(p, err) {
			_, err = p.pool.Exec(ctx, "DELETE FROM outbox.inbox_messages WHERE message_id = $1", ms[0].Attributes["id"])
			outcomes[0] = receive.Ignored
		}
		ack(len(outcomes))
		return err
	}}
}

// TestSuiteNoticesMutants: a transport with one fault does not pass.
func TestSuiteNoticesMutants(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.noticed != everything && m.noticed != unsettled {
				pgtest.Slow(t)
			}
			require.Contains(t, consumetest.Names(), m.noticed)
			h := harness(m.transport)
			h.Patience = patience
			says := run(t, m.noticed, h)
			require.NotEmpty(t, says, "the check %q does not notice the fault", m.noticed)
			t.Log(says)
		})
	}
}

// recordingTB is a testing.TB that records a failure instead of reporting it.
type recordingTB struct {
	testing.TB
	text string // of the first failure
}

func (v *recordingTB) Helper() {}
func (v *recordingTB) Errorf(format string, args ...any) {
	if v.text == "" {
		v.text = fmt.Sprintf(format, args...)
	}
}
func (v *recordingTB) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}
func (v *recordingTB) FailNow() { runtime.Goexit() }

// run runs a check and returns the text of its first failure.
func run(t *testing.T, check string, h consumetest.Harness) string {
	v := &recordingTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		consumetest.RunOne(v, check, h)
	}()
	<-done
	return v.text
}
