package cards

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// errRebuilt ends a generation: somebody has called Rebuild.
var errRebuilt = errors.New("the projection is rebuilt")

// Rebuild empties the projection, so that it is made again from the first event that Kafka still has. That is one
// transaction: it deletes the cards and all that the inbox has recorded, and begins a new generation. The generation is
// part of the name of the consumer group at Kafka, and a new group reads from the start, so that there are no offsets to
// reset, before or after. Projections that run notice and go over to the new generation.
func (p *Projection) Rebuild(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		// First, because it waits for the effects under way, and keeps others from beginning.
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

// Group returns the name that the consumer group has at Kafka in the present generation.
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

// within runs fn in a transaction of a generation, which Rebuild waits for; errRebuilt if that is over.
func (p *Projection) within(ctx context.Context, generation int64, fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		var now int64
		if err := tx.QueryRow(ctx, "SELECT number FROM cards.generation FOR SHARE").Scan(&now); err != nil {
			return fmt.Errorf("read generation: %w", err)
		}
		if now != generation {
			return errRebuilt
		}
		return fn(tx)
	})
}
