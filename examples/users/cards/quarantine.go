package cards

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
)

// ErrTooManyQuarantined says that so many messages are quarantined that something must be wrong with all of them.
var ErrTooManyQuarantined = errors.New("too many messages are quarantined")

// quarantine keeps a message that no retry can fix, in its original form, and lets the projection continue. It keeps the
// message once, however often it arrives.
func (p *Projection) quarantine(ctx context.Context, generation int64, r *kgo.Record, because error) error {
	names, values := make([][]byte, len(r.Headers)), make([][]byte, len(r.Headers))
	for i, h := range r.Headers {
		names[i], values[i] = []byte(h.Key), h.Value
	}
	return p.within(ctx, generation, func(tx pgx.Tx) error {
		var full bool
		err := tx.QueryRow(ctx, "SELECT count(*) >= $1 FROM cards.quarantined", p.cfg.MaxQuarantined).Scan(&full)
		if err != nil {
			return fmt.Errorf("count quarantined messages: %w", err)
		}
		if full {
			return fmt.Errorf("%w (%d): the next message: %w", ErrTooManyQuarantined, p.cfg.MaxQuarantined, because)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO cards.quarantined (kafka_topic, kafka_partition, kafka_offset, kafka_time, kafka_key,
				header_names, header_values, value, reason)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
			ON CONFLICT ON CONSTRAINT quarantined_place_key DO UPDATE SET reason = EXCLUDED.reason`,
			r.Topic, r.Partition, r.Offset, r.Timestamp, r.Key, names, values, r.Value, text(because))
		if err != nil {
			return fmt.Errorf("quarantine message: %w", err)
		}
		return nil
	})
}

// Retry consumes the quarantined messages again, in the order of their arrival. It returns how many succeeded and how many
// are left. Call it after an upgrade, or after a message was fixed. It may run concurrently with Run. A message that has
// become stale meanwhile changes nothing.
func (p *Projection) Retry(ctx context.Context) (through, left int, err error) {
	generation, err := p.generation(ctx)
	if err != nil {
		return 0, 0, err
	}
	rows, err := p.pool.Query(ctx, "SELECT id FROM cards.quarantined ORDER BY id")
	if err != nil {
		return 0, 0, fmt.Errorf("read quarantined messages: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, 0, fmt.Errorf("read quarantined messages: %w", err)
	}
	for n, id := range ids {
		outcome, err := p.retry(ctx, generation, id)
		switch {
		case err == nil:
			through++
			p.count(outcome)
		case !consume.IsPermanent(err):
			return through, left + len(ids) - n, err
		default:
			left++
			if _, err := p.pool.Exec(ctx, "UPDATE cards.quarantined SET reason = $2 WHERE id = $1", id, text(err)); err != nil {
				return through, left + len(ids) - n - 1, fmt.Errorf("record reason of quarantined message: %w", err)
			}
		}
	}
	return through, left, nil
}

// retry consumes a message and deletes it in one transaction. A message that another process has handled is a duplicate.
func (p *Projection) retry(ctx context.Context, generation, id int64) (outcome inbox.Outcome, err error) {
	err = p.within(ctx, generation, func(tx pgx.Tx) error {
		var names, values [][]byte
		var value []byte
		err := tx.QueryRow(ctx, `
			DELETE FROM cards.quarantined
			WHERE id = $1
			RETURNING header_names, header_values, value`, id).Scan(&names, &values, &value)
		if errors.Is(err, pgx.ErrNoRows) {
			outcome = inbox.Duplicate
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete quarantined message: %w", err)
		}
		headers := make([]kgo.RecordHeader, len(names))
		for i := range names {
			headers[i] = kgo.RecordHeader{Key: string(names[i]), Value: values[i]}
		}
		outcome, err = p.consumer.ConsumeTx(ctx, tx, consume.FromKafka(headers, value))
		return err
	})
	return outcome, err
}

// text returns the text of an error without bytes that PostgreSQL cannot store.
func text(err error) string {
	return strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "?"), "\x00", "?")
}
