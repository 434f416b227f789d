package driver

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// brokerKinds are what brokers and web servers do.
func brokerKinds() []fault {
	of := func(kind string, share int, cause func(context.Context, *driver, *rand.Rand) error) fault {
		return fault{kind, laneOutside, share, "", cause}
	}
	refused := func(f kfake.Fault) func(context.Context, *driver, *rand.Rand) error {
		return func(_ context.Context, d *driver, _ *rand.Rand) error {
			d.kafka.fault(f)
			return nil
		}
	}
	hook := func(way string, status int) func(context.Context, *driver, *rand.Rand) error {
		return func(ctx context.Context, d *driver, r *rand.Rand) error {
			d.gate.set(way, status)
			defer d.gate.set(passes, 0)
			return pause(ctx, upTo(r, 3*time.Second))
		}
	}
	return []fault{
		of("Kafka down and back", 0, func(ctx context.Context, d *driver, r *rand.Rand) error {
			d.kafka.stop()
			return errors.Join(pause(ctx, upTo(r, 3*time.Second)), d.kafka.start())
		}),
		of("cut between Kafka and its clients", 0, func(_ context.Context, d *driver, _ *rand.Rand) error {
			d.kafka.cut()
			return nil
		}),
		of("Kafka refuses records", 0, refused(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: 5})),
		of("Kafka has records and says it has not", 0, refused(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 3})),
		of("Kafka forgets a member", 0, refused(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, Count: 2})),
		of("Kafka refuses offsets", 0, refused(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.NotCoordinator, Count: 5})),
		of("NATS down and back", 0, func(ctx context.Context, d *driver, r *rand.Rand) error {
			d.nats.stop()
			return errors.Join(pause(ctx, upTo(r, 3*time.Second)), d.nats.start())
		}),
		of("webhook answers 500", 0, hook(answers, http.StatusInternalServerError)),
		of("webhook answers 503", 0, hook(answers, http.StatusServiceUnavailable)),
		of("webhook answers 429", 0, hook(answers, http.StatusTooManyRequests)),
		of("webhook does not answer", 0, hook(hangs, 0)),
		of("answers of a webhook are lost", 0, hook(loses, 0)),
	}
}

// operatorKinds are what operators do, by the same package as the command.
func operatorKinds() []fault {
	act := admin.Act{Who: "operator", Why: "campaign"}
	of := func(kind string, cause func(ctx context.Context, d *driver, r *rand.Rand) error) fault {
		return fault{kind, laneOutside, 0, "", func(ctx context.Context, d *driver, r *rand.Rand) error {
			return cause(ctx, d, r)
		}}
	}
	paused := func(scope func(*rand.Rand) admin.Scope) func(context.Context, *driver, *rand.Rand) error {
		return func(ctx context.Context, d *driver, r *rand.Rand) error {
			s := scope(r)
			err := persist(ctx, func(ctx context.Context) error { return d.operator.Pause(ctx, s, act) })
			if err == nil {
				err = pause(ctx, upTo(r, 3*time.Second))
			}
			return errors.Join(err, undo(ctx, func(ctx context.Context) error {
				_, err := d.operator.Resume(ctx, s, act)
				return err
			}))
		}
	}
	return []fault{
		of("pause and resume a topic", paused(func(r *rand.Rand) admin.Scope {
			return admin.Scope{Namespace: shop.Namespace, Topic: []string{shop.OrderPlaced, shop.ReminderDue}[r.IntN(2)]}
		})),
		of("pause and resume a tenant", paused(func(r *rand.Rand) admin.Scope {
			return admin.Scope{TenantID: uuid.NullUUID{UUID: shop.Tenant(r.IntN(items)), Valid: true}}
		})),
		of("pause and resume a listener", paused(func(r *rand.Rand) admin.Scope {
			return admin.Scope{Listener: []string{"ledger", "screen", "to_kafka", "to_nats", "to_webhook"}[r.IntN(5)]}
		})),
		of("replay of dead letters", func(ctx context.Context, d *driver, _ *rand.Rand) error {
			return persist(ctx, func(ctx context.Context) error {
				_, err := d.operator.Replay(ctx, admin.Filter{Namespace: shop.Namespace}, act)
				return err
			})
		}),
		// The transactional listener is not rewound, which would have its effects happen again.
		of("rewind of a listener", func(ctx context.Context, d *driver, r *rand.Rand) error {
			name, to := []string{"screen", "to_kafka", "to_nats", "to_webhook"}[r.IntN(4)], time.Now().Add(-upTo(r, 10*time.Second))
			return persist(ctx, func(ctx context.Context) error {
				if name == "screen" {
					began := time.Now()
					defer func() {
						_ = d.journal.Add(check.Line{Kind: check.Moved, Handler: name, For: time.Since(began).Microseconds()})
					}()
				}
				_, err := d.operator.As(act.Who, act.Why).Rewind(ctx, name, to)
				return err
			})
		}),
		of("prune", func(ctx context.Context, d *driver, r *rand.Rand) error {
			kept := outbox.Retention{Delivered: upTo(r, 20*time.Second), Dead: time.Hour}
			return persist(ctx, func(ctx context.Context) error {
				_, err := d.operator.Prune(ctx, map[string]outbox.Retention{
					"shop/" + shop.OrderPlaced: kept, "shop/" + shop.ReminderDue: kept, "shop/" + shop.StockMoved: kept,
					"shop/" + shop.ParcelSent: kept, "shop/" + shop.InvoiceSent: kept,
				})
				return err
			})
		}),
		of("limits set and reset", func(ctx context.Context, d *driver, r *rand.Rand) error {
			i := r.IntN(2)
			s := admin.LimitScope{Namespace: shop.Namespace, Topic: shop.ReminderDue, Per: []string{"", "tenant"}[i]}
			of, n := declared[i], 1+r.IntN(3)
			err := persist(ctx, func(ctx context.Context) error {
				_, err := d.operator.SetLimit(ctx, s, admin.LimitValue{Concurrency: n, Rate: rate(of)}, act)
				return err
			})
			if err == nil {
				d.limits.set(i, n)
				err = pause(ctx, upTo(r, 3*time.Second))
			}
			d.limits.set(i, of.AtOnce[0].N)
			return errors.Join(err, undo(ctx, func(ctx context.Context) error {
				_, err := d.operator.ResetLimit(ctx, s, false, act)
				return err
			}))
		}),
		of("migrate up", func(ctx context.Context, d *driver, _ *rand.Rand) error {
			return persist(ctx, func(ctx context.Context) error {
				_, err := migrate.Up(ctx, d.root, schema)
				return err
			})
		}),
		of("doctor", func(ctx context.Context, d *driver, _ *rand.Rand) error {
			return persist(ctx, func(ctx context.Context) error {
				_, err := d.operator.Doctor(ctx, admin.DoctorConfig{})
				return err
			})
		}),
	}
}
