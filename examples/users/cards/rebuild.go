package cards

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// errRebuilt ends a generation, because Rebuild was called.
var errRebuilt = errors.New("the projection is rebuilt")

// Rebuild empties the projection, so that it is built again from the first event that Kafka still has. In one transaction it
// deletes the cards and all records of the inbox, and begins a new generation. The generation is part of the name of the
// consumer group in Kafka, and a new group reads from the start, so there are no offsets to reset. Running projections
// notice the new generation and switch to it.
func (p *Projection) Rebuild(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		// First, because this waits for the running effects, and prevents new ones.
		if _, err := tx.Exec(ctx, "UPDATE cards.generation SET number = number + 1"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "TRUNCATE cards.cards"); err != nil {
			return err
		}
		return p.inbox.Reset(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("rebuild cards: %w", err)
	}
	return nil
}

// Group returns the name of the consumer group in Kafka for the current generation.
func (p *Projection) Group(ctx context.Context) (string, error) {
	generation, err := p.generation(ctx)
	return groupOf(generation), err
}

func groupOf(generation int64) string { return group + "." + strconv.FormatInt(generation, 10) }

func (p *Projection) generation(ctx context.Context) (number int64, err error) {
	if err := p.pool.QueryRow(ctx, "SELECT number FROM cards.generation").Scan(&number); err != nil {
		return 0, fmt.Errorf("read generation: %w", err)
	}
	return number, nil
}
