package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// history has everything that is known at the end of the demo: the records of producers and handlers, and the content of
// the tables.
type history struct {
	attempts   []attempt
	deliveries []delivery
	events     []event
	finalized  []events.TurnID // turns in a terminal state
	ledger     []uuid.UUID     // events with an entry
	kill       kill

	// Of the turns that were started. The slices of a tenant are in the order of the log and of the writes.
	started   []events.TurnID // that have a row
	logged    map[uuid.UUID][]uuid.UUID
	activity  map[uuid.UUID][]uuid.UUID
	shown     []shown
	analytics map[uuid.UUID][]uuid.UUID
	messages  int  // that the other service got
	died      bool // the other service, once
}

// event is a row of outbox.event_status.
type event struct {
	ID        uuid.UUID
	Turn      string // the id of its entity
	Status    string
	LastError string
}

func (d *demo) history(ctx context.Context) (history, error) {
	h := history{kill: d.killed}
	var err error
	if h.attempts, err = readJournals[attempt](d.dir, "attempt"); err != nil {
		return h, err
	}
	if h.deliveries, err = readJournals[delivery](d.dir, "delivery"); err != nil {
		return h, err
	}
	rows, _ := d.pool.Query(ctx, `
		SELECT id, entity_id, status, coalesce(last_error, '')
		FROM outbox.event_status
		WHERE namespace = $1 AND topic = $2`, events.TurnFinalizedTopic.Untyped().Spec().Namespace, events.TurnFinalizedTopic.Untyped().Spec().Name)
	if h.events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event]); err != nil {
		return h, fmt.Errorf("read events: %w", err)
	}
	rows, _ = d.pool.Query(ctx, "SELECT id FROM turns WHERE state IN ('completed', 'failed', 'aborted')")
	if h.finalized, err = pgx.CollectRows(rows, pgx.RowTo[events.TurnID]); err != nil {
		return h, fmt.Errorf("read turns: %w", err)
	}
	rows, _ = d.pool.Query(ctx, "SELECT event_id FROM usage_ledger")
	if h.ledger, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return h, fmt.Errorf("read ledger: %w", err)
	}
	return h, d.historyOfStarts(ctx, &h)
}

// historyOfStarts reads what is known of the turns that were started.
func (d *demo) historyOfStarts(ctx context.Context, h *history) (err error) {
	rows, _ := d.pool.Query(ctx, "SELECT id FROM turns WHERE state <> 'refused'")
	if h.started, err = pgx.CollectRows(rows, pgx.RowTo[events.TurnID]); err != nil {
		return fmt.Errorf("read turns: %w", err)
	}
	if h.shown, err = readJournals[shown](d.dir, "shown"); err != nil {
		return err
	}
	if h.logged, err = byTenant(ctx, d.pool, "SELECT tenant_id, id FROM outbox.log ORDER BY seq"); err != nil {
		return err
	}
	if h.activity, err = byTenant(ctx, d.pool, "SELECT tenant_id, event_id FROM activity ORDER BY no"); err != nil {
		return err
	}
	h.analytics, err = d.analytics.turns(ctx)
	h.messages, h.died = int(d.analytics.messages.Load()), d.analytics.died
	return err
}

// counts is the line of progress.
func (d *demo) counts(ctx context.Context) string {
	var delivered, dead, left int
	err := d.pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE status = 'delivered'),
		       count(*) FILTER (WHERE status = 'dead'),
		       count(*) FILTER (WHERE finalized_at IS NULL)
		FROM outbox.event_status`).Scan(&delivered, &dead, &left)
	if err != nil {
		return "" // the producers and workers report errors
	}
	return fmt.Sprintf("committed %4d  delivered %4d  dead %2d  waiting %3d  rolled back %3d  duplicates %3d  from Kafka %4d",
		d.traffic.committed.Load(), delivered, dead, left, d.traffic.rolledBack.Load(), d.traffic.duplicates.Load(), d.analytics.messages.Load())
}
