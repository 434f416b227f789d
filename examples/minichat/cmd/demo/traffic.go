package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

const (
	budget  = 1_000_000_000
	reserve = 2_000
)

// traffic has the producers. Each starts and finalises turns, one after another.
type traffic struct {
	pool    *pgxpool.Pool
	service *chat.Service
	journal *journal
	tenants []uuid.UUID
	turns   int64

	next       atomic.Int64 // number of the latest turn, from 1
	committed  atomic.Int64
	rolledBack atomic.Int64
	duplicates atomic.Int64
}

// newTraffic prepares the producers and opens an account for each tenant.
func newTraffic(ctx context.Context, pool *pgxpool.Pool, dir string, turns int) (*traffic, error) {
	t := &traffic{pool: pool, service: chat.NewService(pool), turns: int64(turns)}
	for range producers {
		tenant := uuid.New()
		if err := t.service.SetBudget(ctx, tenant, budget); err != nil {
			return nil, err
		}
		t.tenants = append(t.tenants, tenant)
	}
	var err error
	t.journal, err = openJournal(filepath.Join(dir, "attempt"+journalSuffix))
	return t, err
}

// run runs all producers until every turn is over or one of them fails. Meanwhile it calls halfway in another goroutine.
func (t *traffic) run(ctx context.Context, halfway func() error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var busy sync.WaitGroup
	for range producers {
		busy.Go(func() {
			for n := t.next.Add(1); n <= t.turns && ctx.Err() == nil; n = t.next.Add(1) {
				if n == t.turns*2/5 {
					busy.Go(func() { stopOn(stop, halfway()) })
				}
				stopOn(stop, t.turn(ctx, n))
			}
		})
	}
	busy.Wait()
	return errors.Join(context.Cause(ctx), t.journal.close())
}

func stopOn(stop context.CancelCauseFunc, err error) {
	if err != nil {
		stop(err)
	}
}

// turn plays the turn with number n. The number decides what happens.
func (t *traffic) turn(ctx context.Context, n int64) error {
	start := chat.StartRequest{
		TenantID: t.tenants[n%int64(len(t.tenants))], ChatID: uuid.New(), RequestID: uuid.New(),
		Model: "small-1", ReserveTokens: reserve,
	}
	if n%50 == 7 {
		start.ReserveTokens = budget + 1
	}
	id, err := t.service.Start(ctx, start)
	if errors.Is(err, chat.ErrQuotaExceeded) {
		return t.journal.add(attempt{Turn: id, Fate: refused})
	}
	if err != nil {
		return err
	}

	end := ending(start.TenantID, id, n)
	switch n % 50 {
	case 13: // the settlement fails
		overspent := end
		overspent.Usage.OutputTokens = budget + 1
		return t.finalize(ctx, overspent)
	case 19, 43: // the caller rolls back
		return t.rollBack(ctx, end)
	case 3, 31: // the caller rolls back, and then tries again
		return errors.Join(t.rollBack(ctx, end), t.finalize(ctx, end))
	case 5, 25, 45: // the request is sent twice
		return errors.Join(t.finalize(ctx, end), t.finalize(ctx, end))
	case 11, 37: // the answer ends as the client hangs up
		return t.race(ctx, end)
	}
	return t.finalize(ctx, end)
}

// ending returns how the turn with number n ends, and how handlers treat its event.
func ending(tenant uuid.UUID, id events.TurnID, n int64) chat.FinalizeRequest {
	end := chat.FinalizeRequest{
		TenantID: tenant, TurnID: id, Outcome: events.OutcomeCompleted, Tags: []string{"demo"},
		Usage: events.Usage{InputTokens: 100 + n%400, OutputTokens: 50 + n%900},
	}
	switch n % 10 {
	case 2:
		end.Outcome, end.Note = events.OutcomeAborted, "client hung up"
	case 9:
		end.Outcome, end.Usage.OutputTokens = events.OutcomeFailed, 0
	}
	switch n % 100 {
	case 1:
		end.Tags = append(end.Tags, tagPermanent)
	case 51:
		end.Tags = append(end.Tags, tagFails)
	case 4, 24, 44, 64, 84:
		end.Tags = append(end.Tags, tagFlaky)
	case 8, 28, 48:
		end.Tags = append(end.Tags, tagSlow)
	}
	if n%1000 == 66 {
		end.Tags = append(end.Tags, tagVerySlow)
	}
	return end
}

// finalize ends a turn and records the result.
func (t *traffic) finalize(ctx context.Context, end chat.FinalizeRequest) error {
	f, err := t.service.Finalize(ctx, end)
	switch {
	case errors.Is(err, chat.ErrQuotaExceeded):
		t.rolledBack.Add(1)
		return t.journal.add(attempt{Turn: end.TurnID, Fate: rolledBack})
	case err != nil:
		return err
	case f.Duplicate:
		t.duplicates.Add(1)
		return t.journal.add(attempt{Turn: end.TurnID, Event: known(f.EventID), Fate: duplicate})
	}
	t.committed.Add(1)
	return t.journal.add(attempt{Turn: end.TurnID, Event: known(f.EventID), Fate: committed})
}

// race lets two parties end a turn concurrently.
func (t *traffic) race(ctx context.Context, end chat.FinalizeRequest) error {
	abort := end
	abort.Outcome, abort.Note = events.OutcomeAborted, "client hung up"
	var both sync.WaitGroup
	var endErr, abortErr error
	both.Go(func() { endErr = t.finalize(ctx, end) })
	both.Go(func() { abortErr = t.finalize(ctx, abort) })
	both.Wait()
	return errors.Join(endErr, abortErr)
}

// rollBack ends a turn in a transaction, and rolls the transaction back with the event in it.
func (t *traffic) rollBack(ctx context.Context, end chat.FinalizeRequest) error {
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	f, err := t.service.FinalizeTx(ctx, tx, end)
	if err := errors.Join(err, tx.Rollback(ctx)); err != nil {
		return fmt.Errorf("finalise and roll back: %w", err)
	}
	t.rolledBack.Add(1)
	return t.journal.add(attempt{Turn: end.TurnID, Event: known(f.EventID), Fate: rolledBack})
}

func known(event uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: event, Valid: true} }
