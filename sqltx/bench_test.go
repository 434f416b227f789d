package sqltx_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/sqltx"
)

type order struct {
	OrderID uuid.UUID `json:"order_id"`
	Cents   int64     `json:"cents"`
	Note    string    `json:"note"`
}

// BenchmarkEnqueue compares sqltx over pgx/stdlib with the same statement by hand. Both take turns, in transactions that are
// rolled back. The metric ratio is the median, over the turns, of the time by hand per time with sqltx.
func BenchmarkEnqueue(b *testing.B) {
	db, err := sql.Open("pgx", pgtest.URL(b, pgtest.Database(b)))
	require.NoError(b, err)
	b.Cleanup(func() { _ = db.Close() })
	schema, err := schemadb.Open("")
	require.NoError(b, err)
	ring := bell.Of(schema, "shop")
	topic := outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "order_paid"}).Untyped()
	one := func() order { return order{OrderID: uuid.New(), Cents: 1999, Note: `a note with "quotes" in it`} }
	event := func() (pgtype.UUID, json.RawMessage, error) {
		id, err := uuid.NewV7()
		if err != nil {
			return pgtype.UUID{}, nil, err
		}
		payload, err := json.Marshal(one())
		return pgtype.UUID{Bytes: id, Valid: true}, payload, err
	}
	compare := func(name string, hand, wrapped func(context.Context, *sql.Tx) error) {
		b.Run(name, func(b *testing.B) {
			var ratios []float64
			turn := func(enqueue func(context.Context, *sql.Tx) error) time.Duration {
				tx, err := db.BeginTx(b.Context(), nil)
				require.NoError(b, err)
				defer func() { _ = tx.Rollback() }()
				began := time.Now()
				for range 20 {
					require.NoError(b, enqueue(b.Context(), tx))
				}
				return time.Since(began)
			}
			for n := 0; b.Loop(); n++ {
				var a, c time.Duration
				if n%2 == 0 {
					a, c = turn(hand), turn(wrapped)
				} else {
					c, a = turn(wrapped), turn(hand)
				}
				ratios = append(ratios, float64(a)/float64(c))
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
		})
	}
	compare("one", func(ctx context.Context, tx *sql.Tx) error {
		id, payload, err := event()
		if err != nil {
			return err
		}
		var woke bool
		return tx.QueryRowContext(ctx, schema.Text(queries.EventInsertKeyless), id.String(), "shop", "order_paid", 1, nil, int64(topiclane.Of("order_paid")), 25, nil,
			ring.Key, ring.Channel, nil, nil, nil, nil, nil, string(payload)).Scan(&woke)
	}, func(ctx context.Context, tx *sql.Tx) error {
		p := one()
		_, err := topic.Enqueue(ctx, sqltx.Wrap(tx), &p)
		return err
	})
	const n = 100
	byHand := func(ctx context.Context, tx *sql.Tx) error {
		ids, payloads, attempts := make([]pgtype.UUID, n), make([]json.RawMessage, n), make([]int32, n)
		for i := range ids {
			var err error
			if ids[i], payloads[i], err = event(); err != nil {
				return err
			}
			attempts[i] = 25
		}
		var written int
		var known sql.NullString
		var woke bool
		return tx.QueryRowContext(ctx, schema.Text(queries.EventInsertManyKeyless), ids, ring.Key, ring.Channel, nil, nil, nil, nil, nil, nil, nil,
			payloads, attempts, nil, "shop", "order_paid", 1, int64(topiclane.Of("order_paid"))).Scan(&written, &known, &woke)
	}
	// What sqltx adds, and what EnqueueMany adds, which checks and encodes the events, through any driver.
	compare("many/statement", byHand, func(ctx context.Context, tx *sql.Tx) error {
		ids, payloads, attempts := make([]pgtype.UUID, n), make([]json.RawMessage, n), make([]int32, n)
		for i := range ids {
			var err error
			if ids[i], payloads[i], err = event(); err != nil {
				return err
			}
			attempts[i] = 25
		}
		var written int64
		var known []pgtype.UUID
		var woke bool
		var none []string
		return sqltx.Wrap(tx).QueryRow(ctx, schema.Text(queries.EventInsertManyKeyless), ids, ring.Key, ring.Channel, none, none, none, none, none, []int64(nil), none,
			payloads, attempts, []pgtype.Timestamptz(nil), "shop", "order_paid", int32(1), int64(topiclane.Of("order_paid"))).Scan(&written, &known, &woke)
	})
	compare("many/EnqueueMany", byHand, func(ctx context.Context, tx *sql.Tx) error {
		ps := make([]order, n)
		for i := range ps {
			ps[i] = one()
		}
		_, err := topic.EnqueueMany(ctx, sqltx.Wrap(tx), ps)
		return err
	})
}
