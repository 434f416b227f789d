package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/outbox"
)

// limited is a name of a topic that has limits.
type limited struct {
	name   string
	of     *Handler
	shape  turn.Shape
	decode *decode.Decoder
}

// limitedTopics returns the names of the topics that have limits.
func (d *Dispatcher) limitedTopics() (all []limited) {
	for _, name := range d.topics {
		h := d.handlers[name]
		if len(h.limits) == 0 {
			continue
		}
		all = append(all, limited{
			name: name, of: &h, shape: h.shape(name),
			decode: config.LooseOpener(h.of),
		})
	}
	return all
}

// shape returns the shape of the turns of h's topic under one of its names.
func (h *Handler) shape(name string) turn.Shape {
	pers := make([]string, len(h.limits))
	for i, l := range h.limits {
		pers[i] = l.Per
	}
	return turn.ShapeOf(name, h.fairness != "", pers)
}

// declaration is what d declares for topics.
func (d *Dispatcher) declaration(topics []string) queries.LimitDeclareParams {
	p := queries.LimitDeclareParams{Namespace: d.store.namespace, Topics: topics}
	for _, t := range d.limited {
		if !slices.Contains(topics, t.name) {
			continue
		}
		nth := int32(0)
		add := func(l outbox.Limit) {
			nth++
			p.Limited, p.Pers = append(p.Limited, t.name), append(p.Pers, l.Per)
			p.CountedAs, p.Nths = append(p.CountedAs, t.of.topic), append(p.Nths, nth)
			p.Tags, p.Parts = append(p.Tags, t.shape.Tag()), append(p.Parts, int32(t.shape.Part(l.Per)))
			p.Concurrencies, p.Rates = append(p.Concurrencies, int32(l.Concurrency)), append(p.Rates, int32(l.Rate.Events))
			p.PeriodsUs = append(p.PeriodsUs, l.Rate.Period.Microseconds())
		}
		for _, l := range t.of.limits {
			if l.Per != "" {
				add(l)
			}
		}
		for _, l := range t.of.limits { // the widest comes last
			if l.Per == "" {
				add(l)
			}
		}
	}
	return p
}

// declareLimits writes the limits of topics, also that some have none. A limit that is new holds for leases that begin from
// now on.
func (d *Dispatcher) declareLimits(ctx context.Context, topics []string) error {
	lock := bell.Of(d.store.db, d.store.namespace+" limits").Key
	return d.store.guarded(ctx, "declare limits", func(q *queries.Queries) error {
		if err := q.LimitLock(ctx, lock); err != nil {
			return err
		}
		return q.LimitDeclare(ctx, d.declaration(topics))
	})
}

// takeOver declares the limits of those topics again for which d is the newest start of those that run, if a process that
// has ended has declared others since.
func (d *Dispatcher) takeOver(ctx context.Context) error {
	p := d.declaration(d.topics)
	var topics []string
	if err := d.store.guarded(ctx, "compare limits", func(q *queries.Queries) (err error) {
		topics, err = q.LimitLeftBehind(ctx, queries.LimitLeftBehindParams{
			WorkerID: pgvalue.UUID(d.store.worker), Namespace: p.Namespace, Alive: pgvalue.Interval(heartbeat.AliveFor),
			Limited: p.Limited, Pers: p.Pers, CountedAs: p.CountedAs, Nths: p.Nths, Tags: p.Tags, Parts: p.Parts,
			Concurrencies: p.Concurrencies, Rates: p.Rates, PeriodsUs: p.PeriodsUs, Topics: p.Topics,
		})
		return err
	}); err != nil {
		d.log.Debug("cannot compare limits with those of others that run", "error", err) // it needs a privilege for processes
		return nil
	}
	if len(topics) == 0 {
		return nil
	}
	d.log.Info("the limits of this process hold: others that had started later have ended", "topics", topics)
	return d.declareLimits(ctx, topics)
}

// overtaken takes over once if d has no limits, which does nothing later: before d was listed, one that had started earlier
// may have taken over from it.
func (d *Dispatcher) overtaken(ctx context.Context) {
	if len(d.limited) == 0 {
		_ = d.takeOver(ctx) // the next start does the same
	}
}

// filePiece is how many events get another turn in one transaction, of each kind of misfiled ones.
const filePiece = 200

// file gives events of t that have no turn, or one for other limits, the one that they need, unless a process that started
// later has declared other limits. Those that are inFlight here keep theirs. more reports whether there may be others.
func (d *Dispatcher) file(ctx context.Context, t *limited, inFlight []uuid.UUID) (more bool, err error) {
	err = d.store.guarded(ctx, "file events", func(q *queries.Queries) error {
		current, err := q.LimitIsCurrent(ctx, queries.LimitIsCurrentParams{
			Namespace: d.store.namespace, Topic: t.name, Tag: t.shape.Tag(),
		})
		if err != nil || !current {
			return err
		}
		rows, err := q.LimitMisfiled(ctx, queries.LimitMisfiledParams{
			Namespace: d.store.namespace, Topic: t.name, Lane: topiclane.Of(t.name), TurnLane: topiclane.OfTurns(t.name),
			Tag: t.shape.Tag(), BatchSize: filePiece, MaxAttempts: pgvalue.Limit(d.cfg.MaxAttempts),
			InFlight: pgvalue.UUIDs(inFlight),
		})
		if err != nil || len(rows) == 0 {
			return err
		}
		more = len(rows) >= filePiece
		p := queries.LimitFileParams{TurnLane: topiclane.OfTurns(t.name)}
		for _, r := range rows {
			p.Ids = append(p.Ids, r.ID)
			p.Turns = append(p.Turns, t.shape.Of(uuidText(r.TenantID), t.keysOf(ctx, sealing.Event{
				ID: r.ID.Bytes, Tenant: uuid.NullUUID{UUID: r.TenantID.Bytes, Valid: r.TenantID.Valid},
			}, int(r.Version), r.Payload)))
		}
		return q.LimitFile(ctx, p)
	})
	return more, err
}

func uuidText(id pgtype.UUID) string {
	if !id.Valid {
		return ""
	}
	return id.String()
}

// unknownKey is the key of events whose payload does not say one: handlers do not get such an event either.
const unknownKey = "?"

// keysOf returns the keys of an event for the limits that need one.
func (t *limited) keysOf(
	ctx context.Context, e sealing.Event, version int, payload json.RawMessage,
) (keys []string) {
	want := 0
	for _, l := range t.of.limits {
		if turn.Keyed(l.Per) {
			want++
		}
	}
	if crashed := usercode.Recover("", func() error {
		p, err := t.decode.Derive(ctx, e, version, payload)
		if err != nil || t.of.of.Spec().Keys == nil {
			return err
		}
		for _, key := range t.of.of.Spec().Keys(p).Limits {
			keys = append(keys, key.String())
		}
		return nil
	}); crashed != nil {
		keys = nil
	}
	for len(keys) < want {
		keys = append(keys, unknownKey)
	}
	return keys[:want]
}

// fileAll files what is misfiled of all topics, except what is inFlight.
func (d *Dispatcher) fileAll(ctx context.Context, inFlight []uuid.UUID) error {
	for i := range d.limited {
		for more := true; more; {
			var err error
			if more, err = d.file(ctx, &d.limited[i], inFlight); err != nil {
				return fmt.Errorf("topic %s: %w", d.limited[i].name, err)
			}
		}
	}
	return nil
}

// keepLimits takes over from processes that have ended, files what is misfiled, and forgets keys that are not used, until ctx
// ends.
func (d *Dispatcher) keepLimits(ctx context.Context, inFlight func() []uuid.UUID) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var at queries.LimitPruneRow
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		err := d.takeOver(ctx)
		if err == nil {
			err = d.fileAll(ctx, inFlight())
		}
		if err == nil {
			at, err = d.pruneUsage(ctx, at)
		}
		if ctx.Err() == nil {
			d.rep.Statement("keep limits", began, err)
		}
		timer.Reset(backoff.Around(d.cfg.PollInterval))
	}
}

// usagePiece is how many keys are looked at in one poll.
const usagePiece = 1000

// pruneUsage deletes keys of which nothing is used, among those after the last ones.
func (d *Dispatcher) pruneUsage(ctx context.Context, after queries.LimitPruneRow) (last queries.LimitPruneRow, err error) {
	err = d.store.guarded(ctx, "prune limits", func(q *queries.Queries) (err error) {
		last, err = q.LimitPrune(ctx, queries.LimitPruneParams{
			Namespace: d.store.namespace, AfterTopic: after.Topic, AfterPer: after.Per, AfterKey: after.Key,
			BatchSize: usagePiece,
		})
		return err
	})
	return last, err
}
