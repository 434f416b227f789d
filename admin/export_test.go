package admin

import (
	"context"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// TopicsWithin is Topics with other bounds.
func (a *Admin) TopicsWithin(ctx context.Context, bytes, rows, exact int64, ids int32) ([]TopicStatus, error) {
	return a.topicsWithin(ctx, queueBounds{bytes: bytes, rows: rows, exact: exact, ids: ids, tail: defaultQueueBounds.tail})
}

// TopicsOfTail is Topics, and reads only the latest tail events for the rates of enqueues.
func (a *Admin) TopicsOfTail(ctx context.Context, tail int32) ([]TopicStatus, error) {
	bounds := defaultQueueBounds
	bounds.tail = tail
	return a.topicsWithin(ctx, bounds)
}

func (a *Admin) topicsWithin(ctx context.Context, bounds queueBounds) (topics []TopicStatus, err error) {
	err = a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		s, err := a.readShared(ctx, q)
		if err != nil {
			return err
		}
		topics, _, err = readTopics(ctx, q, s, bounds)
		return err
	})
	return topics, err
}

// LogTopicsOf is LogTopics, and looks only at the latest most events of the log.
func (a *Admin) LogTopicsOf(ctx context.Context, most int64) (topics []LogTopicStatus, err error) {
	err = a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		s, err := a.readShared(ctx, q)
		if err != nil {
			return err
		}
		topics, err = readLogTopics(ctx, q, s.alive, most)
		return err
	})
	return topics, err
}

// ForgetAuditTexts removes what names a scope from the audit, as a forget with the entry no does that has not said anything
// for long.
func (a *Admin) ForgetAuditTexts(ctx context.Context, scope ForgetScope, no int64) (int64, error) {
	f := &forgetting{Admin: a, scope: scope, no: no}
	return f.auditTexts(ctx, true)
}
