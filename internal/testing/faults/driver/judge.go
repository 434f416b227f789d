package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// topics say who must see the events of each topic.
var topics = map[string][]check.Handler{
	shop.OrderPlaced: {{Name: "orders", Leased: true, Counted: true}},
	shop.ReminderDue: {{Name: "reminders", Leased: true, Counted: true}},
	shop.StockMoved: {
		{Name: "screen", Ordered: true, Leased: true}, {Name: "ledger", Once: true, Ordered: true}, {Name: "kafka", Once: true, Ordered: true},
	},
	shop.ParcelSent:  {{Name: "screen", Ordered: true, Leased: true}, {Name: "nats", Once: true, Ordered: true}},
	shop.InvoiceSent: {{Name: "screen", Ordered: true, Leased: true}, {Name: "webhook", Once: true, Ordered: true}},
}

// ofQueue are the handlers of the topics that no listener reads.
var ofQueue = map[string]string{shop.OrderPlaced: "orders", shop.ReminderDue: "reminders"}

const (
	// still is how long nothing may change until it is taken for settled without being so.
	still = 2 * time.Minute
	// firstViolations is how many violations of each kind are told with their histories.
	firstViolations = 2
)

// judge has all that was written settle, and checks it.
func (d *driver) judge(ctx context.Context, rules check.Rules) (*Account, error) {
	d.say("the writers stop")
	if err := d.stopProcesses(shop.Writer); err != nil {
		return nil, err
	}
	// Those of the newest edition know the events of both.
	if d.edition.Swap(2) == 1 {
		for _, s := range d.slots[shop.Worker] {
			if err := s.end(15, stopPatience); err != nil {
				return nil, err
			}
		}
	}
	settled, killed := d.settle(ctx), d.slow.Load()
	for _, role := range []string{shop.Worker, shop.Consumer} {
		var words []string
		for _, s := range d.slots[role] {
			words = append(words, s.lastWords())
		}
		if settled != nil {
			settled = fmt.Errorf("%w\n%s", settled, strings.Join(words, "\n"))
		}
		if err := d.stopProcesses(role); err != nil {
			return nil, err
		}
	}
	if settled != nil && ctx.Err() != nil {
		return nil, settled
	}
	d.say("check")
	state, err := d.state(ctx)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(d.history)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if settled == nil && d.slow.Load() == killed {
		if state.Left, err = d.leftBehind(ctx); err != nil {
			return nil, err
		}
	}
	if state.Noted, err = d.notes(ctx); err != nil {
		return nil, err
	}
	rules.Topics, rules.Limits, rules.Lease = topics, d.limits.all(), shop.Lease
	found, err := check.Check(f, state, rules)
	if err != nil {
		return nil, err
	}
	a := &Account{Account: *found, Seed: d.Seed, Faults: d.done, Exits: d.exits, Failed: d.errs, Cannot: d.cannot, Unsettled: settled, Hanging: d.slow.Load()}
	if info, err := f.Stat(); err == nil {
		a.Bytes = info.Size()
	}
	told := make(map[string]int)
	for _, v := range found.Violations {
		if told[v.Kind]++; told[v.Kind] > firstViolations {
			continue
		}
		if _, err := f.Seek(0, 0); err != nil {
			return nil, err
		}
		lines, err := check.History(f, v.Event)
		if err != nil {
			return nil, err
		}
		a.Histories = append(a.Histories, v.String()+"\n  "+strings.Join(append(lines, d.row(ctx, v.Event)), "\n  "))
	}
	return a, nil
}

// row says what the outbox has of an event, for people.
func (d *driver) row(ctx context.Context, id check.ID) string {
	var text string
	err := d.root.QueryRow(ctx, `
		SELECT concat_ws('; ',
			(SELECT 'queue: ' || to_jsonb(q)::text FROM outbox.queue AS q WHERE id = $1),
			(SELECT 'delivered: ' || to_jsonb(d)::text FROM outbox.delivered AS d WHERE id = $1),
			(SELECT string_agg('dead: ' || (to_jsonb(x) - 'payload')::text, '; ') FROM outbox.dead_letters AS x WHERE id = $1),
			(SELECT 'log: ' || (to_jsonb(l) - 'payload')::text FROM outbox.log AS l WHERE id = $1),
			(SELECT string_agg('parked: ' || to_jsonb(p)::text, '; ') FROM outbox.parked AS p, outbox.log AS l WHERE l.id = $1 AND p.seq = l.seq))`,
		uuid.UUID(id)).Scan(&text)
	if err != nil {
		return "no row: " + err.Error()
	}
	return "rows: " + text
}

// settle waits until there is nothing left to do. As long as something happens it has all the time that it needs.
func (d *driver) settle(ctx context.Context) error {
	if err := d.exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1 AND application_name = 'writer'", application); err != nil {
		return err
	}
	before, since, said := "", time.Now(), time.Now()
	for {
		now, done, err := d.left(ctx)
		if err == nil && done {
			return nil
		}
		if err != nil {
			now = err.Error()
		}
		if now != before {
			before, since = now, time.Now()
		}
		if time.Since(said) > 10*time.Second {
			d.say("left: %s", now)
			said = time.Now()
		}
		if time.Since(since) > still {
			return errors.New("it does not settle: " + now)
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// left says what is left to do.
func (d *driver) left(ctx context.Context) (text string, none bool, err error) {
	var queue, parked int
	var stock, parcels, invoices int
	err = d.root.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM outbox.queue), (SELECT count(*) FROM outbox.parked),
			count(*) FILTER (WHERE topic = $1), count(*) FILTER (WHERE topic = $2), count(*) FILTER (WHERE topic = $3)
		FROM placed`, shop.StockMoved, shop.ParcelSent, shop.InvoiceSent).Scan(&queue, &parked, &stock, &parcels, &invoices)
	if err != nil {
		return "", false, err
	}
	var taken, kept int
	if err := d.other.QueryRow(ctx, "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM outbox.inbox_messages WHERE status = 'parked')").Scan(&taken, &kept); err != nil {
		return "", false, err
	}
	listeners, err := d.operator.Listeners(ctx)
	if err != nil {
		return "", false, err
	}
	lag := time.Duration(0)
	for _, l := range listeners {
		lag = max(lag, l.Lag)
	}
	text = fmt.Sprintf("%d in the queue, listeners %s behind, %d parked, %d effects of %d with consumers, where %d are parked", queue, lag.Round(time.Second), parked, taken, stock+parcels+invoices, kept)
	return text, queue == 0 && parked == 0 && lag == 0 && kept == 0 && taken >= stock+parcels+invoices, nil
}

// state reads what the tables have in the end.
func (d *driver) state(ctx context.Context) (s check.State, err error) {
	var id uuid.UUID
	var row check.Row
	var mood string
	if err := each(ctx, d.root, "SELECT event, topic, item, n, mood, coalesce(extract(epoch FROM not_before) * 1000000, 0)::bigint FROM placed",
		[]any{&id, &row.Topic, &row.Item, &row.N, &mood, &row.NotBefore}, func() {
			row.Event, row.Doomed, row.Tenant = check.ID(id), mood == shop.Doomed, shop.TenantOf(row.Item).String()
			s.Rows = append(s.Rows, row)
		}); err != nil {
		return s, err
	}
	var e check.Effect
	for _, pool := range []*pgxpool.Pool{d.root, d.other} {
		if err := each(ctx, pool, "SELECT handler, event, topic, item, n FROM effects ORDER BY no", []any{&e.Handler, &id, &e.Topic, &e.Item, &e.N}, func() {
			e.Event = check.ID(id)
			s.Effects = append(s.Effects, e)
		}); err != nil {
			return s, err
		}
	}
	var dead check.Dead
	var topic string
	if err := each(ctx, d.root, "SELECT coalesce(listener, ''), topic, id, error FROM outbox.dead_letters", []any{&dead.Handler, &topic, &id, &dead.Reason}, func() {
		dead.Event = check.ID(id)
		if dead.Handler == "" {
			dead.Handler = ofQueue[topic]
		}
		s.Dead = append(s.Dead, dead)
	}); err != nil {
		return s, err
	}
	err = each(ctx, d.other, "SELECT consumer_group, coalesce(event_id, gen_random_uuid()), error FROM outbox.inbox_messages WHERE status = 'dead'",
		[]any{&dead.Handler, &id, &dead.Reason}, func() {
			dead.Event = check.ID(id)
			s.Dead = append(s.Dead, dead)
		})
	return s, err
}

// leftBehind says what processes have left that have all stopped in order.
func (d *driver) leftBehind(ctx context.Context) (left []string, err error) {
	const inTime = 30 * time.Second // to notice that a connection was closed
	for until := time.Now().Add(inTime); ; {
		var sessions, leases int
		err := d.root.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM pg_stat_activity WHERE usename = $1),
				(SELECT count(*) FROM outbox.listeners WHERE running OR lease_by IS NOT NULL)`, application).Scan(&sessions, &leases)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read what is left: %w", err)
		case sessions > 0 && time.Now().Before(until):
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		if sessions > 0 {
			left = append(left, fmt.Sprintf("%d sessions", sessions))
		}
		if leases > 0 {
			left = append(left, fmt.Sprintf("leases of %d shards of listeners", leases))
		}
		return left, nil
	}
}

func each(ctx context.Context, pool *pgxpool.Pool, sql string, into []any, f func()) error {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	if _, err := pgx.ForEachRow(rows, into, func() error { f(); return nil }); err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	return nil
}
