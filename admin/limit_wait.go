package admin

import (
	"context"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/outbox"
)

// LimitWait is what waits at a limit of a queue topic: events that are due, and of which a key of the limit is used up.
type LimitWait struct {
	LimitScope
	// Waiting are the events. An event that waits at several limits of its topic counts at each. Only the first 10,000 due
	// events of a topic are looked at: More is set if there are others.
	Waiting Count `json:"waiting"`
	// Keys is how many keys of the limit have waiting events.
	Keys int `json:"keys"`
	// Longest is how long the first of them has been due.
	Longest time.Duration `json:"-"`
	turns   []string
}

// LimitWaits lists the limits at which events wait, by namespace, topic and per. What is paused does not wait at a
// limit. A key counts as used up for a moment longer than it is, because what runs ends, and the next one begins, all
// the time.
func (a *Admin) LimitWaits(ctx context.Context) ([]LimitWait, error) {
	var all []LimitWait
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) (err error) {
		all, err = limitWaits(ctx, q, maxLimitDue, false)
		return err
	})
	return all, a.db.Wrap("list what waits at limits", err)
}

// limitWaits looks at the first piece due events of each topic, and also returns their turns if withTurns is set.
func limitWaits(ctx context.Context, q *queries.Queries, piece int, withTurns bool) ([]LimitWait, error) {
	topics, err := q.LimitTopics(ctx)
	if err != nil || len(topics) == 0 {
		return nil, err
	}
	p := queries.LimitWaitsParams{Piece: int32(piece), WithTurns: withTurns}
	for _, t := range topics {
		p.Namespaces, p.Topics = append(p.Namespaces, t.Namespace), append(p.Topics, t.Topic)
		p.Lanes = append(p.Lanes, topiclane.OfTurns(t.Topic))
	}
	rows, err := q.LimitWaits(ctx, p)
	all := make([]LimitWait, len(rows))
	for i, r := range rows {
		all[i] = LimitWait{
			LimitScope: LimitScope{Namespace: r.Namespace, Topic: r.Topic, Per: r.Per},
			Waiting:    Count{N: r.Waiting, More: r.Cut},
			Keys:       int(r.Keys), Longest: microseconds(r.LongestUs), turns: r.Turns,
		}
	}
	return all, err
}

// EventLimit is a limit of the topic of an event, and how much of it is used of the event's key.
type EventLimit struct {
	LimitScope
	// Value is what is in force.
	Value LimitValue `json:"value"`
	// Key is that of the event. Unkeyed means that it has none yet, because an older process, SQL or other limits in the
	// YAML of its producer have written it: a running dispatcher gives it one within a poll, and it waits until then.
	Key     string `json:"key"`
	Unkeyed bool   `json:"unkeyed,omitempty"`
	// Running, Starts, Full and FreeAt are as in LimitUse.
	Running int64     `json:"running"`
	Starts  int64     `json:"starts"`
	Full    bool      `json:"full"`
	FreeAt  time.Time `json:"free_at,omitzero"`
}

func limitsOfEvent(ctx context.Context, q *queries.Queries, e *EventStatus) ([]EventLimit, error) {
	rows, err := q.LimitsOfEvent(ctx, pgvalue.UUID(e.ID))
	if err != nil {
		return nil, err
	}
	var limits []EventLimit
	for _, r := range rows {
		l := EventLimit{
			LimitScope: LimitScope{Namespace: e.Namespace, Topic: e.Topic, Per: r.Per},
			Value: LimitValue{
				int(r.Concurrency), outbox.Rate{Events: int(r.Rate), Period: microseconds(r.PeriodUs)},
			},
			Unkeyed: !r.Filed,
		}
		if r.Filed {
			l.Key, l.Running, l.Starts, l.FreeAt = turn.Key(r.Key), r.Running, r.Started, r.FreeAt.Time.UTC()
			l.Full = l.Value.full(l.Running, l.Starts)
		}
		limits = append(limits, l)
	}
	return limits, nil
}
