package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

const rolePrefix = "bench_"

// session returns a pool of sessions with a role of `outboxgen migrate get --roles`, after its SQL with or without row level
// security was run.
func (db *database) session(ctx context.Context, role string, secured bool, tenant uuid.UUID, conns int32) (*pgxpool.Pool, error) {
	o := migrate.RoleOptions{Prefix: rolePrefix}
	if secured {
		o.ByTenant, o.Namespaces = true, []string{"bench"}
	}
	text, err := migrate.RolesSQL("outbox", o)
	if err != nil {
		return nil, err
	}
	grants := fmt.Sprintf("%s GRANT SELECT, UPDATE ON account TO %s%s", text, rolePrefix, role)
	if _, err := db.pool.Exec(ctx, grants, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(db.url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = conns
	cfg.ConnConfig.RuntimeParams["role"] = rolePrefix + role
	cfg.ConnConfig.RuntimeParams["outboxgen.tenant_id"] = tenant.String()
	return pgxpool.NewWithConfig(ctx, cfg)
}

// rowSecurity compares roles without policies, roles whose policy shows all rows, and roles that see a part of the rows.
func rowSecurity(producers, each, n int) []workload {
	enqueue := func(role string, secured bool) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			tenant := uuid.New()
			pool, err := db.session(ctx, role, secured, tenant, int32(producers))
			if err != nil {
				return 0, err
			}
			defer pool.Close()
			took, err := produce(ctx, producers, each, func(ctx context.Context, account, seq int) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, change, account); err != nil {
						return err
					}
					body, err := json.Marshal(order(seq))
					if err != nil {
						return err
					}
					_, err = outbox.Enqueue(ctx, tx, "", outbox.Message{
						Namespace: "bench", Topic: "order_paid", TenantID: outbox.Tenant(tenant),
						DedupeKey: fmt.Sprint(tenant, "/", seq), Payload: body,
					})
					return err
				})
			})
			if err != nil {
				return 0, err
			}
			return float64(producers*each) / took.Seconds(), db.count(ctx, producers*each, "events", enqueued)
		}
	}
	drained := func(role string, secured bool) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			if err := fillPaid(ctx, db, n); err != nil {
				return 0, err
			}
			pool, err := db.session(ctx, role, secured, uuid.Nil, 16)
			if err != nil {
				return 0, err
			}
			defer pool.Close()
			t := newTally(n)
			d, err := events.NewBenchDispatcher(pool, &events.BenchHandler{Work: func(_ context.Context, seq int64) { t.add(seq) }},
				queue.Config{PruneInterval: -1, Logger: quiet})
			if err != nil {
				return 0, err
			}
			took, err := runDispatcher(ctx, t, d.Run)
			if err != nil {
				return 0, err
			}
			return float64(n) / took.Seconds(), db.count(ctx, n, "delivered", delivered)
		}
	}
	const none, others = "no row level security", "a role that sees all rows"
	const tenant, namespace = "a role that sees its tenant", "a role that sees its namespace"
	return []workload{
		{
			name: "row-security-enqueue", title: fmt.Sprintf("business transaction with row level security, %d producers", producers), unit: "transactions/s",
			about: "One row changed and one event of a tenant enqueued in a transaction.",
			contenders: []contender{
				{none, enqueue("producer", false)}, {others, enqueue("producer", true)}, {tenant, enqueue("tenant_producer", true)},
			},
			targets: []target{{of: others, to: none, atLeast: 0.95}, {of: tenant, to: none, atLeast: 0.9}},
		},
		{
			name: "row-security-drain", title: fmt.Sprintf("drain of %d with row level security", n), unit: "events/s",
			about: "A dispatcher with the default configuration.",
			contenders: []contender{
				{none, drained("dispatcher", false)}, {others, drained("dispatcher", true)}, {namespace, drained("dispatcher_of_bench", true)},
			},
			targets: []target{{of: others, to: none, atLeast: 0.95}, {of: namespace, to: none, atLeast: 0.9}},
		},
	}
}
